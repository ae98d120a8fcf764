"""lanes: the lane of an ordinary command in a cluster; its bytes and its clock are fed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp import commands as c
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import key_slot
from rlproxy.session.call import Batch, Caller, Lane
from rlproxy.session.identity import Identity
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.lanes import ClusterLanes
from rlproxy.upstream.cluster.node import Node, Nodes
from rlproxy.upstream.command_lane import MAX_SHARED_REPLY
from rlproxy.upstream.lane import MAX_RETRY_S
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
        self._not_run = partial(Node._not_run, cast("Node", self))
        self.pool.make = partial(Node._make, cast("Node", self))


class Client(Caller):
    """The sender of batches, which is resumed when they have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = 0

    def resume(self) -> None:
        self.resumed += 1


class Bench:
    """Two nodes, and one client."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.cluster = two_masters(self.loop)
        self.a, self.b = (SharingNode(self.cluster, each, self.loop) for each in (A, B))
        self.lanes = ClusterLanes(cast("Nodes", self), self.loop)
        self.client = Client()
        self.opened = 0  # connections whose handshake is over

    def of(self, address: object) -> SharingNode:
        return self.a if address == A else self.b

    def take_map(self) -> None:
        """Do nothing: both nodes exist."""

    def look(self) -> None:
        """See Nodes."""

    def all(self) -> list[SharingNode]:
        return [self.a, self.b]

    def share(self, kind: int = c.SHARED_READ, protocol: int = 2) -> Lane:
        lane = self.lanes.lane_of(ME, kind, protocol)
        assert lane is not None
        return lane

    def node_of(self, slot: int = SLOT, kind: int = c.SHARED_READ) -> SharingNode | None:
        """The node whose lane takes a command with keys in `slot`, once that is ready."""
        share = self.share(kind)
        if share.for_slot(slot) is None:
            self.open()
        lane = share.for_slot(slot)
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
        for node in self.all():
            node.pool.close_command_lanes(self.loop.now - IDLE_S)
        self.lanes.close_idle(self.loop.now - IDLE_S)

    def submit(self, count: int = 1, kind: int = c.SHARED_READ) -> Batch:
        """Send `count` commands by the lane of the first node."""
        self.node_of(kind=kind)
        lane = self.share(kind).for_slot(SLOT)
        assert lane is not None
        batch = Batch(self.client)
        batch.writes = kind == c.SHARED_WRITE
        for _ in range(count):
            batch.add(GET, lane)
        batch.send()
        self.loop.turns()
        return batch

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
    batch = bench.submit()
    bench.answer(error)
    assert (batch.open, batch.large) == (0, False)
    assert (batch.parts[0].replies, bench.client.resumed) == ([b""], 1)
    assert refreshed(bench.cluster) == refreshes
    assert bench.cluster.map.owner(SLOT) == owner
    bench.loop.turns()
    assert bench.node_of() is bench.of(owner)


@pytest.mark.parametrize(
    ("error", "read_only"),
    [(b"-READONLY You can't write against a read only replica.\r\n", 1), (b"-OOM no\r\n", 0)],
)
def test_only_the_error_of_a_replica_is_reported(
    bench: Bench, error: bytes, read_only: int
) -> None:
    reported: list[bytes] = []
    bench.a.pool.context.server.on_read_only = lambda: reported.append(error)
    batch = bench.submit(kind=c.SHARED_WRITE)
    bench.answer(error)
    assert batch.parts[0].replies == [error]
    assert len(reported) == read_only


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


def test_a_refused_identity_is_tried_again_after_a_sweep_only(bench: Bench) -> None:
    share = bench.share()
    assert share.for_slot(SLOT) is None
    bench.open(b"-WRONGPASS no\r\n")
    bench.loop.now += MAX_RETRY_S
    for _ in range(3):
        assert share.for_slot(SLOT) is None
    bench.loop.turns()
    assert len(bench.loop.wires) == 1
    bench.sweep()
    assert bench.a.pool.lanes() == []
    assert share.retired
    assert bench.node_of() is bench.a


def test_a_large_reply_is_skipped_in_its_place(bench: Bench) -> None:
    batch = bench.submit(3)
    large = b"v" * (MAX_SHARED_REPLY + 1)
    bench.answer(b":1\r\n" + encoding.bulk(large)[:-3])
    assert (batch.open, batch.large) == (1, False)
    bench.answer(encoding.bulk(large)[-3:] + b":3\r\n")
    assert (batch.parts[0].replies, batch.open) == ([b":1\r\n", b"", b":3\r\n"], 0)
    assert batch.large


@pytest.mark.parametrize("kind", [c.SHARED_READ, c.SHARED_WRITE])
def test_the_loss_of_a_lane_ends_its_parts(bench: Bench, kind: int) -> None:
    batch = bench.submit(2, kind)
    bench.answer(b":1\r\n")
    bench.loop.wires[0].protocol.connection_lost(None)
    replies = batch.parts[0].replies
    assert (replies, batch.open, bench.client.resumed) == ([b":1\r\n", b""], 0, 1)
    assert batch.large


def test_commands_that_were_not_written_may_go_elsewhere(bench: Bench) -> None:
    assert bench.node_of(kind=c.SHARED_WRITE) is bench.a
    lane = bench.share(c.SHARED_WRITE).for_slot(SLOT)
    assert lane is not None
    batch = Batch(bench.client)
    batch.writes = True
    batch.add(GET, lane)
    batch.send()
    bench.loop.wires[0].protocol.connection_lost(None)
    assert (batch.open, batch.parts[0].replies, batch.large) == (0, [b""], False)


def test_a_lane_that_is_never_the_last_of_a_batch_is_in_use(bench: Bench) -> None:
    lanes = []
    for slot, node in ((SLOT, bench.a), (key_slot(FAR), bench.b)):
        assert bench.node_of(slot) is node
        lane = bench.share().for_slot(slot)
        assert lane is not None
        lanes.append(lane)
    for _ in range(5):
        bench.loop.now += IDLE_S / 4
        batch = Batch(bench.client)
        for lane in lanes:
            batch.add(GET, lane)
        batch.send()
        bench.loop.turns()
        for wire in bench.loop.wires:
            wire.protocol.data_received(b":1\r\n")
        bench.sweep()
    assert [len(each.pool.lanes()) for each in bench.all()] == [1, 1]
