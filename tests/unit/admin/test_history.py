"""Rates and times of the last two minutes."""

from __future__ import annotations

from math import inf

import pytest
from rlproxy.admin.history import GAP_S, KEPT_S, LAG, ROUND_TRIP, SMOOTH_S, History, quantile
from rlproxy.observability.counters import TIMES_S
from rlproxy.observability.metrics import Samples
from rlproxy.observability.policy_counters import HitsByPolicy, PolicyHits
from rlproxy.ratelimit.outcomes import OUTCOMES

from tests.unit.observability.histograms import times

NONE = (0.0,) * (len(OUTCOMES) - 2)


def samples(admitted: float, refused: float = 0, commands: float = 0, fast: int = 0) -> Samples:
    return {
        "rlproxy_hits_total": {
            ("gcra", "admitted"): admitted / 2,
            ("fixed_window", "admitted"): admitted / 2,
            ("gcra", "refused"): refused,
        },
        "rlproxy_commands_total": {(): commands},
        ROUND_TRIP: times((0, 0, fast)),
    }


def test_rates_sum_all_algorithms_over_the_interval() -> None:
    recent = History()
    assert recent.rates() == []
    assert recent.now() == (0.0, 0.0, *NONE, 0.0)
    recent.add(100.0, samples(10), {})
    assert recent.rates() == []
    recent.add(102.0, samples(30, refused=4, commands=8), {})
    assert recent.rates() == [(102.0, 10.0, 2.0, *NONE)]
    assert recent.now() == (10.0, 2.0, *NONE, 4.0)


def test_two_minutes_are_kept() -> None:
    recent = History()
    for second in range(1000):
        recent.add(float(second), samples(second), {})
    assert len(recent.rates()) == KEPT_S + 1
    assert {row[1] for row in recent.rates()} == {1.0}


def test_samples_too_far_apart_have_no_rate() -> None:
    recent = History()
    for at in (1.0, 2.0, 2.0 + GAP_S, 2.1 + 2 * GAP_S, 3.1 + 2 * GAP_S):
        recent.add(at, samples(at), {})
    assert [len(row) - 1 for row in recent.rates()] == [len(OUTCOMES)] * 2 + [0, len(OUTCOMES)]
    assert [row[0] for row in recent.rates()] == [2.0, 7.0, 12.1, 13.1]


def test_decreased_counters_give_no_negative_rate() -> None:
    recent = History()
    recent.add(1.0, samples(100), {})
    recent.add(2.0, samples(10), {})
    assert recent.now()[0] == 0.0


def test_a_clock_that_was_set_back_begins_anew() -> None:
    recent = History()
    for at in (100.0, 101.0, 50.0, 52.0):
        recent.add(at, samples(at), policies(login={"admitted": int(at)}))
    assert recent.rates() == [(52.0, 1.0, 0.0, *NONE)]
    assert recent.busiest(1)[0][2] == 1.0


def test_times_cover_the_last_ten_seconds() -> None:
    recent = History()
    recent.add(0.0, {}, {})
    assert recent.quantiles(ROUND_TRIP, (0.5,)) == [None]
    slow: Samples = {ROUND_TRIP: times((*[0] * len(TIMES_S), 1000))}
    recent.add(1.0, slow, {})
    assert recent.quantiles(ROUND_TRIP, (0.5,)) == [inf]
    late: Samples = {ROUND_TRIP: times((0, 0, 10, *[0] * (len(TIMES_S) - 3), 1000))}
    recent.add(12.0, late, {})
    assert recent.quantiles(ROUND_TRIP, (0.5, 1.0)) == [0.000375, 0.0005]
    assert recent.quantiles(LAG, (0.5,)) == [None]


@pytest.mark.parametrize(
    ("classes", "wanted", "found"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([4, 0, 0], 1.0, 1.0),
        ([0, 4, 0], 0.5, 1.5),
        ([2, 2, 0], 0.75, 1.5),
        ([1, 0, 1], 0.99, inf),
        ([99, 0, 1], 0.99, 1.0),
    ],
)
def test_quantiles(classes: list[int], wanted: float, found: float | None) -> None:
    assert quantile((1.0, 2.0), classes, wanted) == found


# -- policies --------------------------------------------------------------------------------------


def policies(**hits: dict[str, int]) -> HitsByPolicy:
    """Hits by outcome of each policy; the policy `trial` is in shadow."""
    return {
        name: PolicyHits(name == "trial", [counts.get(outcome, 0) for outcome in OUTCOMES])
        for name, counts in hits.items()
    }


def test_rates_cover_some_seconds() -> None:
    rates = History()
    for second in range(200):
        rates.add(float(second), {}, policies(login={"admitted": max(0, second - 100)}))
        if second > 100 + SMOOTH_S:
            assert rates.busiest(1)[0][2] == 1.0
    rates.add(200.0, {}, policies(login={"admitted": 99}))
    assert 0 < 1 - rates.busiest(1)[0][2] < 0.2
