"""The restart policy: when a process that ended is started again, and how its end is described."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

PAUSE_FIRST_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
LASTS_S: Final = 10.0  # a process that ran for so long may be replaced at once
MAX_FAILURES: Final = 7  # in a row: then there is little hope


class RestartPolicy:
    """When a process that ended is started again: at once, but later and later if none lasts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._running = False
        self._failures = 0

    def started(self) -> None:
        """It was started."""
        self._running = True
        self._started = self._clock()

    def ended(self) -> float:
        """It ended, or could not be started: the seconds until it should be."""
        if self._lasts():
            self._failures = 0
        self._running = False
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return min(PAUSE_FIRST_S * 2.0 ** (self._failures - 2), PAUSE_MOST_S)

    def hopeless(self) -> bool:
        """It has ended MAX_FAILURES times in a row, and is not running well by now."""
        return self._failures >= MAX_FAILURES and not self._lasts()

    def _lasts(self) -> bool:
        return self._running and self._clock() - self._started >= LASTS_S


def ending(code: int) -> str:
    """How a process ended, of os.waitstatus_to_exitcode()."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
