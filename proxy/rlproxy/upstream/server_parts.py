"""The parts that serve one server: circuit, timeouts, scripts, control connection, lanes, log of
outages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from rlproxy.config.urls import Upstream
from rlproxy.observability.counters import Counters
from rlproxy.observability.logs import log
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.scripts import Script
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import Identification, ServerFacts
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.connector import Target
from rlproxy.upstream.control import Control
from rlproxy.upstream.lane import LaneContext
from rlproxy.upstream.lane_pool import LanePool
from rlproxy.upstream.script_loading import ScriptLoading


class ServerParts:
    """The parts that serve the server of `target`.

    facts: has the address of the server.
    upstream, scripts, on_server: see Control.
    denial_cache, max_lane_hits, counters: see LaneContext.
    """

    def __init__(
        self,
        target: Target,
        facts: ServerFacts,
        upstream: Upstream,
        scripts: dict[str, Script],
        denial_cache: DenialCache | None,
        max_lane_hits: int,
        counters: Counters,
        on_server: Callable[[Identification], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.facts = facts
        self.circuit = circuit = CircuitBreaker()
        self.timeouts = HitTimeouts(circuit, clock=loop.time, later=loop.call_later)
        loading = ScriptLoading()
        self.control = Control(target, upstream, scripts, on_server, self.timeouts, loading)
        self.timeouts.on_silence = self.control.ping_now
        circuit.on_open, circuit.on_close = self.opened, self.closed
        self.pool = LanePool(
            LaneContext(
                loop,
                target,
                loading,
                facts,
                denial_cache,
                self.timeouts,
                max_lane_hits,
                counters,
                time.monotonic,
            )
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the control connection."""
        self._task = asyncio.get_running_loop().create_task(self.control.run())

    def opened(self) -> None:
        """Send a PING and log that it does not answer: the circuit has opened."""
        self.control.ping_now()
        if self.circuit.outage_logged and not self.control.warned:
            log.warning(
                "redis_silent",
                "Redis at {address} does not answer ({reason}); "
                "hits are answered by --on-upstream-failure",
                address=self.facts.where,
                reason=self.circuit.why,
            )

    def closed(self, out_s: float, without: int) -> None:
        """Log that it answers again after `out_s`; `without` hits were answered without it."""
        if self.circuit.outage_logged or self.control.warned:
            log.warning(
                "redis_back",
                "Redis at {address} is back after {seconds:.1f} s; "
                "hits answered without it: {hits}",
                address=self.facts.where,
                seconds=out_s,
                hits=without,
            )
        self.control.warned = False

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
