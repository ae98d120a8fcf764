"""The connector to a cluster: each connection that it opens looks like one to a single Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final, cast

from rlproxy.config.urls import Address
from rlproxy.upstream.backoff import pause
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.connection import ClusterConnection
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.connector import Target

SETTLE_S: Final = 2.0  # seconds for which a new connection waits until the cluster is known
SWEEPS: Final = 10  # calls of sweep() in which each client is looked at once


class ClusterTarget(Target):
    """Opens connections to a Redis Cluster, each of which looks like one to a single Redis.

    face_of: returns what the client of a protocol sees of the cluster.
    splits: see Dispatcher.
    """

    def __init__(
        self, cluster: Cluster, face_of: Callable[[asyncio.Protocol], Face], splits: bool
    ) -> None:
        super().__init__(Address(), 0.0)
        self.where = str(cluster.upstream)
        self._cluster = cluster
        self._face_of = face_of
        self._splits = splits
        self._exchanges: dict[Exchange, None] = {}  # the one that is looked at next comes first

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        cluster = self._cluster
        if not cluster.map.shards:
            cluster.refresh()
            await pause(SETTLE_S, cluster.settled)
        home = cluster.home()
        if home is None:
            raise OSError(cluster.problem or "no node of the cluster answers")
        if cluster.is_down():  # raises OSError if home can't be reached
            (await cluster.target(home).connect(asyncio.Protocol)).abort()
        exchange = Exchange(cluster)
        made = protocol()
        dispatcher = Dispatcher(exchange, cluster.routes, self._face_of(made), self._splits)
        transport = cast("asyncio.Transport", ClusterConnection(exchange, dispatcher, made))
        self._exchanges[exchange] = None
        exchange.at_end.append(lambda: self._exchanges.pop(exchange))
        made.connection_made(transport)
        return transport

    def sweep(self, now: float) -> None:
        """Look at the connections of some clients; called about once a second.

        now: loop time in seconds; see Links.sweep().
        """
        for exchange in list(islice(self._exchanges, len(self._exchanges) // SWEEPS + 1)):
            del self._exchanges[exchange]
            self._exchanges[exchange] = None
            exchange.links.sweep(now)

    def leave(self, address: Address) -> None:
        """Take all connections to the node at `address` for lost."""
        for exchange in list(self._exchanges):
            link = exchange.links.by_address.get(address)
            if link is not None:
                exchange.lost(link)
