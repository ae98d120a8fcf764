"""node: when a node of a cluster is closed, with what waits for it; no node is reached."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from rlproxy.config.urls import Address, Upstream
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.resp import commands as c
from rlproxy.upstream.cluster.node import GONE_S, Node, Nodes
from rlproxy.upstream.cluster.slot_map import Shard, slot_map
from rlproxy.upstream.lane import LaneKey
from rlproxy.upstream.lane_pool import IDLE_S
from rlproxy.upstream.server_parts import ServerSettings

from tests.unit.upstream.cluster.test_lanes import A, B, two_masters

KINDS = (c.HIT, c.SHARED_READ, c.SHARED_WRITE)
OUTSIDE = Address("outside", 1)  # a node that is not in the map


def made() -> Nodes:
    """Return the nodes of a cluster whose masters are A and B. A has a lane of each kind."""
    cluster = two_masters(asyncio.get_running_loop())
    cache = DenialCache(100, lambda: 0.0)
    upstream = Upstream(None, cluster=(A, B))
    settings = ServerSettings(upstream, {}, cache, 100, Counters(), lambda: None)
    nodes = Nodes(cluster, settings)
    nodes.take_map()
    for kind in KINDS:
        assert nodes.of(A).pool.lane(LaneKey(None, None, 0, kind, 3)) is not None
    return nodes


def sweep(nodes: Nodes) -> list[object]:
    return [*nodes.close_idle(asyncio.get_running_loop().time() - IDLE_S)]


def silent(node: Node, seconds: float = 0.0) -> None:
    """Let the latest reply of `node` be as long ago."""
    node.circuit.last_reply_at = asyncio.get_running_loop().time() - seconds


@pytest.mark.parametrize(
    ("replaced", "silent_s", "closed"),
    [(True, GONE_S, True), (True, GONE_S - 0.5, False), (False, GONE_S, False)],
)
async def test_a_silent_former_master_is_closed(
    replaced: bool, silent_s: float, closed: bool
) -> None:
    nodes = made()
    node = nodes.of(A)
    lanes = node.pool.lanes()
    if replaced:
        nodes.cluster.map = slot_map({Shard("b", B): [(0, 16383)]})
    silent(node, silent_s + 0.001)
    silent(nodes.of(B))
    assert sweep(nodes) == ([A] if closed else [])
    assert (node not in nodes.all()) == closed
    assert [lane.retired for lane in lanes] == [closed] * len(KINDS)
    assert sweep(nodes) == []
    await nodes.stop()


async def test_a_former_master_that_never_replied_is_closed() -> None:
    nodes = made()
    nodes.cluster.map = slot_map({Shard("b", B): [(0, 16383)]})
    silent(nodes.of(B))
    assert sweep(nodes) == [A]
    await nodes.stop()


async def test_replies_that_a_stalled_process_has_not_read_close_nothing() -> None:
    nodes = made()
    nodes.cluster.map = slot_map({Shard("b", B): [(0, 16383)]})
    for node in nodes.all():
        silent(node, 2 * GONE_S)
    assert sweep(nodes) == []
    await nodes.stop()


async def test_a_node_that_was_no_master_yet_is_waited_for() -> None:
    nodes = made()
    node = nodes.of(OUTSIDE)
    silent(node, IDLE_S)
    silent(nodes.of(B))
    assert sweep(nodes) == []
    node.used_at -= IDLE_S + 1
    assert sweep(nodes) == []
    assert nodes.all() == [nodes.of(A), nodes.of(B)]
    await nodes.stop()


async def test_new_settings_reach_all_nodes() -> None:
    nodes = made()
    tls = ClientSide(ssl.create_default_context(), "")
    nodes.use(0.25, tls)
    for node in (nodes.of(A), nodes.of(OUTSIDE)):  # an old one, and one that is made now
        assert (node.timeouts.timeout_s, node.target.tls) == (0.25, tls)
    assert nodes.cluster.target(A).tls is tls
    await nodes.stop()
