"""session: WAIT and WAITAOF behind hits that went by lane."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session.wait_cover import refusal

from tests.unit.session.bench import ARITY, PING, PONG, REWRITE, UNKNOWN, WAIT, WRONG_HIT, lane_used

MULTI, EXEC = bulks(b"MULTI"), bulks(b"EXEC")
FOO = bulks(b"FOO")  # the table has no such command


def test_wait_behind_a_hit_on_the_lane() -> None:
    bench = lane_used()
    assert bench.send(WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"
    assert bench.send(WAIT) == WAIT
    assert bench.answer(b":1\r\n") == b":1\r\n"


@pytest.mark.parametrize("first", [PING, bulks(b"SET", b"a", b"b" * 100)])
def test_a_private_command_between_does_not_cover_the_hit(first: bytes) -> None:
    bench = lane_used()
    assert bench.send(first + WAIT) == first + REWRITE + WAIT


UNKNOWN_FOO = b"-ERR unknown command 'FOO', with args beginning with: \r\n"
DENIED_WAIT = bulks(b"RL.DENIED", b"WAIT")
AFTER = {
    # What goes before WAIT, its replies, and what is sent behind them.
    "EXEC": (MULTI + PING + EXEC, [b"+OK\r\n+QUEUED\r\n", b"*1\r\n+PONG\r\n"], REWRITE + WAIT),
    "a command that Redis does not know": (FOO, [UNKNOWN_FOO], REWRITE + WAIT),
    "a command that left state": (FOO, [PONG], DENIED_WAIT),
    "MULTI": (MULTI, [b"+OK\r\n"], DENIED_WAIT),
}


@pytest.mark.parametrize("name", AFTER)
def test_wait_waits_for_replies_that_decide_whether_it_can_cover(name: str) -> None:
    before, replies, sent = AFTER[name]
    bench = lane_used()
    assert bench.send(before + WAIT) == before
    for reply in replies:
        assert bench.up() == b""
        assert bench.answer(reply) == reply
    assert bench.up() == sent
    if sent == DENIED_WAIT:
        assert bench.answer(UNKNOWN).startswith(b"-ERR WAIT can't cover")
    else:
        assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_wait_where_replies_are_not_seen_is_refused_by_a_script() -> None:
    bench = lane_used()
    subscribe = bulks(b"SUBSCRIBE", b"a")
    assert bench.send(subscribe + WAIT) == subscribe + refusal(b"WAIT")


def test_wait_behind_a_hit_that_was_refused_here() -> None:
    bench = lane_used()
    assert bench.send(WRONG_HIT + WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n", b":1\r\n") == ARITY + b":1\r\n"
