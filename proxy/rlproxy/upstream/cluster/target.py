"""Opening connections to a cluster: each looks like one to a single Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from rlproxy.config.urls import Address
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.connection import ClusterConnection
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.idle_links import IdleLinks
from rlproxy.upstream.connector import Target, reason

SETTLE_S: Final = 2.0  # seconds for which a new connection waits until the cluster is known


class ClusterTarget(Target):
    """Opens connections to a Redis Cluster, each of which looks like one to a single Redis.

    shown: makes the face of the cluster toward the client of a protocol.
    splits: see Dispatcher.
    """

    def __init__(
        self,
        where: str,
        cluster: Cluster,
        shown: Callable[[asyncio.Protocol], Face],
        splits: bool,
    ) -> None:
        super().__init__(Address(), 0.0)
        self.where = where
        self._cluster = cluster
        self._shown = shown
        self._splits = splits
        self._clients: dict[int, Exchange] = {}
        self._exchanges: set[Exchange] = set()
        self._idle_links = IdleLinks(self._exchanges)
        self._masters = set(cluster.map.index)
        cluster.on_change.append(self._changed)

    def secure(self, tls: ClientSide | None) -> None:
        """Use these TLS settings for new connections."""
        self._cluster.secure(tls)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """See Target.connect()."""
        cluster = self._cluster
        if not cluster.map.shards:
            cluster.refresh()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(cluster.settled.wait(), SETTLE_S)
        exchange = Exchange(cluster, asyncio.get_running_loop(), self._clients)
        await self._look()
        found = protocol()
        dispatcher = Dispatcher(exchange, cluster.routes, self._shown(found), self._splits)
        transport = cast("asyncio.Transport", ClusterConnection(exchange, dispatcher, found))
        self._exchanges.add(exchange)
        exchange.at_end.append(partial(self._exchanges.discard, exchange))
        found.connection_made(transport)
        return transport

    def close_idle(self) -> None:
        """Close what clients do not use of their connections; called about once a second."""
        self._idle_links.sweep(asyncio.get_running_loop().time())

    def _changed(self) -> None:
        """Pass on which nodes are no masters any more."""
        former, self._masters = self._masters, set(self._cluster.map.index)
        gone = former - self._masters
        if gone:
            for exchange in list(self._exchanges):
                exchange.gone(gone)

    async def _look(self) -> None:
        """Raise OSError if no master is known, or if none can be reached."""
        cluster = self._cluster
        shards = cluster.map.shards
        if not shards:
            raise OSError(cluster.problem or "no node of the cluster answers")
        if any(map(cluster.is_up, shards)):
            return
        failures = []
        for shard in shards:
            try:
                transport = await cluster.target(shard.address).connect(asyncio.Protocol)
            except OSError as error:
                failures.append(error)
            else:
                transport.abort()
                return
        raise OSError(reason(failures[0]))
