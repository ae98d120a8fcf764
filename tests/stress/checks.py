"""Invariants under faults and over time. Pure functions: counts and figures in, violations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Violations:
    """The violations with their evidence: the first few of each kind, and the number of all."""

    kept: int = 5
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, kind: str, evidence: str) -> None:
        """Add one of a kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= self.kept:
            self.lines.append(f"{kind}: {evidence}")

    def __bool__(self) -> bool:
        return bool(self.counts)


# -- replies --------------------------------------------------------------------------------------


def check_echo(violations: Violations, sent: str, got: object) -> None:
    """An ECHO returns its argument."""
    if got != sent:
        violations.add("another's reply", f"ECHO {sent} got {got!r}")


def check_own_key(violations: Violations, key: str, may_be: set[str | None], got: object) -> None:
    """A GET of a key that only one client writes returns that client's value, or nothing: the
    server loses its data when it ends.
    """
    if got not in may_be and got is not None:
        violations.add(
            "another's reply", f"GET {key} got {got!r}, wrote {sorted(map(str, may_be))}"
        )


def check_increment(violations: Violations, name: str, sent: int, got: int) -> None:
    """A counter that only one client increments is no higher than the number of its INCRs."""
    if got > sent:
        violations.add("counted twice", f"the counter of {name} is {got} after {sent} INCR")


def check_order(violations: Violations, sent: Sequence[str], got: Sequence[object]) -> None:
    """The replies of a pipeline are in the order of its commands; any may be an error."""
    if len(sent) != len(got):
        violations.add("order", f"{len(sent)} sent, {len(got)} answered")
    for at, (one, other) in enumerate(zip(sent, got, strict=False)):
        if not isinstance(other, Exception) and other != one:
            violations.add("order", f"reply {at} of a pipeline is {other!r}, not {one!r}")
            return


def check_hit(violations: Violations, key: str, most: int, got: object) -> bool | None:
    """Return whether the hit was admitted; None if the reply does not belong to this key's rule."""
    whole = isinstance(got, list) and len(got) == 5 and all(isinstance(one, int) for one in got)
    if not whole:
        violations.add("no reply of a hit", f"{key} got {got!r}")
        return None
    assert isinstance(got, list)
    limited, limit, remaining, retry_after, _ = got
    if limit != most:
        violations.add("another's reply", f"hit on {key} with max {most} got {got!r}")
        return None
    if limited not in (0, 1) or not 0 <= remaining < limit or (limited == 0) != (retry_after == -1):
        violations.add("no reply of a hit", f"{key} got {got!r}")
        return None
    return not limited


def without_redis(most: int, got: object) -> bool:
    """Whether a hit of cost 1 was admitted by --on-upstream-failure allow: Redis' own replies have
    a smaller `remaining`.
    """
    return got == [0, most, most, -1, 0]


# -- counts ---------------------------------------------------------------------------------------


@dataclass
class Tally:
    """The hits on one key: how many were sent, reported as admitted, and have an unknown
    outcome.
    """

    sent: int = 0
    admitted: int = 0
    unknown: int = 0


def check_count(
    violations: Violations, key: str, tally: Tally, held: int, same_life: bool = True
) -> None:
    """A server holds every hit that was reported as admitted, and none twice.

    `held` is the number it holds once all hits are answered or abandoned. A server that was
    restarted in between may hold fewer.
    """
    if held > tally.admitted + tally.unknown:
        violations.add("counted twice", f"{key}: the server holds {held}, {tally}")
    if same_life and held < tally.admitted:
        violations.add("not counted", f"{key}: the server holds {held}, {tally}")


# -- resources ------------------------------------------------------------------------------------


def check_back_to_base(violations: Violations, what: str, base: int, now: int, spare: int) -> None:
    """Once all clients have left, the value is not above the base."""
    if now > base + spare:
        violations.add("leak", f"{what}: {now} when all clients are gone, {base} before they came")


def check_recovery(violations: Violations, what: str, seconds: float, most_s: float) -> None:
    """Service is back in time."""
    if seconds > most_s:
        violations.add(
            "late", f"service was back {seconds:.2f} s after {what}, not within {most_s:g}"
        )


def growth(samples: Sequence[float]) -> tuple[float, float]:
    """The medians of the middle and of the last third: a single peak affects neither."""
    third = len(samples) // 3
    if third < 3:
        raise ValueError(f"{len(samples)} samples are too few to measure growth")
    return median(samples[third : 2 * third]), median(samples[2 * third :])


def check_growth(
    violations: Violations, what: str, samples: Sequence[float], share: float, spare: float
) -> None:
    """The last third is not above the middle third by more than `share` of it and `spare`."""
    middle, last = growth(samples)
    if last > middle * (1 + share) + spare:
        violations.add(
            "growth", f"{what}: median {middle:.4g} in the middle third, {last:.4g} last"
        )
