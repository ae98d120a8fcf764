"""The budget of one worker: how much one client may do before others are served. No I/O.

Two bounds keep one client's load from the others:

- Work per tick. One tick of the event loop serves all clients that are readable. A client with
  much in hand spends at most CLIENT_WORK units, then it queues for the next tick (Scheduler).
- Hits on their way. Unanswered requests form a queue at Redis, and every client's next command
  waits behind it. A client may have `max_client_hits` unanswered hits. Clients with more in hand
  than that are *backlogged*, and share this number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

LEAST_HITS: Final = 2  # unanswered hits that each backlogged client may have in any case
# Work units per tick for all queued clients together. One forwarded request is one unit.
TICK_WORK: Final = 4096
CLIENT_WORK: Final = TICK_WORK // 2  # work units of one client per tick
WORK_OF_OURS: Final = 16  # extra units of an RL command
WORK_OF_REPORT: Final = 500  # extra units of RL.HELP, RL.STATS ...; they sum up all workers
WORK_OF_STATE: Final = 8  # extra units of a command that changes its connection's state
WORK_BYTES_SHIFT: Final = 7  # bytes shifted right by it are units: one for each 128 bytes
SMALL: Final = 1024  # bytes; clients with more in hand must queue once the tick's work is spent
LARGE: Final = 16384  # bytes of requests in hand of a queued client before it is paused

Turn = Callable[[], None]


class Budget:
    """The budget that all clients of a worker share.

    max_client_hits: unanswered hits of one client.
    """

    def __init__(self, max_client_hits: int) -> None:
        self.max_client_hits = max_client_hits
        self.backlogged: int = 0  # number of backlogged clients
        self.work: int = 0  # work units spent since clients last had their turns; see Scheduler

    def spent(self) -> bool:
        """Return whether TICK_WORK is spent: clients with much in hand must queue."""
        return self.work >= TICK_WORK

    def hits(self, backlogged: bool) -> int:
        """Return the number of hits that one client may have unanswered.

        backlogged: whether the client has more in hand.
        """
        most = self.max_client_hits
        if not backlogged or self.backlogged < 2:
            return most
        return max(min(LEAST_HITS, most), most // self.backlogged)


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
