"""A session with a fake lane, fed bytes: what the tests of a session share."""

from __future__ import annotations

from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar, Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.scripts import SOURCE
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import wait_cover
from rlproxy.session.call import Call, Caller, Lane, Part
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.identity import Identity
from rlproxy.session.session import Session

from tests.contexts import worker_context
from tests.part_calls import calls_of
from tests.unit.sides import Sides

GRAMMAR = Grammar(scripts.load())

HIT = bulks(b"RL.HIT", b"k", b"10", b"60")
WRONG_HIT = bulks(b"RL.HIT", b"k")
ARITY = b"-ERR wrong number of arguments for 'rl.hit' command\r\n"
UNKNOWN = b"-ERR unknown command 'RL.HIT', with args beginning with: 'k' \r\n"
PING = bulks(b"PING")
PONG = b"+PONG\r\n"
FIVE = five(0, 10, 9, -1, 60)
PUSH = b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n"
WAIT = bulks(b"WAIT", b"1", b"0")
REWRITE = wait_cover.REWRITE + b"$1\r\nk\r\n"
DENIED = five(1, 10, 0, 42, 60)
DOWN = encoding.unreachable("redis:1", "refused")


class FakeLane(Lane):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.calls: list[Call] = []

    def submit(self, call: Call) -> bytes:
        self.calls.append(call)
        return b""

    def take(self, part: Part) -> None:
        """See Lane.take()."""
        for call in calls_of(part):
            self.submit(call)

    def wake(self) -> None:
        """See Lane.wake()."""


class KnowingLane(FakeLane):
    """Knows some replies without asking."""

    def __init__(self, **known: bytes) -> None:
        super().__init__()
        self.known = {encoding.bulk(key.encode()): reply for key, reply in known.items()}

    def submit(self, call: Call) -> bytes:
        return self.known.get(call.key, b"") or super().submit(call)


class Bench(Sides):
    """A session, its lane, and what moved."""

    def __init__(self, lane: FakeLane | None = None, context: WorkerContext | None = None) -> None:
        self.lane = lane or FakeLane()
        self.identities: list[Identity] = []
        self.allowed = True
        context = context or worker_context(
            grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=self.lane_of
        )
        self.session = Session(context)

    def lane_of(self, identity: Identity, *_: object) -> Lane | None:
        self.identities.append(identity)
        return self.lane if self.allowed else None

    def settle(self, reply: bytes = FIVE) -> bytes:
        """The lane answers all it was given; what goes to the client."""
        calls = self.lane.calls[:]
        self.lane.calls.clear()
        for call in calls:
            call.caller.lane_answered(call, reply)
        for caller in {self.session, *(call.caller for call in calls)}:
            caller.resume()
        return self.down()


def context_of(lane: Lane) -> WorkerContext:
    """A context whose clients all use `lane`."""
    return worker_context(grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=lambda *_: lane)


def in_place(key: bytes = b"k") -> bytes:
    """RL.HIT key 10 60 as it goes over the private connection."""
    rule = GRAMMAR.rule(b"in place", b"RL.HIT", [key, b"10", b"60"])
    return rule.words(SOURCE) + encoding.bulk(key) + rule.tail


def opened(context: WorkerContext | None = None) -> Bench:
    """A client whose private connection is open and has answered a PING."""
    bench = Bench(context=context)
    bench.session.receive(PING)
    bench.session.upstream_opened()
    assert bench.up() == PING
    assert bench.answer(PONG) == PONG
    return bench


def replied(*replies: bytes) -> Bench:
    """A client whose first command is a PING; Redis has sent `replies` so far."""
    bench = Bench()
    bench.send(PING)
    bench.session.upstream_opened()
    assert bench.up() == PING
    for data in replies:
        bench.answer(data)
    return bench


def probed(context: WorkerContext | None = None) -> Bench:
    """One whose hits may take the lane."""
    bench = opened(context)
    assert bench.send(HIT) == in_place()
    assert bench.answer(FIVE) == FIVE
    return bench


def unfenced(lane: FakeLane | None = None) -> Bench:
    """A client whose hits may take the lane, and that a lane has answered."""
    bench = probed()
    bench.lane = lane or bench.lane
    bench.session.fenced = False
    return bench


def numbered(key: bytes) -> bytes:
    return bulks(b"RL.HIT", key, b"10", b"60")


def lane_used() -> Bench:
    bench = probed()
    bench.send(HIT)
    assert bench.settle() == FIVE
    return bench


def rule(text: bytes = b"10 60") -> Rule:
    """Return the rule of RL.HIT k `text`."""
    made = GRAMMAR.rule(text, b"RL.HIT", [b"k", *text.split()])
    assert not made.error
    return made


def call_of(caller: Caller, key: bytes = b"k", text: bytes = b"10 60") -> Call:
    """Return the call of RL.HIT `key` `text`."""
    return Call(caller, rule(text), encoding.bulk(key))
