"""The restart policy: when a process that ended is started again, and how its end is described."""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import inf
from typing import Final

PAUSE_FIRST_S: Final = 0.1  # seconds before the second restart in a row; then they double
MAX_PAUSE_S: Final = 5.0  # seconds before any restart, at most
LASTS_S: Final = 10.0  # seconds of running after which a process is replaced at once
MAX_FAILURES: Final = 7  # failures in a row after which further restarts are in vain


class RestartPolicy:
    """When a process that ended is started again.

    The first restart is immediate. The pause doubles with each further failure in a row, up to
    MAX_PAUSE_S. A process that has run for LASTS_S ends the row.

    due: time of the next start; infinite if none is due.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = inf  # time of the present process' start; infinite: there is none
        self._failures = 0
        self.due = inf

    def started(self) -> None:
        """Record that the process was started."""
        self._started = self._clock()
        self.due = inf

    def ended(self) -> float:
        """Record that the process ended or could not be started.

        Returns the seconds until it should be started again.
        """
        if self._lasts():
            self._failures = 0
        self._started = inf
        self._failures += 1
        first = self._failures == 1
        pause_s = 0.0 if first else min(PAUSE_FIRST_S * 2.0 ** (self._failures - 2), MAX_PAUSE_S)
        self.due = self._clock() + pause_s
        return pause_s

    def hopeless(self) -> bool:
        """Whether it failed MAX_FAILURES times in a row and has not run for LASTS_S since."""
        return self._failures >= MAX_FAILURES and not self._lasts()

    def _lasts(self) -> bool:
        return self._clock() - self._started >= LASTS_S


def ending(code: int) -> str:
    """Describe how a process ended; `code` is as os.waitstatus_to_exitcode() returns it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
