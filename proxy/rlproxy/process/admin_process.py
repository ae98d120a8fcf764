"""The admin process as its parent controls it: bound early, started in the background, restarted
when it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.net.listeners import Listeners
from rlproxy.observability.logs import log
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.restart_policy import RestartPolicy, ending

# Modules of the same names in the folder where the proxy is started must not be imported. So the
# folder of this package is an argument, and is on the path for the first import only. That import
# is of a compiled module: it loads the library that these share, which may lie beside the package.
_CODE: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); import rlproxy.resp.requests; "
    "del sys.path[0]; "
    "from rlproxy.admin.app import main; sys.exit(main())"
)


def warnings(config: Config) -> list[str]:
    """Return warnings about an `--admin` that is valid but reachable from other machines."""
    admin = config.admin
    if admin is None or admin.host == "localhost" or admin.local:
        return []
    seen = "every client that reaches it sees keys and addresses of clients"
    found = [f"--admin {admin}: it has no authentication: {seen}"]
    if config.admin_actions:
        found.append(f"--admin-actions: the token is sent to {admin} without encryption")
    return found


class AdminProcess:
    """The listening socket of --admin and the process that serves it.

    config: its address, the permissions of its unix socket, and how it logs.
    memory: the samples that the process serves.
    listening: where the proxy listens; with --admin-actions the process connects there.
    Raises StartError.
    """

    def __init__(self, config: Config, memory: SharedMemory, listening: Sequence[Address]) -> None:
        assert config.admin is not None
        self._listeners = Listeners([config.admin], config.unix_mode, "--admin")
        (address,) = self._listeners.addresses()
        self.url = str(address) if address.path else f"http://{address}/"  # of the live page
        ((sock, _),) = self._listeners.sockets
        self._descriptors = (sock.fileno(), memory.descriptor)
        # It serves HTTP: it gets no secret but the login that actions need. All of it fits into a
        # pipe, so that start() does not wait.
        login = (config.upstream.user, config.upstream.password) if config.admin_actions else ()
        given = replace(config, listen=tuple(listening), upstream=Upstream(None, *login))
        given = replace(given, deny_command=(), policies=(), pem={})
        self._input = pickle.dumps((*self._descriptors, os.getpid(), given))  # see app.main()
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = RestartPolicy(time.monotonic)

    def start(self) -> None:
        """Start the process; until it serves, connections wait in the socket's queue."""
        argv = [sys.executable, "-P", "-c", _CODE, str(Path(__file__).resolve().parents[2])]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=self._descriptors,
                start_new_session=True,  # Ctrl-C reaches the parent only, which drains first
            )
        except OSError as error:
            self._ended(f"cannot start: {error.strerror or error}")
            return
        self._restarts.started()
        # Passwords go by a pipe: other users can read the arguments of a process.
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as pipe:  # it may have ended
            pipe.write(self._input)

    def restart_if_ended(self) -> None:
        """Start the process again if it has ended and that is due."""
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._ended(ending(code))
        if self._restarts.due <= time.monotonic():
            self.start()

    def _ended(self, how: str) -> None:
        self._process = None
        self._restarts.ended()
        log.warning("admin_died", "the admin process {reason}; it is started again", reason=how)

    def forget(self) -> None:
        """Close the socket in a forked child: it belongs to the parent."""
        self._listeners.close()

    def stop(self) -> None:
        """End the process, and stop listening."""
        process, self._process = self._process, None
        self._listeners.close()
        if process is None or process.poll() is not None:
            return
        process.kill()  # no request of its clients is worth a wait
        process.wait()
