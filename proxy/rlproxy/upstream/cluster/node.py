"""One master of a cluster: its circuit, timeouts, scripts, control connection and lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.commands import HIT
from rlproxy.resp.encoding import unreachable
from rlproxy.session.circuit_breaker import Counts
from rlproxy.session.context import ServerFacts
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.node_lane import NodeCommandLane, NodeLane
from rlproxy.upstream.lane import LaneContext, LaneKey, ServerLane
from rlproxy.upstream.server_parts import ServerParts, ServerSettings

STAYS_S: Final = 60.0  # seconds for which a node without slots stays, after its last use


@dataclass
class NodeSettings(ServerSettings):
    """What all nodes have in common.

    counts: of the circuits of all nodes together.
    on_state: called when the circuit of any node opens or closes.
    """

    counts: Counts
    on_state: Callable[[], None]
    timeout_s: float = 0.0


class Node(ServerParts):
    """One master and the parts that serve it."""

    def __init__(self, address: Address, cluster: Cluster, settings: NodeSettings) -> None:
        self.address = address
        self.where = str(address)
        self.used_at: float = asyncio.get_running_loop().time()  # when it had slots or got a call
        self._cluster = cluster
        self._settings = settings
        super().__init__(cluster.target(address), ServerFacts(self.where), settings)
        self.facts.read_only = cluster.refresh
        self.circuit.counts = settings.counts
        self.timeouts.timeout_s = settings.timeout_s
        self.pool.make = self._make
        self.start()

    def _make(self, context: LaneContext, key: LaneKey) -> ServerLane:
        if key.kind == HIT:
            return NodeLane(context, key, self.address)
        return NodeCommandLane(context, key, self.address, self._cluster)

    def idle(self, since: float) -> bool:
        """Return whether it is unused since loop time `since`."""
        busy = any(lane.unanswered() for lane in self.pool.lanes())
        return self.used_at < since and not busy

    def opened(self) -> None:
        """See ServerParts.opened()."""
        super().opened()
        self._cluster.refresh()
        self._settings.on_state()

    def closed(self, out_s: float, without: int) -> None:
        """See ServerParts.closed()."""
        super().closed(out_s, without)
        for lane in self.pool.lanes():
            lane.retry()
        self._settings.on_state()


class Nodes:
    """The nodes of a cluster: all masters with slots, and those to which ASK has led."""

    def __init__(self, cluster: Cluster, settings: NodeSettings) -> None:
        self._cluster = cluster
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Address, Node] = {}
        cluster.is_open = self._is_open
        cluster.on_full = self._look_for_room

    def of(self, address: Address) -> Node:
        """Return the node at `address`, made if needed."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self._cluster, self.settings)
        node.used_at = self._loop.time()
        return node

    def all(self) -> list[Node]:
        """Return all nodes."""
        return list(self._nodes.values())

    def masters(self) -> list[Node]:
        """Return the nodes that own slots, in the order of the map."""
        shards = self._cluster.map.shards
        return [self._nodes[each.address] for each in shards if each.address in self._nodes]

    def error_at(self, slot: int) -> bytes:
        """Return the error for a call while the circuit of the master of `slot` is open, or b""."""
        owner = self._cluster.map.owner(slot)
        node = self._nodes.get(owner.address) if owner is not None else None
        if node is None or not node.circuit.open:
            return b""
        return unreachable(node.where, node.circuit.why)

    def _is_open(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.circuit.open

    def _look_for_room(self, address: Address) -> None:
        node = self._nodes.get(address)
        if node is not None:
            node.control.look_for_room()

    def take_map(self) -> None:
        """Make the nodes of the present map. Of other nodes no outage is logged."""
        for shard in self._cluster.map.shards:
            self.of(shard.address)
        for address, node in self._nodes.items():
            node.control.outages.follow(address in self._cluster.map.index)

    def use(self, timeout_s: float) -> None:
        """Apply --hit-timeout to all nodes."""
        self.settings.timeout_s = timeout_s
        for node in self._nodes.values():
            node.timeouts.timeout_s = timeout_s

    def close_unused(self) -> None:
        """Close the nodes that own no slots and are unused."""
        since = self._loop.time() - STAYS_S
        self.take_map()
        for address, node in list(self._nodes.items()):
            if node.idle(since):
                del self._nodes[address]
                node.close()

    async def stop(self) -> None:
        """End all control connections and lanes."""
        for node in self.all():
            await node.stop()
