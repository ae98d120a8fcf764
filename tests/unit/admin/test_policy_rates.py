"""Rates of policies: over seconds, those with most hits first."""

from __future__ import annotations

from rlproxy.admin.policy_rates import MARK_S, MARKS, PolicyRates
from rlproxy.observability.policy_counters import HitsByPolicy, PolicyHits
from rlproxy.ratelimit.outcomes import OUTCOMES


def policies(**hits: dict[str, int]) -> HitsByPolicy:
    """Hits by outcome of each policy; the policy `trial` is in shadow."""
    return {
        name: PolicyHits(name == "trial", [counts.get(outcome, 0) for outcome in OUTCOMES])
        for name, counts in hits.items()
    }


def test_no_policy_has_a_rate_before_the_first_hit() -> None:
    rates = PolicyRates()
    assert rates.busiest(9) == []
    rates.add(1.0, policies(login={}))
    assert rates.busiest(9) == []


def test_refusals_and_those_in_shadow_are_apart() -> None:
    rates = PolicyRates()
    rates.add(100.0, policies(login={"admitted": 7, "refused": 5}))
    rates.add(
        104.0,
        policies(
            login={"admitted": 27, "refused": 9, "refused_locally": 4, "failed": 4},
            trial={"admitted": 4, "shadow_refused": 8},
        ),
    )
    login, trial = rates.busiest(9)
    assert login == ("login", False, 8.0, 2.0, 0.0)
    assert trial == ("trial", True, 3.0, 0.0, 2.0)
    assert rates.busiest(1) == [login]


def test_policies_without_hits_now_follow_by_their_sums() -> None:
    rates = PolicyRates()
    old = {"few": {"admitted": 1}, "many": {"admitted": 9}, "also": {"admitted": 1}}
    rates.add(100.0, policies(**old))
    rates.add(102.0, policies(**old, now={"admitted": 1}))
    assert [rate.name for rate in rates.busiest(9)] == ["now", "many", "also", "few"]


def test_rates_cover_some_seconds() -> None:
    rates = PolicyRates()
    for second in range(200):
        rates.add(float(second), policies(login={"admitted": max(0, second - 100)}))
        if second > 100 + MARKS * MARK_S:
            assert rates.busiest(1)[0].hits == 1.0
    rates.add(200.0, policies(login={"admitted": 99}))
    assert 0 < 1 - rates.busiest(1)[0].hits < 0.2


def test_rates_begin_again_when_a_clock_was_set_or_a_counter_fell() -> None:
    rates = PolicyRates()
    rates.add(100.0, policies(login={"admitted": 50}))
    rates.add(102.0, policies(login={"admitted": 10}))
    assert rates.busiest(1)[0].hits == 0.0
    rates.add(50.0, policies(login={"admitted": 60}))
    assert rates.busiest(1)[0].hits == 0.0
    rates.add(52.0, policies(login={"admitted": 62}))
    assert rates.busiest(1)[0].hits == 1.0
