"""The first event is logged at once, then a count."""

from __future__ import annotations

from rlproxy.observability.log_throttle import EVERY_S, MAX_KINDS, LogThrottle, StateThrottle

FULL = ("turned_away", "clients turned away: {count:,}; full")
FAILED = ("failed", "{count} failed")


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self.fields: list[dict[str, object]] = []
        self.repeats = LogThrottle(lambda: self.now, self.say)

    def say(self, event: str, text: str, **fields: object) -> None:
        self.said.append(text.format(**fields))
        self.fields.append({"event": event, **fields})

    def after(self, seconds: float) -> list[str]:
        """What is said by a sweep, so many seconds later."""
        self.now += seconds
        self.said.clear()
        self.repeats.sweep()
        return self.said


def test_the_first_is_said_at_once_and_the_rest_counted() -> None:
    bench = Bench()
    for at in range(1235):
        bench.repeats.happened(*FULL, client=f"10.0.0.1:{at}")
    assert bench.said == ["clients turned away: 1; full (the latest: 10.0.0.1:0)"]
    assert bench.after(9.9) == []
    assert bench.after(0.1) == ["clients turned away: 1,234; full (the latest: 10.0.0.1:1234)"]
    assert bench.after(5) == []
    bench.repeats.happened(*FULL)
    assert bench.said == []
    assert bench.after(5) == ["clients turned away: 1; full"]


def test_kinds_are_bounded() -> None:
    bench = Bench()
    for at in range(10 * MAX_KINDS):
        bench.repeats.happened("evil", "kind {reason}: {count}", reason=f"{at} {{}}")
    assert len(bench.said) == MAX_KINDS + 1
    more = 9 * MAX_KINDS - 1
    assert bench.after(10) == [f"{more} more of other kinds"]
    assert bench.after(10) == []


def test_a_machine_gets_count_and_client() -> None:
    bench = Bench()
    for at in range(3):
        bench.repeats.happened(*FAILED, client=f"10.0.0.1:{at}", reason="x")
    bench.after(10)
    bench.repeats.happened(*FULL)
    assert bench.fields == [
        {"event": "failed", "count": 1, "client": "10.0.0.1:0", "reason": "x"},
        {"event": "failed", "count": 2, "client": "10.0.0.1:2", "reason": "x"},
        {"event": "turned_away", "count": 1},
    ]


def test_a_state_is_said_once() -> None:
    now = 100.0
    throttle = StateThrottle(lambda: now)
    assert throttle.due("one is down")
    now += 10 * EVERY_S
    assert not throttle.due("one is down")
    assert throttle.due("two are down")
    assert not throttle.due("one is down")  # it comes and goes
    now += EVERY_S
    assert throttle.due("one is down")
