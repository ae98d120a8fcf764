"""Counters: the number that each event increments."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hyp
from rlproxy.observability import counters as st
from rlproxy.observability.counters import Counters, Histogram
from rlproxy.ratelimit import outcomes as oc
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five, integers
from rlproxy.resp import encoding as r
from rlproxy.resp.replies import ReplyFramer

LOG = oc.ROWS[b"LOG"]
GCRA = oc.ROWS[b"GCRA"]
KEY = r.bulk(b"k")


def outcomes(stats: Counters, row: int) -> dict[str, int]:
    """The outcomes of a pair of rows that are not 0."""
    found = oc.by_outcome(stats.hits, row)
    return {name: count for name, count in zip(oc.OUTCOMES, found, strict=True) if count}


def test_rows_do_not_overlap() -> None:
    rows = sorted(oc.ROWS[name] for name in ALGORITHMS)
    assert rows == list(range(0, len(Counters().hits), oc.PAIR))


REPLIES = [
    (five(0, 10, 5, -1, 60), "admitted"),
    (five(1, 10, 0, 60, 60), "refused"),
    (b"-NOPERM no\r\n", "failed"),
    (r.LOST, "failed"),
    (b"+QUEUED\r\n", "unseen"),
    (b"!7\r\nERR no\r\n\r\n", "failed"),
    (b":1\r\n", "unseen"),
    (b"$-1\r\n", "unseen"),
    (b"*0\r\n", "unseen"),
    (b"*5\r\n$1\r\n1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", "unseen"),
    (b"*5\r\n:0\r\n$3\r\nten\r\n:1\r\n:1\r\n:1\r\n", "admitted"),
    (b"*5\r\n:0\r\n:\r\n:\r\n:1\r\n:1\r\n", "admitted"),
]


@pytest.mark.parametrize(("reply", "outcome"), REPLIES)
@pytest.mark.parametrize("row", [LOG, GCRA])
def test_outcome_of_a_hit_by_its_reply(reply: bytes, outcome: str, row: int) -> None:
    stats = Counters()
    stats.answered(row, reply, KEY)
    assert outcomes(stats, row) == {outcome: 1}
    assert sum(stats.hits) == 1


SHADOW = LOG + oc.WIDTH


@pytest.mark.parametrize(("reply", "outcome"), REPLIES)
def test_a_shadow_hit_is_counted_apart_if_refused(reply: bytes, outcome: str) -> None:
    stats = Counters()
    stats.answered(SHADOW, reply, KEY)
    stats.answered(LOG, reply, KEY)
    assert outcomes(stats, LOG) == (
        {"refused": 1, "shadow_refused": 1} if outcome == "refused" else {outcome: 2}
    )


def test_a_shadow_hit_with_cost_0_counts_as_a_peek() -> None:
    stats = Counters()
    for reply in (five(1, 10, 0, 60, 60), five(0, 10, 0, -1, 60)):
        stats.answered(oc.SHADOW_PEEK, reply, KEY)
    stats.answered(oc.SHADOW_PEEK, r.LOST, KEY)
    stats.unanswered(oc.SHADOW_PEEK, oc.UNSEEN)
    stats.unanswered(oc.SHADOW_PEEK, oc.FAILED)
    assert stats.calls == [4] + [0] * (len(oc.CALLS) - 1)
    assert sum(stats.hits) == 0


def test_rows_tell_whether_hits_are_in_shadow() -> None:
    shadows = {oc.ROWS[name] + oc.WIDTH for name in ALGORITHMS} | {oc.SHADOW_PEEK}
    rows = (
        {oc.ROWS[name] for name in ALGORITHMS}
        | {oc.NO_ROW}
        | {oc.other(call) for call in range(len(oc.CALLS))}
    )
    assert all(map(oc.shadow, shadows))
    assert not any(map(oc.shadow, rows))
    assert min(rows) > oc.SHADOW_PEEK


def lines(kinds: str, of: hyp.SearchStrategy[bytes]) -> hyp.SearchStrategy[bytes]:
    """Frames of one line."""
    return hyp.builds(
        lambda kind, text: kind.encode() + text + b"\r\n", hyp.sampled_from(kinds), of
    )


TEXTS = hyp.binary(max_size=12).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b""))
DIGITS = hyp.from_regex(rb"-?[0-9]{0,25}", fullmatch=True)
LONG = hyp.integers(1, 6000).map(lambda size: b"1" * size)
BULKS = hyp.builds(
    lambda kind, data: b"%b%d\r\n%b\r\n" % (kind, len(data), data),
    hyp.sampled_from([b"$", b"=", b"!"]),
    hyp.one_of(TEXTS, hyp.sampled_from([b"*5\r\n:0\r\n", b"\r", b"\r\n"])),
)
NULLS = hyp.sampled_from([b"_\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"%0\r\n", b"$0\r\n\r\n"])


def lists(of: hyp.SearchStrategy[bytes]) -> hyp.SearchStrategy[bytes]:
    """Arrays, sets and maps of frames."""
    return hyp.builds(
        lambda kind, items: (
            b"%b%d\r\n%b" % (kind, len(items), b"".join(items * (2 if kind == b"%" else 1)))
        ),
        hyp.sampled_from([b"*", b"~", b"%"]),
        hyp.lists(of, max_size=7),
    )


PLAIN = hyp.one_of(lines(":,(", DIGITS), lines(":", LONG), lines("+-#_,", TEXTS), BULKS, NULLS)
FRAMES = hyp.recursive(PLAIN, lists, max_leaves=12)
FIVE = hyp.builds(
    lambda first, rest: b"*5\r\n" + first + b"".join(rest),
    hyp.one_of(hyp.sampled_from([b":0\r\n", b":1\r\n", b":\r\n"]), FRAMES),
    hyp.lists(FRAMES, min_size=4, max_size=4),
)
SOUP = hyp.lists(
    hyp.sampled_from(
        [b"*5\r\n", b"*1\r\n", b":0\r\n", b":1\r\n", b":", b"\r", b"\r\n", b"0", b"1", b"_\r\n"]
        + [b"$2\r\n", b"%1\r\n", b"|1\r\n", b"-", b"+", b"ab", b">1\r\n"]
    ),
    max_size=24,
).map(b"".join)


@given(hyp.one_of(FIVE, FRAMES, SOUP))
@settings(max_examples=120, deadline=None)
def test_every_frame_is_counted_once(frame: bytes) -> None:
    """Each frame counts once, from any source."""
    framer = ReplyFramer()
    framer.feed(frame)
    frame = framer.frame()
    if frame:
        stats = Counters()
        stats.answered(LOG, frame, KEY)
        assert sum(stats.hits) == 1
        found = integers(frame)
        assert not found or (len(found) == frame[1] - 48 and found[0] in (0, 1))


def test_errors_of_hits_by_kind() -> None:
    stats = Counters()
    stats.answered(LOG, b"-OOM x\r\n", KEY)
    stats.answered(LOG, r.LOST, KEY)
    stats.answered(LOG, r.LOST, KEY)
    assert stats.errors == {"redis": 1, "lost": 2}


@pytest.mark.parametrize("call", range(len(oc.CALLS)))
def test_other_calls_are_counted(call: int) -> None:
    stats = Counters()
    stats.answered(oc.other(call), five(0, 10, 0, -1, 60), KEY)
    assert stats.calls == [number == call for number in range(len(oc.CALLS))]
    assert not any(stats.hits)


def test_reply_without_a_row_is_not_counted() -> None:
    stats = Counters()
    stats.answered(oc.NO_ROW, five(0, 1, 0, -1, 60), KEY)
    stats.unanswered(oc.NO_ROW, oc.FAILED)
    stats.unanswered(oc.other(oc.PEEK), oc.FAILED)
    assert not any(stats.hits) and not any(stats.calls)


def test_keys_are_delivered_in_batches() -> None:
    stats = Counters()
    batches: list[tuple[st.HitsByKey, st.HitsByKey]] = []
    stats.on_keys = lambda keys, refused, *_: batches.append((keys, refused))
    for number in range(st.KEYS_AT_ONCE):
        stats.key(b"%d" % number, number % 4 == 0)
    assert [(len(keys), len(refused)) for keys, refused in batches] == [
        (st.KEYS_AT_ONCE, st.KEYS_AT_ONCE // 4)
    ]
    stats.flush_keys()
    assert len(batches) == 1
    stats.key(b"one", True)
    stats.flush_keys()
    assert batches[1] == ({b"one": 1}, {b"one": 1})


def rule(row: int) -> Rule:
    found = Rule()
    found.row = row
    return found


def test_refused_keys_come_with_the_latest_rule() -> None:
    stats = Counters()
    batches: list[dict[bytes, Rule]] = []
    stats.on_keys = lambda *found: batches.append(found[3])
    one, other = rule(LOG), rule(GCRA)
    admits, refuses = five(0, 10, 9, -1, 60), five(1, 10, 0, 60, 60)
    for key, reply, by in (
        (b"a", refuses, one),
        (b"a", refuses, other),
        (b"a", admits, one),
        (b"b", admits, one),
        (b"c", refuses, None),
        (b"d", r.LOST, one),
    ):
        stats.answered(LOG, reply, key, by)
    stats.flush_keys()
    stats.answered(LOG, refuses, b"e", one)
    stats.flush_keys()
    assert batches == [{b"a": other}, {b"e": one}]


def test_keys_of_many_hits_are_sampled() -> None:
    stats = Counters()
    batches: list[tuple[int, st.HitsByKey, st.HitsByKey]] = []
    stats.on_keys = lambda keys, refused, stride, _: batches.append((stride, keys, refused))
    stats.key(b"one", False)
    stats.sample(8)
    assert batches == [(1, {b"one": 1}, {})]  # earlier hits are counted separately
    hits = 80_000
    for number in range(hits):
        stats.key(b"%d" % (number % 8), number % 4 == 0)
    stats.sample(1)
    assert {stride for stride, _, _ in batches[1:]} == {8}
    seen, refused = Counter[bytes](), Counter[bytes]()
    for _, hits_by_key, refused_by_key in batches[1:]:
        seen.update(hits_by_key)
        refused.update(refused_by_key)
    assert abs(seen.total() - hits / 8) < hits / 100
    for key in range(8):  # a period of eight hides none of them
        assert abs(seen[b"%d" % key] - hits / 64) < hits / 640
    assert refused == {key: seen[key] for key in (b"0", b"4")}
    del batches[:]
    stats.key(b"a", False)
    stats.key(b"b", True)
    stats.flush_keys()
    assert batches == [(1, {b"a": 1, b"b": 1}, {b"b": 1})]


def test_hits_decided_by_redis_are_counted() -> None:
    stats = Counters()
    for row in (LOG, GCRA):
        for reply in (five(0, 5, 4, -1, 1), five(1, 5, 0, 1, 1), b"-ERR x\r\n", b"+QUEUED\r\n"):
            stats.answered(row, reply, KEY)
    assert stats.decided() == 4


def test_local_refusals_are_gathered() -> None:
    stats = Counters()
    batches: list[object] = []
    stats.gather()  # there may be none to harvest
    stats.on_keys = lambda keys, refused, _, rules: batches.append((keys, refused, rules))
    log, gcra = rule(LOG), rule(GCRA)
    harvests = [[(log, b"a", 3), (gcra, b"a", 2), (log, b"b", 1)], []]
    stats.harvest = lambda: harvests.pop(0)
    stats.key(b"c", False)
    stats.gather()
    stats.gather()
    assert outcomes(stats, LOG) == {"refused_locally": 4}
    assert outcomes(stats, GCRA) == {"refused_locally": 2}
    both = {b"a": 5, b"b": 1}
    assert batches == [({b"c": 1}, {}, {}), (both, both, {b"a": gcra, b"b": log})]


@pytest.mark.parametrize(
    ("calls", "at"), [(1, 0), (2, 1), (3, 1), (4, 2), (65535, 15), (65536, 16), (1 << 20, 16)]
)
def test_batches_are_counted_by_powers_of_two(calls: int, at: int) -> None:
    batches = Counters().batches
    batches.add(calls)
    assert batches.classes == [number == at for number in range(17)]
    assert batches.sum_of == calls


def test_times_are_counted_by_upper_bound() -> None:
    times = Histogram(st.TIMES_S)
    for time_s in (0.0, 0.0001, 0.000101, 1.0, 1.1):
        times.add(time_s)
    assert times.classes[0] == 2
    assert times.classes[1] == 1
    assert times.classes[-2:] == [1, 1]
    assert times.sum_of == pytest.approx(2.100201)
