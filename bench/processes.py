"""Child processes with deadlines: each in its own session, ended by pid, never left running."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from .errors import BenchError

ROOT: Final = Path(__file__).resolve().parent.parent
START_S: Final = 20.0  # seconds until a program accepts connections, at most
STOP_S: Final = 5.0  # seconds between SIGTERM and SIGKILL
LOG_SHOWN: Final = 300  # characters of a log in an error message
LOWEST_PORT: Final = 12_000
HIGHEST_PORT: Final = 22_000  # a cluster's bus port is its node's port plus 10,000
BLOCK: Final = 100  # ports of one process

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class Process:
    """A running program whose output goes to `log`."""

    def __init__(
        self, argv: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self._name = Path(argv[0]).name
        self._log = log
        with log.open("wb") as out:
            self._process = _start(argv, out.fileno(), environ)

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid

    def log(self) -> str:
        """Return the output of the program so far."""
        return self._log.read_text(errors="replace")

    def await_port(self, port: int) -> None:
        """Wait until the program accepts connections at `port`. Raises BenchError."""
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                self.check(end)
                time.sleep(0.01)
            else:
                return

    def check(self, end: float) -> None:
        """Raise BenchError if the program has ended, or if time.monotonic() is past `end`."""
        if self._process.poll() is None and time.monotonic() < end:
            return
        output = " ".join(self.log().split())[-LOG_SHOWN:]
        what = "does not answer" if self._process.poll() is None else "ended"
        raise BenchError(f"{self._name} {what}: {output or 'it wrote nothing'}")

    def close(self) -> None:
        """End the program: SIGTERM, and SIGKILL after STOP_S."""
        _end(self._process)


def run(argv: Sequence[str], limit_s: float) -> str:
    """Run a program and return its standard output, or its stderr if that is empty.

    Raises BenchError if it can't be started, fails or outlasts `limit_s` seconds.
    """
    try:
        process = _start(argv, subprocess.PIPE, None, subprocess.PIPE)
    except OSError as error:
        raise BenchError(f"{argv[0]}: {error.strerror}") from None
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{Path(argv[0]).name} took more than {limit_s:g} s") from None
    finally:
        _end(process)
    if process.returncode:
        why = " ".join(errors.decode("utf-8", "replace").split())[:LOG_SHOWN]
        raise BenchError(f"{Path(argv[0]).name} failed: {why or f'code {process.returncode}'}")
    return (out or errors).decode("utf-8", "replace")


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free and stays free for a server.

    A port of the kernel's ephemeral range can be in use again before the server binds it, or while
    it restarts: by another test, or by a client's connection. So ports are from below that range,
    and each process uses its own block.
    Raises BenchError if no port is free.
    """
    for port in itertools.islice(_PORTS, BLOCK):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise BenchError("no port is free")


def _own_ports() -> Iterator[int]:
    """Yield the ports of a block again and again.

    The block belongs to this process while it holds the first port. The kernel frees that port
    when the process ends, for any reason.
    """
    starts = list(range(LOWEST_PORT, HIGHEST_PORT, BLOCK))
    at = os.getpid() % len(starts)
    for first in starts[at:] + starts[:at]:
        sock = socket.socket()
        try:
            sock.bind(("127.0.0.1", first))
        except OSError:
            sock.close()
            continue
        sock.detach()  # keeps the port bound until the process ends
        yield from itertools.cycle(range(first + 1, first + BLOCK))
    raise BenchError("no port is free")


_PORTS: Final = _own_ports()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    with contextlib.suppress(OSError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return int(run(["ps", "-o", "rss=", "-p", str(pid)], START_S)) * 1024


def _start(
    argv: Sequence[str], out: int, environ: Mapping[str, str] | None, err: int = subprocess.STDOUT
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environ,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C reaches the benchmark only, which ends its children
        preexec_fn=None if _LIBC is None else _end_with_parent,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
