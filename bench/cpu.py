"""CPU time of running programs, their child processes included, read from /proc."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from .figures import Figure
from .rows import CLUSTER, CLUSTER_CPU, CPU, TASKS, TASKS_CPU, WORKERS, WORKERS_CPU, Row

PROC: Final = Path("/proc")
UNIT: Final = "s"
MILLION: Final = 1e6
# ends of figures' names, for the CPU time of:
REDIS: Final = "redis"  # Redis
PARTY: Final = "party"  # the program that clients connect to, if not Redis
SERVERS: Final = "servers"  # Redis and the party together
DRIVER: Final = "driver"  # the load generator
SYSTEM: Final = "system"  # after one of these: its part in kernel mode

# kind of figures by row; others: CPU
KINDS: Final = {TASKS: TASKS_CPU, WORKERS: WORKERS_CPU, CLUSTER: CLUSTER_CPU}

T = TypeVar("T")


class Spent(NamedTuple):
    """One /proc/PID/stat: the parent's PID, and the ticks in user and kernel mode."""

    parent: int
    user: int
    system: int


class Times(NamedTuple):
    """CPU seconds in user and in kernel mode."""

    user: float
    system: float


Clock = Callable[[], Times | None]  # CPU time so far; None if unknown


def parse(stat: str) -> Spent:
    """Parse the text of a /proc/PID/stat. Raises ValueError."""
    words = stat.rpartition(")")[2].split()  # the name before it may contain blanks and brackets
    if len(words) < 13:
        raise ValueError(f"no /proc/PID/stat: {stat!r}")
    return Spent(int(words[1]), int(words[11]), int(words[12]))


def family(pid: int, proc: Path = PROC) -> dict[int, Spent]:
    """Return what a process and each of its living descendants has spent, by PID.

    Empty without /proc, as on other systems than Linux, or if there is no such process.
    """
    found: dict[int, Spent] = {}
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # a process may end in between
            found[int(path.parent.name)] = parse(path.read_text())
    if pid not in found:
        return {}
    children: dict[int, list[int]] = {}
    for child, spent in found.items():
        children.setdefault(spent.parent, []).append(child)
    members: dict[int, Spent] = {}
    left = [pid]
    while left:
        one = left.pop()
        members[one] = found[one]
        left += children.get(one, [])
    return members


def times(pid: int, proc: Path = PROC) -> Times | None:
    """Return the CPU time of a process and its living descendants.

    The resolution is one tick, usually 10 ms. Returns None as family() returns nothing.
    """
    members = family(pid, proc).values()
    tick = os.sysconf("SC_CLK_TCK")
    user, system = sum(one.user for one in members), sum(one.system for one in members)
    return Times(user / tick, system / tick) if members else None


def seconds(pid: int, proc: Path = PROC) -> float | None:
    """Return the CPU seconds of a process and its living descendants; None as times()."""
    found = times(pid, proc)
    return None if found is None else sum(found)


def scheduled_s(pid: int, proc: Path = PROC) -> float | None:
    """Return the CPU seconds of a process and its living descendants, all threads, exactly.

    They are the scheduler's own count in nanoseconds, or seconds() where the kernel has none.
    """
    spent_ns = 0
    for member in family(pid, proc):
        for path in proc.glob(f"{member}/task/*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # a thread may have ended
                spent_ns += int(path.read_text().split()[0])
    return spent_ns / 1e9 or seconds(pid, proc)


def own() -> Times:
    """Return the CPU time of this process, in microseconds' resolution."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Times(usage.ru_utime, usage.ru_stime)


def clock(pid: int) -> Clock:
    """Return a clock of the CPU time of `pid` and its descendants."""
    return lambda: times(pid)


class Meter:
    """The CPU time of the runs of one row: a figure for each program with a clock."""

    def __init__(self, row: Row, generator: str) -> None:
        self._row = row.name
        self._kind = KINDS.get(row.kind, CPU)
        self._generator = generator
        self._figures: dict[str, Figure] = {}

    def run(self, column: str, count: int, clocks: Mapping[str, Clock], once: Callable[[], T]) -> T:
        """Call `once`, record the CPU time of its `count` commands by each clock.

        column: the column of the figures to which the samples belong.
        clocks: by REDIS, PARTY or DRIVER.
        Returns the result of `once`.
        """
        before = {whose: read() for whose, read in clocks.items()}
        result = once()
        servers = 0.0
        for whose, read in clocks.items():
            began, ended = before[whose], read()
            if began is None or ended is None:
                continue
            self._add(whose, column, sum(ended) - sum(began), count)
            if whose == PARTY:
                self._add(f"{whose} {SYSTEM}", column, ended.system - began.system, count)
            if whose != DRIVER:
                servers += sum(ended) - sum(began)
        if servers:
            self._add(SERVERS, column, servers, count)
        return result

    def _add(self, whose: str, column: str, spent_s: float, count: int) -> None:
        named = Figure(f"{self._row} {whose}", self._kind, UNIT, self._generator)
        figure = self._figures.setdefault(whose, named)
        figure.samples.setdefault(column, []).append(spent_s / count * MILLION)

    def figures(self) -> list[Figure]:
        """Return the figures, in seconds per million commands: `hit-1 redis`, `hit-1 party` ..."""
        return list(self._figures.values())
