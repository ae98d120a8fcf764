"""session in front of a cluster: pipelines on shared lanes, and what their lanes give back."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.resp import commands
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.session.call import Call, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.session import Session
from rlproxy.session.sharing import MAX_SHARED, MAX_TOGETHER

from tests.contexts import worker_context
from tests.unit.sides import Sides

GRAMMAR = Grammar(scripts.load())
NIL = b"$-1\r\n"
A, B = b"a", b"b"  # keys of two nodes


def get(key: bytes) -> bytes:
    return bulks(b"GET", key)


def put(key: bytes, value: bytes = b"v") -> bytes:
    return bulks(b"SET", key, value)


class NodeLane(Lane):
    """The lane of one kind to one node; it keeps its calls.

    inflight: calls that the node has run, with their replies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unsent: list[Call] = []
        self.inflight: list[tuple[Call, bytes]] = []

    def submit(self, call: Call) -> bytes:
        self.unsent.append(call)
        return b""


class Share(Lane):
    """The lanes of one kind; a key without a lane stays private."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = True
        self.lanes = {A: NodeLane(), B: NodeLane()}
        self.slots: list[int] = []

    def chosen(self, slot: int) -> Lane | None:
        self.slots.append(slot)
        by_slot = {key_slot(b""): A, key_slot(A): A, key_slot(B): B}
        return self.lanes.get(by_slot.get(slot, b"private"))


class Bench(Sides):
    """A session whose first command is answered, and its lanes."""

    def __init__(self, cluster: bool = True) -> None:
        self.shares = {commands.SHARED_READ: Share(), commands.SHARED_WRITE: Share()}
        self.session = Session(
            worker_context(
                grammar=GRAMMAR,
                server=ServerFacts("redis:1", in_cluster=cluster),
                lane_of=lambda _identity: None,
                share_of=lambda _identity, _protocol, how: self.shares[how],
            )
        )
        self.session.receive(get(A))
        self.session.upstream_opened()
        self.up()
        self.answer(NIL)

    def lane(self, how: int, key: bytes) -> NodeLane:
        return self.shares[how].lanes[key]

    def taken(self) -> list[bytes]:
        """The commands on all lanes."""
        lanes = [lane for share in self.shares.values() for lane in share.lanes.values()]
        return [call.key for lane in lanes for call in lane.unsent]


GETS = get(A) + get(B) + get(A)
SETS = put(A) + put(B) + put(B)


@pytest.mark.parametrize("sent", [GETS, SETS, get(A) * MAX_TOGETHER, GETS + get(A)[:9]])
def test_a_short_pipeline_of_one_kind_is_shared(sent: bytes) -> None:
    bench = Bench()
    assert bench.send(sent) == b""
    assert sum(map(len, bench.taken())) == len(sent) - bench.session.requests.unread()
    assert bench.session.requests.unread() in (0, 9)


@pytest.mark.parametrize(
    "sent",
    [
        get(A) + put(A),
        put(A) + get(A),
        get(A) * (MAX_TOGETHER + 1),
        get(A) * MAX_TOGETHER + get(A)[:9],
        put(A, b"v" * (MAX_SHARED // 2)) * 2,
        get(A) + bulks(b"MGET", A, A),
        bulks(b"MGET", A, A) + get(A),
        put(A) + bulks(b"DEL", A),
        get(A) + bulks(b"GET"),
        get(A) + bulks(b"TIME"),
        get(A) + b"GET a\r\n",
        get(A) + b"\r\n",
        get(A) + bulks(b"PING"),
        get(A) + get(b"private"),
        put(A) + bulks(b"SET", A, b"v", b"GET"),
    ],
)
def test_other_pipelines_stay_private(sent: bytes) -> None:
    bench = Bench()
    assert bench.send(sent) == sent[: len(sent) - bench.session.requests.unread()]
    assert bench.taken() == []


def test_a_lane_is_chosen_by_the_slot_of_all_keys() -> None:
    bench = Bench()
    for command in (get(b""), get(A), bulks(b"hget", B, b"f"), bulks(b"EXISTS", A), bulks(b"GET")):
        bench.send(command)
        bench.lane(commands.SHARED_READ, A).unsent.clear()
        bench.lane(commands.SHARED_READ, B).unsent.clear()
        bench.session.lanes.abandon()
    slots = [0, key_slot(A), key_slot(B), key_slot(A), NO_SLOT]
    assert bench.shares[commands.SHARED_READ].slots == slots


def test_writes_that_ran_behind_one_that_comes_back_keep_their_replies() -> None:
    bench = Bench()
    bench.send(SETS)
    (first,) = bench.lane(commands.SHARED_WRITE, A).unsent
    second, third = bench.lane(commands.SHARED_WRITE, B).unsent
    bench.session.lane_returned(first)
    bench.session.lane_answered(second, b"+2\r\n")
    bench.session.resume()
    assert (bench.up(), bench.down()) == (b"", b"")  # the third one is under way
    bench.session.lane_returned(third)
    bench.session.resume()
    assert bench.up() == put(A) + put(B)
    assert bench.answer(b"+1\r\n+3\r\n") == b"+1\r\n+2\r\n+3\r\n"
