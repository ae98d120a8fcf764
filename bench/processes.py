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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from .errors import BenchError

ROOT: Final = Path(__file__).resolve().parent.parent
START_S: Final = 20.0  # seconds until a program accepts connections, or prints its version
STOP_S: Final = 5.0  # seconds between SIGTERM and SIGKILL
LOOK_S: Final = 0.01  # seconds between two looks while waiting
LOG_SHOWN: Final = 300  # characters of a log in an error message
LOWEST_PORT: Final = 12_000
HIGHEST_PORT: Final = 22_000
BLOCK: Final = 100  # ports of one process
BUS_OFFSET: Final = 10_000  # from the port of a cluster's node to that of its bus

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# Ctrl-C reaches the benchmark only, which ends its children.
_CHILD: Final[dict[str, Any]] = {
    "stdin": subprocess.DEVNULL,
    "cwd": ROOT,
    "start_new_session": True,
    "preexec_fn": _end_with_parent,
}


class Stat(NamedTuple):
    """One /proc/PID/stat: the session, and the ticks in user and kernel mode."""

    session: int
    user: int
    system: int


class Spent(NamedTuple):
    """CPU seconds, and the part of them in kernel mode (to one tick, usually 10 ms)."""

    total: float
    system: float

    def since(self, before: Spent) -> Spent:
        """Return what was spent after `before`."""
        return Spent(self.total - before.total, self.system - before.system)


class Process:
    """A running program whose output goes to `log`.

    began: value of time.perf_counter() when it was started.
    """

    def __init__(
        self, argv: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self._name = Path(argv[0]).name
        self._log = log
        self.began = time.perf_counter()
        with log.open("wb") as out:
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, env=environ, **_CHILD)

    def until(self, condition: Callable[[], bool], limit_s: float = START_S) -> None:
        """Wait for a condition. Raises BenchError if the program ends or after `limit_s`."""
        end = time.monotonic() + limit_s
        while not condition():
            self.check()
            if time.monotonic() > end:
                raise self._failed("does not answer")
            time.sleep(LOOK_S)

    def await_port(self, port: int) -> None:
        """Wait until the program accepts connections at `port`. Raises BenchError."""

        def accepts() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        self.until(accepts)

    def check(self) -> None:
        """Raise BenchError if the program has ended."""
        if self._process.poll() is not None:
            raise self._failed("ended")

    def pause(self) -> None:
        """Stop the program (SIGSTOP). Raises BenchError if it has ended."""
        self.check()
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the program continue (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def _failed(self, what: str) -> BenchError:
        output = " ".join(self._log.read_text(errors="replace").split())[-LOG_SHOWN:]
        return BenchError(f"{self._name} {what}: {output or 'it wrote nothing'}")

    def close(self) -> None:
        """End the program: SIGTERM, and SIGKILL after STOP_S."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def spent(self) -> Spent:
        """Return the CPU time of the program and its living descendants, all threads.

        The total is the scheduler's own count in nanoseconds, or of ticks where the kernel has
        none.
        """
        members, tick = session(self._process.pid), os.sysconf("SC_CLK_TCK")
        system = sum(stat.system for stat in members.values()) / tick
        user = sum(stat.user for stat in members.values()) / tick
        return Spent(sum(map(_scheduled_ns, members)) / 1e9 or user + system, system)

    def resident_bytes(self) -> int:
        """Return the resident memory of the program and its living descendants."""
        statm = [Path(f"/proc/{pid}/statm").read_text() for pid in session(self._process.pid)]
        return sum(int(text.split()[1]) for text in statm) * os.sysconf("SC_PAGE_SIZE")


def run(argv: Sequence[str], limit_s: float = START_S) -> str:
    """Run a program and return its standard output, or its stderr if that is empty.

    Raises BenchError if it can't be started, fails or outlasts `limit_s` seconds.
    """
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=limit_s, **_CHILD
        )
    except OSError as error:
        raise BenchError(f"{name}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{name} took more than {limit_s:g} s") from None
    if done.returncode:
        why = " ".join(done.stderr.split())[:LOG_SHOWN]
        raise BenchError(f"{name} failed: {why or f'code {done.returncode}'}")
    return str(done.stdout or done.stderr)


# -- ports -----------------------------------------------------------------------------------------


def _is_free(port: int) -> bool:
    with socket.socket() as sock, socket.socket() as bus, contextlib.suppress(OSError):
        sock.bind(("127.0.0.1", port))
        bus.bind(("127.0.0.1", port + BUS_OFFSET))
        return True
    return False


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free and stays free for a server.

    So is the port of its cluster bus.

    A port of the kernel's ephemeral range can be in use again before the server binds it, or while
    it restarts: by another test, or by a client's connection. So ports are from below that range,
    and each process uses its own block.
    Raises BenchError if no port is free.
    """
    for port in filter(_is_free, itertools.islice(_PORTS, BLOCK)):
        return port
    raise BenchError("no port is free")


def _own_ports() -> Iterator[int]:
    """Yield the ports of a block again and again.

    The block belongs to this process while it holds the first port. The kernel frees that port
    when the process ends, for any reason.
    """
    starts = range(LOWEST_PORT, HIGHEST_PORT, BLOCK)
    for place in range(len(starts)):
        first = starts[(os.getpid() + place) % len(starts)]
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", first))
            sock.detach()  # keeps the port bound until the process ends
            yield from itertools.cycle(range(first + 1, first + BLOCK))
    raise BenchError("no port is free")


_PORTS: Final = _own_ports()


# -- what the kernel reports -----------------------------------------------------------------------


def parse(stat: str) -> Stat:
    """Parse the text of a /proc/PID/stat. Raises ValueError."""
    words = stat.rpartition(")")[2].split()  # the name before it may contain blanks and brackets
    if len(words) < 13:
        raise ValueError(f"no /proc/PID/stat: {stat!r}")
    return Stat(int(words[3]), int(words[11]), int(words[12]))


def session(leader: int) -> dict[int, Stat]:
    """Return the living processes of a session by PID."""
    found: dict[int, Stat] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # a process may end in between
            if (stat := parse(path.read_text())).session == leader:
                found[int(path.parent.name)] = stat
    return found


def _scheduled_ns(pid: int) -> int:
    spent_ns = 0
    for path in Path("/proc").glob(f"{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may have ended
            spent_ns += int(path.read_text().split()[0])
    return spent_ns
