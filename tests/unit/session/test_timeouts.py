"""Which callers are checked for late hits, and when; the test sets clock and timers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.timeouts import MAX_S, STALLED_S, HitTimeouts


class Time:
    """A clock, and the timers that were set."""

    def __init__(self, timeout_s: float) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.silences: list[float] = []
        self.circuit = CircuitBreaker()
        self.timeouts = HitTimeouts(self.circuit, lambda: self.now, self.later)
        self.timeouts.timeout_s = timeout_s
        self.timeouts.on_silence = lambda: self.silences.append(self.now)

    def later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, function))

    def run(self, until: float) -> None:
        while self.timers and self.timers[0][0] <= until:
            self.now, function = self.timers.pop(0)
            function()
        self.now = until


def test_nothing_runs_without_a_watched_client() -> None:
    time = Time(1.0)
    assert time.timers == []
    looks: list[float] = []

    def look(now: float) -> bool:
        looks.append(now)
        return len(looks) < 3

    time.timeouts.watch(look)
    assert len(time.timers) == 1
    time.run(101.0)
    assert looks == pytest.approx([100.0 + MAX_S, 100.0 + 2 * MAX_S, 100.0 + 3 * MAX_S])
    assert time.timers == []
    time.timeouts.watch(lambda _: False)
    assert len(time.timers) == 1


def test_silence_begins_at_half_the_timeout_without_a_reply() -> None:
    time = Time(1.0)
    time.timeouts.watch(lambda _: True)
    time.run(100.48)
    assert time.silences == []
    time.run(100.56)
    assert len(time.silences) == 1
    time.circuit.replied(100.56)
    time.run(101.0)
    assert len(time.silences) == 1
    time.run(102.0)  # nothing has come since
    assert time.silences[1:] == pytest.approx([101.1, 101.6], abs=MAX_S)


def test_after_a_stall_replies_are_read_first() -> None:
    """Where stall follows stall, as in a container at its CPU limit, every second look is made."""
    time = Time(1.0)
    looks: list[float] = []

    def look(now: float) -> bool:
        looks.append(now)
        return True

    time.timeouts.watch(look)
    for made in (0, 1, 1, 2, 2, 3):
        at, function = time.timers.pop()
        time.now = at + STALLED_S + 0.01
        function()
        assert len(looks) == made
