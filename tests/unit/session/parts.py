"""The parts of one session, wired as a session wires them, but without a Session."""

from __future__ import annotations

from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import commands
from rlproxy.resp.requests import COMMAND
from rlproxy.session.call import Call, Lane
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.identity import Identity
from rlproxy.session.parts import SessionBase

from tests.contexts import hit_timeouts, worker_context
from tests.unit.session.bench import FIVE, GRAMMAR, KnowingLane


class Owner(SessionBase):
    """The parts. They record the replies to held hits."""

    __slots__ = ("got",)

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.got: list[bytes] = []

    def watch(self) -> None:
        """See SessionBase.watch()."""

    def resume(self) -> None:
        """See Caller.resume()."""

    def held_finished(self) -> None:
        assert self.lanes.head is not None
        self.got.append(self.lanes.head.reply)


class Parts:
    """The parts of one client, one lane for hits and one for ordinary commands.

    share: whether ordinary commands may take a lane (--share).
    allowed: whether the client's identity may use lanes.
    """

    def __init__(self, *, share: bool = False, waiting: WaitQueues | None = None) -> None:
        self.lane = KnowingLane()
        self.shared_lane = KnowingLane()
        self.allowed = True
        self.now = 0.0
        self.context = worker_context(
            grammar=GRAMMAR,
            server=ServerFacts("redis:1"),
            lane_of=self.lane_of,
            shares=share,
            waiting=waiting,
            timeouts=hit_timeouts(clock=self.time),
        )
        self.caller = self.parts = Owner(self.context)
        self.to_client = self.parts.to_client
        self.requests = self.parts.requests
        self.private = self.parts.private
        self.lanes = self.parts.lanes

    def time(self) -> float:
        return self.now

    def lane_of(self, _identity: Identity, kind: int, _protocol: int) -> Lane | None:
        lane = self.lane if kind == commands.HIT else self.shared_lane
        return lane if self.allowed else None

    def opened(self) -> None:
        """Open the private connection, at whose user Redis has answered a hit."""
        self.private.open(commands.PASS)
        self.private.log_in()
        self.private.state.probed = True

    def next(self, data: bytes) -> int:
        """Feed `data`, and frame the next request."""
        self.requests.feed(data)
        return self.requests.next()

    def call(self, data: bytes) -> Call:
        """Return the call of the RL command `data`."""
        assert self.next(data) == COMMAND
        call = self.requests.call(self.caller, self.context)
        assert call is not None
        return call

    def up(self) -> bytes:
        """Return the bytes for Redis on the private connection."""
        out = b"".join(self.private.to_redis)
        self.private.to_redis.clear()
        return out

    def down(self) -> bytes:
        """Return the bytes for the client."""
        out = b"".join(self.to_client)
        self.to_client.clear()
        return out

    def answer(self, *data: bytes) -> bytes:
        """Redis replies on the private connection. Returns the bytes for the client."""
        for each in data:
            self.private.slots.feed(each)
            self.private.slots.answer()
        return self.down()

    def settle(self, reply: bytes = FIVE) -> bytes:
        """The lane replies to all its calls. Returns the bytes for the client."""
        for call in self.lane.calls:
            call.reply = reply
        self.lane.calls.clear()
        self.lanes.emit()
        return self.down()
