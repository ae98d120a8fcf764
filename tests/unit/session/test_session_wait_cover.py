"""session: WAIT and WAITAOF behind hits that went by lane."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session.wait_cover import refusal

from tests.unit.session.bench import (
    ARITY,
    FIVE,
    HIT,
    PING,
    PONG,
    REWRITE,
    UNKNOWN,
    WAIT,
    WRONG_HIT,
    lane_used,
)

MULTI, EXEC = bulks(b"MULTI"), bulks(b"EXEC")
FOO = bulks(b"FOO")  # the table has no such command


def test_wait_behind_a_hit_on_the_lane() -> None:
    bench = lane_used()
    assert bench.send(WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"
    assert bench.send(WAIT) == WAIT
    assert bench.answer(b":1\r\n") == b":1\r\n"


def test_hits_of_a_client_that_waits_go_by_lane_again() -> None:
    bench = lane_used()
    for _ in range(3):
        assert bench.send(WAIT) == REWRITE + WAIT
        bench.answer(b":1\r\n:1\r\n")
        assert bench.send(HIT) == b""
        assert bench.settle() == FIVE


@pytest.mark.parametrize("first", [PING, bulks(b"SET", b"a", b"b" * 100)])
def test_a_private_command_between_does_not_cover_the_hit(first: bytes) -> None:
    bench = lane_used()
    assert bench.send(first + WAIT) == first + REWRITE + WAIT


def test_wait_behind_exec_waits_for_its_reply() -> None:
    bench = lane_used()
    assert bench.send(MULTI + PING + EXEC + WAIT) == MULTI + PING + EXEC
    assert bench.answer(b"+OK\r\n+QUEUED\r\n") == b"+OK\r\n+QUEUED\r\n"
    assert bench.answer(b"*1\r\n+PONG\r\n") == b"*1\r\n+PONG\r\n"
    assert bench.up() == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_wait_behind_a_command_that_redis_may_not_know_waits_for_its_reply() -> None:
    bench = lane_used()
    assert bench.send(FOO + WAIT) == FOO
    error = b"-ERR unknown command 'FOO', with args beginning with: \r\n"
    assert bench.answer(error) == error
    assert bench.up() == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_wait_behind_a_command_that_left_state_is_an_error() -> None:
    bench = lane_used()
    assert bench.send(FOO + WAIT) == FOO
    assert bench.answer(PONG) == PONG
    assert bench.up() == bulks(b"RL.DENIED", b"WAIT")


def test_wait_inside_a_transaction_is_an_error() -> None:
    bench = lane_used()
    assert bench.send(MULTI + WAIT) == MULTI
    assert bench.answer(b"+OK\r\n") == b"+OK\r\n"
    assert bench.up() == bulks(b"RL.DENIED", b"WAIT")
    assert bench.answer(UNKNOWN).startswith(b"-ERR WAIT can't cover")


def test_wait_where_replies_are_not_seen_is_refused_by_a_script() -> None:
    bench = lane_used()
    subscribe = bulks(b"SUBSCRIBE", b"a")
    assert bench.send(subscribe + WAIT) == subscribe + refusal(b"WAIT")


def test_wait_behind_a_hit_that_was_refused_here() -> None:
    bench = lane_used()
    assert bench.send(WRONG_HIT + WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n", b":1\r\n") == ARITY + b":1\r\n"
