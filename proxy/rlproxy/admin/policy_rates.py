"""The hits of policies per second, over the last ten to fifteen seconds. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from rlproxy.observability.metrics import POLICY_HITS, POLICY_SHADOW, Distribution, Samples

MARK_S: Final = 5.0  # seconds between two marks, at least
MARKS: Final = 3  # marks that are kept; rates count from the oldest

_Counts = dict[str, tuple[float, float, float]]
_NONE: Final = (0.0, 0.0, 0.0)
_COLUMNS: Final = {"refused": 1, "refused_locally": 1, "shadow_refused": 2}


class PolicyRate(NamedTuple):
    """The hits of one policy per second.

    hits: of all outcomes.
    refused: by Redis and by the denial cache.
    shadow_refused: refused by the policy in shadow, and answered as admitted.
    """

    name: str
    shadow: bool
    hits: float
    refused: float
    shadow_refused: float


class PolicyRates:
    """The counters of policies at a few moments."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, _Counts]] = deque(maxlen=MARKS)
        self._last: tuple[float, _Counts] = (0.0, {})
        self._shadows: set[str] = set()

    def add(self, at: float, samples: Samples) -> None:
        """Add the samples of all workers; `at` is their time in seconds.

        If it is not later than the last (a clock was set), all others are dropped.
        """
        if at <= self._last[0]:
            self._marks.clear()
        self._last = (at, _counts(samples))
        self._shadows = {name for (name,) in samples.get(POLICY_SHADOW, {})}
        if not self._marks or at - self._marks[-1][0] >= MARK_S:
            self._marks.append(self._last)

    def busiest(self, number: int) -> list[PolicyRate]:
        """Return the `number` policies with most hits, at present and then since the start.

        Policies without a hit are left out.
        """
        at, counts = self._last
        began, before = self._marks[0] if self._marks else self._last
        span_s = max(at - began, 1.0)
        rates = [
            PolicyRate(
                name,
                name in self._shadows,
                *(
                    max(0.0, now - then) / span_s
                    for now, then in zip(found, before.get(name, _NONE), strict=True)
                ),
            )
            for name, found in counts.items()
        ]
        rates.sort(key=lambda rate: (-rate.hits, -counts[rate.name][0], rate.name))
        return rates[:number]


def _counts(samples: Samples) -> _Counts:
    """Return the hits, refused hits and hits refused in shadow of each policy."""
    found: dict[str, list[float]] = {}
    for (name, outcome), value in samples.get(POLICY_HITS, {}).items():
        assert not isinstance(value, Distribution)
        row = found.setdefault(name, [0.0, 0.0, 0.0])
        row[0] += value
        if outcome in _COLUMNS:
            row[_COLUMNS[outcome]] += value
    return {name: (hits, refused, shadow) for name, (hits, refused, shadow) in found.items()}
