"""context: what a worker's sessions share; the reply to a hit that Redis does not answer."""

from __future__ import annotations

import pytest
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.outcomes import FAILED, FAILED_CLOSED, FAILED_OPEN, ROWS
from rlproxy.resp import encoding
from rlproxy.session.call import Call, Caller
from rlproxy.session.context import FailurePolicy, ServerFacts

from tests.contexts import hit_timeouts

ROW = ROWS[b"GCRA"]
ADMITS = five(0, 10, 10, -1, 0)
REFUSES = five(1, 10, 0, 1, 1)


class Failing:
    """A failure policy, and what it counts."""

    def __init__(self, mode: str) -> None:
        self.stats = Counters()
        self.timeouts = hit_timeouts(timeout_s=0.25)
        self.policy = FailurePolicy(ServerFacts("redis:1"), self.timeouts, self.stats)
        self.policy.mode = mode


def call(limit: int, row: int) -> Call:
    rule = Rule()
    rule.limit, rule.row = limit, row
    return Call(Caller(), rule, b"$1\r\nk\r\n")


CANNOT_RUN = (
    *("LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN"),
    *("READONLY", "OOM", "MISCONF", "NOREPLICAS"),
)


@pytest.mark.parametrize("mode", ["error", "allow", "deny"])
@pytest.mark.parametrize("word", CANNOT_RUN)
def test_a_hit_that_redis_cannot_run_follows_the_mode(mode: str, word: str) -> None:
    failing = Failing(mode)
    reported: list[str] = []
    failing.policy.on_cannot_run = reported.append
    error = encoding.error(f"{word} x")
    instead, outcome = {
        "error": (error, FAILED),
        "allow": (ADMITS, FAILED_OPEN),
        "deny": (REFUSES, FAILED_CLOSED),
    }[mode]
    assert failing.policy.answered(call(10, ROW), error) == instead
    assert failing.stats.hits[ROW + outcome] == sum(failing.stats.hits) == 1
    assert failing.stats.errors == {"redis": 1}
    assert reported == ([] if mode == "error" else [word])
