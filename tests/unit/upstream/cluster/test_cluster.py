"""The cluster: how redirects and the nodes' views make its map."""

from __future__ import annotations

from rlproxy.config.urls import Address, Upstream
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.discovery import View
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

A, B = Address("10.0.0.1", 7001), Address("10.0.0.2", 7002)
MAP = slot_map({Shard("a", A): [(0, 99)], Shard("b", B): [(100, 16383)]})
MOVED = MAP.with_owner(98, B)


class ClusterOfViews(Cluster):
    """A cluster whose nodes have one view; slot 98 moves to B during the look that follows."""

    moves = False

    async def _query(self, address: Address) -> View:
        if self.moves:
            self.moves = False
            self.moved(98, B)
            assert self.map.owners == MOVED.owners
        return View(MAP, True, 5, "7.0", [])


async def test_a_view_does_not_undo_a_redirect_that_came_after_its_query() -> None:
    cluster = ClusterOfViews(Upstream(None, cluster=(A,)), 1.0)
    await cluster._discover()
    assert cluster.map.owners == MAP.owners
    cluster.moves = True
    await cluster._discover()
    assert cluster.map.owners == MOVED.owners
    await cluster._discover()  # this view was queried later
    assert cluster.map.owners == MAP.owners
    assert cluster.lost_slots == {B: {98}}
