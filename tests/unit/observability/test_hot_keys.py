"""Hot keys: the reported counts are within their error bounds, over a minute and all workers."""

from __future__ import annotations

import itertools
import pickle
import random
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.observability import hot_keys
from rlproxy.observability.counters import MAX_KEY, brief, key_of
from rlproxy.observability.hot_keys import (
    MAX_STRIDE,
    NO_TOP,
    SLOT_S,
    SLOTS,
    HotKey,
    HotKeys,
    Summary,
    merge,
    stride_for,
)
from rlproxy.ratelimit import grammar


class Sizes(NamedTuple):
    """The arguments of HotKeys."""

    room: int = hot_keys.ROOM
    kept: int = hot_keys.KEPT
    published: int = grammar.MAX_TOP


SIZES = Sizes()
SMALL = Sizes(room=8, kept=3, published=4)


def bulk(key: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(key), key)


def brief_name(key: bytes) -> bytes:
    return key_of(brief(bulk(key)))


def bulks(*keys: bytes) -> Counter[bytes]:
    return Counter(bulk(key) for key in keys)


class Bench:
    """A Top with a manual clock, and a record of every hit."""

    def __init__(self, sizes: Sizes = SMALL) -> None:
        self.now = 1000.0
        self.began = self.now
        self.hits: list[tuple[float, bytes]] = []
        self.refused: list[tuple[float, bytes]] = []
        self.top = HotKeys(lambda: self.now, *sizes)

    def add(self, keys: list[bytes], refused: list[bytes]) -> None:
        self.hits += [(self.now, key) for key in keys]
        self.refused += [(self.now, key) for key in refused]
        self.top.add(bulks(*keys), bulks(*refused))

    def true(self, refused: bool, seconds: float) -> Counter[bytes]:
        kept = self.refused if refused else self.hits
        return Counter(key for at, key in kept if at >= self.now - seconds)


def test_few_keys_are_counted_exactly() -> None:
    bench = Bench(SIZES)
    bench.add([b"a", b"b", b"a", b"c", b"a", b"b"], [b"b"])
    assert merge([bench.top.state()], 2, False) == [(b"a", 3, 0, b""), (b"b", 2, 0, b"")]
    assert merge([bench.top.state()], 1000, False)[2:] == [(b"c", 1, 0, b"")]
    assert merge([bench.top.state()], 10, True) == [(b"b", 1, 0, b"")]
    assert merge([bench.top.state()], 2, False) == [(b"a", 3, 0, b""), (b"b", 2, 0, b"")]


def test_empty_summary_reports_no_key() -> None:
    bench = Bench()
    bench.top.add({}, {})
    assert merge([bench.top.state()], 10, False) == merge([bench.top.state()], 10, True) == []
    assert merge([], 10, False) == merge([NO_TOP], 10, True) == []
    assert merge([bench.top.state(), NO_TOP], 10, True) == []


def test_counts_expire_after_a_minute() -> None:
    bench = Bench(SIZES)
    bench.add([b"old"] * 5, [b"old"])
    bench.now += 49.9
    bench.add([b"new"], [])
    assert merge([bench.top.state()], 9, False) == [(b"old", 5, 0, b""), (b"new", 1, 0, b"")]
    bench.now += 10.1
    assert merge([bench.top.state()], 9, False) == [(b"new", 1, 0, b"")]
    assert merge([bench.top.state()], 9, True) == []
    bench.now += 10_000
    assert merge([bench.top.state()], 9, False) == []


def test_age_of_the_counts_is_reported() -> None:
    bench = Bench()
    assert bench.top.state().seconds == 0
    bench.now += 25
    assert bench.top.state().seconds == 25
    bench.now += 26
    assert bench.top.state().seconds == 51
    bench.now += 8.5
    assert bench.top.state().seconds == 59.5
    bench.now += 0.5
    assert bench.top.state().seconds == 50
    assert bench.top.state().seconds == 50


def test_long_keys_are_reported_by_prefix_and_hash() -> None:
    bench = Bench(SIZES)
    whole = b"w" * MAX_KEY
    long = [b"l" * MAX_KEY + last for last in (b"1", b"2")]
    for _ in range(3):
        bench.add([whole, *long, long[0]], [long[1]])
    (one, *first), (two, *second), (three, *third) = merge([bench.top.state()], 3, False)
    assert first == [6, 0, b""]
    assert sorted([(two, *second), (three, *third)])[1] == (whole, 3, 0, b"")
    other = min(two, three)
    for name in (one, other):
        assert len(name) <= MAX_KEY and name.startswith(b"l" * 100)
    assert one != other
    assert merge([bench.top.state()], 1, True) == [(other, 3, 0, b"")]


def test_some_of_many_equal_keys_are_reported() -> None:
    """An empty list would be of no use."""
    bench = Bench(SIZES)
    keys = [b"%05d" % number for number in range(20_000)]
    for _ in range(5):
        for start in range(0, len(keys), 1000):
            bench.add(keys[start : start + 1000], [])
    found = merge([bench.top.state()], 1000, False)
    assert len(found) == 1000
    assert all(count <= 5 <= count + error for _, count, error, _ in found)


# -- the rules of refusals -------------------------------------------------------------------------


def rule(label: bytes) -> grammar.Rule:
    found = grammar.Rule()
    found._label = label
    return found


def refuse(bench: Bench, rules: dict[bytes, bytes]) -> None:
    keys = bulks(*rules)
    bench.top.add(keys, keys, 1, {bulk(key): rule(label) for key, label in rules.items()})


def test_a_refused_key_is_reported_with_its_latest_rule() -> None:
    bench = Bench(SIZES)
    long = b"l" * (MAX_KEY + 1)
    refuse(bench, {b"a": b"login", long: b"5 60"})
    bench.add([b"b", b"b", b"b"], [b"b", b"b", b"b"])
    refuse(bench, {b"a": b"10 60 ALGO TOKEN"})
    assert {rule for *_, rule in merge([bench.top.state()], 9, False)} == {b""}
    reported = [(b"b", b""), (b"a", b"10 60 ALGO TOKEN"), (brief_name(long), b"5 60")]
    for found in merge([bench.top.state()], 9, True), merge([bench.top.state()], 9, True):
        assert [(key, rule) for key, _, _, rule in found] == reported


def test_a_rule_of_any_worker_is_reported() -> None:
    benches = [Bench(SIZES), Bench(SIZES)]
    refuse(benches[0], {b"a": b"login"})
    benches[1].add([b"a"], [b"a"])
    tops = [bench.top.state() for bench in benches]
    for several in (tops, tops[::-1]):
        assert merge(several, 9, True) == [(b"a", 2, 0, b"login")]


def test_rules_are_kept_for_keys_that_can_be_reported() -> None:
    bench = Bench(SMALL)
    bound = 2 * SMALL.room
    for number in range(10 * bound):
        refuse(bench, {b"hot": b"login", b"%d" % number: b"%d 60" % number})
        assert len(bench.top._rules) <= bound
    assert merge([bench.top.state()], 1, True)[0][3] == b"login"
    assert all(rule for *_, rule in merge([bench.top.state()], 9, True))


# -- random traffic --------------------------------------------------------------------------------

KEYS = st.integers(0, 30).map(lambda number: b"%d" % number)
# Some keys repeatedly between others that come once: the worst case of a summary.
HITS = st.lists(st.one_of(KEYS, st.sampled_from([b"x", b"y"])), max_size=40)
STEPS = st.lists(st.tuples(HITS, HITS, st.floats(0, 30)), max_size=12)


def check_bounds(found: list[HotKey], true: Counter[bytes], error_most: float, number: int) -> None:
    assert [count for _, count, *_ in found] == sorted([row[1] for row in found], reverse=True)
    assert len(found) <= number and len({key for key, *_ in found}) == len(found)
    for key, count, error, _ in found:
        assert 0 <= count <= true[key] <= count + error, (key, true[key])
        assert error <= error_most


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 50))
def test_error_bounds_hold(
    steps: list[tuple[list[bytes], list[bytes], float]], number: int
) -> None:
    bench = Bench()
    for keys, refused, seconds in steps:
        bench.add(keys, refused)
        bench.now += seconds
    back = bench.now - (bench.now // SLOT_S - SLOTS + 1) * SLOT_S
    assert 50 <= back <= 60
    for kind in (False, True):
        true = bench.true(kind, back)
        check_bounds(
            merge([bench.top.state()], number, kind), true, true.total() / (SMALL.kept + 1), number
        )


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=3), st.integers(1, 50))
def test_error_bounds_hold_for_several_workers(
    workers: list[list[tuple[list[bytes], list[bytes], float]]], number: int
) -> None:
    benches = [Bench() for _ in workers]
    for bench, steps in zip(benches, workers, strict=True):
        for keys, refused, seconds in steps:
            bench.add(keys, refused)
            bench.now += seconds
    end = max((bench.now for bench in benches), default=0.0)
    for bench in benches:
        bench.now = end
    texts = [pickle.loads(pickle.dumps(bench.top.state())) for bench in benches]
    for kind in (False, True):
        true: Counter[bytes] = Counter()
        for bench in benches:
            back = bench.now - (bench.now // SLOT_S - SLOTS + 1) * SLOT_S
            true += bench.true(kind, back)
        cut = len(benches) and true.total() / (SMALL.published + 1)
        check_bounds(
            merge(texts, number, kind), true, true.total() / (SMALL.kept + 1) + cut, number
        )


def test_a_key_that_one_worker_leaves_out_has_an_error() -> None:
    benches = [Bench(), Bench()]
    for bench in benches:
        bench.now += 1
    benches[0].add([b"1", b"2", b"3", b"4", b"5"] * 2 + [b"x"], [])
    benches[1].add([b"x"] * 3, [])
    rows = merge([bench.top.state() for bench in benches], 1, False)
    assert rows == [(b"x", 3, 2, b"")]  # of 4 hits


@settings(deadline=None)
@given(st.lists(KEYS, min_size=40, max_size=200), st.integers(0, 9), st.integers(1, 9))
def test_error_bounds_hold_for_repeatedly_pruned_slots(
    keys: list[bytes], most: int, batch: int
) -> None:
    slot = Summary()
    true = Counter(bulks(*keys))
    for start in range(0, len(keys), batch):
        slot.count(bulks(*keys[start : start + batch]))
        slot.prune(SMALL.kept)
    assert slot.error <= len(keys) / (SMALL.kept + 1)
    for summary in (slot, slot.top(most)):
        assert sum(summary.counts.values()) <= len(keys)
        for key, number in true.items():
            least = summary.counts.get(key, 0)
            absent = 0 if key in summary.counts else summary.absent
            assert least <= number <= least + summary.error + absent


# -- samples ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits_a_second", "every"), [(0, 1), (5_000, 1), (5_001, 2), (80_000, 16), (1e9, MAX_STRIDE)]
)
def test_high_rates_are_sampled(hits_a_second: float, every: int) -> None:
    assert stride_for(hits_a_second) == every


@pytest.mark.parametrize("sizes", [SIZES, Sizes(400, 150, 100)])
def test_error_bounds_of_a_sample_hold(sizes: Sizes) -> None:
    """Over a minute with calm and busy times, for two workers; hits by Zipf's law."""
    rng = random.Random(11)
    benches = [Bench(sizes), Bench(sizes)]
    true: Counter[bytes] = Counter()
    for every in (1, 8, 2, 1, 16, 8):
        ranks = zipf(3000, 6000 * every, rng.randrange(1000))
        for number, bench in enumerate(benches):
            keys = [b"%d" % rank for rank in ranks[number::2]]
            true.update(keys)
            looked_at = [key for key in keys if rng.randrange(every) == 0]
            for start in range(0, len(looked_at), 1000):
                batch = bulks(*looked_at[start : start + 1000])
                bench.top.add(batch, batch, every)
            bench.now += SLOT_S
    for bench in benches:
        bench.now -= SLOT_S / 2
    texts = [pickle.loads(pickle.dumps(bench.top.state())) for bench in benches]
    for kind in (False, True):
        found = merge(texts, 1000, kind)
        check_bounds(found, true, true.total(), 1000)
        assert [key for key, *_ in found[:5]] == [key for key, _ in true.most_common(5)]
        for key, count, error, _ in found[:5]:
            assert count > 0.7 * true[key] and 0 < error < 0.7 * true[key]


@pytest.mark.parametrize("every", [2, 8, 64])
@pytest.mark.parametrize("hits", [0, 1, 30, 1000])
def test_error_bounds_hold_for_an_over_or_undersampled_key(every: int, hits: int) -> None:
    """In 250 runs the bounds hold for a key that is reported, and for one that is not."""
    rng = random.Random(every + hits)
    wrong = 0
    for _ in range(250):
        top = HotKeys(lambda: 0.0, *SMALL)
        top.add(bulks(b"other"), {}, every)
        seen = sum(rng.randrange(every) == 0 for _ in range(hits))
        top.add(bulks(*[b"key"] * seen), {}, every)
        reported = {
            key: (count, count + error) for key, count, error, _ in merge([top.state()], 9, False)
        }
        least, most = reported.get(b"key", (0, 8 * every))
        wrong += not least <= hits <= most
    assert wrong <= 1


# -- at full load ----------------------------------------------------------------------------------


def zipf(keys: int, hits: int, seed: int) -> list[int]:
    """The ranks of `count` hits."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, keys + 1)))
    return random.Random(seed).choices(range(keys), cum_weights=weights, k=hits)


def test_ten_busiest_of_a_million() -> None:
    names = [b"user:%d" % (number * 7919 % 1_000_000) for number in range(1_000_000)]
    ranks = zipf(1_000_000, 300_000, seed=6)
    bench = Bench(SIZES)
    for start in range(0, len(ranks), 1000):
        batch = [names[rank] for rank in ranks[start : start + 1000]]
        bench.top.add(bulks(*batch), bulks(*batch[::10]))
        bench.now += 1000 / 7000  # a tenth of 70,000 a second, for the same number of slots
    back = bench.top.state().seconds
    begun = len(ranks) - int(back * 7) * 1000
    true = Counter(names[rank] for rank in ranks[begun:])
    found = merge([bench.top.state()], 1000, False)
    assert [key for key, *_ in found[:10]] == [key for key, _ in true.most_common(10)]
    assert all(true[key] - count < 0.05 * true[key] for key, count, *_ in found[:10])
    assert all(error < 0.1 * count for _, count, error, _ in found[:10])
    # Of the hundred busiest none is missing, except those that are nearly equal.
    hundredth = true.most_common(100)[-1][1]
    reported = {key for key, *_ in found[:110]}
    assert all(key in reported for key, count in true.items() if count > hundredth * 1.1)


MEMORY = """
import tracemalloc
from collections import Counter
from typing import NamedTuple
from rlproxy.observability.hot_keys import HotKeys
now = 0.0
top = HotKeys(lambda: now)
tracemalloc.start()
number = 0
for _ in range(8):
    for _ in range(8):
        keys = [b"$128\\r\\n%0128d\\r\\n" % each for each in range(number, number + 2048)]
        number += 2048
        top.add(Counter(keys[:1024]), Counter(keys[1024:]))
        del keys
    top.state()
    now += 10
current, most = tracemalloc.get_traced_memory()
print(current, most)
"""


def test_memory_is_bounded() -> None:
    """The worst case: only keys of full length, and none comes twice."""
    found = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=60
    )
    current, most = map(int, found.stdout.split())
    assert current < 8 << 20
    assert most < 12 << 20  # while it prunes, closes or publishes


@pytest.mark.parametrize("sizes", [SIZES, SMALL])
def test_sizes_satisfy_the_error_bounds(sizes: Sizes) -> None:
    assert sizes.room >= 2 * sizes.kept
    assert hot_keys.SLOT_S * hot_keys.SLOTS == 60
