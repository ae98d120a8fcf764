"""The scheduler of one worker: clients with work left go on in later ticks. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rlproxy.fairness.budget import Budget

Turn = Callable[[], None]


class Scheduler:
    """The queue of clients whose work exceeds the budget of a tick: one turn each per tick.

    call_soon: calls a function in the next tick of the event loop.
    """

    def __init__(self, budget: Budget, call_soon: Callable[[Turn], object]) -> None:
        self._budget = budget
        self._call_soon = call_soon
        self._queue: deque[Turn] = deque()
        self.serving = False  # whether _serve() is scheduled

    def queue(self, turn: Turn) -> None:
        """Call `turn` when the budget of a tick allows it, in the order of the calls."""
        self._queue.append(turn)
        if not self.serving:
            self.serving = True
            self._call_soon(self._serve)

    def _serve(self) -> None:
        budget = self._budget
        budget.work = 0
        count = len(self._queue)
        try:
            while count > 0 and not budget.spent():
                count -= 1
                self._queue.popleft()()
        finally:  # a turn that fails must not leave the other clients without theirs
            self.serving = bool(self._queue)
            if self.serving:
                self._call_soon(self._serve)
