"""upstream: what answers tell of a password that is needed, and of the time that scripts take."""

from __future__ import annotations

import pytest
from rlproxy.upstream.connector import _script_times, needs_password

TOLD = [
    (b"+PONG\r", False),
    (b"-NOAUTH Authentication required.\r", True),
    (b"-NOPERM this user has no permissions to run the 'ping' command\r", False),
    (b"-LOADING Redis is loading the dataset in memory\r", False),
    (b"-BUSY Redis is busy running a script.\r", False),
    (b"-MASTERDOWN Link with MASTER is down\r", False),
    (b"-DENIED Redis is running in protected mode\r", None),
    (b"-ERR max number of clients reached\r", None),
    (b"HTTP/1.1 400 Bad Request\r", None),
    (b"", None),
]


@pytest.mark.parametrize(("line", "expected"), TOLD)
def test_needs_password(line: bytes, expected: bool | None) -> None:
    assert needs_password(line) is expected


def test_the_time_of_scripts() -> None:
    found = {b"evalsha": {b"calls": 3, b"histogram_usec": {1: 1, 4: 3}}, b"eval": {}}
    told = _script_times(found, b"cmdstat_evalsha:calls=3,usec=2000000,x\r\n")
    assert told is not None
    assert (sum(told.classes), told.sum) == (3, 2.0)


@pytest.mark.parametrize(
    ("found", "took"),
    [
        (b"OK", b""),
        ({}, None),
        ({b"eval": 1}, b""),
        ({b"eval": [1]}, b""),
        ({b"eval": {b"histogram_usec": 1}}, b""),
        ({b"eval": {b"histogram_usec": {b"1": b"2"}}}, b""),
        ({b"eval": {b"histogram_usec": {1: None}}}, b""),
        ({b"eval": {b"histogram_usec": {1: 1, b"2": 1}}}, b""),
        ({b"eval": {}}, b"cmdstat_eval:calls=1,usec=" + b"9" * 5000),
    ],
)
def test_strange_times_are_none(found: object, took: object) -> None:
    assert _script_times(found, took) is None
