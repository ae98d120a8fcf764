"""The clients of one worker: their admission, the checks of their timeouts, their removal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rlproxy.config.config import Config
from rlproxy.downstream.admission import TURNED_AWAY, Admission, Refusal
from rlproxy.fairness.fan_out_reader import FanOutReader
from rlproxy.fairness.scheduler import Scheduler
from rlproxy.net.peers import Peer
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.session.call import nothing
from rlproxy.session.context import WorkerContext
from rlproxy.upstream.connector import Target

if TYPE_CHECKING:
    from rlproxy.downstream.connection import ClientConnection

SWEPT: Final = 500  # clients that each sweep checks at least
ROUND: Final = 8  # sweeps that together check all clients, if there are over 4,000


class Clients:
    """The clients of one worker, and what they share.

    throttle: the log throttle for events that any client can cause.
    """

    __slots__ = (
        "addresses",
        "clients",
        "clock",
        "context",
        "fan_out",
        "admission",
        "draining",
        "keepalive_s",
        "loop",
        "max_unread",
        "on_leave",
        "round",
        "scheduler",
        "target",
        "tasks",
        "throttle",
        "turned_away",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: WorkerContext,
        target: Target,
        admission: Admission,
        config: Config,
        throttle: LogThrottle,
    ) -> None:
        self.loop = loop
        self.clock: Callable[[], float] = loop.time
        self.context = context
        self.target = target
        self.admission = admission
        self.throttle = throttle
        self.max_unread = config.max_unread
        self.keepalive_s = config.tcp_keepalive_s
        self.addresses: dict[str, int] = {}  # number of clients by IP address
        self.fan_out = FanOutReader(loop)
        self.clients: set[ClientConnection] = set()
        self.round: list[ClientConnection] = []  # clients that the next sweeps check
        self.scheduler = Scheduler(context.budget, loop.call_soon)
        self.tasks: set[asyncio.Task[None]] = set()
        self.turned_away: set[ClientConnection] = set()  # refused clients, connections lingering
        self.draining = False
        self.on_leave: Callable[[], None] = nothing  # called after a connection has ended
        context.failure.reconfigure(config.on_upstream_failure, config.hit_timeout_ms)

    def reconfigure(self, config: Config) -> None:
        """Apply those options of `config` that can change at run time."""
        self.admission.configure(config)
        self.context.failure.reconfigure(config.on_upstream_failure, config.hit_timeout_ms)
        for client in self.clients:
            client.restrict()

    def enter(self, client: ClientConnection, peer: Peer) -> Refusal | None:
        """Add a new client if it is admitted. Returns the refusal, or None."""
        count = self.addresses.get(peer.host, 0)
        refusal = self.admission.refusal(peer, len(self.clients), count)
        if refusal is not None:
            self.throttle.happened(
                "clients_turned_away", TURNED_AWAY, client=str(peer), reason=refusal.reason
            )
            self.context.stats.error("turned_away")
            return refusal
        self.clients.add(client)
        if peer.host:
            self.addresses[peer.host] = count + 1
        return None

    def leave(self, client: ClientConnection) -> None:
        """Remove `client`, which is gone."""
        if client in self.clients:
            self.clients.discard(client)
            host = client.peer.host if client.peer is not None else ""
            count = self.addresses.get(host, 0) - 1
            if count > 0:
                self.addresses[host] = count
            else:
                self.addresses.pop(host, None)
        self.turned_away.discard(client)
        self.on_leave()

    def sweep(self) -> None:
        """Close clients that are silent, or read nothing, for too long.

        To be called about once a second. Each call checks at least 500 clients (SWEPT), and at
        least one in eight (ROUND).
        """
        now = self.clock()
        if not self.round:
            self.round = list(self.clients)
        rest = max(0, len(self.round) - max(SWEPT, len(self.clients) // ROUND))
        for client in self.round[rest:]:
            client.sweep(now)
        del self.round[rest:]
        self.throttle.sweep()
