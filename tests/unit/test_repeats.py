"""repeats: the first at once, the others counted."""

from __future__ import annotations

from collections.abc import Callable

from proxy.repeats import EVERY_S, MAX_KINDS, Repeats


class Teller:
    """Repeats with a timer that goes off when told to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.timers: list[Callable[[], None]] = []
        self.repeats = Repeats(self.lines.append, self._later)

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == EVERY_S
        self.timers.append(function)

    def told(self) -> list[str]:
        lines = list(self.lines)
        self.lines.clear()
        return lines

    def over(self) -> None:
        timers = list(self.timers)
        self.timers.clear()
        for function in timers:
            function()


def test_the_first_at_once_the_others_as_a_count() -> None:
    teller = Teller()
    teller.repeats.tell("a", "a 1")
    teller.repeats.tell("b", "b 1")
    assert teller.told() == ["a 1", "b 1"]
    for number in range(2, 12):
        teller.repeats.tell("a", f"a {number}")
    teller.repeats.tell("b", "b 2")
    assert teller.told() == []
    teller.over()
    assert teller.told() == ["a 11 (10 such in the last 5 s)", "b 2"]
    teller.over()
    assert teller.told() == []
    assert teller.timers == []
    teller.repeats.tell("a", "a again")
    assert teller.told() == ["a again"]


def test_kinds_are_bounded() -> None:
    teller = Teller()
    for number in range(10 * MAX_KINDS):
        teller.repeats.tell(str(number), str(number))
    assert len(teller.told()) == MAX_KINDS + 1
    teller.over()
    assert len(teller.told()) == 1
