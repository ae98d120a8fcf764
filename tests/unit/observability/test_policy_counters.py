"""Policy counters: which policy a row counts, through any number of reloads."""

from __future__ import annotations

from rlproxy.observability.counters import Counters
from rlproxy.observability.metrics import POLICY_HITS, POLICY_SHADOW
from rlproxy.observability.policy_counters import (
    NO_POLICIES,
    PolicyCounters,
    PolicyHits,
    PolicyState,
    hits_of,
    samples,
)
from rlproxy.ratelimit import outcomes as oc
from rlproxy.ratelimit.grammar import Policy
from rlproxy.ratelimit.hit_replies import five
from rlproxy.resp import encoding as r

KEY = r.bulk(b"k")
ADMITTED = five(0, 10, 9, -1, 60)
REFUSED = five(1, 10, 0, 60, 60)


def policy(name: str, text: str = "10 60", shadow: bool = False) -> Policy:
    return Policy(name.encode(), text.encode(), shadow)


def row(of: Policy) -> int:
    """The row of a policy's hits, as the grammar chooses it."""
    return of.row + (oc.WIDTH if of.shadow else 0)


class Used:
    """Counters, and policies in force."""

    def __init__(self, *policies: Policy, before: PolicyState = NO_POLICIES) -> None:
        self.stats = Counters()
        self.counters = PolicyCounters(self.stats, before)
        self.counters.use(policies)

    def hit(self, of: Policy | int, *replies: bytes) -> None:
        for reply in replies:
            self.stats.answered(of if isinstance(of, int) else row(of), reply, KEY)

    def hits(self) -> dict[tuple[str, str], int]:
        """Hits by policy and outcome, as another process finds them, without zeros."""
        return {
            (name, outcome): count
            for name, found in hits_of(self.counters.state()).items()
            for outcome, count in zip(oc.OUTCOMES, found.counts, strict=True)
            if count
        }

    def of_algorithm(self, name: bytes = b"LOG") -> dict[str, int]:
        counts = self.counters.by_algorithm()[name]
        return {of: count for of, count in zip(oc.OUTCOMES, counts, strict=True) if count}


def test_hits_by_policy_are_among_those_of_the_algorithm() -> None:
    login, search = policy("login"), policy("search", "5 60 ALGO GCRA", shadow=True)
    used = Used(login, search)
    used.hit(login, ADMITTED, REFUSED)
    used.hit(search, ADMITTED, REFUSED, REFUSED)
    used.hit(oc.ROWS[b"LOG"], ADMITTED)
    assert used.hits() == {
        ("login", "admitted"): 1,
        ("login", "refused"): 1,
        ("search", "admitted"): 1,
        ("search", "shadow_refused"): 2,
    }
    assert used.of_algorithm() == {"admitted": 2, "refused": 1}
    assert used.of_algorithm(b"GCRA") == {"admitted": 1, "shadow_refused": 2}


def test_rows_survive_a_reload_by_name_and_algorithm() -> None:
    used = Used(before := policy("a"))
    used.hit(before, ADMITTED, REFUSED)
    after = policy("a", "3 5 GAP 1", shadow=True)
    used.counters.use([after])
    used.hit(after, REFUSED)
    found = {("a", "admitted"): 1, ("a", "refused"): 1, ("a", "shadow_refused"): 1}
    assert used.hits() == found
    used.counters.use([other := policy("a", "3 5 ALGO FIXED")])
    assert used.hits() == {}
    assert used.of_algorithm() == {"admitted": 1, "refused": 1, "shadow_refused": 1}
    used.hit(other, ADMITTED)
    assert used.of_algorithm(b"FIXED") == {"admitted": 1}


def test_a_hit_under_way_counts_for_no_other_policy() -> None:
    used = Used(old := policy("old"))
    used.hit(old, ADMITTED)
    used.counters.use([new := policy("new")])
    used.hit(old, ADMITTED)  # sent before the reload
    assert used.hits() == {}
    assert new.row != old.row
    used.counters.use([newer := policy("newer")])
    assert newer.row == old.row
    used.hit(newer, ADMITTED)
    assert used.hits() == {("newer", "admitted"): 1}
    assert used.of_algorithm() == {"admitted": 3}


def test_a_process_goes_on_with_the_hits_of_the_one_it_replaces() -> None:
    former = Used(old := policy("a"), gone := policy("gone"))
    former.hit(old, ADMITTED, REFUSED)
    former.hit(gone, ADMITTED)
    state = former.counters.state()
    used = Used(policy("b"), one := policy("a"), before=state)
    used.hit(one, ADMITTED)
    assert used.hits() == {("a", "admitted"): 2, ("a", "refused"): 1}
    assert used.of_algorithm() == {"admitted": 3, "refused": 1}
    used.counters.use([again := policy("a", shadow=True), policy("gone")])
    used.hit(again, REFUSED)
    assert used.hits() == {("a", "admitted"): 2, ("a", "refused"): 1, ("a", "shadow_refused"): 1}
    used.counters.use([])
    assert (used.hits(), hits_of(NO_POLICIES)) == ({}, {})
    assert former.counters.state() == state


def counted(shadow: bool = False, **counts: int) -> PolicyHits:
    return PolicyHits(shadow, [counts.get(outcome, 0) for outcome in oc.OUTCOMES])


def test_usual_outcomes_have_a_sample_before_the_first_hit() -> None:
    found = samples({"a": counted(), "b": counted(True), "c": counted(failed=2, refused=1)})
    assert found[POLICY_HITS] == {
        ("a", "admitted"): 0,
        ("a", "refused"): 0,
        ("a", "refused_locally"): 0,
        ("b", "admitted"): 0,
        ("b", "shadow_refused"): 0,
        ("c", "admitted"): 0,
        ("c", "refused"): 1,
        ("c", "refused_locally"): 0,
        ("c", "failed"): 2,
    }
    assert found[POLICY_SHADOW] == {("b",): 1.0}
