"""The channel between a worker and its supervisor: reports to the one, settings to the other."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

from rlproxy.config.config import Config, ConfigError
from rlproxy.observability import logs
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.reload import Apply, log_rejected

MAX_TEXT: Final = 900  # characters of a report, up to 4 bytes each: a pipe takes it in one write


class Report(NamedTuple):
    """A worker's report: that it serves, with the text of ready(), or why it has `failed`."""

    worker: int
    failed: bool
    text: str


class Channel:
    """The end of a channel that one worker of several has, made by its supervisor.

    reports: the end of a pipe that takes reports.
    settings: has the settings that the supervisor has accepted last, so that all workers have the
        same.
    supervisor: the number of its process.
    """

    def __init__(
        self, worker: int, reports: Connection, settings: SharedMemory, supervisor: int
    ) -> None:
        self._worker = worker
        self._reports = reports
        self._settings = settings
        self._supervisor = supervisor

    def ready(self, upstream: str) -> None:
        """Report that the worker serves; see Resources.ready() for the text."""
        self._report(False, upstream)

    def failed(self, reason: str) -> None:
        """Report why the worker ends."""
        self._report(True, reason)

    def _report(self, failed: bool, text: str) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended
            self._reports.send(Report(self._worker, failed, text[:MAX_TEXT]))

    def check(self) -> str:
        """Return a reason to end, or "". Called every second."""
        return "" if os.getppid() == self._supervisor else "the supervisor has ended"

    def reload(self, config: Config, apply: Apply) -> Config:
        """Put the settings in force that the supervisor has checked, logged and published."""
        new: Config = self._settings.latest(0)
        try:
            apply(new)
        except ConfigError as error:  # of this process: it may have no free descriptor
            log_rejected(error)
            return config
        logs.set_level(new.log_level)
        return new
