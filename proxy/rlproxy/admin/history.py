"""The counters of the last two minutes, as rates and percentiles per second. No I/O, no clock.

samples ──moment()──> Moment ──add()──> Recent ──> rates, quantiles
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rlproxy.observability.metrics import BY_NAME, Distribution, Samples
from rlproxy.ratelimit.outcomes import OUTCOMES

KEPT_S: Final = 120.0
SMOOTH_S: Final = 10.0  # times are told of so many seconds, rates of fewer
RATE_S: Final = 2.0
GAP_S: Final = 5.0  # moments further apart have no rate between them

ROUND_TRIP: Final = "rlproxy_lane_round_trip_seconds"
LAG: Final = "rlproxy_event_loop_lag_seconds"
_HISTOGRAMS: Final = (ROUND_TRIP, LAG)
_NONE: Final = Distribution((), 0.0)


@dataclass(frozen=True)
class Moment:
    """The counters as they were `at` a time (in seconds): hits by outcome, in the order of
    OUTCOMES, other commands, and the two histograms of times.
    """

    at: float
    hits: tuple[float, ...]
    commands: float
    times: tuple[Distribution, ...]


def moment(at: float, samples: Samples) -> Moment:
    """Of all workers' samples."""
    by_outcome = dict.fromkeys(OUTCOMES, 0.0)
    for (_, outcome), value in samples.get("rlproxy_hits_total", {}).items():
        assert not isinstance(value, Distribution)
        by_outcome[outcome] += value
    commands = samples.get("rlproxy_commands_total", {}).get((), 0.0)
    assert not isinstance(commands, Distribution)
    times = []
    for name in _HISTOGRAMS:
        found = samples.get(name, {}).get((), _NONE)
        assert isinstance(found, Distribution)
        times.append(found)
    return Moment(at, tuple(by_outcome.values()), commands, tuple(times))


class Recent:
    """Moments of the last KEPT_S seconds, in their order."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque()

    def add(self, new: Moment) -> None:
        """A further one. One that is not later than the last (a clock was set) begins anew."""
        moments = self._moments
        if moments and new.at <= moments[-1].at:
            moments.clear()
        moments.append(new)
        while moments[0].at < new.at - KEPT_S - 1:
            moments.popleft()

    def rates(self) -> list[tuple[float, ...]]:
        """For each moment but the first: when it was, and the hits in a second by outcome; behind a
        gap only when it was.
        """
        rows: list[tuple[float, ...]] = []
        for old, new in pairwise(self._moments):
            span_s = new.at - old.at
            rows.append((new.at, *(_rates(old.hits, new.hits, span_s) if span_s <= GAP_S else ())))
        return rows

    def now(self) -> tuple[float, ...]:
        """The hits of a second at this time, by outcome, and other commands behind them."""
        span = self._span(RATE_S)
        if span is None:
            return (0.0,) * (len(OUTCOMES) + 1)
        old, new = span
        return tuple(_rates((*old.hits, old.commands), (*new.hits, new.commands), new.at - old.at))

    def quantiles(self, name: str, wanted: Iterable[float]) -> list[float | None]:
        """Of the times in the last SMOOTH_S seconds, in seconds; see quantile()."""
        span = self._span(SMOOTH_S)
        if span is None:
            return [None for _ in wanted]
        old, new = (which.times[_HISTOGRAMS.index(name)].classes for which in span)
        if len(old) != len(new):
            old = (0,) * len(new)
        classes = [max(0, after - before) for before, after in zip(old, new, strict=True)]
        return [quantile(BY_NAME[name].bounds, classes, each) for each in wanted]

    def _span(self, length_s: float) -> tuple[Moment, Moment] | None:
        """The last moment, and the one so long before it, or longer (or else the first)."""
        if len(self._moments) < 2:
            return None
        new = self._moments[-1]
        for old in reversed(self._moments):
            if old.at <= new.at - length_s:
                return old, new
        return self._moments[0], new


def quantile(bounds: Sequence[float], classes: Sequence[int], wanted: float) -> float | None:
    """What a share `wanted` of the values does not exceed, evenly spread as they are taken to be
    within a class. None without values; infinite where it lies beyond the last bound.
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
