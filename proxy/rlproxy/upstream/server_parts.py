"""The parts that serve one server: circuit, timeouts, scripts, control connection, lanes, log of
outages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from rlproxy.config.urls import Upstream
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.scripts import Script
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.connector import Target
from rlproxy.upstream.control import Control
from rlproxy.upstream.lane import LaneContext
from rlproxy.upstream.lane_pool import LanePool


@dataclass
class ServerSettings:
    """What the parts of each server have in common.

    upstream, scripts: see Control.
    denial_cache, max_lane_hits, counters: see LaneContext.
    on_server: called whenever the facts about a server are found.
    """

    upstream: Upstream
    scripts: dict[str, Script]
    denial_cache: DenialCache
    max_lane_hits: int
    counters: Counters
    on_server: Callable[[], None]


class ServerParts:
    """The parts that serve the server of `target`.

    facts: has the address of the server, and what identifies it once that is found.
    """

    def __init__(self, target: Target, facts: ServerFacts, settings: ServerSettings) -> None:
        loop = asyncio.get_running_loop()
        self.facts = facts
        self.circuit = circuit = CircuitBreaker()
        self.timeouts = HitTimeouts(circuit, loop.time, loop.call_later)
        self.control = Control(
            target,
            settings.upstream,
            settings.scripts,
            facts,
            settings.on_server,
            self.timeouts,
        )
        self.timeouts.on_silence = self.control.ping_now
        facts.on_refused = self.control.check_new_connections
        circuit.on_open, circuit.on_close = self.circuit_opened, self.circuit_closed
        self.pool = LanePool(
            LaneContext(
                loop,
                target,
                facts,
                settings.denial_cache,
                self.timeouts,
                settings.max_lane_hits,
                settings.counters,
            )
        )
        self.control.drained = self.pool.drained
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the control connection."""
        self._task = asyncio.get_running_loop().create_task(self.control.run())

    def circuit_opened(self) -> None:
        """Send a PING and log the outage: the circuit has opened."""
        self.control.ping_now()
        self.control.outages.circuit_opened()

    def circuit_closed(self, out_s: float, without: int) -> None:
        """See OutageLog.circuit_closed()."""
        self.control.outages.circuit_closed(out_s, without)

    def close(self) -> None:
        """Close the connections."""
        if self._task is not None:
            self._task.cancel()
        self.pool.renew()

    async def stop(self) -> None:
        """Close the connections, and wait until the task of the control connection has ended."""
        self.close()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
