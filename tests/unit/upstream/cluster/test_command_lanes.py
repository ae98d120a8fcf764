"""command_lanes: the lane of an ordinary command in a cluster; its bytes and its clock are fed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp import commands as c
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.session.call import Call, Caller, Lane, shared
from rlproxy.session.identity import Identity
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.lanes import ClusterLanes
from rlproxy.upstream.cluster.node import Node, Nodes
from rlproxy.upstream.lane_pool import IDLE_S

from tests.unit.upstream.cluster.test_lanes import (
    ASK,
    DOWN,
    FAR,
    MOVED,
    SLOT,
    A,
    B,
    FakeNode,
    refreshed,
    two_masters,
)
from tests.unit.upstream.test_lane import WELCOME, Loop

GET = bulks(b"GET", b"k")
ME = Identity(b"me", b"pw", 0)


class SharingNode(FakeNode):
    """A node of which ordinary commands use shared connections."""

    def __init__(self, cluster: Cluster, address: Address, loop: Loop) -> None:
        super().__init__(address, loop)
        self._cluster = cluster
        self.pool.make = partial(Node._make, cast("Node", self))


class Client(Caller):
    """A caller that records what becomes of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[bytes] = []
        self.returned: list[Call] = []
        self.lost: list[Call] = []

    def lane_answered(self, call: Call, reply: bytes) -> None:
        self.replies.append(reply)

    def lane_returned(self, call: Call) -> None:
        self.returned.append(call)

    def lane_lost(self, call: Call) -> None:
        self.lost.append(call)

    def resume(self) -> None:
        pass


class Bench:
    """Two nodes, and one client."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.cluster = two_masters()
        self.a, self.b = (SharingNode(self.cluster, each, self.loop) for each in (A, B))
        self.lanes = ClusterLanes(self.cluster, cast("Nodes", self), self.loop)
        self.client = Client()
        self.opened = 0  # connections whose handshake is over

    def of(self, address: object) -> SharingNode:
        return self.a if address == A else self.b

    def take_map(self) -> None:
        """Do nothing: both nodes exist."""

    def all(self) -> list[SharingNode]:
        return [self.a, self.b]

    def share(self, kind: int = c.SHARED_READ, protocol: int = 2) -> Lane:
        lane = self.lanes.share_of(ME, protocol, kind)
        assert lane is not None
        return lane

    def node_of(self, slot: int = SLOT, kind: int = c.SHARED_READ) -> SharingNode | None:
        """The node whose lane takes a command with keys in `slot`, once that is ready."""
        share = self.share(kind)
        if share.chosen(slot) is None:
            self.open()
        lane = share.chosen(slot)
        return next((each for each in self.all() if lane in each.pool.lanes()), None)

    def open(self, reply: bytes = WELCOME) -> None:
        """Open the lanes that connect now; the nodes answer their handshakes with `reply`."""
        self.loop.turns()
        while self.opened < len(self.loop.wires):
            self.loop.wires[self.opened].protocol.data_received(reply)
            self.opened += 1
        self.loop.turns()

    def sweep(self) -> None:
        """Close what has been unused for IDLE_S."""
        self.lanes.close_idle(self.loop.now - IDLE_S)

    def submit(self, words: bytes = GET) -> Call:
        """Send a read by the lane of the first node."""
        self.node_of()
        lane = self.share().chosen(SLOT)
        assert lane is not None
        call = shared(self.client, c.SHARED_READ, words)
        lane.submit(call)
        self.loop.turns()
        return call

    def answer(self, reply: bytes) -> None:
        """The first node answers the read."""
        self.loop.wires[0].protocol.data_received(reply)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    try:
        yield made
    finally:
        made.loop.close()


def test_the_lane_of_a_slot(bench: Bench) -> None:
    assert bench.node_of(SLOT) is bench.a
    assert bench.node_of(key_slot(FAR)) is bench.b
    assert bench.node_of(NO_SLOT) is None


@pytest.mark.parametrize(
    ("error", "refreshes", "owner"),
    [
        (MOVED, True, B),
        (ASK, False, A),
        (b"-TRYAGAIN Multiple keys\r\n", True, A),
        (DOWN, True, A),
        (b"-LOADING Redis is loading\r\n", True, A),
        (b"-MASTERDOWN Link with MASTER is down\r\n", True, A),
    ],
)
def test_a_command_that_did_not_run_goes_back(
    bench: Bench, error: bytes, refreshes: bool, owner: object
) -> None:
    call = bench.submit()
    bench.answer(error)
    assert (bench.client.returned, bench.client.replies) == ([call], [])
    assert refreshed(bench.cluster) == refreshes
    shard = bench.cluster.map.owner(SLOT)
    assert shard is not None and shard.address == owner
    assert bench.node_of() is bench.of(owner)


def test_idle_lanes_close_and_are_opened_again(bench: Bench) -> None:
    bench.submit()
    bench.loop.now += IDLE_S + 1
    bench.sweep()
    assert len(bench.a.pool.lanes()) == 1  # it owes a reply
    bench.answer(b"$1\r\nv\r\n")
    before = bench.share()
    bench.sweep()
    assert len(bench.a.pool.lanes()) == 1
    bench.loop.now += IDLE_S + 1
    bench.sweep()
    assert bench.a.pool.lanes() == [] and before.retired
    assert bench.share() is not before
    assert bench.node_of() is bench.a
