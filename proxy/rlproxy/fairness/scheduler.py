"""The scheduler of one worker: clients with work left go on in later ticks. No I/O.

Two queues: clients whose work exceeds the budget of a tick, one turn each per tick, and clients
that leave their replies unread, which go on every PACE_S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rlproxy.fairness.budget import SLOW_HITS, Budget

PACE_S: Final = 0.001  # seconds between two grants of SLOW_HITS hits

Turn = Callable[[], None]


class Scheduler:
    """The queues of one worker.

    call_soon: calls a function in the next tick of the event loop.
    call_later: calls a function after a time in seconds.
    """

    __slots__ = ("_budget", "_call_later", "_call_soon", "_paced", "_queue", "pacing", "serving")

    def __init__(
        self,
        *,
        budget: Budget,
        call_soon: Callable[[Turn], object],
        call_later: Callable[[float, Turn], object],
    ) -> None:
        self._budget = budget
        self._call_soon = call_soon
        self._call_later = call_later
        self._queue: deque[Turn] = deque()
        self._paced: deque[Turn] = deque()
        self.serving = False  # whether _serve() is scheduled
        self.pacing = False  # whether _pace() is scheduled

    def queue(self, turn: Turn) -> None:
        """Call `turn` when the budget of a tick allows it, in the order of the calls."""
        self._queue.append(turn)
        if not self.serving:
            self.serving = True
            self._call_soon(self._serve)

    def pace(self, turn: Turn) -> None:
        """Call `turn` within some milliseconds, for a client that leaves its replies unread."""
        self._paced.append(turn)
        if not self.pacing:
            self.pacing = True
            self._call_later(PACE_S, self._pace)

    def _serve(self) -> None:
        budget = self._budget
        budget.work = 0
        count = len(self._queue)
        while count > 0 and not budget.spent():
            count -= 1
            self._queue.popleft()()
        self.serving = bool(self._queue)
        if self.serving:
            self._call_soon(self._serve)

    def _pace(self) -> None:
        budget = self._budget
        budget.slow_hits = SLOW_HITS
        count = len(self._paced)
        while count > 0 and budget.slow_hits > 0:
            count -= 1
            self._paced.popleft()()
        self.pacing = bool(self._paced)
        if self.pacing:
            self._call_later(PACE_S, self._pace)
