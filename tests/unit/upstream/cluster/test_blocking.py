"""blocking: the rest of a timeout."""

from __future__ import annotations

import pytest
from rlproxy.upstream.cluster.blocking import with_rest
from rlproxy.upstream.cluster.routes import Routes

from tests.harness import command


@pytest.mark.parametrize(
    ("line", "passed_s", "expected"),
    [
        ("BLPOP a 10", 4.0, "BLPOP a 6.000"),
        ("blpop a b 0.5", 0.25, "blpop a b 0.250"),
        ("BLPOP a 0", 4.0, "BLPOP a 0"),
        ("BLPOP a 1", 4.0, "BLPOP a 0.001"),
        ("BLPOP a x", 4.0, "BLPOP a x"),
        ("BLMPOP 10 1 a LEFT", 4.0, "BLMPOP 6.000 1 a LEFT"),
        ("XREAD BLOCK 1000 STREAMS s $", 0.25, "XREAD BLOCK 750 STREAMS s $"),
        ("XREAD COUNT 1 block 1 STREAMS s $", 0.25, "XREAD COUNT 1 block 1 STREAMS s $"),
        ("XREAD STREAMS BLOCK 5", 0.25, "XREAD STREAMS BLOCK 5"),
        (
            "XREADGROUP GROUP BLOCK 5 BLOCK 900 STREAMS s >",
            0.25,
            "XREADGROUP GROUP BLOCK 5 BLOCK 650 STREAMS s >",
        ),
    ],
)
def test_the_rest_of_a_timeout(line: str, passed_s: float, expected: str) -> None:
    words = line.encode().split()
    blocks = Routes([]).of(words[0], words[1:]).blocks
    assert with_rest(command(*words), blocks, passed_s) == command(*expected.split())
