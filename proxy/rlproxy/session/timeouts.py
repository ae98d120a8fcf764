"""The hit timeout: looks at regular times for hits that Redis has not answered.

No timer for each hit: who has sent some is watched, and asked `EVERY` times per timeout which of
them are late. While nothing is unanswered, nothing runs. Knows no socket or loop: a clock and
timers are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.circuit_breaker import CircuitBreaker

EVERY: Final = 4  # looks per timeout, or more:
MOST_S: Final = 0.05  # the longest time between two
LEAST_S: Final = 0.001
STALLED_S: Final = 0.05  # a look so late may come before replies that wait to be read

# What whoever is watched returns beside a time.
NOTHING: Final = -1.0  # it has nothing unanswered: don't ask again
NEVER: Final = 1e18  # ask again, but nothing can be late by itself


def _no_clock() -> float:
    return 0.0


def _no_timer(_delay_s: float, _function: Callable[[], None]) -> None:
    return


class HitTimeouts:
    """Those of one process who have something unanswered. `timeout_s` 0: none is ever late."""

    __slots__ = (
        "_clock",
        "_due",
        "_later",
        "_ticking",
        "_watched",
        "circuit",
        "on_doubt",
        "timeout_s",
    )

    def __init__(
        self,
        circuit: CircuitBreaker,
        timeout_s: float = 0.0,
        clock: Callable[[], float] = _no_clock,
        later: Callable[[float, Callable[[], None]], object] = _no_timer,
    ) -> None:
        self.circuit = circuit
        self.timeout_s: float = timeout_s
        self.on_doubt: Callable[[], None] | None = None  # somebody should ask whether it is there
        self._clock = clock
        self._later = later
        self._watched: list[Callable[[float], float]] = []
        self._ticking = False
        self._due: float = 0.0

    def watch(self, look: Callable[[float], float]) -> None:
        """Call `look` with the time, again and again: it answers for what is late, and returns
        since when the oldest of the others is unanswered, or NEVER, or NOTHING.
        """
        self._watched.append(look)
        if not self._ticking:
            self._ticking = True
            self._start()

    def _start(self) -> None:
        timeout_s = self.timeout_s
        pause_s = max(LEAST_S, min(timeout_s / EVERY, MOST_S)) if timeout_s > 0.0 else MOST_S
        self._due = self._clock() + pause_s
        self._later(pause_s, self.tick)

    def tick(self) -> None:
        """A look at everybody."""
        now = self._clock()
        if now - self._due > STALLED_S:
            self._start()  # this process itself was slow: read first
            return
        oldest = NEVER
        watched = self._watched
        self._watched = []
        for look in watched:
            since = look(now)
            if since != NOTHING:
                self._watched.append(look)
                oldest = min(oldest, since)
        if self._watched:
            self._start()
        else:
            self._ticking = False
        doubtful = now - oldest >= self.timeout_s / 2 and self.circuit.heard_at <= oldest
        if doubtful and self.on_doubt is not None:
            self.on_doubt()
