"""The circuit of a whole cluster: open only while no master answers. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.session.call import Call
from rlproxy.session.circuit_breaker import CircuitBreaker


class ClusterCircuit(CircuitBreaker):
    """What sessions see of the circuits of all nodes.

    It is open only while every master is down: a dead master answers only for its own keys.

    down: returns whether no master is known, or the circuits of all are open.
    error_at: returns the error for a call while the circuit of the master of its slot is open,
        else b"".
    on_late: called with the arguments of timed_out() while a master answers; opens the circuits of
        the masters that do not.
    """

    def __init__(
        self,
        down: Callable[[], bool],
        error_at: Callable[[int], bytes],
        on_late: Callable[[float, float, float, int], None],
    ) -> None:
        super().__init__()
        self.down = down
        self.error_at = error_at
        self.on_late = on_late

    def error_of_node(self, call: Call) -> bytes:
        return self.error_at(call.hash_slot())

    def connect_failed(self, now: float, why: str, lacking: bool = False) -> None:
        if self.down():
            super().connect_failed(now, why, lacking)
        else:
            self.counts.connects_failed += 1

    def timed_out(
        self, number: int, since: float, now: float, limit_s: float, answered: int = 0
    ) -> None:
        if self.down():
            super().timed_out(number, since, now, limit_s, answered)
        else:
            self.counts.timeouts += number
            self.on_late(since, now, limit_s, answered)

    def replied(self, now: float) -> None:
        """Close it. A reply of one master does not count as one of the master of another hit."""
        if self.open:
            self._close(now)

    def look(self, now: float) -> None:
        """Close it if a master answers, and open it if none does."""
        if self.down():
            self._open(now, "no master answers")
        elif self.open:
            self.replied(now)
