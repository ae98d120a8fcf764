"""Invariants of a cluster under faults. Pure functions: sent and found in, violations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.stress.checks import Violations


@dataclass
class Pushed:
    """The values 1, 2, 3 ... that one client pushed to one list.

    sent: the number of all.
    refused: those that were answered with an error.
    unknown: those whose connection was lost before the reply.
    """

    sent: int = 0
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)

    def answered(self) -> int:
        """Return the number of values that were answered with the list's length."""
        return self.sent - len(self.refused) - len(self.unknown)


def check_list(
    violations: Violations,
    key: str,
    pushed: dict[str, Pushed],
    held: Sequence[str],
    exact: bool,
) -> None:
    """A list has each client's values in the order sent, none twice, and no refused one.

    held: the list's elements, each CLIENT/NUMBER.
    pushed: by client.
    exact: the servers lost nothing, so all answered values are there.
    """
    latest = dict.fromkeys(pushed, 0)
    seen: dict[str, set[int]] = {name: set() for name in pushed}
    for at, element in enumerate(held):
        name, _, number_text = element.rpartition("/")
        number = int(number_text) if number_text.isdigit() else 0
        tally = pushed.get(name)
        where = f"{key}[{at}] = {element}"
        if tally is None or not 1 <= number <= tally.sent:
            violations.add("another's value", where)
            continue
        if number in seen[name]:
            violations.add("doubled", where)
        elif number < latest[name]:
            violations.add("inverted", f"{where} comes behind {latest[name]}")
        if number in tally.refused:
            violations.add("ran though refused", where)
        seen[name].add(number)
        latest[name] = max(latest[name], number)
    if not exact:
        return
    for name, tally in pushed.items():
        every = set(range(1, tally.sent + 1)) - tally.refused - tally.unknown
        missing = sorted(every - seen[name])
        if missing:
            violations.add(
                "lost", f"{key}: {len(missing)} of {name}, the first is {missing[0]} ({tally.sent})"
            )


def check_redirect(violations: Violations, words: str, got: object) -> bool:
    """No reply contains a redirect, at any depth. Returns whether `got` is free of them."""
    if isinstance(got, list):
        return all(check_redirect(violations, words, each) for each in got)
    if isinstance(got, Exception) and str(got).startswith(("MOVED ", "ASK ")):
        violations.add("a redirect", f"{words} got {got}")
        return False
    return True


def check_waited(violations: Violations, what: str, seconds: float, most_s: float) -> None:
    """A reply came in time."""
    if seconds > most_s:
        violations.add("slow", f"{what} took {seconds:.2f} s, not {most_s:g}")
