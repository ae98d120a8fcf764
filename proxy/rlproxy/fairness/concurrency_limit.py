"""The concurrency limit toward Redis: how many hits of backlogged clients may be unanswered at
once while other clients are served. No I/O.

What is on its way to Redis is a queue there, and everybody's next command stands behind it. The
round trips of hits tell how long it is: whatever they take beyond the shortest of late. The window
grows while that is short and shrinks when it is long, as that of TCP Vegas does (Brakmo and
Peterson, 1995), so that a far Redis has more on its way than a near one. While nobody else is there
it is as wide as may be.

Of many such clients few at a time have a turn, for as many hits: all of them at once would be a
queue by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

LEAST: Final = 4  # hits, of all such clients together
TURNS: Final = 2  # so many of them at a time: while one is answered, another one's hits run
QUEUE_S: Final = 0.0001  # round trips may take so much longer than the shortest,
QUEUE: Final = 0.5  # or by so much of it, if that is more
GROWS: Final = 1.0  # hits with a round trip that took less,
SHRINKS: Final = 0.75  # and by so much with one that took more
ALONE_S: Final = 0.1  # nobody else is there after so long without a word
LATELY_S: Final = 5.0  # the shortest of the last one to two such times counts
_LONG: Final = 1e9


class ConcurrencyLimit:
    """That of one process. `most` is what a single client may have on its way.

    Whoever has little in hand and sends something is the `latest` of these, at `others_at`, the
    loop's time in seconds.
    """

    __slots__ = (
        "_before",
        "_hits",
        "_line",
        "_shortest",
        "_since",
        "_turns",
        "latest",
        "most",
        "others_at",
    )

    def __init__(self, most: int) -> None:
        self.most = most
        self.others_at: float = -_LONG
        self.latest: object = None
        self._hits: float = float(min(LEAST, most))
        self._shortest: float = _LONG  # s, of the round trips after _since,
        self._before: float = _LONG  # and of those in the time before that
        self._since: float = 0.0
        self._turns: int = 0  # who has one
        self._line: deque[Callable[[], bool]] = deque()

    def others(self, now: float) -> bool:
        """Whether there are others, for whom it matters how long the queue is."""
        return now - self.others_at <= ALONE_S

    def hits(self, whose: object, now: float) -> int:
        """How many hits, by now, of all such clients together; `most`, of each one, where there are
        no others than `whose` these are.
        """
        if self.latest is whose or not self.others(now):
            return self.most
        return int(self._hits)

    def took(self, round_trip_s: float, now: float) -> None:
        """A round trip of hits."""
        if now - self._since > LATELY_S:
            self._before = self._shortest
            self._shortest = _LONG
            self._since = now
        self._shortest = min(self._shortest, round_trip_s)
        shortest = min(self._shortest, self._before)
        if round_trip_s - shortest > max(QUEUE_S, QUEUE * shortest):
            self._hits = max(float(min(LEAST, self.most)), self._hits * SHRINKS)
        else:
            self._hits = min(float(self.most), self._hits + GROWS)

    def enter(self, turn: Callable[[], bool]) -> bool:
        """A turn for one of these clients, until leave(). False: it is in line, and `turn` will be
        called when it has one; that says whether it takes it.
        """
        if self._turns < TURNS:
            self._turns += 1
            return True
        self._line.append(turn)
        return False

    def leave(self) -> None:
        """A turn is over."""
        self._turns -= 1
        while self._line and self._turns < TURNS:
            if self._line.popleft()():
                self._turns += 1

    def crowded(self) -> bool:
        """Whether somebody is in line."""
        return bool(self._line)
