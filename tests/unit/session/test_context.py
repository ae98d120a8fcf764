"""context: what a worker's sessions share; the reply to a hit that Redis does not answer."""

from __future__ import annotations

import pytest
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.outcomes import FAILED, FAILED_CLOSED, FAILED_OPEN, ROWS, SHADOW_PEEK, WIDTH
from rlproxy.resp import encoding
from rlproxy.resp.commands import HIT
from rlproxy.session.call import Call, Caller
from rlproxy.session.context import FailurePolicy, ServerFacts
from rlproxy.session.identity import Identity

from tests.contexts import hit_timeouts, worker_context
from tests.unit.session.bench import GRAMMAR

ERROR = b"-UPSTREAMDOWN x\r\n"
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


@pytest.mark.parametrize(
    ("mode", "limit", "reply", "outcome"),
    [
        ("error", 10, ERROR, FAILED),
        ("allow", 10, ADMITS, FAILED_OPEN),
        ("deny", 10, REFUSES, FAILED_CLOSED),
        # no hit, such as a peek: its error in all modes
        ("error", 0, ERROR, FAILED),
        ("allow", 0, ERROR, FAILED),
        ("deny", 0, ERROR, FAILED),
    ],
)
def test_the_reply_without_redis(mode: str, limit: int, reply: bytes, outcome: int) -> None:
    failing = Failing(mode)
    assert failing.policy.reply(call(limit, ROW), ERROR, "unreachable") == reply
    assert failing.timeouts.circuit.counts.without == 1
    assert failing.stats.hits[ROW + outcome] == 1
    assert sum(failing.stats.hits) == 1
    assert failing.stats.errors == {"unreachable": 1}


@pytest.mark.parametrize("mode", ["allow", "deny"])
@pytest.mark.parametrize("row", [ROW + WIDTH, SHADOW_PEEK])
def test_a_shadow_hit_is_admitted_in_every_mode_but_error(mode: str, row: int) -> None:
    failing = Failing(mode)
    assert failing.policy.reply(call(10, row), ERROR, "unreachable") == ADMITS
    assert failing.timeouts.circuit.counts.without == 1
    assert Failing("error").policy.reply(call(10, row), ERROR, "unreachable") == ERROR


@pytest.mark.parametrize("row", [ROW + WIDTH, SHADOW_PEEK])
@pytest.mark.parametrize(
    "reply", [REFUSES, ADMITS, encoding.LOST, b"+QUEUED\r\n", b"*5\r\n$1\r\n1\r\n"]
)
def test_a_shadow_hit_that_redis_refuses_is_admitted(row: int, reply: bytes) -> None:
    failing = Failing("error")
    shown = five(0, 10, 0, -1, 1) if reply == REFUSES else reply
    assert failing.policy.answered(call(10, row), reply) == shown
    assert failing.policy.answered(call(10, ROW), reply) == reply


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


@pytest.mark.parametrize("mode", ["error", "allow"])
def test_an_error_of_a_replica_is_reported(mode: str) -> None:
    failing = Failing(mode)
    reported: list[bytes] = []
    failing.policy.server.on_read_only = lambda: reported.append(b"replica")
    for reply in (ADMITS, encoding.error("OOM x"), encoding.error("READONLY x")):
        assert reported == []
        failing.policy.answered(call(10, ROW), reply)
    assert reported == [b"replica"]


@pytest.mark.parametrize("error", ["NOPERM x", "WRONGTYPE x", "ERR x", "NOAUTH x", "OOMS x"])
def test_another_error_of_redis_is_passed_on(error: str) -> None:
    failing = Failing("allow")
    assert failing.policy.answered(call(10, ROW), encoding.error(error)) == encoding.error(error)
    assert failing.stats.hits[ROW + FAILED] == sum(failing.stats.hits) == 1
    # no hit, such as a peek
    loading = encoding.error("LOADING x")
    assert failing.policy.answered(call(0, ROW), loading) == loading


def test_hits_are_answered_in_every_mode_but_error() -> None:
    assert [Failing(mode).policy.answers_hits() for mode in ("error", "allow", "deny")] == [
        False,
        True,
        True,
    ]


def test_the_error_of_a_late_call_names_the_hit_timeout() -> None:
    assert Failing("error").policy.too_late() == encoding.late(0.25)


def test_only_throttle_may_be_the_servers_own() -> None:
    server = ServerFacts("redis:1")
    assert not server.implements(b"CL.THROTTLE")
    server.found.has_throttle = True
    assert server.implements(b"CL.THROTTLE")
    assert not server.implements(b"RL.THROTTLE")
    assert not server.implements(b"RL.HIT")


def test_a_context_without_lanes() -> None:
    """Its sessions send all requests by their private connections."""
    context = worker_context(grammar=GRAMMAR, server=ServerFacts("redis:1"))
    assert context.lane_of(Identity(None, None, 0), HIT, 3) is None
    assert not context.shares
    assert context.circuit is context.timeouts.circuit
    assert context.failure.timeouts is context.timeouts
