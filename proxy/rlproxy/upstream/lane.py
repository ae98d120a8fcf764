"""Lanes: multiplexed connections that carry the requests of many clients of one identity.

    session ──submit()──┐                          ┌─── inflight, in order of sending ──┐
    session ──submit()──┼─> unsent ─(once a tick)─>┤ one write                          ├─> Redis
    session ──submit()──┘   (or when it is long)   └─── one read, frame by frame <──────┘

The order invariant: Redis answers in the order of the bytes, so the n-th frame that comes back
belongs to the n-th request in `inflight`.

This module has what all lanes have in common: their connection. `hit_lane` has those for hits, and
`command_lane` those for ordinary commands.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rlproxy.net.tls_stream import last_words
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.resp import commands as c
from rlproxy.resp import encoding
from rlproxy.resp.replies import PUSH, ReplyFramer
from rlproxy.session.call import Caller, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.backoff import Backoff
from rlproxy.upstream.call_times import CallTimes
from rlproxy.upstream.connector import Target, hello, lacks, reason
from rlproxy.upstream.query_connection import NoRoom, QueryConnection, error_in

# The kinds of lanes. Reads and writes use separate lanes: only reads may have large replies, only
# writes are paused, and a lost lane ends only the clients with writes on it.
_KINDS: Final = {c.HIT: "hits", c.SHARED_READ: "reads", c.SHARED_WRITE: "writes"}
RETRY_FIRST_S: Final = 0.05
MAX_RETRY_S: Final = 1.0

# Begin the errors of a server that may pass: a lane that they refuse is opened again.
PASSING: Final = (b"-LOADING", b"-BUSY", encoding.NO_ROOM)


class LaneKey(NamedTuple):
    """What distinguishes one lane from another.

    kind: commands.HIT, SHARED_READ or SHARED_WRITE.
    protocol: the RESP version of its replies, 2 or 3.
    """

    user: bytes | None
    password: bytes | None
    db: int
    kind: int
    protocol: int

    def carries(self) -> str:
        """Return the kind of the lane as a word for reports."""
        return _KINDS[self.kind]


class PooledLane(Lane):
    """A lane that a pool keeps by its key.

    refused: Redis does not accept the identity any more.
    """

    def __init__(self, key: LaneKey) -> None:
        super().__init__()
        self.key = key
        self.refused = False

    def idle(self, since: float) -> bool:
        """Return whether it is unused since loop time `since`, and owes no reply."""
        raise NotImplementedError

    def retire(self) -> None:
        """Close for good. Sessions get another lane from the pool."""
        self.retired = True


@dataclass
class LaneContext:
    """What the lanes to one server have in common.

    max_lane_hits: the largest number of unanswered calls on one lane.
    """

    loop: asyncio.AbstractEventLoop
    target: Target
    server: ServerFacts
    denial_cache: DenialCache
    timeouts: HitTimeouts
    max_lane_hits: int
    counters: Counters


class ServerLane(PooledLane):
    """The lane of one identity: a connection that is opened on demand, and again when lost.

    Its life, and what each step sets:

        closed ──wake()──> opening ──_connect()──> ready
        _task None         _task                   _transport, ready
          ^                   │ failed                │ _abort(): no _transport, not ready
          └─────_closed()─────┴──────────lost()───────┘
    """

    def __init__(self, context: LaneContext, key: LaneKey) -> None:
        super().__init__(key)
        self._context = context
        self.used_at: float = context.loop.time()
        self._scheduled = False  # whether the unsent requests are written in this tick
        self._retry_at: float = 0.0
        self._backoff = Backoff(RETRY_FIRST_S, MAX_RETRY_S)
        self._task: asyncio.Task[None] | None = None  # opens the connection, or did; None: closed
        self._transport: asyncio.Transport | None = None  # None but while the lane is ready
        self._replies = ReplyFramer()
        self._times = CallTimes(context.timeouts, context.denial_cache.clock)
        self.room = context.max_lane_hits

    # -- requests ---------------------------------------------------------------------------------

    def _schedule(self, unsent: int, most: int) -> None:
        """Write the `unsent` requests once there are `most`, else at the end of the tick."""
        if unsent >= most:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._context.loop.call_soon(self._tick_over)

    def _tick_over(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Write the unsent requests, as far as they may be sent now."""
        raise NotImplementedError

    def _write(self, transport: asyncio.Transport, out: list[bytes], calls: int) -> None:
        """Write the bytes of `calls` requests."""
        data = b"".join(out)
        transport.write(data)
        self._context.counters.upstream_out += len(data)
        self._context.counters.batches.add(calls)
        self._times.written(calls)

    def unanswered(self) -> int:
        """Return the number of requests without a reply, unsent ones included."""
        raise NotImplementedError

    def drained(self) -> bool:
        """Return whether all its calls by EVALSHA are answered."""
        return True

    def idle(self, since: float) -> bool:
        return self.used_at < since and self.unanswered() == 0

    # -- replies ----------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Process bytes from Redis: pushes, and the replies to requests."""
        context, framer, times = self._context, self._replies, self._times
        context.counters.upstream_in += len(data)
        framer.feed(data)
        answered = times.answered
        touched: list[Caller] = []
        self._answer(framer, touched)
        if framer.broken:
            self._abort()
        framer.release()
        now = context.loop.time()
        context.timeouts.circuit.replied(now)
        # Even if no caller may go on: its batch may have parts on other lanes.
        if times.answered > answered:
            self.used_at = now
        self.room = context.max_lane_hits - self.unanswered()
        took_s = times.received()
        if took_s >= 0.0:
            context.counters.round_trips.add(took_s)
        if not self._scheduled:
            self._flush()  # what may have waited for these replies
        resume_all(touched)

    def _answer(self, framer: ReplyFramer, touched: list[Caller]) -> None:
        """Pass on the complete replies, and add to `touched` the callers that may go on."""
        raise NotImplementedError

    def _frame(self, framer: ReplyFramer) -> bytes:
        """Return the next reply to a request, or nothing if none is complete."""
        while True:
            frame = framer.frame()
            if len(frame) == 0:
                return b""
            if frame[0] == PUSH:
                self._pushed(frame)
            elif self._times.unanswered() > 0:
                return frame
            else:
                self._abort()  # a reply without a request: replies cannot be matched any more
                return b""

    def _pushed(self, push: bytes) -> None:
        """Process a push."""

    # -- the connection ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Open the connection if it is closed and the retry pause is over; see Lane.wake()."""
        closed = self._task is None and not (self.refused or self.retired)
        if closed and self._context.loop.time() >= self._retry_at:
            self._task = self._context.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Open the connection. Never raises: the next wake() after a failure tries again."""
        context, circuit = self._context, self._context.timeouts.circuit
        connection = QueryConnection(lambda: circuit.replied(context.loop.time()))
        try:
            transport = await context.target.connect(lambda: connection)
        except OSError as error:
            circuit.connect_failed(context.loop.time(), reason(error), lacks(error))
            self._closed()
            return
        try:
            replies = await connection.query_all(self._handshake())
            if self._accepts(replies) and connection.settled():
                transport.set_protocol(_LaneProtocol(self))
                self._transport = transport
                self.ready = True
                self._backoff.reset()
                self.used_at = context.loop.time()
        except OSError as error:
            if not isinstance(error, NoRoom):
                context.server.on_refused()
        finally:
            if not self.ready:
                connection.abort()
                self._closed()

    def _handshake(self) -> list[tuple[bytes, ...]]:
        """Return the first requests of the connection, as words."""
        key = self.key
        name = b"rlproxy-lane" if key.kind == c.HIT else b"rlproxy-share"
        requests = [tuple(hello(name, key.user, key.password, key.protocol))]
        if key.db:
            requests.append((b"SELECT", b"%d" % key.db))
        return requests

    def _accepts(self, replies: list[Any]) -> bool:
        """Return whether the lane can be used, by the replies to its handshake."""
        errors = [error for error in map(error_in, replies) if error]
        self.refused = any(not error.startswith(PASSING) for error in errors)
        return not errors

    def _abort(self) -> None:
        """Close the connection at once, if it is open; lost() follows."""
        self.ready = False
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _closed(self) -> None:
        """Let wake() open another connection after a pause."""
        self._task = None
        self._retry_at = self._context.loop.time() + self._backoff.pause_s()

    def lost(self, failed: bool) -> None:
        """Handle the loss of the connection; `failed`: a write to it failed."""
        # Calls that the last replies release are not written.
        transport, self._transport = self._transport, None
        if failed:
            left = last_words(transport)
            if left:
                self.received(left)
        self.ready = False
        self.room = self._context.max_lane_hits
        self._replies = ReplyFramer()
        self._times = CallTimes(self._context.timeouts, self._context.denial_cache.clock)
        self._closed()
        self._hand_back()

    def _hand_back(self) -> None:
        """Report the loss of the connection to the callers of its requests."""
        raise NotImplementedError

    def retry(self) -> None:
        """Let the next wake() connect without a pause: the server answers again."""
        self._retry_at = 0.0

    def retire(self) -> None:
        super().retire()
        self._abort()
        if self._task is not None:
            self._task.cancel()


def touch(caller: Caller, touched: list[Caller]) -> None:
    """Add `caller` to `touched`, the callers that may go on after this read."""
    if not caller.dirty:
        caller.dirty = True
        touched.append(caller)


def resume_all(touched: list[Caller]) -> None:
    """Resume callers, and write their replies to the clients."""
    for caller in touched:
        caller.dirty = False
        caller.resume()
        caller.flush()


class _LaneProtocol(asyncio.Protocol):
    """The protocol of one connection of a lane."""

    def __init__(self, lane: ServerLane) -> None:
        self._lane = lane

    def data_received(self, data: bytes) -> None:
        self._lane.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lane.lost(exc is not None)
