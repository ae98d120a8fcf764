"""The hits of policies per second, over the last ten to fifteen seconds. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import Final

from rlproxy.observability.policy_counters import HitsByPolicy, PolicyHits
from rlproxy.ratelimit.outcomes import OUTCOMES, REFUSED, REFUSED_LOCALLY, SHADOW_REFUSED

MARK_S: Final = 5.0  # seconds between two marks, at least
MARKS: Final = 3  # marks that are kept; rates count from the oldest

_NONE: Final = PolicyHits(False, [0] * len(OUTCOMES))


# A policy's name, whether it is in shadow, and its hits per second: of all outcomes; refused, also
# by the denial cache; refused in shadow, and answered as admitted.
PolicyRate = tuple[str, bool, float, float, float]


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
        rates: list[PolicyRate] = []
        for name, found in hits.items():
            if any(found.counts):
                pairs = zip(_columns(found), _columns(before.get(name, _NONE)), strict=True)
                all_s, refused_s, shadow_s = (max(0, now - then) / span_s for now, then in pairs)
                rates.append((name, found.shadow, all_s, refused_s, shadow_s))
        rates.sort(key=lambda rate: (-rate[2], -sum(hits[rate[0]].counts), rate[0]))
        return rates[:number]


def _columns(hits: PolicyHits) -> tuple[int, int, int]:
    """Return all hits of a policy, the refused ones, and those refused in shadow."""
    counts = hits.counts
    return sum(counts), counts[REFUSED] + counts[REFUSED_LOCALLY], counts[SHADOW_REFUSED]
