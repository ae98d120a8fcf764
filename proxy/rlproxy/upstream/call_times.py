"""The numbers and times of a lane's calls: how many are unanswered, which are late, and how long a
round trip takes. No I/O.

Calls are numbered as they are written. Each look leaves a mark: the time, and the number of calls
written by then. So the age of a call is known without a record for each call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from rlproxy.session.timeouts import HitTimeouts

# Seconds of silence after which a lane with late calls is dead, while Redis answers elsewhere. The
# hit timeout applies instead if it is longer.
DEAD_S: Final = 0.5


class CallTimes:
    """The times of the calls on one connection.

    sent: number of calls written.
    answered: number of calls answered.
    late_until: number of a call; all calls up to it are answered or late.
    clock: returns seconds, precise enough for round trips of microseconds.

    All other times are seconds of the event loop's clock.
    """

    def __init__(self, timeouts: HitTimeouts, clock: Callable[[], float]) -> None:
        self.sent: int = 0
        self.answered: int = 0
        self.late_until: int = 0
        self._timeouts = timeouts
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()  # time, calls written by then
        # Time of the first look with late calls since the latest reply; 0: none
        self._late_since: float = 0.0
        self._timed: int = 0  # number of the call whose round trip is timed
        self._timed_at: float = 0.0  # when it was written, by `clock`; 0 if no call is timed

    def written(self, calls: int) -> None:
        """Record the number of calls just written, and time the last one if none is timed."""
        self.sent += calls
        if self._timed_at == 0.0:
            self._timed = self.sent
            self._timed_at = self._clock()

    def unanswered(self) -> int:
        """Return the number of calls that are written and not answered."""
        return self.sent - self.answered

    def received(self) -> float:
        """Record that Redis replied.

        Returns the seconds of the round trip that this reply completes; -1 if it completes none.
        """
        self._late_since = 0.0
        if self._timed_at == 0.0 or self.answered < self._timed:
            return -1.0
        took_s = self._clock() - self._timed_at
        self._timed_at = 0.0
        return took_s

    def mark(self, now: float) -> None:
        """Count the hit timeout of the calls written since the latest mark from `now` on."""
        if (self._marks[-1][1] if self._marks else self.answered) < self.sent:
            self._marks.append((now, self.sent))

    def due(self, now: float) -> int:
        """Report the unanswered calls that are newly late to the circuit. Returns their number.

        The last one has the number `late_until` then, and the others come right before it. Marks
        the calls that are not late yet.
        """
        marks, answered, timeout_s = self._marks, self.answered, self._timeouts.timeout_s
        while marks and marks[0][1] <= answered:
            marks.popleft()
        since = marks[0][0] if marks else now
        before = self.late_until = max(answered, self.late_until)
        while marks and marks[0][0] <= now - timeout_s:
            self.late_until = marks.popleft()[1]
        self.mark(now)
        late = self.late_until - before
        if late > 0:
            self._timeouts.circuit.timed_out(late, since, now, timeout_s)
        if self.late_until > answered:
            self._late_since = self._late_since or now
        return late

    def dead(self, now: float) -> bool:
        """Return whether this connection with late calls is silent while Redis answers others."""
        circuit = self._timeouts.circuit
        if not self._late_since or circuit.open or circuit.last_reply_at < self._late_since:
            return False
        silent_s = now - max(self._late_since, circuit.since)
        return silent_s >= max(DEAD_S, self._timeouts.timeout_s)
