"""One worker process: start-up, main loop and shutdown, each a method; the signals that end it, and
its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Final

from rlproxy.config.config import Config, StartError
from rlproxy.downstream.connection import ClientConnection
from rlproxy.observability.log_throttle import StateThrottle
from rlproxy.observability.logs import log
from rlproxy.observability.metrics import MISFITS
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources
from rlproxy.process.telemetry import EVERY_S
from rlproxy.process.upstreams import describe_upstream, first_contact
from rlproxy.process.wiring import Wiring

try:
    from uvloop import new_event_loop
except ImportError:  # no uvloop for this platform: asyncio's own loop is slower, but works
    from asyncio import new_event_loop  # type: ignore[assignment]

DRAIN_STEP_S: Final = 0.01  # seconds between two checks whether all clients are gone
HANGUPS_S: Final = 0.1  # seconds between two checks for disconnected clients while draining
ENDING: Final = (signal.SIGTERM, signal.SIGINT)
CUT: Final = signal.SIGUSR1  # to a worker: end without waiting for owed replies
NOTICE_S: Final = 0.5  # seconds of draining until the log has what is waited for


def run(serving: Coroutine[None, None, None]) -> None:
    """Run a server in an event loop. Afterwards the signals that it has handled are blocked."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(serving)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, signal.SIGHUP))


class Server:
    """A proxy process, or one worker of several.

    config: the settings at the start.
    worker: its number, from 0.
    channel: to its supervisor; without one, the resources take what is reported.
    """

    def __init__(
        self, config: Config, worker: int, resources: Resources, channel: Channel | Resources
    ) -> None:
        self._config = config
        self._worker = worker
        self._resources = resources
        self._channel = channel
        self._clients: Collection[ClientConnection] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._failed = ""  # reason to end without a signal

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and close everything.

        Raises StartError if the proxy can't start or can't continue.
        """
        self._handle_signals()
        await self._resources.start()
        self._wiring = Wiring(self._config, self._worker, self._resources)
        self._clients = self._wiring.clients.clients
        try:
            await self._start()
            await self._stop.wait()
        finally:
            self._wiring.intake.close()
            self._resources.listeners.close()
            await self._shutdown()
        if self._failed:
            raise StartError(self._failed)

    def _handle_signals(self) -> None:
        """Handle the signals that end this process from here on.

        Without a supervisor, a second signal cuts the remaining clients. With one, SIGTERM may come
        from it and from the process group, and CUT does that.
        """
        loop = asyncio.get_running_loop()
        if isinstance(self._channel, Channel):
            loop.add_signal_handler(signal.SIGTERM, self._stop.set)
            loop.add_signal_handler(CUT, self._end, True)
        else:
            for number in ENDING:
                loop.add_signal_handler(number, self._end)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def _end(self, cut: bool = False) -> None:
        """Begin to drain; with `cut`, or the second time, cut the remaining clients."""
        if cut or self._stop.is_set():
            self._cut()
        self._stop.set()

    # -- start-up ---------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Make first contact with Redis, then take clients."""
        wiring = self._wiring
        await self._make_contact()
        state = wiring.upstream.state()
        if state.kind in MISFITS and self._resources.up_at is None:
            raise StartError(f"Redis at {wiring.upstream.target.where}: {state.problem}")
        wiring.intake.open()
        self._tasks.append(asyncio.create_task(self._tick()))
        # SIGHUP was blocked so far; see cli.main() and Supervisor._become().
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        self._channel.ready(describe_upstream(self._config.upstream, state))

    async def _make_contact(self) -> None:
        """Start the connections to Redis. Wait for their first results, but not for long."""
        wiring = self._wiring
        found = await wiring.upstream.begin()
        if wiring.probe is not None:
            self._tasks.append(asyncio.create_task(wiring.probe.run()))
            found.append(wiring.probe.settled)
        await first_contact(*found)

    # -- main loop --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Do once a second what is to be done regularly."""
        loop, wiring, late_s = asyncio.get_running_loop(), self._wiring, 0.0
        throttle = StateThrottle(time.monotonic)
        while True:
            publish = partial(wiring.telemetry.tick, late_s)
            for work in (publish, wiring.upstream.close_idle, wiring.clients.sweep):
                try:
                    work()
                except Exception as error:  # clients are still served; /healthz reports this worker
                    if throttle.due(repr(error)):
                        log.critical("unexpected_error", "unexpected error", exc_info=True)
            if reason := self._channel.check():
                self._failed = reason
                self._stop.set()
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            late_s = max(0.0, loop.time() - due)

    def _reload(self) -> None:
        """Read settings, policies and certificates again; nothing changes if there is a mistake."""
        if not self._stop.is_set():
            self._config = self._channel.reload(self._config, self._wiring.reconfigure)

    # -- shutdown ---------------------------------------------------------------------------------

    async def _shutdown(self) -> None:
        self._wiring.handshakes.close()
        await self._drain()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._wiring.telemetry.publish()
        await self._wiring.upstream.stop()

    async def _drain(self) -> None:
        """Wait until all owed replies are sent; cut the remaining clients at the drain timeout."""
        loop, clients = asyncio.get_running_loop(), self._wiring.clients
        deadline = loop.time() + self._config.drain_timeout_s
        clients.draining = True
        clients.context.waiting.drain()
        for client in list(clients.clients):
            client.flush()
        notice = loop.call_later(NOTICE_S, self._log_owed)
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

    def _cut(self) -> None:
        owed = self._owed()
        if owed:
            text = "clients cut: {clients}; they were still owed replies"
            log.warning("clients_cut", text, clients=owed)
        for client in list(self._clients):
            client.cut()

    def _owed(self) -> int:
        """Return the number of clients that are owed replies."""
        return sum(client.owed() for client in self._clients)

    def _log_owed(self) -> None:
        owed = self._owed()
        if owed:
            log.info(
                "draining",
                "stopping: clients owed replies: {clients}; waiting up to {timeout_s:g} s; "
                "a second signal cuts them",
                clients=owed,
                timeout_s=self._config.drain_timeout_s,
            )
