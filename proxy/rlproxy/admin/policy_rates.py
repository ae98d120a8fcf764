"""The hits of policies per second, over the last ten to fifteen seconds. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from rlproxy.observability.policy_counters import HitsByPolicy, PolicyHits
from rlproxy.ratelimit.outcomes import OUTCOMES, REFUSED, REFUSED_LOCALLY, SHADOW_REFUSED

MARK_S: Final = 5.0  # seconds between two marks, at least
MARKS: Final = 3  # marks that are kept; rates count from the oldest

_NONE: Final = PolicyHits(False, [0] * len(OUTCOMES))


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
        self._marks: deque[tuple[float, HitsByPolicy]] = deque(maxlen=MARKS)
        self._last: tuple[float, HitsByPolicy] = (0.0, {})

    def add(self, at: float, hits: HitsByPolicy) -> None:
        """Add the hits in all workers; `at` is their time in seconds.

        If it is not later than the last (a clock was set), all others are dropped.
        """
        if at <= self._last[0]:
            self._marks.clear()
        self._last = (at, hits)
        if not self._marks or at - self._marks[-1][0] >= MARK_S:
            self._marks.append(self._last)

    def busiest(self, number: int) -> list[PolicyRate]:
        """Return the `number` policies with most hits, at present and then since the start.

        Policies without a hit are left out.
        """
        at, hits = self._last
        began, before = self._marks[0] if self._marks else self._last
        span_s = max(at - began, 1.0)
        rates = []
        for name, found in hits.items():
            if any(found.counts):
                pairs = zip(_columns(found), _columns(before.get(name, _NONE)), strict=True)
                per_second = (max(0, now - then) / span_s for now, then in pairs)
                rates.append(PolicyRate(name, found.shadow, *per_second))
        rates.sort(key=lambda rate: (-rate.hits, -sum(hits[rate.name].counts), rate.name))
        return rates[:number]


def _columns(hits: PolicyHits) -> tuple[int, int, int]:
    """Return all hits of a policy, the refused ones, and those refused in shadow."""
    counts = hits.counts
    return sum(counts), counts[REFUSED] + counts[REFUSED_LOCALLY], counts[SHADOW_REFUSED]
