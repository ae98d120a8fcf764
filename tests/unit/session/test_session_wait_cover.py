"""session: WAIT and WAITAOF behind hits that went by lane."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks

from tests.unit.session.bench import (
    ARITY,
    FIVE,
    HIT,
    PING,
    REWRITE,
    UNKNOWN,
    WAIT,
    WRONG_HIT,
    lane_used,
    probed,
)

MULTI, EXEC = bulks(b"MULTI"), bulks(b"EXEC")


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


@pytest.mark.parametrize("failure", [b":0\r\n", b"-NOPERM no\r\n", b"$1\r\n1\r\n"])
def test_an_error_where_the_key_can_not_be_rewritten(failure: bytes) -> None:
    bench = lane_used()
    bench.send(WAIT + WAIT)
    error = bench.answer(failure + b":1\r\n")
    assert error.startswith(b"-ERR WAIT can't cover this connection's earlier writes here")
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_the_error_of_a_wrong_wait_is_the_servers() -> None:
    bench = lane_used()
    bench.send(bulks(b"WAIT", b"x", b"0"))
    assert bench.answer(b":0\r\n-ERR value\r\n") == b"-ERR value\r\n"


def test_an_error_where_replies_are_not_counted() -> None:
    bench = lane_used()
    bench.send(bulks(b"CLIENT", b"NO-EVICT", b"ON"))
    bench.answer(b"+OK\r\n")
    assert bench.send(WAIT) == bulks(b"RL.DENIED", b"WAIT")
    assert bench.answer(UNKNOWN).startswith(b"-ERR WAIT can't cover")


def test_wait_behind_exec_waits_for_its_reply() -> None:
    bench = lane_used()
    assert bench.send(MULTI + PING + EXEC + WAIT) == MULTI + PING + EXEC
    assert bench.answer(b"+OK\r\n+QUEUED\r\n") == b"+OK\r\n+QUEUED\r\n"
    assert bench.answer(b"*1\r\n+PONG\r\n") == b"*1\r\n+PONG\r\n"
    assert bench.up() == REWRITE + WAIT
    assert bench.answer(b":1\r\n:1\r\n") == b":1\r\n"


def test_wait_inside_a_transaction_is_an_error() -> None:
    bench = lane_used()
    assert bench.send(MULTI + WAIT) == MULTI
    assert bench.answer(b"+OK\r\n") == b"+OK\r\n"
    assert bench.up() == bulks(b"RL.DENIED", b"WAIT")
    assert bench.answer(UNKNOWN).startswith(b"-ERR WAIT can't cover")


def test_wait_behind_a_hit_that_was_refused_here() -> None:
    bench = lane_used()
    assert bench.send(WRONG_HIT + WAIT) == REWRITE + WAIT
    assert bench.answer(b":1\r\n", b":1\r\n") == ARITY + b":1\r\n"


def test_wait_rewrites_no_key_that_redis_refused_a_hit_on() -> None:
    bench = lane_used()
    bench.send(bulks(b"RL.HIT", b"foreign", b"10", b"60"))
    assert bench.settle(b"-WRONGTYPE no\r\n") == b"-WRONGTYPE no\r\n"
    assert bench.send(WAIT) == REWRITE + WAIT


def test_a_long_key_is_not_kept() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.HIT", b"k" * 5000, b"10", b"60"))
    assert bench.session.private.cover.last_hit == b"$1\r\nk\r\n"


def test_wait_behind_a_look_by_lane() -> None:
    bench = probed()
    bench.send(bulks(b"RL.PEEK", b"k", b"10", b"60"))
    assert bench.settle() == FIVE
    assert bench.send(WAIT) == WAIT


def test_waitaof_behind_a_hit_on_the_lane() -> None:
    bench = lane_used()
    wait = bulks(b"WAITAOF", b"0", b"0", b"0")
    assert bench.send(wait) == REWRITE + wait
    assert bench.answer(b":0\r\n*2\r\n:1\r\n:1\r\n").startswith(b"-ERR WAITAOF can't cover")
