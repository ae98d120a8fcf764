"""A clock with timers, which a test moves."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


class Timer:
    def __init__(self, at: float, function: Callable[[], None]) -> None:
        self.at = at
        self.function = function
        self.live = True

    def cancel(self) -> None:
        self.live = False


class Clock:
    """A clock that stands still unless advanced."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.fired = 0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, function: Callable[[], None]) -> Callable[[], None]:
        timer = Timer(at, function)
        self._timers.append(timer)
        return timer.cancel

    def live(self) -> list[Timer]:
        self._timers = [timer for timer in self._timers if timer.live]
        return self._timers

    def next_at(self) -> float:
        """The time of the next timer."""
        return min((timer.at for timer in self.live()), default=inf)

    def fire(self) -> None:
        """Fire the next timer now, before its time or after it."""
        timer = min(self.live(), key=lambda timer: timer.at)
        timer.live = False
        self.fired += 1
        assert self.fired < 100_000, "timers without end"
        timer.function()

    def advance(self, seconds: float) -> None:
        self.until(self.now + seconds)

    def until(self, end: float) -> None:
        while (at := self.next_at()) <= end:
            self.now = max(self.now, at)
            self.fire()
        self.now = max(self.now, end)
