"""The wiring of one worker: its objects, and the callbacks between them.

listeners ─> intake ─> handshakes ─> clients ─> context ─> lanes ─> target ─> Redis
                                                                     control, probe, failover
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rlproxy.config.config import Config
from rlproxy.downstream.admission import Admission
from rlproxy.downstream.clients import Clients
from rlproxy.downstream.connection import ClientConnection
from rlproxy.downstream.handshake import Handshakes
from rlproxy.fairness.budget import Budget
from rlproxy.net import file_limit
from rlproxy.net.peers import Peer
from rlproxy.net.tls_contexts import Contexts
from rlproxy.observability.counters import Counters
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.logs import log
from rlproxy.process.balancer import Intake
from rlproxy.process.post import Post
from rlproxy.process.telemetry import Telemetry
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.wait_queue import Cancel, WaitQueues
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.connector import Target
from rlproxy.upstream.control import Control, Identification
from rlproxy.upstream.failover import Failover, MasterTarget
from rlproxy.upstream.lane_pool import LanePool
from rlproxy.upstream.password_probe import Probe
from rlproxy.upstream.script_loading import ScriptLoading

SERVING_S: Final = 0.1  # seconds since a reply of Redis for which clients are being served
NEARLY: Final = 0.9  # share of --max-clients; a limit of open files for fewer causes a warning


class Wiring:
    """The objects of one worker. None of them does anything before the server starts it.

    contexts: the TLS settings.
    """

    def __init__(self, config: Config, post: Post, contexts: Contexts) -> None:
        self._post = post
        self._is_first = post.worker == 0  # this process logs what all workers find alike
        self.server = ""  # name and version of the server
        loop = asyncio.get_running_loop()
        timeouts = HitTimeouts(CircuitBreaker(), clock=loop.time, later=loop.call_later)
        self._wire_upstream(config, contexts, timeouts)
        self._wire_context(config, timeouts)
        self._wire_clients(config, contexts)
        self.telemetry = Telemetry(
            config, post, self.clients, self.lanes, self.control, lambda: self.server
        )
        self.context.status_call = self.telemetry.request

    def _wire_upstream(self, config: Config, contexts: Contexts, timeouts: HitTimeouts) -> None:
        loop, post = asyncio.get_running_loop(), self._post
        upstream, timeout_s = post.upstream, config.connect_timeout_s
        self.target: Target
        self.failover: Failover | None = None
        if upstream.address is not None:
            self.target = Target(upstream.address, timeout_s, contexts.client)
        else:
            self.target = target = MasterTarget(str(upstream), timeout_s, contexts.client)
            self.failover = Failover(upstream, target, self._moved, lambda: target.tls)
        self.server_facts = ServerFacts(self.target.where, upstream.db)
        if self.failover is not None:
            self.server_facts.read_only = self.failover.suspect
        loading = ScriptLoading(timeouts, loop.call_later)
        self.control = Control(
            self.target, upstream, post.scripts, self._identified, timeouts, loading
        )
        timeouts.on_doubt = self.control.probe
        timeouts.circuit.on_open = self._opened
        timeouts.circuit.on_close = self._closed
        self.lanes = LanePool(
            loop,
            self.target,
            loading,
            self.server_facts,
            DenialCache(config.denial_cache, time.monotonic) if config.denial_cache else None,
            timeouts,
            config.max_lane_hits,
            Counters(),
            time.monotonic,
        )

    def _wire_context(self, config: Config, timeouts: HitTimeouts) -> None:
        lanes = self.lanes
        self.context = WorkerContext(
            grammar=Grammar(self._post.scripts),
            server=self.server_facts,
            lane_of=lanes.lane_of,
            share_of=lanes.share_of if config.share else None,
            waiting=WaitQueues(time.monotonic, _call_at),
            timeouts=timeouts,
            budget=Budget(config.max_client_hits),
            stats=lanes.stats,
        )

    def _wire_clients(self, config: Config, contexts: Contexts) -> None:
        loop, post, context = asyncio.get_running_loop(), self._post, self.context
        throttle = LogThrottle(time.monotonic, log.warning)
        self.admission = Admission(config, self.target.where, self._room(config.max_clients))
        self.clients = clients = Clients(
            loop, context, self.target, self.admission, config, throttle
        )
        self.handshakes = Handshakes(
            loop,
            lambda peer: ClientConnection(clients, peer),
            config.proxy_protocol,
            config.handshake_timeout_s,
            contexts.server,
            throttle,
            context.stats,
        )
        self.intake = Intake(
            post.worker,
            post.balance,
            post.listeners.of(post.worker),
            self.handshakes.protocol,
            lambda: loop.time() - context.circuit.heard_at <= SERVING_S,
        )
        self.intake.rate = config.max_accept_rate
        self.clients.on_leave = self.handshakes.on_gone = self.intake.left
        self.probe: Probe | None = None
        addresses = post.listeners.addresses()
        if config.proxy_protocol or any(one.host and not Peer(one.host).local for one in addresses):
            self.probe = Probe(self.target, lambda: self.admission.protected, self._judged)

    def reconfigure(self, config: Config, contexts: Contexts) -> None:
        """Apply new settings; they differ only in options that SIGHUP may change."""
        self.handshakes.context = contexts.server
        self.target.tls = contexts.client
        self.clients.reconfigure(config)
        self.intake.rate = config.max_accept_rate

    # -- callbacks --------------------------------------------------------------------------------

    def _moved(self) -> None:
        """Cut the connections to the former master: the target has moved to another one."""
        self.context.server.where = self.target.where
        self.lanes.renew()
        for client in list(self.clients.clients):
            client.cut_upstream()
        self.control.move()

    def _room(self, max_clients: int) -> int:
        """Return the number of clients for which this process may open enough files."""
        limit = file_limit.raise_limit()
        room = file_limit.room(limit)
        if room < NEARLY * max_clients and self._is_first:
            log.warning(
                "descriptors_short",
                "the limit of open files ({limit}, see ulimit -n) is enough for {room} clients, "
                "not for the {max_clients} of --max-clients",
                limit=limit,
                room=room,
                max_clients=max_clients,
            )
        return room

    def _judged(self, needs_password: bool) -> None:
        """Apply the probe's result: whether Redis' default user needs a password."""
        known = self.admission.needs_password
        self.admission.needs_password = needs_password
        if known == needs_password or not self._is_first:
            return
        if not needs_password:
            log.warning(
                "protected_mode_applies",
                "protected mode: Redis' default user needs no password, so clients of other "
                "machines are turned away. Set a password there, or --protected-mode no",
            )
        elif known is not None:
            text = "Redis' default user needs a password: clients of other machines may come in"
            log.info("protected_mode_over", text)

    def _identified(self, found: Identification) -> None:
        """Apply the facts about the server that the control connection has found."""
        self.server = f"{found.name} {found.version}"
        if self.probe is not None:
            self.probe.soon()
        server = self.context.server
        server.has_throttle = found.has_throttle
        server.has_ro = found.has_ro
        server.name = found.name.lower().encode()
        server.version = found.version.encode()
        server.ignores_empty = found.ignores_empty

    def _opened(self) -> None:
        """Probe Redis and log that it does not answer: the circuit has opened."""
        self.control.probe()
        circuit = self.context.circuit
        if circuit.told and not self.control.warned:
            text = (
                "Redis at {address} does not answer ({reason}), {count} times since this was last "
                "logged; hits are answered as --on-upstream-failure says ({answer})"
                if circuit.untold
                else "Redis at {address} does not answer ({reason}); hits are answered as "
                "--on-upstream-failure says ({answer})"
            )
            log.warning(
                "redis_silent",
                text,
                address=self.context.server.where,
                reason=circuit.why,
                answer=self.context.failure.mode,
                count=1 + circuit.untold,
            )
            circuit.untold = 0

    def _closed(self, out_s: float, without: int) -> None:
        """Log that Redis answers again after `out_s`; `without` hits were answered without it."""
        if self.context.circuit.told or self.control.warned:
            log.warning(
                "redis_back",
                "Redis at {address} is back after {seconds:.1f} s; "
                "hits answered without it: {hits}",
                address=self.context.server.where,
                seconds=out_s,
                hits=without,
            )
        self.control.warned = False


def _call_at(at: float, function: Callable[[], None]) -> Cancel:
    """Call `function` when time.monotonic() is `at`; see WaitQueues."""
    # uvloop's timers have a resolution of 1 ms, and can be early by as much
    delay = max(0.0, at - time.monotonic()) + 0.001
    return asyncio.get_running_loop().call_later(delay, function).cancel
