"""The restart policy: when a process that ended is started again, and how its end is described."""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import inf
from typing import Final

PAUSES_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)  # seconds before each restart in a row
LASTS_S: Final = 10.0  # seconds of running that end the row
MAX_FAILURES: Final = 7  # failures in a row after which further restarts are in vain


class RestartPolicy:
    """When a process that ended is started again: after each failure in a row, a longer pause, the
    last of PAUSES_S at most.

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
        pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
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
