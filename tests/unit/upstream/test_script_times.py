"""The run times of scripts, from Redis' replies."""

from __future__ import annotations

import pytest
from rlproxy.upstream.script_times import script_times


def test_the_time_of_scripts() -> None:
    found = {b"evalsha": {b"calls": 3, b"histogram_usec": {1: 1, 4: 3}}, b"eval": {}}
    times = script_times(found, b"cmdstat_evalsha:calls=3,usec=2000000,x\r\n")
    assert times is not None
    assert (sum(times.classes), times.sum) == (3, 2.0)


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
    assert script_times(found, took) is None
