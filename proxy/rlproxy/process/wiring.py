"""The wiring of one worker: its objects, and the callbacks between them.

listeners ─> intake ─> handshakes ─> clients ─> context ─> upstream ─> Redis
                                                                       probe
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rlproxy.config.config import Config
from rlproxy.downstream.admission import Admission
from rlproxy.downstream.connection import ClientConnection, Clients
from rlproxy.downstream.handshake import Handshakes
from rlproxy.fairness.budget import Budget
from rlproxy.net import file_limit, tls_contexts
from rlproxy.observability.counters import Counters
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.logs import log
from rlproxy.process.intake import Intake
from rlproxy.process.resources import Resources
from rlproxy.process.telemetry import Telemetry
from rlproxy.process.upstreams import ClusterUpstream, OneServer, UpstreamWiring
from rlproxy.ratelimit import policies
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.wait_queue import Cancel, WaitQueues
from rlproxy.session.context import WorkerContext
from rlproxy.upstream.password_probe import Probe
from rlproxy.upstream.server_parts import ServerSettings

SERVING_S: Final = 0.1  # seconds since a reply of Redis for which clients are being served
NEARLY: Final = 0.9  # share of --max-clients; a limit of open files for fewer causes a warning


class Wiring:
    """The objects of one worker. None of them does anything before the server starts it.

    worker: its number, from 0.
    Raises ConfigError if a certificate or key can't be used.
    """

    def __init__(self, config: Config, worker: int, resources: Resources) -> None:
        self._worker = worker  # the process of the first worker logs what all find alike
        self._resources = resources
        settings = ServerSettings(
            resources.upstream,
            resources.scripts,
            DenialCache(config.denial_cache, time.monotonic),
            config.max_lane_hits,
            Counters(),
            self._identified,
        )
        self.upstream: UpstreamWiring
        if resources.upstream.cluster:
            self.upstream = ClusterUpstream(config, settings)
        else:
            self.upstream = OneServer(config, settings, self._moved)
        self._wire_context(config)
        self._wire_clients(config)
        self.telemetry = Telemetry(config, worker, resources, self.clients, self.upstream)
        self.reconfigure(config)

    def _wire_context(self, config: Config) -> None:
        upstream = self.upstream
        self.context = WorkerContext(
            grammar=Grammar(self._resources.scripts),
            server=upstream.facts,
            lane_of=upstream.lane_of,
            shares=config.shares,
            waiting=WaitQueues(time.monotonic, _call_at),
            timeouts=upstream.timeouts,
            budget=Budget(config.max_client_hits),
            stats=upstream.settings.counters,
            report_request=lambda name, args: self.telemetry.request(name, args),  # made later
        )

    def _wire_clients(self, config: Config) -> None:
        loop, resources, context = asyncio.get_running_loop(), self._resources, self.context
        upstream, target = self.upstream, self.upstream.target
        throttle = LogThrottle(time.monotonic, log.warning)
        context.failure.on_cannot_run = lambda code: throttle.happened(
            "hits_without_redis",
            "hits that Redis can't run: {count}; "
            "{reason}. They are answered by --on-upstream-failure",
            reason=code,
        )
        room = self._room(config.max_clients)
        self.admission = Admission(config, target.where, room)
        self.clients = clients = Clients(loop, context, target, self.admission, config, throttle)
        self.handshakes = Handshakes(
            loop,
            lambda peer: ClientConnection(clients, peer),
            config.proxy_protocol,
            config.handshake_timeout_s,
            throttle,
            context.stats,
        )
        self.handshakes.room = lambda: file_limit.OF_A_CLIENT * (room - len(clients.clients))
        self.intake = Intake(
            self._worker,
            resources.client_counts,
            resources.listeners.sockets,
            self.handshakes.protocol,
            lambda: loop.time() - upstream.last_reply_at() <= SERVING_S,
        )
        self.clients.on_leave = self.handshakes.on_gone = self.intake.left
        self.probe: Probe | None = None
        addresses = resources.listeners.addresses()
        if config.proxy_protocol or any(not one.local for one in addresses):
            self.probe = Probe(upstream.target, lambda: self.admission.protected, self._judged)

    def reconfigure(self, config: Config) -> None:
        """Apply those options of `config` that SIGHUP may change. Raises ConfigError."""
        self.handshakes.context, client_side = tls_contexts.contexts(config)
        self.clients.reconfigure(config)
        self.upstream.configure(config, client_side)
        self.context.failure.mode = config.on_upstream_failure
        self.intake.rate = config.max_accept_rate
        found, _ = policies.parse(config.policies)  # which have no mistakes
        self.telemetry.use_policies(found.values())
        self.context.grammar.use(found)

    # -- callbacks --------------------------------------------------------------------------------

    def _moved(self) -> None:
        """Cut the clients' connections to the former master: there is another one."""
        for client in list(self.clients.clients):
            client.cut_upstream()

    def _room(self, max_clients: int) -> int:
        """Return the number of clients for which this process may open enough files."""
        limit = file_limit.raise_limit()
        room = file_limit.room(limit)
        if room < NEARLY * max_clients and not self._worker:
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
        if known == needs_password or self._worker:
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

    def _identified(self) -> None:
        """Check the password of a server that the control connection has identified."""
        if self.probe is not None:
            self.probe.soon()


def _call_at(at: float, function: Callable[[], None]) -> Cancel:
    """Call `function` when time.monotonic() is `at`; see WaitQueues."""
    # uvloop's timers have a resolution of 1 ms, and can be early by as much
    delay = max(0.0, at - time.monotonic()) + 0.001
    return asyncio.get_running_loop().call_later(delay, function).cancel
