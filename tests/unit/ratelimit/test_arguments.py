"""Arguments: what each kind of argument reads, and the error outside its range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.ratelimit import algorithms
from rlproxy.ratelimit import arguments as a

BILLION = 1_000_000_000


def beyond(what: str) -> str:
    """The error of a number that is malformed, or outside the range named by `what`."""
    return f"value is not an integer or out of range: {what}"


SECONDS = a.Form(False, None)

INTEGERS = [
    (b"0", 0),
    (b"7", 7),
    (b"1000", 1000),
    (b"1001", None),
    (b"00", None),
    (b"-0", None),
    (b"", None),
    (b" 1", None),
    (b"1 ", None),
    (b"1_0", None),
    (b"1\0", None),
]


@pytest.mark.parametrize(("word", "value"), INTEGERS)
def test_integer_parses_a_word(word: bytes, value: int | None) -> None:
    argument = a.Argument("n", 0, 1000)
    if value is None:
        with pytest.raises(a.GrammarError, match=f"^ERR {beyond('n is 0 to 1000')}$"):
            argument.read(word, SECONDS)
    else:
        assert argument.read(word, SECONDS) == value


def test_integer_bounds() -> None:
    argument = a.Argument("n", 2, 2)
    assert argument.read(b"2", SECONDS) == 2
    for word in (b"1", b"3"):
        with pytest.raises(a.GrammarError):
            argument.read(word, SECONDS)


@pytest.mark.parametrize("algo", [name.decode() for name in algorithms.ALGORITHMS])
def test_algorithm_bounds_the_values_named_in_its_row(algo: str) -> None:
    row = algorithms.ALGORITHMS[algo.encode()]
    form = a.Form(False, row)
    for name, most in row.bounds.items():
        argument = a.Argument(name, 0, BILLION)
        argument.check(most, form)
        text = f"{name} is 0 to {most}" + (f" with ALGO {algo}" if most < BILLION else "")
        with pytest.raises(a.GrammarError, match=f"^ERR {beyond(text)}$"):
            argument.check(most + 1, form)


def test_seconds_reports_the_error() -> None:
    argument = a.Time("GAP", 0, 10_000_000)
    assert argument.read(b"0", SECONDS) == 0
    assert argument.read(b"0.000001", SECONDS) == 1
    assert argument.read(b"10", SECONDS) == 10_000_000
    with pytest.raises(a.GrammarError, match=r"^ERR GAP is not a valid number of seconds$"):
        argument.read(b"10.000001", SECONDS)


@given(st.integers(0, 10**15), st.integers(0, 3))
def test_seconds_are_exact(time_us: int, zeros: int) -> None:
    seconds, us = divmod(time_us, 1_000_000)
    word = "0" * zeros + f"{seconds}.{us:06d}".rstrip("0").rstrip(".")
    assert a.Time("GAP", 0, 10**15).read(word.encode(), SECONDS) == time_us
