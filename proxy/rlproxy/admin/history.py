"""The counters of the last two minutes, as rates and percentiles per second; and the rates of
policies, over the last ten seconds. No I/O, no clock.

samples ──add()──> History ──> rates, quantiles, busiest policies
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Final

from rlproxy.observability.counters import TIMES_S
from rlproxy.observability.metrics import Samples, classes_of, total
from rlproxy.observability.policy_counters import HitsByPolicy, PolicyHits
from rlproxy.ratelimit.outcomes import OUTCOMES, REFUSED, REFUSED_LOCALLY, SHADOW_REFUSED

KEPT_S: Final = 120.0  # seconds of history
SMOOTH_S: Final = 10.0  # seconds that percentiles and the rates of policies cover
RATE_S: Final = 2.0  # seconds that present rates cover
GAP_S: Final = 5.0  # seconds; moments further apart have no rate between them

ROUND_TRIP: Final = "rlproxy_lane_round_trip_seconds"
LAG: Final = "rlproxy_event_loop_lag_seconds"
HITS: Final = "hits"
COMMANDS: Final = "commands"
_NO_HITS: Final = PolicyHits(False, [0] * len(OUTCOMES))


# The counters at one time, by name: hits in the order of OUTCOMES, classes of histograms.
Counts = dict[str, list[float]]
_NONE: Final[Counts] = {HITS: [0.0] * len(OUTCOMES), COMMANDS: [0.0], ROUND_TRIP: [], LAG: []}


class History:
    """The counters of the last KEPT_S seconds, oldest first, and the hits of policies in the last
    SMOOTH_S seconds; each with their time.
    """

    def __init__(self) -> None:
        self._moments: deque[tuple[float, Counts]] = deque()
        self._policies: deque[tuple[float, HitsByPolicy]] = deque()

    def add(self, at: float, samples: Samples, policies: HitsByPolicy) -> None:
        """Append the counters of all workers at the time `at`: samples, and hits of policies.

        If it is not later than the last (a clock was set), all others are dropped.
        """
        moments, marks = self._moments, self._policies
        if moments and at <= moments[-1][0]:
            moments.clear()
            marks.clear()
        counts = {name: classes_of(samples, name) for name in (ROUND_TRIP, LAG)}
        counts[HITS] = [total(samples, "rlproxy_hits_total", outcome) for outcome in OUTCOMES]
        counts[COMMANDS] = [total(samples, "rlproxy_commands_total")]
        moments.append((at, counts))
        marks.append((at, policies))
        while moments[0][0] < at - KEPT_S - 1:
            moments.popleft()
        while len(marks) > 1 and marks[1][0] <= at - SMOOTH_S:
            marks.popleft()

    def rates(self) -> list[tuple[float, ...]]:
        """Return a row for each moment but the first: its time, then hits per second by outcome.

        After a gap of more than GAP_S the row consists of the time only.
        """
        return [
            (at, *(_rates(at - before, old[HITS], new[HITS]) if at - before <= GAP_S else ()))
            for (before, old), (at, new) in pairwise(self._moments)
        ]

    def now(self) -> tuple[float, ...]:
        """Return the present hits per second by outcome, then other commands per second."""
        return (*self._growth(HITS, RATE_S), *self._growth(COMMANDS, RATE_S))

    def quantiles(self, name: str, wanted: Iterable[float]) -> list[float | None]:
        """Return quantiles, in seconds, of a histogram's values in the last SMOOTH_S seconds.

        name: ROUND_TRIP or LAG.
        wanted: shares from 0 to 1; see quantile() for the results.
        """
        classes = self._growth(name, SMOOTH_S)
        return [quantile(TIMES_S, classes, each) for each in wanted]

    def _growth(self, name: str, length_s: float) -> list[float]:
        """Return the growth of counters per second in the last `length_s`; 0 if unknown."""
        moments = self._moments or [(0.0, _NONE)]
        at, new = moments[-1]
        begins = (moment for moment in reversed(moments) if moment[0] <= at - length_s)
        before, old = next(begins, moments[0])
        return _rates(at - before, old[name], new[name])

    def busiest(self, number: int) -> list[tuple[str, bool, float, float, float]]:
        """Return the `number` policies with most hits, at present and then since the start.

        The rows are (name, whether it is in shadow, hits, refused, refused in shadow), the last
        three per second; see _columns(). Policies without a hit are left out.
        """
        if not self._policies:
            return []
        (began, before), (at, hits) = self._policies[0], self._policies[-1]
        span_s = max(at - began, 1.0)
        rates = []
        for name, found in hits.items():
            if any(found.counts):
                then = _columns(before.get(name, _NO_HITS))
                every, refused, in_shadow = _rates(span_s, then, _columns(found))
                rates.append((name, found.shadow, every, refused, in_shadow))
        rates.sort(key=lambda row: (-row[2], -sum(hits[row[0]].counts), row[0]))
        return rates[:number]


def quantile(bounds: Sequence[float], classes: Sequence[float], wanted: float) -> float | None:
    """Return the value that a share `wanted` of the values does not exceed.

    bounds: the upper bounds of the classes, ascending.
    classes: the number of values in each class, the last one beyond all bounds.
    Values are assumed to be spread evenly within their class.
    Returns None without values; infinity if the result lies beyond the last bound.
    """
    total = sum(classes)
    if not total:
        return None
    left = wanted * total
    lower = 0.0
    for upper, count in zip(bounds, classes, strict=False):
        if count >= left:
            return lower + (upper - lower) * (left / count) if count else lower
        left -= count
        lower = upper
    return float("inf")


def _rates(span_s: float, old: Sequence[float], new: Sequence[float]) -> list[float]:
    """Return the growth of each counter per second; the old ones may be missing."""
    pairs = zip_longest(old, new, fillvalue=0.0)
    return [max(0.0, after - before) / span_s if span_s else 0.0 for before, after in pairs]


def _columns(hits: PolicyHits) -> tuple[int, int, int]:
    """Return all hits of a policy, those refused by Redis or the denial cache, and in shadow."""
    counts = hits.counts
    return sum(counts), counts[REFUSED] + counts[REFUSED_LOCALLY], counts[SHADOW_REFUSED]
