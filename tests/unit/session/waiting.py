"""Clients with hits that wait, of one process, fed bytes by hand: what their tests share."""

from __future__ import annotations

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.scripts import SOURCE
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits
from rlproxy.session.call import Call, Caller, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.identity import Identity
from rlproxy.session.parts import OwnCalls
from rlproxy.session.session import Session

from tests.clock import Clock
from tests.contexts import hit_timeouts, worker_context
from tests.unit.ratelimit.test_wait_queue import refused, rule, script_reply
from tests.unit.session.bench import FIVE, GRAMMAR, PING, PONG, FakeLane
from tests.unit.sides import Sides

WAITING = bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"5")
RULE = "10 1 WAIT 5"
HIT = bulks(b"RL.HIT", b"k", b"10", b"60")
HIT_RULE = "10 60"
GET = bulks(b"GET", b"x")
NIL = b"$-1\r\n"
OK = b"+OK\r\n"
KEPT = b"*0\r\n"
MULTI, EXEC, DISCARD, QUIT = (bulks(name) for name in (b"MULTI", b"EXEC", b"DISCARD", b"QUIT"))
QUEUED = b"+QUEUED\r\n"

ADMITTED = script_reply(0, 10, 4, -1, 600_000)
ADMITTED_REPLY = five(0, 10, 4, -1, 1)  # the same for a client
LATER = refused(2_000_000)
REFUSED_REPLY = five(1, 10, 0, 2, 9)
BEHIND = five(1, 10, 0, 2, 4)  # for hits without WAIT: the two seconds of the first one
PEEKED = script_reply(0, 10, 3, -1, 4_000_000)


def as_eval(asked: Rule, key: bytes = b"k") -> bytes:
    return asked.words(SOURCE) + encoding.bulk(key) + asked.tail


def attempt(text: str = RULE, key: bytes = b"k") -> bytes:
    """The question as it goes over the private connection."""
    return as_eval(rule(text).attempt(), key)


def peek(text: str = RULE, key: bytes = b"k") -> bytes:
    return as_eval(rule(text).peek(), key)


def absent(text: str = RULE, key: bytes = b"k") -> bytes:
    """A hit as it goes if its WAIT is left out of account."""
    return as_eval(rule(text), key)


class World:
    """Clients of one process. Only pump() moves bytes, as in Downstream."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.waiting = WaitQueues(self.clock.time, self.clock.call_at)
        self.lanes: dict[object, FakeLane] = {}
        self.allowed = True
        self.settings = worker_context(
            grammar=GRAMMAR,
            server=ServerFacts("redis:1"),
            lane_of=self._lane_of,
            waiting=self.waiting,
            timeouts=hit_timeouts(clock=self.clock.time),
        )
        self.settings.server.found.ignores_empty = (
            False  # (no empty requests, except where they are tested)
        )

    def _lane_of(self, identity: Identity, *_: object) -> Lane | None:
        return self.lanes.setdefault(identity.key(), FakeLane()) if self.allowed else None

    @property
    def lane(self) -> FakeLane:
        """The only one."""
        (lane,) = self.lanes.values()
        return lane

    def client(self) -> Client:
        """One whose private connection is open, and no hit of which was answered."""
        made = Client(self)
        made.send(PING)
        made.session.upstream_opened()
        assert made.up() == PING
        assert made.answer(PONG) == PONG
        return made

    def probed(self) -> Client:
        """One whose hits may go by lane."""
        made = self.client()
        made.send(bulks(b"RL.PEEK", b"probe", b"10", b"60"))
        made.up()
        assert made.answer(FIVE) == FIVE
        return made

    def waits(self, wait: bytes = WAITING) -> Client:
        """One that waits for two seconds."""
        made = self.client()
        assert made.send(wait) != b""
        assert made.answer(LATER) == b""
        return made

    def calls(self) -> list[Call]:
        """What the lanes were given."""
        return [call for lane in self.lanes.values() for call in lane.calls]

    def callers(self) -> list[Caller]:
        """The sessions of these calls."""
        callers = [call.caller for call in self.calls()]
        return [each._session if isinstance(each, OwnCalls) else each for each in callers]

    def on_lanes(self) -> list[bytes]:
        """The same, each as it would go over a private connection."""
        return [call.rule.words(SOURCE) + call.key + call.rule.tail for call in self.calls()]

    def lane_answers(self, *frames: bytes) -> None:
        """The lane answers its oldest calls, as ServerLane reports them."""
        touched: list[Caller] = []
        for frame in frames:
            call = self.lane.calls.pop(0)
            call.caller.lane_answered(call, frame)
            if call.caller not in touched:
                touched.append(call.caller)
        for caller in touched:
            caller.resume()

    def lane_lost(self, sent: int) -> None:
        """The lane is lost; its first `sent` calls had been sent."""
        lane = self.lane
        lane.ready = False
        calls, lane.calls = lane.calls, []
        for call in calls[:sent]:
            call.caller.lane_answered(call, encoding.LOST)
        for call in calls[sent:]:
            call.caller.lane_returned(call)
        for call in calls:
            call.caller.resume()


class Client(Sides):
    """A session of `world`."""

    def __init__(self, world: World) -> None:
        self.session = Session(world.settings)

    def idle(self) -> bool:
        """Nothing is owed to it, and nothing waits."""
        return not self.session.outstanding() and self.session.wait == waits.NOTHING
