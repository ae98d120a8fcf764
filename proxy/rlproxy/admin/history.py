"""The counters of the last two minutes, as rates and percentiles per second; and the rates of
policies, over the last ten seconds. No I/O, no clock.

samples ──add()──> Recent ──> rates, quantiles, busiest policies
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

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
_HISTOGRAMS: Final = (ROUND_TRIP, LAG)
_NO_HITS: Final = PolicyHits(False, [0] * len(OUTCOMES))


@dataclass(frozen=True)
class Moment:
    """The counters at the time `at`, in seconds: hits in the order of OUTCOMES, other commands,
    and the classes of each of _HISTOGRAMS, by its name.
    """

    at: float
    hits: tuple[float, ...]
    commands: float
    times: dict[str, list[float]]


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


class Recent:
    """The moments of the last KEPT_S seconds, oldest first, and the hits of policies in the last
    SMOOTH_S seconds.
    """

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()
        self._policies: deque[tuple[float, HitsByPolicy]] = deque()  # with their time

    def add(self, at: float, samples: Samples, policies: HitsByPolicy) -> None:
        """Append the moment `at`, with the samples and the hits of policies of all workers.

        If it is not later than the last (a clock was set), all others are dropped.
        """
        moments, marks = self._moments, self._policies
        if moments and at <= moments[-1].at:
            moments.clear()
            marks.clear()
        hits = tuple(total(samples, "rlproxy_hits_total", outcome) for outcome in OUTCOMES)
        times = {name: classes_of(samples, name) for name in _HISTOGRAMS}
        moments.append(Moment(at, hits, total(samples, "rlproxy_commands_total"), times))
        marks.append((at, policies))
        while moments[0].at < at - KEPT_S - 1:
            moments.popleft()
        while len(marks) > 1 and marks[1][0] <= at - SMOOTH_S:
            marks.popleft()

    def rates(self) -> list[tuple[float, ...]]:
        """Return a row for each moment but the first: its time, then hits per second by outcome.

        After a gap of more than GAP_S the row consists of the time only.
        """
        rows: list[tuple[float, ...]] = []
        for old, new in pairwise(self._moments):
            span_s = new.at - old.at
            rows.append((new.at, *(_rates(old.hits, new.hits, span_s) if span_s <= GAP_S else ())))
        return rows

    def now(self) -> tuple[float, ...]:
        """Return the present hits per second by outcome, then other commands per second."""
        span = self._span(RATE_S)
        if span is None:
            return (0.0,) * (len(OUTCOMES) + 1)
        old, new = span
        return tuple(_rates((*old.hits, old.commands), (*new.hits, new.commands), new.at - old.at))

    def quantiles(self, name: str, wanted: Iterable[float]) -> list[float | None]:
        """Return quantiles, in seconds, of a histogram's values in the last SMOOTH_S seconds.

        name: ROUND_TRIP or LAG.
        wanted: shares from 0 to 1; see quantile() for the results.
        """
        span = self._span(SMOOTH_S)
        if span is None:
            return [None for _ in wanted]
        old, new = (which.times[name] for which in span)
        pairs = zip_longest(old, new, fillvalue=0)  # the old ones may be missing
        classes = [max(0, after - before) for before, after in pairs]
        return [quantile(TIMES_S, classes, each) for each in wanted]

    def busiest(self, number: int) -> list[PolicyRate]:
        """Return the `number` policies with most hits, at present and then since the start.

        Policies without a hit are left out.
        """
        if not self._policies:
            return []
        (began, before), (at, hits) = self._policies[0], self._policies[-1]
        span_s = max(at - began, 1.0)
        rates = []
        for name, found in hits.items():
            if any(found.counts):
                pairs = zip(_columns(found), _columns(before.get(name, _NO_HITS)), strict=True)
                per_second = (max(0, now - then) / span_s for now, then in pairs)
                rates.append(PolicyRate(name, found.shadow, *per_second))
        rates.sort(key=lambda rate: (-rate.hits, -sum(hits[rate.name].counts), rate.name))
        return rates[:number]

    def _span(self, length_s: float) -> tuple[Moment, Moment] | None:
        """Return the latest moment at least `length_s` before the last (or the first), and the
        last; None if there are fewer than two.
        """
        if len(self._moments) < 2:
            return None
        new = self._moments[-1]
        before = (old for old in reversed(self._moments) if old.at <= new.at - length_s)
        return next(before, self._moments[0]), new


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


def _rates(old: Sequence[float], new: Sequence[float], span_s: float) -> list[float]:
    return [max(0.0, after - before) / span_s for before, after in zip(old, new, strict=True)]


def _columns(hits: PolicyHits) -> tuple[int, int, int]:
    """Return all hits of a policy, the refused ones, and those refused in shadow."""
    counts = hits.counts
    return sum(counts), counts[REFUSED] + counts[REFUSED_LOCALLY], counts[SHADOW_REFUSED]
