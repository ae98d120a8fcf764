"""Cluster lanes: hits between two nodes, with fed bytes: no socket, a clock that is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.resp import commands
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import key_slot
from rlproxy.session.call import Call, Caller
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.session.identity import Identity
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.lanes import ClusterLane, ClusterLanes
from rlproxy.upstream.cluster.node import Nodes
from rlproxy.upstream.cluster.node_lane import NodeLane
from rlproxy.upstream.cluster.redirects import PAUSE_S
from rlproxy.upstream.cluster.slot_map import Shard, slot_map
from rlproxy.upstream.connector import Target
from rlproxy.upstream.lane import LaneContext
from rlproxy.upstream.lane_pool import IDLE_S, LanePool

from tests.contexts import hit_timeouts
from tests.unit.upstream.test_lane import (
    ADMITTED,
    CACHING,
    HIT,
    NOSCRIPT,
    OK,
    REFUSED,
    STAYS,
    WELCOME,
    Loop,
    Wire,
    by_sha,
    by_source,
)

A, B = Address("10.0.0.1", 7001), Address("10.0.0.2", 7002)
LIMIT_S = 1.0
MIDDLE = 5000  # the last slot of B
SLOT = key_slot(b"k")
NEAR, FAR = b"{k}2", b"b"  # keys of the same slot, and of the other node
QUIET = b"a"  # a key of another slot of the same node
MOVED = b"-MOVED %d 10.0.0.2:7002\r\n" % SLOT
MOVED_BACK = b"-MOVED %d 10.0.0.1:7001\r\n" % SLOT
ASK = b"-ASK %d 10.0.0.2:7002\r\n" % SLOT
DOWN = b"-CLUSTERDOWN The cluster is down\r\n"
ASKING = bulks(b"ASKING")


def two_masters(loop: asyncio.AbstractEventLoop) -> Cluster:
    """A cluster that queries no node: A has SLOT, and B the slot of FAR."""
    assert key_slot(FAR) <= MIDDLE < SLOT != key_slot(QUIET) > MIDDLE
    cluster = Cluster(Upstream(None, cluster=(A, B)), loop, 5.0)
    cluster.map = slot_map({Shard("a", A): [(MIDDLE + 1, 16383)], Shard("b", B): [(0, MIDDLE)]})
    return cluster


def refreshed(cluster: Cluster) -> bool:
    """Whether the nodes are to be queried."""
    return cluster._wake.is_set()


class FakeNode:
    """The parts of a node that lanes need, and what its lane has written."""

    def __init__(self, address: Address, loop: Loop) -> None:
        self.address = address
        self.where = str(address)
        self.loop = loop
        self.circuit = CircuitBreaker()
        self.timeouts = hit_timeouts(self.circuit, LIMIT_S, loop.time, loop.call_later)
        server = ServerFacts(self.where)
        server.loaded = True
        context = LaneContext(
            loop,
            Target(address, 5.0),
            server,
            DenialCache(100, lambda: loop.now),
            self.timeouts,
            100,
            Counters(),
        )
        self.pool = LanePool(context)
        self.pool.make = NodeLane
        self.wire: Wire | None = None

    def sent(self) -> bytes:
        """What was written since."""
        self.loop.turns()
        assert self.wire is not None
        sent = b"".join(self.wire.writes)
        self.wire.writes.clear()
        return sent

    def answer(self, *replies: bytes) -> None:
        assert self.wire is not None
        self.wire.protocol.data_received(b"".join(replies))


class Sender(Caller):
    """Notes what becomes of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bytes, bytes]] = []

    def lane_answered(self, call: Call, reply: bytes) -> None:
        call.reply = reply
        self.seen.append((call.key, reply))

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        self.lane_answered(call, b"late" if kind == "late" else error)

    def resume(self) -> None:
        pass


class Bench:
    """The lane of one identity to two nodes, which is ready."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.sender = Sender()
        self.cluster = two_masters(loop)
        self.by_address = {each: FakeNode(each, loop) for each in (A, B)}
        self.nodes = SimpleNamespace(
            cluster=self.cluster,
            settings=SimpleNamespace(max_lane_hits=100),
            timeout_s=LIMIT_S,
            of=lambda address: self.by_address[address],
            all=list,
            take_map=lambda: None,
            look=lambda: None,
        )
        self.lanes = ClusterLanes(cast("Nodes", self.nodes), loop)
        lane = self.lanes.lane_of(Identity(None, None, 0), commands.HIT, 3)
        assert isinstance(lane, ClusterLane)
        self.lane = lane
        self.a, self.b = self.by_address[A], self.by_address[B]
        lane.wake()
        loop.turns()
        self.a.wire, self.b.wire = loop.wires
        for node in (self.a, self.b):
            assert node.sent().startswith(b"*")
            node.answer(WELCOME, OK)
        loop.turns()
        lane.wake()
        assert lane.ready

    def hit(self, key: bytes = b"k") -> Call:
        call = Call(self.sender, HIT, r.bulk(key))
        call.reply = self.lane.submit(call)
        return call

    def hits(self, number: int) -> list[Call]:
        """Have A owe replies to `number` hits on keys of many slots."""
        lane = self.a.pool.lane(self.lane.key)
        assert lane is not None
        lane.room = number
        keys = (b"%d" % each for each in range(4 * number))
        calls = [self.hit(key) for key in keys if key_slot(key) > MIDDLE][:number]
        assert self.a.sent()
        return calls

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps."""
        for _ in range(10):
            self.loop.now += seconds / 10
            self.loop.turns()

    def replies(self) -> list[bytes]:
        return [reply for _, reply in self.sender.seen]


@pytest.fixture
def bench() -> Iterator[Bench]:
    loop = Loop()
    try:
        yield Bench(loop)
    finally:
        loop.end()


def test_a_moved_slot_is_drained_before_it_flips(bench: Bench) -> None:
    for key in (b"k", NEAR, b"k", QUIET):
        bench.hit(key)
    assert bench.a.sent()
    bench.a.answer(MOVED)  # the others are still under way there
    bench.loop.turns()
    bench.hit(b"{k}new")
    bench.hit(FAR)  # another slot does not wait
    assert bench.b.sent() == by_sha(HIT) + by_sha(HIT, FAR)
    bench.wait(0.01)
    assert bench.b.sent() == b""
    bench.a.answer(ADMITTED, MOVED)  # the one of another slot is not waited for
    bench.wait(0.01)
    assert bench.b.sent() == by_sha(HIT) + by_sha(HIT, b"{k}new")
    assert bench.a.sent() == b""
    bench.a.answer(ADMITTED)
    bench.b.answer(ADMITTED * 4)
    assert len(bench.sender.seen) == 6
    bench.hit()
    assert bench.b.sent() == by_sha(HIT)


def test_hits_in_the_tick_of_a_redirect_keep_their_order(bench: Bench) -> None:
    """The lane learns at the end of the tick that the slot has moved."""
    bench.hit()
    assert bench.a.sent()
    bench.a.answer(MOVED)
    bench.hit(NEAR)
    bench.loop.turns()
    bench.hit(b"{k}new")
    bench.wait(0.01)
    assert bench.a.sent() == by_sha(HIT, NEAR)
    assert bench.b.sent() == by_sha(HIT)
    bench.a.answer(MOVED)
    bench.wait(0.01)
    assert bench.b.sent() == by_sha(HIT, NEAR) + by_sha(HIT, b"{k}new")


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[object]:
    """Return a list that gets an item with each call of this method."""
    method, calls = getattr(kind, name), []

    def call(self: object) -> object:
        calls.append(self)
        return method(self)

    monkeypatch.setattr(kind, name, call)
    return calls


def test_many_redirects_at_once_look_for_the_calls_under_way_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = bench.hits(500)
    moved = [b"-MOVED %d 10.0.0.2:7002\r\n" % call.hash_slot() for call in calls]
    looks = counted(monkeypatch, NodeLane, "slots")
    bench.a.answer(*moved)
    bench.wait(0.001)
    assert 1 <= len(looks) < 5
    sent = bench.b.sent()
    assert all(call.key in sent for call in calls[:100])


def test_a_former_master_that_is_closed_is_not_waited_for(bench: Bench) -> None:
    lost = bench.hit()
    assert bench.a.sent()
    found = slot_map({Shard("b", B): [(0, 16383)]})
    bench.cluster._take(found, bench.cluster.map.lost(found))
    bench.loop.turns()
    call = bench.hit()
    bench.wait(0.01)
    assert bench.b.sent() == b""
    bench.a.pool.renew()
    bench.wait(0.01)
    assert lost.reply == r.LOST
    assert bench.b.sent() == by_sha(HIT)
    bench.b.answer(ADMITTED)
    assert call.reply == ADMITTED


def test_a_lost_slot_without_calls_under_way_flips_at_once(bench: Bench) -> None:
    bench.hit()
    assert bench.a.sent()
    found = slot_map({Shard("b", B): [(0, 16383)]})
    bench.cluster._take(found, bench.cluster.map.lost(found))
    bench.loop.turns()
    bench.hit(QUIET)
    bench.hit(NEAR)
    assert bench.b.sent() == by_sha(HIT, QUIET)
    bench.a.answer(ADMITTED)
    bench.wait(0.01)
    assert bench.b.sent() == by_sha(HIT, NEAR)


def test_ask_goes_with_asking_and_moves_no_slot(bench: Bench) -> None:
    bench.hit()
    bench.hit(NEAR)
    assert bench.a.sent()
    bench.a.answer(ASK, ADMITTED)
    assert bench.b.sent() == ASKING + by_sha(HIT)
    bench.hit()
    assert bench.a.sent() == by_sha(HIT)
    bench.b.answer(OK, ADMITTED)
    assert bench.replies() == [ADMITTED, ADMITTED]


def test_calls_with_ask_keep_their_order_while_the_lane_of_that_node_opens(bench: Bench) -> None:
    for key in (b"k", NEAR):
        bench.hit(key)
    assert bench.a.sent()
    lane = bench.b.pool.lane(bench.lane.key)
    assert lane is not None
    lane.ready = False
    bench.a.answer(ASK)
    bench.wait(0.01)
    assert bench.a.sent() == bench.b.sent() == b""
    lane.ready = True
    bench.wait(0.01)
    bench.a.answer(ASK)  # the second call was under way all the time
    assert bench.a.sent() == b""
    assert bench.b.sent() == ASKING + by_sha(HIT) + ASKING + by_sha(HIT, NEAR)


def test_a_redirected_call_waits_for_those_whose_script_is_missing(bench: Bench) -> None:
    """Its key has moved in between; it must not overtake them on the other node."""
    for _ in range(3):
        bench.hit()
    bench.hit(QUIET)
    assert bench.a.sent()
    bench.a.answer(NOSCRIPT, NOSCRIPT, ASK, ADMITTED)
    assert bench.b.sent() == b""
    assert bench.a.sent() == by_source(HIT) * 3
    bench.a.answer(ASK, ASK, ASK)
    assert bench.b.sent() == (ASKING + by_sha(HIT)) * 3
    bench.b.answer(*[OK, ADMITTED] * 3)
    assert bench.replies() == [ADMITTED] * 4


def test_a_redirect_does_not_look_at_each_call_whose_script_was_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = bench.hits(800)
    moved = [b"-MOVED %d 10.0.0.2:7002\r\n" % call.hash_slot() for call in calls[400:]]
    looks = counted(monkeypatch, Call, "hash_slot")
    bench.a.answer(*[NOSCRIPT] * 400, *moved)
    assert len(looks) < 10 * 800
    assert bench.a.sent().count(b"\r\nEVAL\r\n") >= 400  # once more


def test_a_call_with_ask_whose_script_is_missing_goes_again_with_asking(bench: Bench) -> None:
    """Without ASKING the importing node would send it back, and later calls overtake it."""
    bench.hit()
    assert bench.a.sent()
    bench.a.answer(ASK)
    assert bench.b.sent() == ASKING + by_sha(HIT)
    bench.hit()
    assert bench.a.sent()
    bench.b.answer(OK, NOSCRIPT)
    bench.a.answer(ASK)
    assert bench.b.sent() == (ASKING + by_source(HIT)) * 2
    bench.b.answer(*[OK, ADMITTED] * 2)
    assert bench.replies() == [ADMITTED] * 2
    bench.hit()
    assert bench.a.sent() == by_sha(HIT)


def test_a_call_that_the_importing_node_redirects_goes_there_again_without_asking(
    bench: Bench,
) -> None:
    for _ in range(2):
        bench.hit()
    assert bench.a.sent()
    bench.a.answer(ASK, ASK)
    assert bench.b.sent() == (ASKING + by_sha(HIT)) * 2
    bench.b.answer(OK, NOSCRIPT, OK, MOVED_BACK)  # it imports the slot no longer
    assert bench.b.sent() == ASKING + by_source(HIT) + by_source(HIT)
    bench.b.answer(OK, MOVED_BACK, MOVED_BACK)
    assert bench.a.sent() == by_sha(HIT) * 2


def test_a_cluster_that_is_down_is_tried_again(bench: Bench) -> None:
    bench.hit()
    assert bench.a.sent()
    bench.a.answer(DOWN)
    bench.hit(NEAR)
    bench.wait(0.5 * PAUSE_S)
    assert bench.a.sent() == b""
    bench.wait(PAUSE_S)
    assert bench.a.sent() == by_sha(HIT) + by_sha(HIT, NEAR)
    assert refreshed(bench.cluster)
    bench.a.answer(ADMITTED, ADMITTED)
    assert bench.replies() == [ADMITTED, ADMITTED]


def test_a_hit_timeout_shorter_than_the_pause_leaves_one_more_try(bench: Bench) -> None:
    bench.nodes.timeout_s = 0.9 * PAUSE_S
    bench.hit()
    assert bench.a.sent()
    bench.a.answer(DOWN)
    bench.wait(0.6 * PAUSE_S)
    assert bench.a.sent() == by_sha(HIT)
    bench.a.answer(ADMITTED)
    assert bench.replies() == [ADMITTED]


def test_a_cluster_that_stays_down(bench: Bench) -> None:
    call = bench.hit()
    while not call.reply:
        if bench.a.sent():
            bench.a.answer(DOWN)
        bench.wait(PAUSE_S)
        assert bench.loop.now < 3 * LIMIT_S
    assert bench.loop.now >= LIMIT_S
    assert call.reply == DOWN
    # Once it has been down for that long, one try is enough.
    bench.cluster.down_since = 0.01
    call = bench.hit()
    assert bench.a.sent()
    bench.a.answer(DOWN)
    bench.loop.turns()
    assert call.reply == DOWN


def test_what_a_lost_lane_has_not_written_goes_again(bench: Bench) -> None:
    written = bench.hit()
    assert bench.a.sent()
    unwritten = bench.hit()
    assert bench.a.wire is not None
    bench.a.wire.protocol.connection_lost(None)
    assert written.reply == r.LOST
    for _ in range(4):  # the lane connects again, after its pause
        bench.wait(0.05)
    bench.a.wire = bench.loop.wires[-1]
    assert bench.a.sent()
    bench.a.answer(WELCOME, OK)
    bench.wait(0.01)
    assert bench.a.sent() == by_sha(HIT)
    bench.a.answer(ADMITTED)
    assert unwritten.reply == ADMITTED


def test_remembered_refusals_wait_for_a_second_after_a_write(bench: Bench) -> None:
    def opened() -> bytes:
        for _ in range(2):
            bench.hit()
            sent = bench.a.sent()
            if sent:
                bench.a.answer(OK + STAYS if sent.startswith(CACHING) else REFUSED)
        return bench.hit().reply

    assert opened()
    bench.sender.fenced = True  # it has written on its private connection
    bench.hit(FAR)
    assert bench.b.sent()
    bench.b.answer(ADMITTED)
    assert not bench.sender.fenced
    assert not bench.hit().reply  # the node of this key may not have reported the write yet
    assert bench.a.sent()
    bench.a.answer(REFUSED)
    bench.wait(1.1)
    assert opened()


def test_an_identity_that_one_node_refuses_gets_no_lane(bench: Bench) -> None:
    identity = Identity(b"ann", b"pw", 0)
    lane = bench.lanes.lane_of(identity, commands.HIT, 3)
    assert isinstance(lane, ClusterLane)
    lane.wake()
    bench.loop.turns()
    wires = bench.loop.wires[-2:]
    wires[0].protocol.data_received(WELCOME + OK)
    wires[1].protocol.data_received(b"-WRONGPASS invalid username-password pair\r\n" * 2)
    bench.loop.turns()
    for _ in range(3):
        lane.wake()
        bench.wait(0.5)
    assert not lane.ready
    assert len(bench.loop.wires) == 4  # it is not tried again
    bench.lanes.close_idle(bench.loop.now - IDLE_S)
    assert lane.retired  # sessions get another one
