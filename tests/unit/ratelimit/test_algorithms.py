"""Table of algorithms: exact counting, and ARGV by the scripts' headers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.ratelimit import algorithms as limiters
from rlproxy.ratelimit.algorithms import (
    ALGORITHMS,
    HIT,
    MAX_HITS,
    PEEK,
    REFUND,
    Algorithm,
    Limiter,
)

from tests.lua_headers import HEADERS

SECOND = 1_000_000
YEARS_US = 315_360_000 * SECOND  # ten years
BILLION = 1_000_000_000

BUCKETS = (b"TOKEN", b"LEAKY", b"GCRA")
LOGS = (b"LOG", b"ZLOG")
# Every word of an option that some algorithms have and others lack.
OPTIONS = {b"COST", b"BURST", b"GAP", b"STRICT", b"PENALTY", b"WAIT", b"AND"}


# -- the table -------------------------------------------------------------------------------------


def test_table_equals_the_contract() -> None:
    assert {name.decode(): row.script for name, row in ALGORITHMS.items()} == {
        "LOG": "sliding_window_log",
        "ZLOG": "sliding_window_zset",
        "FIXED": "fixed_window",
        "COUNTER": "sliding_window_counter",
        "TOKEN": "token_bucket",
        "LEAKY": "leaky_bucket",
        "GCRA": "gcra",
    }
    assert limiters.DEFAULT_ALGORITHM == b"LOG"
    assert limiters.SHAPING == b"LEAKY"
    for name, row in ALGORITHMS.items():
        bounds = {b"LOG": (1_000_000, 100_000), b"ZLOG": (100_000, 10_000)}
        assert (row.bounds["max"], row.bounds["COST"]) == bounds.get(name, (BILLION, BILLION))
        assert row.bucket == (name in BUCKETS)
        assert {b"COST", b"PENALTY", b"WAIT"} <= row.options <= OPTIONS
        assert (b"BURST" in row.options) == (name in BUCKETS)
        assert {b"GAP", b"AND"} & row.options == ({b"GAP", b"AND"} if name in LOGS else set())
        assert (b"STRICT" in row.options) == (name in (*LOGS, b"FIXED"))


@pytest.mark.parametrize("row", ALGORITHMS.values(), ids=lambda row: row.name.decode())
def test_row_fits_its_script(row: Algorithm) -> None:
    header = HEADERS[row.script]
    assert row.name == header["algo"].encode() == row.name.upper()
    assert ALGORITHMS[row.name] is row
    arguments = [text for word, text in header.items() if word.startswith("ARGV")]
    text = " ".join(arguments)
    for word in (b"GAP", b"STRICT", b"AND", b"PENALTY"):
        assert (word in row.options) == (re.search(rf"\b{word.decode()}\b", text) is not None)
    assert row.bucket == arguments[0].startswith("limit") == ("emission interval" in text)
    # Only where the script itself holds a hit does it get WAIT.
    assert ("WAIT" in text) == (row.name == limiters.SHAPING)
    assert header["ARGV[7]"].startswith("clock")
    assert "ARGV[8]" not in header


# -- ARGV ------------------------------------------------------------------------------------------

# The names of ARGV in the headers: the Limiter's attribute, and the value that is omitted.
MEANINGS = {
    "max, hits admitted per window": ("max", None),
    "limit, the hits of a full burst": ("limit", None),
    "limit, the hits of a full bucket": ("limit", None),
    "window, microseconds": ("window", None),
    "emission interval, nanoseconds": ("emission_ns", None),
    "unit of the times in the reply, microseconds: 1000000 (default), 1000 or 1": (
        "unit",
        "1000000",
    ),
    "cost of this hit; default 1. Of a refund: how many hits": ("cost", "1"),
    "hit, peek, refund, or the microseconds of a PENALTY; default hit": ("mode", "hit"),
    "with WAIT: the microseconds that the hit may be held": ("hold", ""),
    "0 1: STRICT, refused hits count too": ("numbers", ""),
    (
        "numbers, a blank between: GAP in microseconds, STRICT (0 or 1), then max and window in"
        " microseconds of every AND"
    ): ("numbers", ""),
}


def by_header(made: Limiter) -> dict[str, str]:
    """ARGV by the names in the script's header; omitted ones have their default."""
    header = HEADERS[made.algorithm.script]
    words = [word.decode() for word in made.argv()]
    found: dict[str, str] = {}
    for index in range(1, 7):
        text = header.get(f"ARGV[{index}]")
        if text is None:  # COUNTER, TOKEN and GCRA read no sixth
            assert len(words) < index
            continue
        name, default = MEANINGS[text]
        if len(words) < index:
            assert default is not None
            found[name] = default
        else:
            found[name] = words[index - 1]
            if len(words) == index:
                assert found[name] != default  # otherwise it would have been omitted
    # ten words with EVALSHA, sha, 1 and the key; the seventh of ARGV is the clock
    assert len(words) <= 6
    return found


@st.composite
def any_limiter(draw: st.DrawFn) -> Limiter:
    """A limiter the grammar can build from a command: only options that the algorithm has."""
    row = draw(st.sampled_from(list(ALGORITHMS.values())))
    times = st.integers(1000, YEARS_US)
    made = Limiter(row, draw(st.integers(1, row.bounds["max"])), draw(times), SECOND)
    made.unit_us = draw(st.sampled_from([SECOND, 1000, 1]))
    made.mode = draw(st.sampled_from([HIT, HIT, PEEK, REFUND]))
    made.cost = draw(st.just(1) | st.integers(0, row.bounds["COST"]))
    if b"BURST" in row.options:
        made.burst = draw(st.just(0) | st.integers(1, MAX_HITS))
    if b"GAP" in row.options:
        made.gap_us = draw(st.just(0) | st.integers(0, YEARS_US))
    if b"AND" in row.options:
        pairs = st.tuples(st.integers(1, row.bounds["max"]), times)
        made.limits = draw(st.just([]) | st.lists(pairs, max_size=8))
    if made.mode == HIT:
        made.strict = b"STRICT" in row.options and draw(st.booleans())
        made.penalty_us = draw(st.just(0) | times)
        made.wait_us = draw(st.just(0) | st.integers(1000, 3600 * SECOND))
    return made


@settings(max_examples=300, deadline=None)
@given(any_limiter(), st.booleans())
def test_argv_has_the_headers_meaning(made: Limiter, shape: bool) -> None:
    name = made.algorithm.name
    shape = made.shapes = shape and name == b"LEAKY" and made.takes() and made.wait_us > 0
    mode = (b"%d" % made.penalty_us if made.penalty_us else made.mode).decode()
    expected = {"unit": str(made.unit_us), "cost": str(made.cost), "mode": mode}
    if name in BUCKETS:
        expected["limit"] = str(made.burst or made.max)
        expected["emission_ns"] = str(max(1, made.window_us * 1000 // made.max))
    else:
        expected["max"], expected["window"] = str(made.max), str(made.window_us)
    if name == b"LEAKY":
        expected["hold"] = str(made.wait_us) if shape else ""
    if name in (*LOGS, b"FIXED"):
        numbers = [made.gap_us, int(made.strict), *(one for pair in made.limits for one in pair)]
        expected["numbers"] = " ".join(map(str, numbers)) if any(numbers) else ""
    assert by_header(made) == expected
