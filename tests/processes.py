"""What the kernel reports of a process, by its id; and a process that is paused."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU time that it has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Return its resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(pid: int) -> int:
    """Return its highest resident memory since forget_peak(), in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def sockets(pid: int) -> set[str]:
    """Return the inodes of its sockets; none if it has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if name.startswith("socket:["):
                    found.add(name[8:-1])
    return found


def kept_alive(port: int, peers: bool = False) -> list[bool]:
    """Return of each established TCP connection of a port, over IPv4, whether keepalive is on.

    peers: of the connections to that port, instead of those that it has accepted.
    """
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = line.split()
        name = remote if peers else local
        if state == "01" and int(name.rpartition(":")[2], 16) == port:
            found.append(timer.startswith("02:"))
    return found


def forget_peak(pid: int) -> None:
    """Reset its peak to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """Pause it (SIGSTOP) for the block: its connections stay open, and it answers nothing."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
