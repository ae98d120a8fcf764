"""One process: listen, serve, drain. Start-up, main loop and shutdown, each a method."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from . import scripts
from .build import describe
from .calls import Settings
from .config import Address, Config
from .denials import Denials
from .downstream import Downstream, Shared
from .embedded import EmbeddedError, EmbeddedServer
from .grammar import Grammar
from .lane import IDLE_S, LanePool
from .upstream import Control, Facts, Target
from .waiting import Cancel, Waiting

log = logging.getLogger("rlproxy")

BACKLOG: Final = 4096
FIRST_CONTACT_S: Final = 2.0  # how long the banner waits for the server to say who it is
SWEEP_S: Final = 1.0


class StartError(Exception):
    """The proxy can't start, or can't go on; the message is for a person."""


class Server:
    """A proxy process. `run()` returns when it was told to stop and all is closed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self._embedded: EmbeddedServer | None = None
        self._listeners: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._paths: list[str] = []
        self._who = ""
        self._failed = ""  # why it ends without having been told to
        self._shared: Shared | None = None
        self._lanes: LanePool | None = None
        self._control: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises StartError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            await self._start()
            await self._stop.wait()
        finally:
            await self._shutdown()
        if self._failed:
            raise StartError(self._failed)

    def stop(self) -> None:
        """Begin to drain. A second call cuts what is left."""
        if self._stop.is_set() and self._shared is not None:
            for client in list(self._shared.clients):
                client.cut()
        self._stop.set()

    # -- start-up ---------------------------------------------------------------------------------

    async def _start(self) -> None:
        config = self._config
        loop = asyncio.get_running_loop()
        self._bind()
        address = config.upstream.address
        if address is None:
            self._embedded = EmbeddedServer()
            try:
                address = await self._embedded.start()
            except EmbeddedError as error:
                raise StartError(str(error)) from None
        loaded = scripts.load()
        target = Target(address, config.connect_timeout_s)
        control = Control(target, config.upstream, loaded, self._met)
        denials = Denials(config.denial_cache, time.monotonic) if config.denial_cache else None
        self._lanes = LanePool(loop, target, control.reload, denials)
        settings = Settings(
            Grammar(loaded),
            self._lanes.lane_of,
            target.where,
            config.upstream.db,
            config.private_refresh_s,
            Waiting(time.monotonic, _call_at, config.private_refresh_s),
        )
        self._shared = Shared(loop, settings, target)
        self._control = loop.create_task(control.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CONTACT_S):
                await control.settled.wait()
        shared = self._shared
        for listening in self._sockets:
            if listening.family == socket.AF_UNIX:
                server = await loop.create_unix_server(
                    lambda: Downstream(shared), sock=listening, backlog=BACKLOG
                )
            else:
                server = await loop.create_server(
                    lambda: Downstream(shared), sock=listening, backlog=BACKLOG
                )
            self._listeners.append(server)
        self._sweep = loop.create_task(self._sweep_lanes())
        self._banner(control)

    def _met(self, found: Facts) -> None:
        """The control connection says which server it found."""
        self._who = f"{found.name} {found.version}"
        if self._shared is None or self._lanes is None:
            return
        settings = self._shared.settings
        settings.wait_by_publish = found.name != "Redis"
        settings.native_throttle = found.has_throttle
        settings.knows_ro = self._lanes.knows_ro = found.has_ro
        settings.refresh_s = self._config.private_refresh_s
        if found.timeout_s:
            settings.refresh_s = min(settings.refresh_s, found.timeout_s / 2)
        settings.waiting.keep_s = settings.refresh_s

    def _bind(self) -> None:
        for address in self._config.listen:
            try:
                if address.path:
                    self._sockets.append(_bind_unix(address.path))
                    self._paths.append(address.path)
                else:
                    self._sockets.append(_bind_tcp(address))
            except OSError as error:
                why = error.strerror or str(error)
                raise StartError(f"cannot listen on {address}: {why} (see --listen)") from None

    def _banner(self, control: Control) -> None:
        where = str(self._config.upstream)
        if self._config.upstream.db:
            where += f", database {self._config.upstream.db}"
        if self._config.upstream.address is None:
            behind = f"{self._who or 'Valkey'}, embedded (its data ends with this process)"
        elif control.problem and not control.reached:
            behind = f"{where}: {control.problem}; clients get errors until it is there"
        else:
            behind = f"{self._who or 'a server'} at {where}"
            if control.problem:
                behind += f": {control.problem}"
        ports = [sock.getsockname() for sock in self._sockets]
        listening = ", ".join(
            f"unix:{name}" if isinstance(name, str) else str(Address(name[0], name[1]))
            for name in ports
        )
        first = ports[0]
        cli = f"redis-cli -s {first}" if isinstance(first, str) else f"redis-cli -p {first[1]}"
        print(
            f"rlproxy {describe()}\n"
            f"  listening on  {listening}\n"
            f"  in front of   {behind}\n"
            f"  try           {cli} RL.HIT user:42 5 60",
            file=sys.stderr,
            flush=True,
        )

    # -- main loop --------------------------------------------------------------------------------

    async def _sweep_lanes(self) -> None:
        while self._lanes is not None:
            await asyncio.sleep(SWEEP_S)
            self._lanes.close_idle(IDLE_S)
            if self._shared is not None:
                self._shared.notice_hangups()
            if self._embedded is not None and self._embedded.ended():
                self._failed = "the embedded server has ended, and its data with it"
                self._stop.set()

    # -- shutdown ---------------------------------------------------------------------------------

    async def _shutdown(self) -> None:
        for listener in self._listeners:
            listener.close()
        for sock in self._sockets:
            sock.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._shared is not None:
            await self._drain(self._shared)
        for task in (self._control, self._sweep):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._lanes is not None:
            self._lanes.close()
        if self._embedded is not None:
            self._embedded.stop()

    async def _drain(self, shared: Shared) -> None:
        """Let outstanding replies leave, until the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.drain_timeout_s
        shared.draining = True
        shared.settings.waiting.drain()
        for client in list(shared.clients):
            client.pump()
        told = loop.time() + 0.5
        while shared.clients and loop.time() < deadline:
            await asyncio.sleep(0.01)
            if told and loop.time() > told:
                told = 0.0
                log.info(
                    "stopping: replies are owed to %d client(s), waiting up to %g s; "
                    "a second signal cuts them",
                    len(shared.clients),
                    self._config.drain_timeout_s,
                )
        if shared.clients:
            log.warning("%d client(s) were cut: they were still owed replies", len(shared.clients))
        for client in list(shared.clients):
            client.cut()
        while shared.clients and loop.time() < deadline + 1:
            await asyncio.sleep(0.01)


def _bind_tcp(address: Address) -> socket.socket:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, name = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _call_at(at: float, function: Callable[[], None]) -> Cancel:
    """Call `function` when time.monotonic() is `at`; see Waiting."""
    # (uvloop's timers have whole milliseconds, and may be early by one)
    delay = max(0.0, at - time.monotonic()) + 0.001
    return asyncio.get_running_loop().call_later(delay, function).cancel


def _bind_unix(path: str) -> socket.socket:
    """A listening socket that only this user may use. A socket that nobody serves is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise OSError(17, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(98, "address already in use")
    sock = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        sock.setblocking(False)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock
