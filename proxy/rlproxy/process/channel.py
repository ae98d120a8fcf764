"""The channel between a worker and the process that controls it: reports to the one, settings to
the other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from rlproxy.config.config import Config
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.process.reload import Apply, reload
from rlproxy.process.resources import Resources

# kinds of reports
READY: Final = "ready"
LEAVING: Final = "leaving"
FAILED: Final = "failed"
MAX_LINE: Final = 1000  # characters of a report: up to 4 bytes each, a pipe takes it in one write


class Channel:
    """The worker's end of a channel. This one is of a proxy that is one process.

    read: returns the settings of the file. Raises ConfigError.
    first: the proxy is still starting: this worker replaces none.
    """

    first = True

    def __init__(self, resources: Resources, read: Callable[[], Config]) -> None:
        self._resources = resources
        self._read = read

    def ready(self, upstream: str, advice: str) -> None:
        """Report that the worker serves; see print_banner() for the texts."""
        self._resources.ready(upstream, advice)

    def leaving(self) -> None:
        """Report that the worker takes no more clients."""

    def check(self) -> str:
        """Return a reason to end, or "". Called every second."""
        return self._resources.check()

    def reload(self, config: Config, apply: Apply) -> Config:
        """Read the settings again, after SIGHUP, and put them in force by `apply`."""
        return reload(config, apply, self._read, self._resources.memory)


class Report(NamedTuple):
    """A worker's report. `text` is the reason of FAILED, or the first text of ready()."""

    worker: int
    kind: str
    text: str = ""
    advice: str = ""


class Pipe:
    """The pipe by which the workers of a supervisor report. Raises OSError."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        for end in (self.descriptor, self._end):
            os.set_blocking(end, False)

    def send(self, report: Report) -> None:
        """Send a report; called in a worker's process."""
        line = "\t".join(" ".join(str(each).split()) for each in report)[:MAX_LINE] + "\n"
        with contextlib.suppress(OSError):
            os.write(self._end, line.encode("utf-8", "replace"))

    def receive(self) -> Iterator[Report]:
        """Yield the reports sent since the last call."""
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self.descriptor, 1 << 20).decode().splitlines():
                worker, *rest = line.split("\t")
                yield Report(int(worker), *rest)


class Supervised(Channel):
    """The channel of one worker of several, made by its supervisor.

    settings: has the settings that the supervisor has accepted last, so that all workers have the
        same.
    supervisor: the number of its process.
    """

    def __init__(
        self, worker: int, first: bool, pipe: Pipe, settings: SharedMemory, supervisor: int
    ) -> None:
        self._worker = worker
        self.first = first
        self._pipe = pipe
        self._settings = settings
        self._supervisor = supervisor

    def ready(self, upstream: str, advice: str) -> None:
        """See Channel."""
        self._pipe.send(Report(self._worker, READY, upstream, advice))

    def leaving(self) -> None:
        """See Channel."""
        self._pipe.send(Report(self._worker, LEAVING))

    def failed(self, reason: str) -> None:
        """Report why the worker ends."""
        self._pipe.send(Report(self._worker, FAILED, reason))

    def check(self) -> str:
        """See Channel."""
        return "" if os.getppid() == self._supervisor else "the supervisor has ended"

    def reload(self, config: Config, apply: Apply) -> Config:
        """See Channel. The supervisor has logged and published the outcome."""
        return reload(config, apply, lambda: self._settings.latest(0), None)
