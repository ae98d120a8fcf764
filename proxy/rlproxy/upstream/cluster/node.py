"""One master of a cluster: its circuit, timeouts, scripts, control connection and lanes.

A former master runs what is under way there, and replies. One that is silent may never reply:

    once a second: a former master, silent for GONE_S ──> Nodes.close_idle()
        lanes for hits   written calls get the error LOST; the others go to the new owner, and so
                         do later calls, which wait for the replies of the former one
        command lanes    writes that are under way end their clients; reads are sent again
        ClusterTarget    clients with a command or a state there end
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.resp.commands import HIT
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.cluster_circuit import ClusterCircuit
from rlproxy.upstream.cluster.node_lane import NOT_RUN, NodeLane
from rlproxy.upstream.command_lane import CommandLane
from rlproxy.upstream.lane import LaneContext, LaneKey, ServerLane
from rlproxy.upstream.server_parts import ServerParts, ServerSettings

# Seconds for which a former master was silent when another node replied: then it is left.
GONE_S: Final = 1.0


class Node(ServerParts):
    """One master and the parts that serve it.

    target: opens the connections to it.
    used_at: loop time at which it had slots or got a call.
    was_master: it has had slots.
    """

    def __init__(self, address: Address, nodes: Nodes) -> None:
        self.address = address
        self.used_at: float = asyncio.get_running_loop().time()
        self.was_master = False
        self._cluster = nodes.cluster
        self._look = nodes.look
        self.target = self._cluster.target(address)
        super().__init__(self.target, ServerFacts(str(address)), nodes.settings)
        self.facts.on_read_only = self._cluster.refresh
        self.circuit.counts = nodes.circuit.counts
        self.timeouts.timeout_s = nodes.timeout_s
        self.pool.make = self._make
        self.start()

    def _make(self, context: LaneContext, key: LaneKey) -> ServerLane:
        if key.kind == HIT:
            return NodeLane(context, key)
        return CommandLane(context, key, self._not_run)

    def _not_run(self, error: bytes) -> bool:
        """Take the error for an ordinary command. Returns whether the node has not run it.

        Then it goes back to its client, whose private connection follows redirects.
        Session._emit_batch() keeps the order of those behind it.
        """
        not_run = error.startswith(NOT_RUN)
        if not_run:
            self._cluster.redirected(self.address, error)
        return not_run

    def idle(self, since: float) -> bool:
        """Return whether it is unused since loop time `since`."""
        busy = any(lane.unanswered() for lane in self.pool.lanes())
        return self.used_at < since and not busy

    def circuit_opened(self) -> None:
        super().circuit_opened()
        self._cluster.refresh()
        self._look()

    def circuit_closed(self, out_s: float, without: int) -> None:
        super().circuit_closed(out_s, without)
        for lane in self.pool.lanes():
            lane.retry()
        self._look()


class Nodes:
    """The nodes of a cluster: all masters with slots, and those to which ASK has led.

    settings: what their parts have in common.
    circuit: what sessions see of the circuits of all nodes.
    timeout_s: --hit-timeout; infinite for none.
    """

    def __init__(self, cluster: Cluster, settings: ServerSettings) -> None:
        self.cluster = cluster
        self.settings = settings
        self.circuit = ClusterCircuit(cluster, self._circuit_at)
        self.timeout_s: float = inf
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Address, Node] = {}
        cluster.is_open = lambda address: self._circuit_at(address).open
        cluster.on_refused = self._check
        cluster.on_unknown = lambda why: self.circuit.connect_failed(self._loop.time(), why)

    def of(self, address: Address) -> Node:
        """Return the node at `address`, made if needed."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self)
        node.used_at = self._loop.time()
        return node

    def all(self) -> list[Node]:
        """Return all nodes."""
        return list(self._nodes.values())

    def masters(self) -> list[Node]:
        """Return the nodes that own slots, in the order of the map."""
        return [self.of(shard.address) for shard in self.cluster.map.shards]

    def look(self) -> None:
        """Open or close the circuit that sessions see: the state of a node has changed."""
        self.circuit.look(self._loop.time())

    def _circuit_at(self, address: Address) -> CircuitBreaker:
        return self.of(address).circuit

    def _check(self, address: Address) -> None:
        node = self._nodes.get(address)
        if node is not None:
            node.control.check_new_connections()

    def take_map(self) -> None:
        """Make the nodes of the present map. Of other nodes no outage is logged."""
        for shard in self.cluster.map.shards:
            self.of(shard.address).was_master = True
        for address, node in self._nodes.items():
            node.control.outages.follow(address in self.cluster.map.index)

    def use(self, timeout_s: float, tls: ClientSide | None) -> None:
        """Apply --hit-timeout, and the TLS settings of new connections, to all nodes."""
        self.timeout_s, self.cluster.tls = timeout_s, tls
        for node in self._nodes.values():
            node.timeouts.timeout_s, node.target.tls = timeout_s, tls

    def close_idle(self, since: float) -> list[Address]:
        """Close what is unused since loop time `since`: command lanes, and nodes without slots.

        Closes also the former masters that are silent for GONE_S: what they owe may never come.
        Returns their addresses.
        """
        self.take_map()
        gone: list[Address] = []
        for address, node in self._nodes.copy().items():
            if self._is_gone(node):
                gone.append(address)
            elif not node.idle(since):
                node.pool.close_command_lanes(since)
                continue
            del self._nodes[address]
            node.close()
        return gone

    def _is_gone(self, node: Node) -> bool:
        if not node.was_master or node.address in self.cluster.map.index:
            return False
        # Not the present time: if this process has stalled, replies of all nodes are unread.
        latest = max(each.circuit.last_reply_at for each in self._nodes.values())
        return latest - node.circuit.last_reply_at >= GONE_S

    async def stop(self) -> None:
        """End all control connections and lanes."""
        for node in self.all():
            await node.stop()
