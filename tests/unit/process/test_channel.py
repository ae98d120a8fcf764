"""channel: what a worker reports is what its supervisor receives."""

from __future__ import annotations

import multiprocessing
import os
import select

from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.channel import FAILED, LEAVING, MAX_TEXT, READY, Channel, Report


def test_reports_arrive_in_order() -> None:
    received, reports = multiprocessing.Pipe(duplex=False)
    one, other = (Channel(n, reports, SharedMemory(1), os.getpid()) for n in (0, 11))
    one.ready("Redis 7 at h", "")
    other.ready("h: refused", "start Redis there \udcff\u20ac")
    one.leaving()
    other.failed("x" * 5000)
    assert [received.recv() for _ in range(4)] == [
        Report(0, READY, "Redis 7 at h"),
        Report(11, READY, "h: refused", "start Redis there \udcff\u20ac"),
        Report(0, LEAVING),
        Report(11, FAILED, "x" * MAX_TEXT),
    ]
    assert not received.poll()
    received.close()
    one.leaving()  # the supervisor has ended: no process reads


def test_the_longest_report_is_one_write() -> None:
    received, reports = multiprocessing.Pipe(duplex=False)
    worker = Channel(255, reports, SharedMemory(1), os.getpid())
    worker.ready("\U0001f600" * 5000, "\U0001f600" * 5000)
    assert len(os.read(received.fileno(), 1 << 16)) <= select.PIPE_BUF


def test_a_worker_whose_supervisor_has_ended_ends() -> None:
    (_, reports), memory = multiprocessing.Pipe(duplex=False), SharedMemory(1)
    assert Channel(0, reports, memory, os.getppid()).check() == ""
    assert Channel(0, reports, memory, -1).check() == "the supervisor has ended"
