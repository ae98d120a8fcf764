"""session: where nothing can be held, a hit acts as if its WAIT were absent."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.wait_queue import MAX_WAITING, Waiter
from rlproxy.resp.encoding import bulks

from tests.unit.ratelimit.test_wait_queue import rule
from tests.unit.session.bench import (
    PING,
    PONG,
)
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    DISCARD,
    EXEC,
    HIT,
    HIT_RULE,
    LATER,
    MULTI,
    OK,
    QUEUED,
    REFUSED_REPLY,
    RULE,
    WAITING,
    World,
    absent,
    attempt,
    peek,
)


def test_in_a_transaction_it_acts_as_if_absent() -> None:
    world = World()
    client = world.client()
    assert client.send(MULTI) == MULTI
    client.answer(OK)
    assert client.send(WAITING + PING) == absent() + PING
    assert client.answer(QUEUED * 2) == QUEUED * 2
    assert client.send(EXEC) == EXEC
    out = b"*2\r\n" + REFUSED_REPLY + PONG
    assert client.answer(out) == out
    assert world.waiting.count == 0
    assert client.send(WAITING) != b"" or world.calls()
    assert world.waiting.count == 1


@pytest.mark.parametrize(("end", "reply"), [(EXEC, b"*1\r\n+PONG\r\n"), (DISCARD, OK)])
def test_behind_a_transaction_in_one_write_it_waits(end: bytes, reply: bytes) -> None:
    world = World()
    client = world.client()
    assert client.send(MULTI + PING + end + WAITING + PING) == MULTI + PING + end
    assert client.answer(OK + QUEUED) == OK + QUEUED
    assert client.up() == b""
    assert client.answer(reply) == reply
    assert client.up() == attempt()
    assert client.answer(LATER) == b""
    world.clock.advance(2)
    assert client.up() == b""
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert client.up() == PING


def test_behind_an_exec_that_ended_nothing_it_acts_as_if_absent() -> None:
    world = World()
    client = world.client()
    wrong = bulks(b"EXEC", b"x")
    error = b"-ERR wrong number of arguments for 'exec' command\r\n"
    client.send(MULTI + wrong + WAITING)
    client.answer(OK + error)
    assert client.up() == absent()
    assert client.answer(QUEUED) == QUEUED
    assert world.waiting.count == 0


def test_behind_a_reset_in_one_write_it_waits() -> None:
    world = World()
    client = world.client()
    reset = bulks(b"RESET")
    assert client.send(bulks(b"FOO") + reset + WAITING) == bulks(b"FOO") + reset
    assert client.answer(b"-ERR unknown\r\n+RESET\r\n") == b"-ERR unknown\r\n+RESET\r\n"
    assert client.up() == attempt()
    assert world.waiting.count == 1


UNCOUNTABLE = [
    (bulks(b"SUBSCRIBE", b"c"), b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    (bulks(b"CLIENT", b"REPLY", b"OFF"), b""),
    (bulks(b"CLIENT", b"REPLY", b"SKIP"), b""),
    (bulks(b"MONITOR"), OK),
    (bulks(b"FOO"), b"-ERR unknown command\r\n"),
    (b"*x\r\n", b"-ERR Protocol error\r\n"),
]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(("before", "reply"), UNCOUNTABLE)
def test_where_nothing_can_be_held_it_acts_as_if_absent(
    before: bytes, reply: bytes, answered: bool
) -> None:
    world = World()
    waits = world.waits()  # hits are sent although another hit waits
    client = world.client()
    client.send(before)
    if answered and reply:
        client.answer(reply)
    written = WAITING if before == b"*x\r\n" else absent()
    assert client.send(WAITING) == written
    plain = HIT if before == b"*x\r\n" else absent(HIT_RULE)
    assert client.send(HIT) == plain
    assert world.waiting.count == 1
    waits.vanishes()


@pytest.mark.parametrize("answered", [True, False])
def test_behind_asking_it_acts_as_if_absent(answered: bool) -> None:
    """It is for the next command only: a question that is sent later would be without it."""
    world = World()
    client = world.probed()
    asking = bulks(b"ASKING")
    if answered:
        assert client.send(asking) == asking
        assert client.answer(OK) == OK
        assert client.send(WAITING) == absent()
    else:
        assert client.send(asking + WAITING) == asking + absent()
        assert client.answer(OK) == OK
    assert client.answer(REFUSED_REPLY) == REFUSED_REPLY
    assert (client.up(), world.on_lanes()) == (b"", [])


def test_too_many_wait_already() -> None:
    world = World()
    client = world.client()
    hit = rule(RULE)
    others = []

    def nothing(_: object = None) -> None:
        return

    for number in range(MAX_WAITING):
        where = (0, b"%d" % number)
        others.append(Waiter(world.waiting, where, hit, nothing, nothing, nothing, nothing))
        others[-1].start()
    assert client.send(WAITING + PING) == absent() + PING
    assert client.answer(REFUSED_REPLY + PONG) == REFUSED_REPLY + PONG
    others.pop().cancel()
    blocking = world.waits()
    assert client.send(WAITING + PING) == peek() + PING  # it doesn't overtake either
    assert client.answer(LATER + PONG) == five(1, 10, 0, 2, 9) + PONG
    blocking.vanishes()
