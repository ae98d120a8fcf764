"""The clients of one worker: their admission, the checks of their timeouts, their removal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final, Protocol

from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.downstream.admission import TURNED_AWAY, Admission, Refusal
from rlproxy.downstream.lingering_close import FULL_READ
from rlproxy.fairness.budget import WORK_BYTES_SHIFT
from rlproxy.fairness.scheduler import Scheduler
from rlproxy.net.peers import Peer
from rlproxy.observability.counters import Counters
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.session.context import WorkerContext
from rlproxy.session.session import Session
from rlproxy.upstream.connector import Target

SWEPT: Final = 500  # clients that each sweep checks at least
ROUND: Final = 8  # sweeps that together check all clients, if there are over 4,000


class Client(Protocol):
    """One client's connection, as `Clients`, their owners and its private connection use it."""

    clients: Clients
    session: Session
    stats: Counters

    def restrict(self) -> None:
        """Apply the present command policy to the client."""

    def flush(self) -> None:
        """Write the session's output to both sides, and apply its state to the sockets."""

    def sweep(self, now: float) -> None:
        """Close the client if it is gone, has been silent, or has read nothing, for too long."""

    def notice_hangup(self) -> None:
        """Poll whether the client is gone, and handle it as end of file."""

    def owed(self) -> bool:
        """Return whether replies are not yet written, or not yet taken by the client's system."""
        ...

    def cut(self) -> None:
        """Abort the client's connection. Outstanding replies are lost."""

    def cut_upstream(self) -> None:
        """Abort the private connection. The effect is as if Redis had closed it."""

    def queue(self) -> None:
        """Queue the client for a turn in the next tick."""

    def upstream_lost(self, private: asyncio.Protocol) -> None:
        """Handle the end of `private`."""

    def reached_at(self) -> Address | None:
        """Return the address by which the client reached the proxy; None for a unix socket."""
        ...


class Clients:
    """The clients of one worker, and what they share.

    throttle: the log throttle for events that any client can cause.
    """

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
        self.addresses: dict[str, int] = {}  # number of clients by IP address
        self.clients: dict[Client, str] = {}  # the IP address of each; empty for a unix socket
        self.round: list[Client] = []  # clients that the next sweeps check
        self.scheduler = Scheduler(context.budget, loop.call_soon)
        self.tasks: set[asyncio.Task[None]] = set()
        self.turned_away: set[Client] = set()  # refused clients, connections lingering
        self.draining = False
        self.on_leave: Callable[[], None] = lambda: None  # called after a connection has ended

    def reconfigure(self, config: Config) -> None:
        """Apply those options of `config` that can change at run time."""
        self.admission.configure(config)
        for client in self.clients:
            client.restrict()

    def enter(self, client: Client, peer: Peer) -> Refusal | None:
        """Add a new client if it is admitted. Returns the refusal, or None."""
        count = self.addresses.get(peer.host, 0)
        refusal = self.admission.refusal(peer, len(self.clients), count)
        if refusal is not None:
            self.throttle.happened(
                "clients_turned_away", TURNED_AWAY, client=str(peer), reason=refusal.reason
            )
            self.context.stats.error("turned_away")
            return refusal
        self.clients[client] = host = sys.intern(peer.host)  # one text for all its clients
        if host:
            self.addresses[host] = count + 1
        return None

    def leave(self, client: Client) -> None:
        """Remove `client`, which is gone."""
        host = self.clients.pop(client, "")
        if host:
            self.addresses[host] -= 1
            if self.addresses[host] == 0:
                del self.addresses[host]
        self.turned_away.discard(client)
        self.on_leave()

    def rests(self, size: int) -> bool:
        """Count `size` bytes as work. Return whether their connection waits for its next turn."""
        budget = self.context.budget
        budget.work += size >> WORK_BYTES_SHIFT
        # After a full read, uvloop would read up to 32 times in a row before other connections.
        return size >= FULL_READ or budget.spent()

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
