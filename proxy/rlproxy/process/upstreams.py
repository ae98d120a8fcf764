"""The upstream side of one worker: one server, or the nodes of a cluster.

| | one server | a cluster |
|---|---|---|
| hits; ordinary commands (--share) | LanePool | ClusterLanes, one LanePool for each node |
| private connections | Target, MasterTarget | ClusterTarget |
| state | Control | a Control for each node |
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from rlproxy.config.config import Config
from rlproxy.config.urls import DEFAULT_REDIS_PORT, Upstream
from rlproxy.downstream.connection import PrivateConnection
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.observability.metrics import FULL, NODE, UNABLE, UNREACHABLE
from rlproxy.observability.snapshots import UpstreamState
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.cluster.cluster import IS_DOWN, Cluster
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.lanes import ClusterLanes
from rlproxy.upstream.cluster.node import Node, Nodes
from rlproxy.upstream.cluster.target import ClusterTarget
from rlproxy.upstream.connector import Target
from rlproxy.upstream.failover import Failover
from rlproxy.upstream.lane import ServerLane
from rlproxy.upstream.lane_pool import IDLE_S
from rlproxy.upstream.master_target import MasterTarget
from rlproxy.upstream.server_parts import ServerParts, ServerSettings

_AWAY: Final = (UNREACHABLE, UNABLE, FULL)  # with these, a server serves no keys to new clients
FIRST_CONTACT_S: Final = 2.0  # seconds that start-up waits for Sentinels, then for Redis, at most


def _seen(facts: ServerFacts, circuit: CircuitBreaker) -> UpstreamState:
    """Return what the circuit and the facts about the server show."""
    changed = time.time() - asyncio.get_running_loop().time() + circuit.since
    return UpstreamState(
        facts.where,
        facts.found.title(),
        not circuit.open,
        circuit.why,
        changed if circuit.since else None,
    )


def describe_upstream(upstream: Upstream, state: UpstreamState) -> str:
    """Return the upstream and its state as text for the log."""
    if upstream.embedded:
        kind = f"embedded cluster of {upstream.masters} masters" if upstream.masters else "embedded"
        return f"{state.server or 'Valkey'}, {kind} (its data ends with this process)"
    where = str(upstream)
    if upstream.tls:
        where += " (TLS)"
    if state.now:
        where += f" ({state.now})"
    if state.kind in (FULL, UNREACHABLE):
        return f"{where}: {state.problem}; retrying"
    if state.settled:
        found = f"{state.server or 'a server'} at {where}"
        return f"{found}: {state.problem}" if state.problem else found
    if state.reached:
        silent = "it accepts connections, but does not answer as Redis does"
        return f"{where}: {silent} (nothing within {FIRST_CONTACT_S:g} s)"
    return f"{where}: no connection within {FIRST_CONTACT_S:g} s; retrying"


class OneServer(ServerParts):
    """One server, or the master that Sentinels name.

    on_moved: called when the master is another one.

    target: opens private connections, and those of the password probe.
    facts, timeouts, lane_of: see WorkerContext.
    settings: has the counters and the denial cache.
    """

    def __init__(
        self, config: Config, settings: ServerSettings, on_moved: Callable[[], None]
    ) -> None:
        upstream, timeout_s = settings.upstream, config.connect_timeout_s
        keepalive_s = config.tcp_keepalive_s
        self.settings = settings
        self._on_moved = on_moved
        self.target: Target
        self.failover: Failover | None = None
        if upstream.address is not None:
            self.target = Target(upstream.address, timeout_s, keepalive_s=keepalive_s)
        else:
            self.target = target = MasterTarget(str(upstream), timeout_s, keepalive_s)
            self.failover = Failover(upstream, target, self._moved)
        super().__init__(self.target, ServerFacts(self.target.where), settings)
        if self.failover is not None:
            self.facts.on_read_only = self.failover.suspect
        else:
            self.facts.on_read_only = self.control.look_at_role
            self.control.on_moved = self._cut
        self.lane_of = self.pool.lane_of

    def lanes(self) -> Sequence[ServerLane]:
        """Return all lanes, whether connected or not."""
        return self.pool.lanes()

    def last_reply_at(self) -> float:
        """Return the loop time of the latest reply."""
        return self.timeouts.circuit.last_reply_at

    def state(self) -> UpstreamState:
        """Return what the proxy's own connections have found."""
        control, master = self.control, self.failover.master if self.failover else None
        return replace(
            _seen(self.facts, self.circuit),
            kind=control.kind,
            problem=control.problem,
            loaded=self.facts.loaded,
            reached=control.reached,
            settled=control.settled.is_set(),
            now=f"now {master.address}" if master is not None else "",
        )

    def configure(self, config: Config, tls: ClientSide | None) -> None:
        """Apply new settings."""
        self.target.tls = tls
        self.timeouts.timeout_s = config.hit_timeout_ms / 1000 or inf

    def _moved(self) -> None:
        """Follow the target, which has moved to another master."""
        self.facts.where = self.target.where
        self._cut()
        self.control.reconnect()

    def _cut(self) -> None:
        """Cut the lanes and the clients' connections to the former master."""
        self.pool.renew()
        self._on_moved()

    async def begin(self) -> list[asyncio.Event]:
        """Start the proxy's own connections. Returns the events of their first results."""
        if self.failover is not None:
            self.failover.start()
            await first_contact(self.failover.settled)
        self.start()
        return [self.control.settled]

    def close_idle(self) -> None:
        """Close what has been unused for a while; called regularly."""
        self.pool.close_idle(asyncio.get_running_loop().time() - IDLE_S)

    async def stop(self) -> None:
        """Close all lanes and the proxy's own connections."""
        if self.failover is not None:
            await self.failover.stop()
        await super().stop()


class ClusterUpstream:
    """The nodes of a Redis Cluster; see OneServer for its attributes."""

    def __init__(self, config: Config, settings: ServerSettings) -> None:
        upstream = settings.upstream
        self._on_server = settings.on_server
        self._announce, self._standalone = config.announce, config.present == "standalone"
        self._loop = loop = asyncio.get_running_loop()
        self.cluster = Cluster(upstream, loop, config.connect_timeout_s, config.tcp_keepalive_s)
        self.settings = replace(settings, on_server=self._identified)
        self.nodes = Nodes(self.cluster, self.settings)
        self._circuit = self.nodes.circuit
        self.timeouts = HitTimeouts(self._circuit, loop.time, loop.call_later)
        self.timeouts.on_silence = self._ping_nodes
        self.facts = ServerFacts(str(upstream), in_cluster=True)
        self.facts.on_read_only = self.cluster.refresh
        self._lanes = ClusterLanes(self.nodes, loop)
        self.lane_of = self._lanes.lane_of
        splits = config.cross_slot == "split"
        self.target = ClusterTarget(self.cluster, self._face, splits)

    def _face(self, private: asyncio.Protocol) -> Face:
        """Return what the client of a private connection sees of the cluster.

        Its address is that of --announce, or the one by which the client reached the proxy.
        """
        address = self._announce
        if address is None and isinstance(private, PrivateConnection):
            address = private.reached_at()
        if address is None:
            return Face("127.0.0.1", DEFAULT_REDIS_PORT, self._standalone)
        return Face(address.host, address.port, self._standalone)

    def _ping_nodes(self) -> None:
        for node in self.nodes.masters():
            node.control.ping_now()

    def _identified(self) -> None:
        """Record the facts about the first master; commands must exist on all."""
        all_found = [node.facts.found for node in self.nodes.masters()]
        found = [each for each in all_found if each.known]
        if found:
            self.facts.found = replace(
                found[0],
                ignores_empty=all(each.ignores_empty for each in found),
                has_throttle=all(each.has_throttle for each in found),
            )
            self._on_server()

    def lanes(self) -> Sequence[ServerLane]:
        """Return all lanes, whether connected or not."""
        return [lane for node in self.nodes.all() for lane in node.pool.lanes()]

    def last_reply_at(self) -> float:
        """Return the loop time of the latest reply."""
        times = [node.circuit.last_reply_at for node in self.nodes.masters()]
        return max(times, default=self._circuit.last_reply_at)

    def state(self) -> UpstreamState:
        """See OneServer.state(). The problem is that of one node, which it names."""
        seen, masters = _seen(self.facts, self._circuit), self.nodes.masters()
        if not masters:
            cluster = self.cluster
            settled = cluster.settled.is_set()
            return replace(seen, kind=cluster.kind, problem=cluster.problem, settled=settled)
        found = list(map(_problem, masters))
        kind, problem = next(filter(None, found), ("", ""))
        if self.cluster.down_since:
            kind, problem = UNABLE, f"{IS_DOWN}; {problem}" if problem else IS_DOWN
        elif kind in _AWAY and not all(each and each[0] in _AWAY for each in found):
            kind = NODE
        number = len(self.cluster.map.shards)
        return replace(
            seen,
            kind=kind,
            problem=problem,
            loaded=all(node.facts.loaded for node in masters),
            reached=any(node.control.reached for node in masters),
            settled=all(node.control.settled.is_set() for node in masters),
            now=f"{number} master{'s' if number > 1 else ''}" if number else "",
            nodes={str(node.address): not node.circuit.open for node in masters},
        )

    def configure(self, config: Config, tls: ClientSide | None) -> None:
        """Apply new settings."""
        self.timeouts.timeout_s = config.hit_timeout_ms / 1000 or inf
        self.nodes.use(self.timeouts.timeout_s, tls)

    async def begin(self) -> list[asyncio.Event]:
        """See OneServer.begin()."""
        self.cluster.start()
        await first_contact(self.cluster.settled)
        return [self.cluster.settled, *(node.control.settled for node in self.nodes.masters())]

    def close_idle(self) -> None:
        """Close what has been unused for a while; called regularly."""
        now = self._loop.time()
        for address in self.nodes.close_idle(now - IDLE_S):
            self.target.leave(address)
        self._lanes.close_idle(now - IDLE_S)
        self.target.sweep(now)

    async def stop(self) -> None:
        """Close all lanes and the proxy's own connections."""
        await self.cluster.stop()
        await self.nodes.stop()


UpstreamWiring = OneServer | ClusterUpstream  # what stands behind the sessions


def _problem(node: Node) -> tuple[str, str] | None:
    """Return kind and text of a node's problem, with its address; None if it has none."""
    if node.control.problem:
        return node.control.kind, f"{node.address}: {node.control.problem}"
    if node.circuit.open:
        return UNREACHABLE, f"{node.address}: {node.circuit.why}"
    return None


async def first_contact(*events: asyncio.Event) -> None:
    """Return when all of `events` are set, at the latest after FIRST_CONTACT_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_CONTACT_S):
            for event in events:
                await event.wait()
