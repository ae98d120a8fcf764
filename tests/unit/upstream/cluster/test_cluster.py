"""The cluster: how redirects and the nodes' views make its map, and whether it is down."""

from __future__ import annotations

import asyncio

from rlproxy.config.urls import Address, Upstream
from rlproxy.upstream.cluster.cluster import TROUBLE_S, Cluster
from rlproxy.upstream.cluster.discovery import View
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

A, B = Address("10.0.0.1", 7001), Address("10.0.0.2", 7002)
MAP = slot_map({Shard("a", A): [(0, 99)], Shard("b", B): [(100, 16383)]})
MOVED = MAP.with_owner(98, B)


class ClusterOfViews(Cluster):
    """A cluster whose nodes have one map.

    silent, failing: nodes that do not answer, and nodes that count the cluster as down.
    moves: slot 98 moves to B during the look that follows.
    """

    silent: frozenset[Address] = frozenset()
    failing: frozenset[Address] = frozenset()
    moves = False

    async def _query(self, address: Address) -> View:
        if address in self.silent:
            return View(problem="no answer")
        if self.moves:
            self.moves = False
            self.redirected(A, f"-MOVED 98 {B}\r\n".encode())
            assert self.map.owners == MOVED.owners
        return View(MAP, address not in self.failing, 5, "7.0", [])


async def test_a_view_does_not_undo_a_redirect_that_came_after_its_query() -> None:
    cluster = ClusterOfViews(Upstream(None, cluster=(A,)), asyncio.get_running_loop(), 1.0)
    await cluster._discover()
    assert cluster.map.owners == MAP.owners
    cluster.moves = True
    await cluster._discover()
    assert cluster.map.owners == MOVED.owners
    await cluster._discover()  # this view was queried later
    assert cluster.map.owners == MAP.owners


async def test_the_node_that_the_latest_redirect_named_is_queried_first() -> None:
    cluster = ClusterOfViews(Upstream(None, cluster=(A, B)), asyncio.get_running_loop(), 1.0)
    await cluster._discover()
    for slot, owner in ((98, B), (100, A), (98, A), (100, B), (98, B), (100, A), (98, A), (98, B)):
        cluster.redirected(A, f"-MOVED {slot} {owner}\r\n".encode())
        assert cluster._order()[0] == owner


async def test_many_redirects_in_a_tick_are_one_change() -> None:
    """Else a thousand clients that track keys would delay all others for seconds."""
    cluster = ClusterOfViews(Upstream(None, cluster=(A,)), asyncio.get_running_loop(), 1.0)
    await cluster._discover()
    calls: list[dict[Address, set[int]]] = []
    cluster.on_change[lambda: calls.append(cluster.lost)] = None
    for slot in range(100, 200):
        cluster.redirected(B, f"-MOVED {slot} {A}\r\n".encode())
    cluster.redirected(A, f"-MOVED 98 {B}\r\n".encode())
    assert not calls
    await asyncio.sleep(0)
    assert calls == [{A: {98}, B: set(range(100, 200))}]
    cluster.redirected(B, f"-MOVED 200 {A}\r\n".encode())
    await asyncio.sleep(0)
    assert calls[1:] == [{B: {200}}]


async def test_a_cluster_without_an_answer_is_looked_at_as_often_as_one_in_trouble() -> None:
    cluster = ClusterOfViews(Upstream(None, cluster=(A,)), asyncio.get_running_loop(), 1.0)
    cluster.silent = frozenset((A, B))
    assert [await cluster._discover() for _ in range(9)] == [TROUBLE_S] * 9
    cluster.silent = frozenset()
    await cluster._discover()
    cluster.silent = frozenset((A, B))
    assert [await cluster._discover() for _ in range(9)] == [TROUBLE_S] * 9


async def test_a_cluster_that_was_down_is_back_once_all_masters_that_answer_count_it_so() -> None:
    cluster = ClusterOfViews(Upstream(None, cluster=(A,)), asyncio.get_running_loop(), 1.0)
    await cluster._discover()
    for silent, failing, down in [
        ((), (B,), False),  # one of two: the other one counts
        ((A,), (B,), True),
        ((), (B,), True),  # A is back and counts the cluster as available, B not yet
        ((A,), (), False),
        ((), (A, B), True),
        ((), (), False),
    ]:
        cluster.silent, cluster.failing = frozenset(silent), frozenset(failing)
        for _ in range(2):  # each time another node is queried first
            pause_s = await cluster._discover()
            assert (bool(cluster.down_since), pause_s == TROUBLE_S) == (down, down)
