"""The replies to RL commands."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.hit_replies import admitted, five, integers, rounded


def test_an_admission_keeps_all_but_two_integers() -> None:
    assert admitted(five(1, 10, 3, 42, 60)) == five(0, 10, 3, -1, 60)
    assert admitted(five(0, 10, 3, -1, 60)) == five(0, 10, 3, -1, 60)


@pytest.mark.parametrize(
    "frame",
    [
        *(b"", b"*0\r\n", b"*-1\r\n", b"+OK\r\n", b":1\r\n", b"_\r\n", b"-ERR x\r\n"),
        b"*3\r\n:1\r\n:2\r\n:3\r\n",
        b"*6\r\n" + b":1\r\n" * 5,
        b"*5\r\n" + b":1\r\n" * 6,
        b"*7\r\n" + b":1\r\n" * 7,
        b"*5\r\n" + b"$1\r\n1\r\n" * 5,
        b"*5\r\n:2\r\n" + b":1\r\n" * 4,
        b"*5\r\n:1\r\n" + b":\r\n" * 4,
        b"*5\r\n:1\r\n:%b\r\n:1\r\n:1\r\n:1\r\n" % (b"1" * 5000),
        b"~5\r\n" + b":1\r\n" * 5,
    ],
)
def test_what_is_no_reply_to_a_hit_has_no_integers(frame: bytes) -> None:
    assert integers(frame) == []


ROUNDED = [
    # retry_after and reset_after in microseconds, in milliseconds, in seconds
    ((1, 1), (1, 1), (1, 1)),
    ((1000, 1001), (1, 2), (1, 1)),
    ((999_999, 1_000_000), (1000, 1000), (1, 1)),
    ((1_000_001, 2_000_000), (1001, 2000), (2, 2)),
    ((-1, 0), (-1, 0), (-1, 0)),  # admitted: there is nothing to round
    ((-1, 59_000_001), (-1, 59_001), (-1, 60)),
    ((1, 315_360_000_000_000), (1, 315_360_000_000), (1, 315_360_000)),
]


@pytest.mark.parametrize(("exact", "millis", "seconds"), ROUNDED)
@pytest.mark.parametrize("more", [[], [7]])
def test_rounded(
    exact: tuple[int, int], millis: tuple[int, int], seconds: tuple[int, int], more: list[int]
) -> None:
    """The client never sees the sixth integer."""
    found = [int(exact[0] > 0), 10, 3, *exact, *more]
    for unit_us, (retry, reset) in ((1, exact), (1000, millis), (1_000_000, seconds)):
        assert rounded(found, unit_us) == five(found[0], 10, 3, retry, reset)
