"""One worker process: start-up, main loop and shutdown, each a method."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlproxy.admin.probes import WITHOUT
from rlproxy.build import describe
from rlproxy.config.config import Config, ConfigError, differences, reloaded
from rlproxy.config.urls import Address
from rlproxy.downstream.admission import Admission
from rlproxy.downstream.clients import Clients
from rlproxy.downstream.connection import ClientConnection
from rlproxy.downstream.handshake import Handshakes
from rlproxy.fairness.budget import Budget
from rlproxy.net import file_limit, tls_contexts
from rlproxy.net.listeners import ListenError, Listeners
from rlproxy.net.peers import Peer
from rlproxy.observability import logs
from rlproxy.observability.counters import Counters, Keys
from rlproxy.observability.hot_keys import HotKeys, Merged
from rlproxy.observability.key_prefixes import Prefixes
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.metrics import CLUSTER, FULL, UNREACHABLE
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.balancer import Balancer, Intake
from rlproxy.process.telemetry import EVERY_S, Sources, Telemetry, said, said_top, stats_text
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.wait_queue import Cancel, WaitQueues
from rlproxy.resp import commands
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.connector import Control, Facts, Probe, Target
from rlproxy.upstream.embedded import EmbeddedError, EmbeddedServer
from rlproxy.upstream.failover import Failover, MasterTarget
from rlproxy.upstream.lane import IDLE_S, LanePool
from rlproxy.upstream.script_loading import ScriptLoading
from rlproxy.version import VERSION

log = logging.getLogger("rlproxy")

FIRST_CONTACT_S: Final = 2.0  # seconds that start-up waits for Sentinels, then for Redis, at most
SWEEP_S: Final = 1.0  # seconds between two sweeps of the main loop
HANGUPS_S: Final = 0.1  # seconds between two checks for disconnected clients while draining
CUT: Final = signal.SIGUSR1  # to a worker: end without waiting for owed replies
EMBEDDED_ENDED: Final = "the embedded server has ended, and its data with it"
SERVING_S: Final = 0.1  # seconds since a reply of Redis for which clients are being served
NEARLY: Final = 0.9  # share of --max-clients; a limit of open files for fewer causes a warning
# first words of a worker's reports to the supervisor
READY: Final = "ready"
LEAVING: Final = "leaving"
FAILED: Final = "failed"


class StartError(Exception):
    """The proxy can't start or can't continue; the message states the reason for the operator."""


@dataclass(frozen=True)
class Post:
    """What the supervisor, process `parent`, has prepared for one worker."""

    worker: int
    parent: int
    listeners: Listeners
    balance: Balancer
    memory: SharedMemory
    started: float  # time.time() at the start of the proxy
    upstream: Address | None  # None: the Sentinels name the address
    scripts: dict[str, scripts.Script]
    first: bool  # the proxy is still starting: this worker replaces none
    # a report to the supervisor: READY and the banner's text about the upstream, LEAVING and "",
    # or FAILED and the reason
    tell: Callable[[str, str], None]


class Server:
    """A proxy process, or one worker of several.

    config: the settings at the start.
    post: the worker's place; None for a proxy without a supervisor.
    read: reads the settings again, on SIGHUP.
    """

    def __init__(
        self, config: Config, post: Post | None = None, read: Callable[[], Config] | None = None
    ) -> None:
        self._config = config
        self._post = post
        self._read = read
        self._up_at: float | None = None  # time.monotonic() when start-up was complete
        self._hung_up = False  # SIGHUP was received; matters during start-up only
        self._stop = asyncio.Event()
        self._embedded: EmbeddedServer | None = None
        self._listeners: Listeners | None = None
        self._balance: Balancer | None = None  # only in a proxy without a supervisor
        self._arrivals: Handshakes | None = None
        self._target: Target | None = None
        self._intake: Intake | None = None
        self._who = ""  # name and version of the server
        self._failed = ""  # reason to end without a signal
        self._shared: Clients | None = None
        self._admission: Admission
        self._lanes: LanePool | None = None
        self._control: asyncio.Task[None] | None = None
        self._topology: Failover | None = None
        self._probe: Probe | None = None
        self._probing: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._memory = post.memory if post is not None else SharedMemory(1)
        self._admin: AdminProcess | None = None
        self._telemetry: Telemetry
        self._top: Merged
        self._publishing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and close everything.

        Raises StartError if the proxy can't start, or if the embedded server has ended.
        """
        loop = asyncio.get_running_loop()
        if self._post is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
        else:  # a second SIGTERM cuts no client: supervisor and process group may send one each
            loop.add_signal_handler(signal.SIGTERM, self._stop.set)
            loop.add_signal_handler(CUT, self._cut)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        if self._post is not None:  # the supervisor forks with SIGHUP blocked; see _become()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        try:
            await self._start()
            self._up_at = time.monotonic()
            if self._hung_up:
                self._hang_up()
            await self._stop.wait()
        finally:
            await self._shutdown()
        if self._failed:
            raise StartError(self._failed)
        if self._post is None:
            tell_end(self._up_at)

    def stop(self) -> None:
        """Begin to drain. A second call cuts the remaining clients."""
        if self._stop.is_set():
            self._cut()
        self._stop.set()

    def _cut(self) -> None:
        self._stop.set()
        if self._shared is not None:
            clients = list(self._shared.clients)
            owed = sum(client.owed() for client in clients)
            if owed:
                log.warning("%d client(s) were cut: they were still owed replies", owed)
            for client in clients:
                client.cut()

    def _hang_up(self) -> None:
        """Read settings and certificates again; nothing changes if there is a mistake."""
        self._hung_up = True
        if self._up_at is None or self._stop.is_set() or self._read is None:
            return
        found = read_again(self._config, self._read, told=self._post is None)
        if found is not None:
            self._reconfigure(*found)

    def _reconfigure(self, config: Config, contexts: tls_contexts.Contexts) -> None:
        """Apply new settings; they differ only in options that SIGHUP may change."""
        self._config = config
        logs.set_level(config.log_level)
        if self._arrivals is not None:
            self._arrivals.context = contexts.server
        if self._target is not None:
            self._target.tls = contexts.client
        if self._shared is not None:
            self._shared.reconfigure(config)
        if self._intake is not None:
            self._intake.rate = config.max_accept_rate

    # -- start-up ---------------------------------------------------------------------------------

    async def _start(self) -> None:
        config, post = self._config, self._post
        loop = asyncio.get_running_loop()
        if post is None:
            self._listeners = listen(config)
            self._admin = administered(config, self._memory)
            address = config.upstream.address
            if config.upstream.embedded:
                self._embedded = EmbeddedServer()
                address = await embed(self._embedded)
            loaded = scripts.load()
        else:
            self._listeners, address, loaded = post.listeners, post.upstream, post.scripts
        contexts = secure(config)
        if address is not None:
            target = Target(address, config.connect_timeout_s, contexts.client)
        else:
            target = MasterTarget(str(config.upstream), config.connect_timeout_s, contexts.client)
        self._target = target
        stats = Counters()
        circuit = CircuitBreaker()
        timeouts = HitTimeouts(circuit, clock=loop.time, later=loop.call_later)
        loading = ScriptLoading(timeouts, loop.call_later)
        control = Control(target, config.upstream, loaded, self._met, timeouts, loading)
        loading.on_wanted = control.reload
        denial_cache = (
            DenialCache(config.denial_cache, time.monotonic) if config.denial_cache else None
        )
        topology = self._topology = self._followed(target, control)
        self._lanes = LanePool(
            loop,
            target,
            loading,
            denial_cache,
            topology.suspect if topology is not None else None,
            timeouts,
            config.max_lane_hits,
            stats,
            time.monotonic,
        )
        settings = WorkerContext(
            grammar=Grammar(loaded),
            server=ServerFacts(target.where, config.upstream.db),
            lane_of=self._lanes.lane_of,
            share_of=self._lanes.share_of if config.share else None,
            waiting=WaitQueues(time.monotonic, _call_at),
            timeouts=timeouts,
            budget=Budget(config.max_client_hits),
            stats=stats,
        )
        timeouts.on_doubt = control.probe
        circuit.on_open = lambda: self._out(settings, control)
        circuit.on_close = lambda out_s, without: self._back(settings, control, out_s, without)
        told = LogThrottle(time.monotonic, lambda line, of: log.warning("%s", line, extra={**of}))
        self._admission = admission = Admission(config, target.where, self._room())
        self._shared = shared = Clients(loop, settings, target, admission, config, told)
        self._arrivals = Handshakes(
            loop,
            lambda peer: ClientConnection(shared, peer),
            config.proxy_protocol,
            config.handshake_timeout_s,
            contexts.server,
            told,
            stats,
        )
        self._account(shared, self._lanes, control, denial_cache)
        if topology is not None:
            settings.server.read_only = topology.suspect
            topology.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_CONTACT_S):
                    await topology.settled.wait()
        self._control = loop.create_task(control.run())
        if config.proxy_protocol or _reachable(self._listeners.addresses()):
            self._probe = Probe(target, lambda: admission.protected, self._judged)
            self._probing = loop.create_task(self._probe.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CONTACT_S):
                await control.settled.wait()
                if self._probe is not None:
                    await self._probe.settled.wait()
        if control.kind == CLUSTER and (post is None or post.first):
            raise StartError(f"Redis at {target.where}: {control.problem}")
        if post is None:
            self._balance = Balancer(1)
            self._take_in(0, self._balance, self._listeners)
            print_banner(self._listeners.addresses(), self._behind(control), admin=self._admin)
            if self._admin is not None:
                self._admin.start()
        else:
            self._take_in(post.worker, post.balance, self._listeners)
            post.tell(READY, self._behind(control))
        self._sweep = loop.create_task(self._sweep_lanes())
        self._publishing = loop.create_task(self._publish())

    def _account(
        self, shared: Clients, lanes: LanePool, control: Control, denial_cache: DenialCache | None
    ) -> None:
        """Set up telemetry: for the admin process, RL.STATS and RL.TOP."""
        assert self._listeners is not None
        post, config = self._post, self._config
        control.measures = config.admin is not None
        settings, admission = shared.context, self._admission
        circuit = settings.circuit
        loop = asyncio.get_running_loop()

        def upstream() -> dict[str, Any]:
            return {
                "where": settings.server.where,
                "server": self._who,
                "up": not circuit.open,
                "since": round(loop.time() - circuit.since, 1) if circuit.since else None,
                "why": circuit.why,
                "problem": control.problem,
                "kind": control.kind,
            }

        top, prefixes = HotKeys(time.monotonic), Prefixes(config.metrics_prefixes)
        settings.stats.on_keys = top.add
        settings.stats.harvest = denial_cache.harvest if denial_cache is not None else None
        if config.metrics_prefixes:

            def both(keys: Keys, refused: Keys, stride: int) -> None:
                top.add(keys, refused, stride)
                prefixes.add(keys, refused)

            settings.stats.on_keys = both
        sources = Sources(
            settings=settings,
            shared=shared,
            lanes=lanes,
            denial_cache=lambda: len(denial_cache) if denial_cache is not None else 0,
            clients_max=lambda: admission.max_clients,
            upstream=upstream,
            problem=lambda: control.kind,
            scripts_loaded=lambda: control.loaded,
            script_times=lambda: control.script_times,
            top=top.published,
            prefixes=prefixes,
            samples_keys=not config.metrics_prefixes,  # counters by prefix need every hit's key
            listen=[str(address) for address in self._listeners.addresses()],
        )
        self._telemetry = Telemetry(
            post.worker if post is not None else 0,
            self._memory,
            sources,
            post.started if post is not None else time.time(),
            config.admin is not None or self._memory.workers > 1,
        )
        telemetry = self._telemetry
        self._top = Merged(
            time.monotonic,
            lambda: [each.top for each in telemetry.all()[1:]] + [top.told()],
            said_top,
        )
        settings.status_call = self._tell

    def _tell(self, name: bytes, args: list[bytes]) -> bytes:
        """Return the request to which Redis replies with the result of RL.STATS or RL.TOP."""
        if name == commands.RL_STATS:
            return said(stats_text(self._telemetry.all(), time.time()))
        return self._top.told(int(args[0]), len(args) > 1)

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                self._telemetry.publish(loop.time())
            except Exception:  # clients are still served, and /healthz reports a silent worker
                log.critical("unexpected error", exc_info=True)
                return

    def _followed(self, target: Target, control: Control) -> Failover | None:
        """Return the failover that moves `target` to the current master; None without Sentinels."""
        if not isinstance(target, MasterTarget):
            return None

        def moved() -> None:
            if self._shared is None or self._lanes is None:
                return
            self._shared.context.server.where = target.where
            self._lanes.renew()
            for client in list(self._shared.clients):
                client.cut_upstream()
            control.move()

        return Failover(self._config.upstream, target, moved, lambda: target.tls)

    def _take_in(self, worker: int, balance: Balancer, listeners: Listeners) -> None:
        assert self._arrivals is not None and self._shared is not None
        arrivals = self._arrivals
        loop, circuit = arrivals.loop, self._shared.context.circuit
        self._intake = Intake(
            worker,
            balance,
            listeners.of(worker),
            arrivals.protocol,
            lambda: loop.time() - circuit.heard_at <= SERVING_S,
        )
        self._intake.rate = self._config.max_accept_rate
        self._shared.on_leave = arrivals.on_gone = self._intake.left
        self._intake.open()

    def _room(self) -> int:
        """Return the number of clients for which this process may open enough files."""
        limit = file_limit.raise_limit()
        room = file_limit.room(limit)
        if room < NEARLY * self._config.max_clients and self._speaks():
            log.warning(
                "the limit of open files (%d, see ulimit -n) is enough for %d clients, not for the "
                "%d of --max-clients",
                limit,
                room,
                self._config.max_clients,
            )
        return room

    def _speaks(self) -> bool:
        """Whether this process logs what all workers find alike."""
        return self._post is None or self._post.worker == 0

    def _judged(self, needs_password: bool) -> None:
        """Apply the probe's result: whether Redis' default user needs a password."""
        known = self._admission.needs_password
        self._admission.needs_password = needs_password
        if known == needs_password or not self._speaks():
            return
        if not needs_password:
            log.warning(
                "protected mode: Redis' default user needs no password, so clients of other "
                "machines are turned away. Set a password there, or --protected-mode no"
            )
        elif known is not None:
            log.info("Redis' default user needs a password: clients of other machines may come in")

    def _met(self, found: Facts) -> None:
        """Apply the facts about the server that the control connection has found."""
        self._who = f"{found.name} {found.version}"
        if self._probe is not None:
            self._probe.soon()
        if self._shared is None or self._lanes is None:
            return
        settings = self._shared.context
        server = settings.server
        server.has_throttle = found.has_throttle
        server.has_ro = self._lanes.knows_ro = found.has_ro
        server.name = found.name.lower().encode()
        server.version = found.version.encode()
        server.ignores_empty = found.ignores_empty

    def _out(self, settings: WorkerContext, control: Control) -> None:
        """Probe Redis and log that it does not answer: the circuit has opened."""
        control.probe()
        circuit = settings.circuit
        if circuit.told and not control.warned:
            log.warning(
                "Redis at %s does not answer (%s)%s; "
                "hits are answered as --on-upstream-failure says (%s)",
                settings.server.where,
                circuit.why,
                f", and so {circuit.untold} times since this was last said"
                if circuit.untold
                else "",
                settings.failure.mode,
                extra={"count": 1 + circuit.untold},
            )
            circuit.untold = 0

    def _back(self, settings: WorkerContext, control: Control, out_s: float, without: int) -> None:
        """Log that Redis answers again after `out_s`; `without` hits were answered without it."""
        if settings.circuit.told or control.warned:
            log.warning(
                "Redis at %s is back after %.1f s; hits answered without it: %d",
                settings.server.where,
                out_s,
                without,
            )
        control.warned = False

    def _behind(self, control: Control) -> str:
        """Return the upstream and its state as text for the banner."""
        where = str(self._config.upstream)
        if self._config.upstream.tls:
            where += " (TLS)"
        if self._topology is not None and self._topology.master is not None:
            where += f" (now {self._topology.master.address})"
        if self._config.upstream.db:
            where += f", database {self._config.upstream.db}"
        if self._config.upstream.embedded:
            return f"{self._who or 'Valkey'}, embedded (its data ends with this process)"
        if control.kind in (FULL, UNREACHABLE):
            return f"{where}: {control.problem}; {self._until_it_is_there(control.kind)}"
        if not control.settled.is_set():
            if control.reached:
                silent = "it accepts connections, but does not answer as Redis does"
                return f"{where}: {silent} (nothing within {FIRST_CONTACT_S:g} s)"
            return f"{where}: no connection within {FIRST_CONTACT_S:g} s; it is tried on"
        behind = f"{self._who or 'a server'} at {where}"
        return f"{behind}: {control.problem}" if control.problem else behind

    def _until_it_is_there(self, kind: str) -> str:
        assert self._shared is not None
        settings = self._shared.context
        without = settings.circuit.open or kind == FULL
        hits = WITHOUT.get(settings.failure.mode) if without else None
        if hits is None:
            return "clients get errors until it is there"
        return f"hits are {hits}, and other commands get errors, until it is there"

    # -- main loop --------------------------------------------------------------------------------

    async def _sweep_lanes(self) -> None:
        while self._lanes is not None:
            await asyncio.sleep(SWEEP_S)
            self._lanes.close_idle(IDLE_S)
            if self._shared is not None:
                self._shared.notice_hangups()
                self._shared.sweep()
            if self._admin is not None:
                self._admin.look()
            if self._embedded is not None and self._embedded.ended():
                self._failed = EMBEDDED_ENDED
                self._stop.set()
            if self._post is not None and os.getppid() != self._post.parent:
                self._stop.set()  # the supervisor has ended and can neither replace nor stop it

    # -- shutdown ---------------------------------------------------------------------------------

    async def _shutdown(self) -> None:
        if self._intake is not None:
            self._intake.close()
        if self._post is not None:
            self._post.tell(LEAVING, "")
        if self._listeners is not None:
            self._listeners.close()
        if self._arrivals is not None:
            self._arrivals.close()
        if self._shared is not None:
            await self._drain(self._shared)
            self._shared.fan_out.close()
        if self._topology is not None:
            await self._topology.stop()
        for task in (self._control, self._probing, self._sweep, self._publishing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._lanes is not None:
            self._lanes.close()
        if self._balance is not None:
            self._balance.close()
        if self._embedded is not None:
            self._embedded.stop()
        if self._admin is not None:
            self._admin.stop()

    async def _drain(self, shared: Clients) -> None:
        """Wait until all owed replies are sent; cut the remaining clients at the drain timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.drain_timeout_s
        shared.draining = True
        shared.context.waiting.drain()
        for client in list(shared.clients):
            client.flush()
        told = loop.time() + 0.5
        look = loop.time()
        while shared.clients and loop.time() < deadline:
            await asyncio.sleep(0.01)
            if loop.time() >= look:  # clients are not read, so a disconnect raises no event
                look = loop.time() + HANGUPS_S
                for client in list(shared.clients):
                    client.notice_hangup()
            if told and loop.time() > told:
                told = 0.0
                owed = sum(client.owed() for client in shared.clients)
                if owed:
                    log.info(
                        "stopping: replies are owed to %d client(s), waiting up to %g s; "
                        "a second signal cuts them",
                        owed,
                        self._config.drain_timeout_s,
                    )
        self._cut()
        while shared.clients and loop.time() < deadline + 1:
            await asyncio.sleep(0.01)


def _reachable(addresses: Sequence[Address]) -> bool:
    """Whether clients of other machines can reach any of these addresses."""
    return any(address.host and not Peer(address.host).local for address in addresses)


def listen(config: Config) -> Listeners:
    """Bind the sockets of all workers. Raises StartError."""
    try:
        return Listeners(config.listen, config.workers, config.unix_mode)
    except ListenError as error:
        raise StartError(str(error)) from None


def administered(config: Config, memory: SharedMemory) -> AdminProcess | None:
    """Bind the address of --admin for a process that is not started yet.

    Returns None without --admin. Raises StartError.
    """
    if config.admin is None:
        return None
    try:
        return AdminProcess(
            config.admin, memory, config.unix_mode, config.log_level, config.log_format
        )
    except ListenError as error:
        raise StartError(str(error)) from None


def secure(config: Config) -> tls_contexts.Contexts:
    """Create the TLS contexts that `config` describes. Raises StartError."""
    try:
        return tls_contexts.contexts(config)
    except ConfigError as error:
        raise StartError("; ".join(error.mistakes)) from None


def read_again(
    config: Config, read: Callable[[], Config], told: bool = True
) -> tuple[Config, tls_contexts.Contexts] | None:
    """Read settings and certificates again, on SIGHUP.

    config: the present settings.
    told: logs the changes if true.
    Returns None, and logs each mistake, if the present settings stay in effect.
    """
    try:
        new = read()
        made = reloaded(config, new)
        contexts = tls_contexts.contexts(made)
    except ConfigError as error:
        for mistake in error.mistakes:
            log.error("SIGHUP: %s; all stays as it was", mistake)
        return None
    if told:
        # The next line is logged if the old or the new level permits it.
        logs.lower_level(made.log_level)
        changed, later = differences(config, new)
        names = ", ".join(option.flag for option in changed) or "nothing"
        log.info("SIGHUP: settings and certificates were read again; changed: %s", names)
        for option in later:
            log.warning("SIGHUP: %s has changed; that takes a restart", option.flag)
    return made, contexts


async def embed(server: EmbeddedServer) -> Address:
    """Start the embedded server and return its address. Raises StartError."""
    try:
        return await server.start()
    except EmbeddedError as error:
        raise StartError(str(error)) from None


def print_banner(
    addresses: Sequence[Address],
    behind: str,
    workers: int = 1,
    admin: AdminProcess | None = None,
) -> None:
    """Log the version, the addresses, and a command to try.

    behind: text about the upstream.
    workers: number of worker processes.
    """
    first = addresses[0]
    secured = " --tls" if first.tls else ""
    cli = f"redis-cli{secured} " + (f"-s {first.path}" if first.path else f"-p {first.port}")
    where = ", ".join(map(str, addresses))
    banner = [f"rlproxy {describe()}", f"  listening on  {where}", f"  in front of   {behind}"]
    if workers > 1:
        banner.append(f"  served by     {workers} workers")
    if admin is not None:
        banner.append(f"  admin         {admin.url}")
    banner.append(f"  try           {cli} RL.HIT user:42 5 60")
    log.info(
        "rlproxy %s listens on %s, in front of %s",
        VERSION,
        where,
        behind,
        extra={
            "listen": [str(each) for each in addresses],
            "admin": admin.url if admin is not None else None,
            "workers": workers,
            logs.PLAIN: banner,
        },
    )


def tell_end(up_at: float | None) -> None:
    """Log the end of the proxy; it served since `up_at` (time.monotonic()), or never if None."""
    served_s = time.monotonic() - up_at if up_at is not None else 0.0
    log.info("stopped; it served for %.1f s", round(served_s, 1))


def _call_at(at: float, function: Callable[[], None]) -> Cancel:
    """Call `function` when time.monotonic() is `at`; see WaitQueues."""
    # uvloop's timers have a resolution of 1 ms, and can be early by as much
    delay = max(0.0, at - time.monotonic()) + 0.001
    return asyncio.get_running_loop().call_later(delay, function).cancel
