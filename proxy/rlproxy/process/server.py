"""One worker process: start-up, main loop and shutdown, each a method; the signals that end it, and
its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from rlproxy.config.config import Config, StartError
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
CUT: Final = signal.SIGUSR1  # to a worker: end without waiting for owed replies
NOTICE_S: Final = 0.5  # seconds of draining until the log has what is waited for


def run(serving: Coroutine[None, None, None]) -> None:
    """Run a server, or what contains one, in an event loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serving)


async def serve(config: Config, worker: int, resources: Resources, channel: Channel) -> None:
    """Serve as a worker with a supervisor. Raises StartError."""
    await Server(config, worker, resources, channel, StopSignals(supervised=True)).run()


class StopSignals:
    """The signals that end this process, which handles them from here on.

    supervised: whether this process has a supervisor, which sends CUT to cut the remaining clients.
        Without one, a second SIGTERM or SIGINT does that.
    requested: set by the first signal.
    cut: called to cut the remaining clients.
    """

    def __init__(self, supervised: bool) -> None:
        self.requested = asyncio.Event()
        self.cut: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        if supervised:  # supervisor and process group may send one SIGTERM each
            loop.add_signal_handler(signal.SIGTERM, self.requested.set)
            loop.add_signal_handler(CUT, self._stop_and_cut)
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_or_cut)

    def _stop_and_cut(self) -> None:
        self.requested.set()
        self.cut()

    def _stop_or_cut(self) -> None:
        if self.requested.is_set():
            self.cut()
        self.requested.set()


class Server:
    """A proxy process, or one worker of several.

    config: the settings at the start.
    worker: its number, from 0.
    channel: to its supervisor; without one, the resources take what is reported.
    stop: ends it.
    Raises ConfigError.
    """

    def __init__(
        self,
        config: Config,
        worker: int,
        resources: Resources,
        channel: Channel | Resources,
        stop: StopSignals,
    ) -> None:
        self._config = config
        self._resources = resources
        self._channel = channel
        self._wiring = Wiring(config, worker, resources)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = stop.requested
        self._failed = ""  # reason to end without a signal
        stop.cut = self._cut

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and close everything.

        Raises StartError if the proxy can't start or can't continue.
        """
        try:
            await self._start()
            await self._stop.wait()
        finally:
            self._wiring.intake.close()
            self._resources.listeners.close()
            await self._shutdown()
        if self._failed:
            raise StartError(self._failed)

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
        for client in list(self._wiring.clients.clients):
            client.cut()

    def _owed(self) -> int:
        """Return the number of clients that are owed replies."""
        return sum(client.owed() for client in self._wiring.clients.clients)

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
