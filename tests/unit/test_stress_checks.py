"""The checks of chaos and soak: valid data passes, and each check can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.stress import checks, cluster_checks
from tests.stress.checks import Tally, Violations
from tests.stress.cluster_checks import Pushed

FIVE = [0, 7, 6, -1, 60]
NO = RuntimeError("UPSTREAMDOWN")
MOVED = RuntimeError("MOVED 1 127.0.0.1:7000")
BY_TWO = {"a": Pushed(4, refused={2}, unknown={3}), "b": Pushed(1)}
Judge = Callable[[Violations], object]


def listed(*held: str, exact: bool = True) -> Judge:
    """Judge a list of these elements."""
    return lambda v: cluster_checks.check_list(v, "list", BY_TWO, held, exact)


HOLDS: list[Judge] = [
    lambda v: checks.check_echo(v, "a:1", "a:1"),
    lambda v: checks.check_own_key(v, "a", {None, "1"}, "1"),
    lambda v: checks.check_own_key(v, "a", {"1"}, None),
    lambda v: checks.check_increment(v, "a", 2, 2),
    lambda v: checks.check_order(v, ["1", "2"], ["1", "2"]),
    lambda v: checks.check_order(v, ["1", "2"], [NO, "2"]),
    lambda v: checks.check_hit(v, "k", 7, FIVE),
    lambda v: checks.check_hit(v, "k", 7, [1, 7, 0, 3, 60]),
    lambda v: checks.check_count(v, "k", Tally(5, 3, 2), 3),
    lambda v: checks.check_count(v, "k", Tally(5, 3, 2), 5),
    lambda v: checks.check_count(v, "k", Tally(5, 3, 0), 0, same_life=False),
    lambda v: checks.check_back_to_base(v, "fds", 10, 11, 1),
    lambda v: checks.check_recovery(v, "a kill", 0.9, 1),
    listed("a/1", "b/1", "a/3", "a/4"),
    listed("a/1", "a/4", "b/1"),
    listed("a/4", exact=False),
    lambda v: cluster_checks.check_redirect(v, "EXEC", [1, [NO]]),
    lambda v: cluster_checks.check_waited(v, "SET", 0.9, 1),
    lambda v: checks.check_growth(v, "rss", [100.0] * 30, 0.05, 0),
    lambda v: checks.check_growth(v, "rss", [1.0] * 10 + [100.0] * 20, 0.05, 0),
    lambda v: checks.check_growth(v, "rss", [100.0] * 25 + [900.0] * 2 + [100.0] * 3, 0.05, 0),
]
FAILS: list[tuple[str, Judge]] = [
    ("another's reply", lambda v: checks.check_echo(v, "a:1", "b:1")),
    ("another's reply", lambda v: checks.check_own_key(v, "a", {None, "1"}, "2")),
    ("counted twice", lambda v: checks.check_increment(v, "a", 2, 3)),
    ("order", lambda v: checks.check_order(v, ["1", "2"], ["2", "1"])),
    ("order", lambda v: checks.check_order(v, ["1", "2"], ["1"])),
    ("order", lambda v: checks.check_order(v, ["1", "2"], ["1", "2", "3"])),
    ("another's reply", lambda v: checks.check_hit(v, "k", 8, FIVE)),
    ("no reply of a hit", lambda v: checks.check_hit(v, "k", 7, "PONG")),
    ("no reply of a hit", lambda v: checks.check_hit(v, "k", 7, [0, 7, 6, 3, 60])),
    ("no reply of a hit", lambda v: checks.check_hit(v, "k", 7, [0, 7, 7, -1, 60])),
    ("counted twice", lambda v: checks.check_count(v, "k", Tally(5, 3, 1), 5)),
    ("counted twice", lambda v: checks.check_count(v, "k", Tally(5, 3, 1), 5, same_life=False)),
    ("not counted", lambda v: checks.check_count(v, "k", Tally(5, 3, 1), 2)),
    ("leak", lambda v: checks.check_back_to_base(v, "fds", 10, 12, 1)),
    ("inverted", listed("a/3", "a/1", "a/4", "b/1")),
    ("inverted", listed("a/4", "a/1", exact=False)),
    ("doubled", listed("a/1", "a/1", "a/4", "b/1")),
    ("lost", listed("a/1", "a/3", "b/1")),
    ("lost", listed("a/1", "a/3", "a/4")),
    ("ran though refused", listed("a/1", "a/2", "a/4", "b/1")),
    ("another's value", listed("a/1", "c/1", "a/4", "b/1")),
    ("another's value", listed("a/1", "a/4", "b/1", "b/2")),
    ("a redirect", lambda v: cluster_checks.check_redirect(v, "EXEC", [1, [MOVED]])),
    ("slow", lambda v: cluster_checks.check_waited(v, "SET", 1.1, 1)),
    ("late", lambda v: checks.check_recovery(v, "a kill", 1.1, 1)),
    ("growth", lambda v: checks.check_growth(v, "rss", [100.0] * 20 + [110.0] * 10, 0.05, 0)),
    ("growth", lambda v: checks.check_growth(v, "rss", [float(n) for n in range(60)], 0.05, 0)),
]


@pytest.mark.parametrize("judge", HOLDS)
def test_valid_data_passes(judge: Judge) -> None:
    violations = Violations()
    judge(violations)
    assert not violations, violations.lines


@pytest.mark.parametrize(("kind", "judge"), FAILS)
def test_violation_is_recorded(kind: str, judge: Judge) -> None:
    violations = Violations()
    judge(violations)
    assert violations
    assert list(violations.counts) == [kind]
    assert violations.lines[0].startswith(kind)


def test_check_of_a_hit_returns_its_admission() -> None:
    violations = Violations()
    assert checks.check_hit(violations, "k", 7, FIVE) is True
    assert checks.check_hit(violations, "k", 7, [1, 7, 0, 3, 60]) is False
    assert checks.check_hit(violations, "k", 7, [0, 8, 6, -1, 60]) is None


def test_hit_admitted_without_redis_is_recognised() -> None:
    assert checks.without_redis(7, [0, 7, 7, -1, 0])
    assert not checks.without_redis(7, FIVE)
    assert not checks.without_redis(8, [0, 7, 7, -1, 0])
