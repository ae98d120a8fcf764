"""The resources that the workers of a proxy share: listening sockets, shared memory, scripts, and
the processes beside the workers. The supervisor opens them before it forks, or the only worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from rlproxy.config.config import Config, StartError
from rlproxy.net.listeners import Listeners
from rlproxy.observability.logs import log
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.intake import ClientCounts
from rlproxy.process.reload import Apply, reload
from rlproxy.ratelimit import scripts
from rlproxy.upstream.embedded import EmbeddedCluster, EmbeddedServer
from rlproxy.version import VERSION, compiled, describe

EMBEDDED_ENDED: Final = "the embedded server has ended, and its data with it"


class Resources:
    """The resources of one proxy. The only worker of a proxy has them in the place of a channel.

    read: returns the settings of the file. Raises ConfigError.
    started: time.time() at the start of the proxy.
    upstream: as in the settings; of an embedded server or cluster, where it was started.
    up_at: time.monotonic() when all workers were first ready; None before, and in these workers.
    Raises StartError.
    """

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        self._read = read
        self.started = time.time()
        self.upstream = config.upstream
        self.up_at: float | None = None
        self.scripts = scripts.load()
        try:
            self.client_counts = ClientCounts(config.workers)
            self.memory = SharedMemory(config.workers)
        except OSError as error:
            raise StartError(f"cannot start: {error.strerror or error}") from None
        self.listeners = Listeners(
            config.listen, config.unix_mode, keepalive_s=config.tcp_keepalive_s
        )
        self.admin: AdminProcess | None = None
        self._embedded: EmbeddedServer | EmbeddedCluster | None = None
        if config.admin is not None:
            try:
                self.admin = AdminProcess(config, self.memory, self.listeners.addresses())
            except StartError:
                self.listeners.close()
                raise

    async def start(self) -> None:
        """Start the embedded server, if there is one. Raises StartError."""
        if self.upstream.embedded:
            masters = self.upstream.masters
            self._embedded = EmbeddedCluster(masters) if masters else EmbeddedServer()
            self.upstream = await self._embedded.start()

    def ready(self, upstream: str) -> None:
        """Log that all workers serve, and start the admin process.

        upstream: text about the upstream and its state.
        """
        self.up_at = time.monotonic()
        self._print_banner(upstream)
        if self.admin is not None:
            self.admin.start()

    def _print_banner(self, upstream: str) -> None:
        """Log the version, the addresses, and a command to try."""
        addresses, workers = self.listeners.addresses(), self.memory.workers
        first, listen = addresses[0].dialled(), [str(each) for each in addresses]
        cli = "redis-cli --tls" if first.tls else "redis-cli"
        banner = [
            f"rlproxy {describe()}, process {os.getpid()}",
            f"  listening on  {', '.join(listen)}",
            f"  in front of   {upstream}",
        ]
        if workers > 1:
            banner.append(f"  served by     {workers} workers")
        if self.admin is not None:
            banner.append(f"  admin         {self.admin.url}")
        host = "" if first.host in ("127.0.0.1", "localhost") else f"-h {first.host} "
        place = f"-s {first.path}" if first.path else f"{host}-p {first.port}"
        banner.append(f"  try           {cli} {place} RL.HIT user:42 5 60")
        log.info(
            "started",
            "rlproxy {version} listens on {listen}, in front of {in_front_of}",
            version=VERSION,
            compiled=compiled(),
            in_front_of=upstream,
            listen=listen,
            admin=self.admin.url if self.admin is not None else None,
            workers=workers,
            pid=os.getpid(),
            plain=banner,
        )

    def check(self) -> str:
        """Start the admin process again if it has ended. Returns a reason to end, or "".

        Call it once a second, or more often.
        """
        if self.admin is not None:
            self.admin.restart_if_ended()
        return EMBEDDED_ENDED if self._embedded is not None and self._embedded.ended() else ""

    def reload(self, config: Config, apply: Apply) -> Config:
        """Read the settings again, after SIGHUP, and put them in force by `apply`."""
        return reload(config, apply, self._read, self.memory)

    def close(self) -> None:
        """Release everything, once all workers have ended."""
        self.listeners.close()
        if self._embedded is not None:
            self._embedded.stop()
        if self.admin is not None:
            self.admin.stop()

    def log_end(self) -> None:
        """Log that the proxy has stopped, and for how long it served."""
        served_s = 0.0 if self.up_at is None else time.monotonic() - self.up_at
        log.info("stopped", "stopped; it served for {seconds:.1f} s", seconds=round(served_s, 1))
