"""channel: what a worker reports is what its supervisor receives."""

from __future__ import annotations

import multiprocessing
import os
import select

import pytest
from rlproxy.config.config import Config, ConfigError
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.channel import MAX_TEXT, Channel, Report


def test_reports_arrive_in_order() -> None:
    received, reports = multiprocessing.Pipe(duplex=False)
    one, other = (Channel(n, reports, SharedMemory(1), os.getpid()) for n in (0, 11))
    one.ready("Redis 7 at h")
    other.ready("h: refused \udcff\u20ac")
    other.failed("x" * 5000)
    assert [received.recv() for _ in range(3)] == [
        Report(0, False, "Redis 7 at h"),
        Report(11, False, "h: refused \udcff\u20ac"),
        Report(11, True, "x" * MAX_TEXT),
    ]
    assert not received.poll()
    received.close()
    one.failed("late")  # the supervisor has ended: no process reads


def test_the_longest_report_is_one_write() -> None:
    received, reports = multiprocessing.Pipe(duplex=False)
    worker = Channel(255, reports, SharedMemory(1), os.getpid())
    worker.ready("\U0001f600" * 5000)
    assert len(os.read(received.fileno(), 1 << 16)) <= select.PIPE_BUF


def test_a_worker_whose_supervisor_has_ended_ends() -> None:
    (_, reports), memory = multiprocessing.Pipe(duplex=False), SharedMemory(1)
    assert Channel(0, reports, memory, os.getppid()).check() == ""
    assert Channel(0, reports, memory, -1).check() == "the supervisor has ended"


def test_a_worker_takes_the_settings_that_its_supervisor_has_published() -> None:
    (_, reports), memory = multiprocessing.Pipe(duplex=False), SharedMemory(1)
    new, applied = Config(max_clients=7), list[Config]()
    memory.publish(0, new)
    channel = Channel(0, reports, memory, os.getppid())
    assert channel.reload(Config(), applied.append) == new
    assert applied == [new]


def test_a_worker_that_cannot_take_the_settings_keeps_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (_, reports), memory = multiprocessing.Pipe(duplex=False), SharedMemory(1)
    memory.publish(0, Config(max_clients=7))
    old = Config()

    def apply(_new: Config) -> None:
        raise ConfigError(["--tls-cert c: no file can be opened"])

    assert Channel(0, reports, memory, os.getppid()).reload(old, apply) is old
    assert caplog.messages == ["SIGHUP: --tls-cert c: no file can be opened; all stays as it was"]
