"""The concurrency limit toward Redis: how many hits of backlogged clients may be unanswered at once
while other clients are served. No I/O.

Unanswered requests form a queue at Redis, and every client's next command waits behind it. The
length of the queue shows in the round trips of hits: it is the time beyond the shortest recent one.
The limit grows while that time is short and shrinks when it is long, as the window of TCP Vegas
does (Brakmo and Peterson, 1995). So a distant Redis has more unanswered hits than a near one. While
no other clients are active, the limit is `most`.

Only TURNS backlogged clients at a time have a turn, and share the limit. All of them at once would
already form a queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

LEAST: Final = 4  # lowest limit: hits of all backlogged clients together
TURNS: Final = 2  # clients with a turn at a time: one's hits run while another is answered
QUEUE_S: Final = 0.0001  # seconds a round trip may exceed the shortest by,
QUEUE: Final = 0.5  # or this fraction of the shortest, if that is longer
GROWS: Final = 1.0  # hits added to the limit after a shorter round trip
SHRINKS: Final = 0.75  # factor applied to the limit after a longer round trip
ALONE_S: Final = 0.1  # seconds without input of other clients before the limit is lifted
LATELY_S: Final = 5.0  # seconds; the last one to two such periods yield the shortest
_LONG: Final = 1e9


class ConcurrencyLimit:
    """The concurrency limit of one process. `most` is the number of unanswered hits of one client.

    `latest` is the latest client without a backlog that sent a small chunk. It did so at
    `others_at`, in seconds of the event loop's clock.
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
        self._shortest: float = _LONG  # shortest round trip since _since, in seconds
        self._before: float = _LONG  # shortest round trip of the period before, in seconds
        self._since: float = 0.0
        self._turns: int = 0  # turns that are taken
        self._line: deque[Callable[[], bool]] = deque()

    def others(self, now: float) -> bool:
        """Return whether other clients are active, for which the length of the queue matters."""
        return now - self.others_at <= ALONE_S

    def hits(self, whose: object, now: float) -> int:
        """Return the current limit: the hits of all backlogged clients together.

        If no client but `whose` is active, return `most`, which applies to each client.
        """
        if self.latest is whose or not self.others(now):
            return self.most
        return int(self._hits)

    def took(self, round_trip_s: float, now: float) -> None:
        """Adjust the limit to the duration of one round trip of hits, in seconds."""
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
        """Take a turn for a backlogged client, which ends with leave().

        Returns False if all turns are taken. Then `turn` is queued, and called once a turn is free.
        It returns whether the client takes that turn.
        """
        if self._turns < TURNS:
            self._turns += 1
            return True
        self._line.append(turn)
        return False

    def leave(self) -> None:
        """End a turn, and give it to the next client in the queue."""
        self._turns -= 1
        while self._line and self._turns < TURNS:
            if self._line.popleft()():
                self._turns += 1

    def crowded(self) -> bool:
        """Return whether a client waits for a turn."""
        return bool(self._line)
