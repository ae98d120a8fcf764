"""Denial cache: the replies of a cached refusal as it ages, and the entries that are kept, against
plain models.

Clocks are small multiples of 2**-20 s: sums of them are not rounded, and the model may count in
exact fractions.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.ratelimit import denial_cache as d
from rlproxy.ratelimit.denial_cache import Denial, DenialCache
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five, integers
from rlproxy.ratelimit.outcomes import ROWS, WIDTH

SECOND = 1_000_000
TICK = 2.0**-20  # a little less than a microsecond


def rule(unit_us: int = SECOND) -> Rule:
    made = Rule()
    made.unit_us = unit_us
    return made


def opened(found: list[int], sent_at: float, replied_at: float, unit_us: int = SECOND) -> Denial:
    """An entry opened by the reply `found`."""
    denial = Denial({}, b"k", rule(unit_us))
    denial.state = d.OPENING
    denial.sent_at = sent_at
    denial.opened(found, replied_at)
    return denial


def numbers(reply: bytes) -> list[int]:
    """The five integers of a reply; its bytes must be those of any refusal."""
    found = integers(reply)
    assert reply == five(found[0], found[1], found[2], found[3], found[4])
    return found


# -- the answers of an entry -----------------------------------------------------------------------


def test_a_shadow_hit_is_answered_as_admitted() -> None:
    denial = opened([1, 10, 3, 5 * SECOND, 60 * SECOND], 0.0, 0.0)
    denial.rule.row = ROWS[b"LOG"] + WIDTH
    assert denial.answer(0.5) == five(0, 10, 3, -1, 60)
    assert denial.answer(0.5) is denial.answer(0.5)


def test_times_in_milliseconds() -> None:
    denial = opened([1, 5, 0, 3000, 250_500], 1.0, 1.0, unit_us=1000)
    assert numbers(denial.answer(1.0)) == [1, 5, 0, 3, 251]
    assert numbers(denial.answer(1.0 + 2**-11)) == [1, 5, 0, 3, 251]  # 488 microseconds
    assert numbers(denial.answer(1.0 + 513 * TICK)) == [1, 5, 0, 3, 251]  # 489
    assert numbers(denial.answer(1.0 + 525 * TICK)) == [1, 5, 0, 3, 250]  # 500
    assert numbers(denial.answer(1.0 + 1049 * TICK)) == [1, 5, 0, 2, 250]  # 1000
    assert numbers(denial.answer(1.0 + 3145 * TICK)) == [1, 5, 0, 1, 248]  # 2999
    assert denial.answer(1.0 + 3146 * TICK) == b""  # 3000


def test_reset_after_stays_zero_where_a_gap_alone_refuses() -> None:
    """The reply is about the limit with the least remaining, which may be as if never used."""
    denial = opened([1, 2, 2, 50 * SECOND, 0], 0.0, 0.0)
    assert numbers(denial.answer(0.0)) == [1, 2, 2, 50, 0]
    assert denial.answer(0.5) is denial.answer(0.0)


def test_lifetime_is_at_most_a_second_from_the_sending() -> None:
    denial = opened([1, 5, 0, 600_000_000, 600_000_000], 10.0, 10.5)
    assert numbers(denial.answer(11.0 - TICK)) == [1, 5, 0, 600, 600]
    assert denial.answer(11.0) == b""
    assert denial.state == d.MARKED


@pytest.mark.parametrize("state", [d.MARKED, d.OPEN, d.DROPPED])
def test_only_an_opening_entry_is_opened(state: int) -> None:
    denial = Denial({}, b"k", rule())
    denial.state = state
    denial.opened([1, 5, 0, 7, 9], 0.0)
    assert denial.state == state
    if state == d.OPEN:
        assert denial.answer(0.0) == b""  # it has not received a reply yet


def test_answered_hits_are_harvested() -> None:
    denial_cache = DenialCache(2, lambda: 0.0)
    limiting, entries = rule(), dict[bytes, Denial]()
    for key in (b"$1\r\na\r\n", b"$3\r\nb c\r\n"):
        denial_cache.mark(entries, key, limiting)
    one, other = entries.values()
    assert denial_cache.harvest() == []
    for denial in (one, other, one, one):
        denial_cache.answered(denial)
    denial_cache.drop(one)  # its answered hits stay counted
    assert denial_cache.harvest() == [
        (limiting, b"$1\r\na\r\n", 3),
        (limiting, b"$3\r\nb c\r\n", 1),
    ]
    assert denial_cache.harvest() == []
    denial_cache.answered(other)
    assert denial_cache.harvest() == [(limiting, b"$3\r\nb c\r\n", 1)]


# -- which entries are kept ------------------------------------------------------------------------


class Kept:
    """A naive model: all entries in a list, the next one to be evicted first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.entries: list[tuple[tuple[int, bytes], Denial]] = []

    def find(self, name: tuple[int, bytes]) -> Denial | None:
        return dict(self.entries).get(name)

    def drop(self, denial: Denial) -> None:
        self.entries = [entry for entry in self.entries if entry[1] is not denial]

    def mark(self, name: tuple[int, bytes], denial: Denial) -> None:
        self.entries = [*self.entries[max(0, len(self.entries) + 1 - self.most) :], (name, denial)]


NAMES = [(lane, b"%d" % key) for lane in range(2) for key in range(6)]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from(["hit", "hit", "drop", "drop again"]), st.integers(0, 11)),
        max_size=60,
    ),
)
def test_evictions_follow_the_model(most: int, steps: list[tuple[str, int]]) -> None:
    denial_cache, kept = DenialCache(most, lambda: 0.0), Kept(most)
    lanes: list[dict[bytes, Denial]] = [{}, {}]
    seen: list[Denial] = []
    for kind, number in steps:
        lane, key = name = NAMES[number]
        denial = lanes[lane].get(key)
        assert denial is kept.find(name)
        if kind == "drop again":
            for old in seen:
                if old.state == d.DROPPED:
                    denial_cache.drop(old)
        elif kind == "drop":
            if denial is not None:
                denial_cache.drop(denial)
                kept.drop(denial)
        elif denial is None:
            ours = rule()
            denial_cache.mark(lanes[lane], key, ours)
            denial = lanes[lane][key]
            assert (denial.state, denial.rule) == (d.MARKED, ours)
            kept.mark(name, denial)
            seen.append(denial)
        assert len(denial_cache) == len(kept.entries) <= most
        for each in NAMES:
            assert lanes[each[0]].get(each[1]) is kept.find(each)
        here = [entry for _, entry in kept.entries]
        for entry in seen:
            assert (entry.state == d.DROPPED) == (entry not in here)


def test_dropped_entry_stays_dropped() -> None:
    denial_cache, entries = DenialCache(3, lambda: 0.0), dict[bytes, Denial]()
    denial_cache.mark(entries, b"a", rule())
    old = entries[b"a"]
    old.state = d.OPENING
    denial_cache.drop(old)
    denial_cache.mark(entries, b"a", rule())
    new = entries[b"a"]
    assert new is not old
    denial_cache.drop(old)  # without effect on its successor
    old.opened([1, 5, 0, 7, 9], 0.0)
    assert old.state == d.DROPPED
    assert entries[b"a"] is new
    assert len(denial_cache) == 1
