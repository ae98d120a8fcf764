"""The admin process as its parent controls it: socket bound early, started in the background,
restarted when it ends, ended with the proxy.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlproxy.config.config import Address, Config
from rlproxy.net.listeners import Listeners
from rlproxy.net.peers import Peer
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.restart_policy import RestartPolicy, ending

log = logging.getLogger("rlproxy")

QUIET_S: Final = 60.0  # failures in a row are counted, and told so often

# A directory with modules of the same names, from which the proxy is started, must not matter; so
# where this package is comes as an argument, and is looked at for nothing else. (What compiled
# modules share may lie beside the package: one of them brings it.)
_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import rlproxy.resp.framing; "
    "del sys.path[0]; "
    "from rlproxy.admin.app import main; sys.exit(main(sys.argv[1:]))"
)


def warnings(config: Config) -> list[str]:
    """What a person should know of `--admin`, though it is not wrong."""
    admin = config.admin
    if admin is None or admin.path or admin.host == "localhost" or Peer(admin.host).local:
        return []
    seen = "whoever reaches it sees keys and addresses of clients"
    return [f"--admin {admin}: it asks nobody who they are, and {seen}"]


def _say(line: str, fields: Mapping[str, object]) -> None:
    log.warning("%s", line, extra={**fields})


class AdminProcess:
    """Listens at `address` for a process that reads `board`, and logs as `log_level` and
    `log_format` say. Raises ListenError.
    """

    def __init__(
        self,
        address: Address,
        memory: SharedMemory,
        unix_mode: int = 0o600,
        log_level: str = "info",
        log_format: str = "auto",
    ) -> None:
        self._listeners = Listeners([address], 1, unix_mode, "--admin")
        self._logs = ["--log-level", log_level, "--log-format", log_format]
        (self.address,) = self._listeners.addresses()
        ((self._socket, _),) = self._listeners.of(0)
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = RestartPolicy(time.monotonic)
        self._failures = LogThrottle(time.monotonic, _say, QUIET_S)
        self.due = float("inf")  # of time.monotonic(): when it is to be started

    @property
    def url(self) -> str:
        """Where a person finds it."""
        return str(self.address) if self.address.path else f"http://{self.address}/"

    def start(self) -> None:
        """Start the process; what comes to the socket waits until it is there."""
        self.due = float("inf")
        argv = [sys.executable, "-P", "-c", _CODE, str(Path(__file__).resolve().parents[2])]
        argv += ["--socket", str(self._socket.fileno()), "--memory", str(self._memory.descriptor)]
        argv += ["--workers", str(self._memory.workers), "--parent", str(os.getpid())]
        argv += self._logs
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._socket.fileno(), self._memory.descriptor),
                start_new_session=True,  # (Ctrl-C is for the parent, which has clients to serve)
            )
        except OSError as error:
            self._ended(f"cannot start: {error.strerror or error}")
            return
        self._restarts.started()

    def look(self) -> None:
        """Start it again if it has ended, and its time has come. To be called now and then, and
        when `due`.
        """
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._ended(ending(code))
        if self.due <= time.monotonic():
            self.start()
        self._failures.sweep()

    def _ended(self, how: str) -> None:
        self._process = None
        self.due = time.monotonic() + self._restarts.ended()
        self._failures.happened(
            f"the admin process {how}, {{}} times; it is started again",
            one=f"the admin process {how}; it is started again",
        )

    def forget(self) -> None:
        """In a process that was forked: it is another one's."""
        self._listeners.keep(0)  # (the path is not removed)
        self._listeners.close()
        if self._process is not None:
            self._process.returncode = 0  # (no child of this process)
        self._process = None
        self.due = float("inf")

    def stop(self) -> None:
        """End it, and stop listening."""
        process, self._process = self._process, None
        self.due = float("inf")
        self._listeners.close()
        if process is None or process.poll() is not None:
            return
        process.kill()  # (it has nothing to finish)
        process.wait()
