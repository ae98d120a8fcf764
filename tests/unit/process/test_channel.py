"""channel: what a worker reports is what its supervisor receives."""

from __future__ import annotations

import os

from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.channel import FAILED, LEAVING, MAX_LINE, READY, Pipe, Report, Supervised


def test_reports_arrive_in_order() -> None:
    pipe = Pipe()
    one, other = (Supervised(n, True, pipe, SharedMemory(1), os.getpid()) for n in (0, 11))
    one.ready("Redis 7 at h", "")
    other.ready("h: refused", "start\tRedis\nthere \udcff\u20ac")
    one.leaving()
    other.failed("x" * 5000)
    long = Report(11, FAILED, "x" * (MAX_LINE - len("11\tfailed\t")))
    assert list(pipe.receive()) == [
        Report(0, READY, "Redis 7 at h"),
        Report(11, READY, "h: refused", "start Redis there ?\u20ac"),
        Report(0, LEAVING),
        long,
    ]
    assert list(pipe.receive()) == []


def test_a_worker_whose_supervisor_has_ended_ends() -> None:
    pipe, memory = Pipe(), SharedMemory(1)
    assert Supervised(0, True, pipe, memory, os.getppid()).check() == ""
    assert Supervised(0, True, pipe, memory, -1).check() == "the supervisor has ended"
