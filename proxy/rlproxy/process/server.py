"""One worker process: start-up, main loop and shutdown, each a method."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Final

from rlproxy.config.config import Config
from rlproxy.net import tls_contexts
from rlproxy.observability.logs import log
from rlproxy.observability.metrics import CLUSTER
from rlproxy.process.banner import advise, describe_upstream
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources, StartError
from rlproxy.process.telemetry import EVERY_S
from rlproxy.process.upstreams import first_contact
from rlproxy.process.wiring import Wiring

SWEEP_S: Final = 1.0  # seconds between two sweeps of the main loop
DRAIN_STEP_S: Final = 0.01  # seconds between two checks whether all clients are gone
HANGUPS_S: Final = 0.1  # seconds between two checks for disconnected clients while draining
CUT: Final = signal.SIGUSR1  # to a worker: end without waiting for owed replies
NOTICE_S: Final = 0.5  # seconds of draining until the log has what is waited for


class Server:
    """A proxy process, or one worker of several.

    config: the settings at the start.
    supervised: whether this process has a supervisor.

    It handles signals from here on.
    """

    def __init__(self, config: Config, supervised: bool) -> None:
        self._config = config
        self._wiring: Wiring | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._failed = ""  # reason to end without a signal
        self._handle_signals(supervised)

    async def run(self, worker: int, resources: Resources, channel: Channel) -> None:
        """Serve until SIGTERM or SIGINT, then drain and close everything.

        worker: its number, from 0.
        Raises one of CANNOT_RUN if the proxy can't start or can't continue.
        """
        contexts = tls_contexts.contexts(self._config)
        self._wiring = wiring = Wiring(self._config, worker, resources, contexts)
        try:
            await self._start(wiring, channel)
            await self._stop.wait()
        finally:
            wiring.intake.close()
            channel.leaving()
            resources.listeners.close()
            await self._shutdown(wiring)
        if self._failed:
            raise StartError(self._failed)

    # -- signals ----------------------------------------------------------------------------------

    def _handle_signals(self, supervised: bool) -> None:
        loop = asyncio.get_running_loop()
        if supervised:  # supervisor and process group may send one SIGTERM each
            loop.add_signal_handler(signal.SIGTERM, self._stop.set)
            loop.add_signal_handler(CUT, self._cut)
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_or_cut)

    def _stop_or_cut(self) -> None:
        """Begin to drain. A second call cuts the remaining clients."""
        if self._stop.is_set():
            self._cut()
        self._stop.set()

    def _cut(self) -> None:
        self._stop.set()
        if self._wiring is not None:
            owed = self._owed(self._wiring)
            if owed:
                text = "clients cut: {clients}; they were still owed replies"
                log.warning("clients_cut", text, clients=owed)
            for client in list(self._wiring.clients.clients):
                client.cut()

    def _owed(self, wiring: Wiring) -> int:
        """Return the number of clients that are owed replies."""
        return sum(client.owed() for client in wiring.clients.clients)

    def _reload(self, wiring: Wiring, channel: Channel) -> None:
        """Read settings, policies and certificates again; nothing changes if there is a mistake."""
        if not self._stop.is_set():
            self._config = channel.reload(self._config, wiring.reconfigure)

    # -- start-up ---------------------------------------------------------------------------------

    async def _start(self, wiring: Wiring, channel: Channel) -> None:
        """Make first contact with Redis, then take clients."""
        await self._make_contact(wiring)
        state = wiring.upstream.state()
        if state.kind == CLUSTER and channel.first:
            raise StartError(f"Redis at {wiring.upstream.target.where}: {state.problem}")
        wiring.intake.open()
        self._tasks += [
            asyncio.create_task(self._sweep(wiring, channel)),
            asyncio.create_task(self._publish(wiring)),
        ]
        # SIGHUP was blocked so far; see cli.main() and Supervisor._become().
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload, wiring, channel)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        url, server = self._config.upstream, wiring.upstream.facts.found.title()
        channel.ready(describe_upstream(url, server, state), advise(url, state))

    async def _make_contact(self, wiring: Wiring) -> None:
        """Start the connections to Redis. Wait for their first results, but not for long."""
        found = await wiring.upstream.begin()
        if wiring.probe is not None:
            self._tasks.append(asyncio.create_task(wiring.probe.run()))
            found.append(wiring.probe.settled)
        await first_contact(*found)

    # -- main loop --------------------------------------------------------------------------------

    async def _sweep(self, wiring: Wiring, channel: Channel) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            wiring.upstream.close_idle()
            wiring.clients.sweep()
            reason = channel.check()
            if reason:
                self._failed = reason
                self._stop.set()

    async def _publish(self, wiring: Wiring) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                wiring.telemetry.publish(loop.time())
            except Exception:  # clients are still served, and /healthz reports a silent worker
                log.critical("unexpected_error", "unexpected error", exc_info=True)
                return

    # -- shutdown ---------------------------------------------------------------------------------

    async def _shutdown(self, wiring: Wiring) -> None:
        wiring.handshakes.close()
        await self._drain(wiring)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        wiring.telemetry.publish_last()
        await wiring.upstream.stop()

    async def _drain(self, wiring: Wiring) -> None:
        """Wait until all owed replies are sent; cut the remaining clients at the drain timeout."""
        loop, clients = asyncio.get_running_loop(), wiring.clients
        deadline = loop.time() + self._config.drain_timeout_s
        clients.draining = True
        clients.context.waiting.drain()
        for client in list(clients.clients):
            client.flush()
        notice = loop.call_later(NOTICE_S, self._log_owed, wiring)
        look_at = loop.time()
        while clients.clients and loop.time() < deadline:
            await asyncio.sleep(DRAIN_STEP_S)
            if loop.time() >= look_at:  # clients are not read, so a disconnect raises no event
                look_at = loop.time() + HANGUPS_S
                for client in list(clients.clients):
                    client.notice_hangup()
        notice.cancel()
        self._cut()
        while clients.clients and loop.time() < deadline + 1:
            await asyncio.sleep(DRAIN_STEP_S)

    def _log_owed(self, wiring: Wiring) -> None:
        owed = self._owed(wiring)
        if owed:
            log.info(
                "draining",
                "stopping: clients owed replies: {clients}; waiting up to {timeout_s:g} s; "
                "a second signal cuts them",
                clients=owed,
                timeout_s=self._config.drain_timeout_s,
            )
