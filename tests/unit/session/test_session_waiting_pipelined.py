"""session: hits with WAIT among other commands, and the order of all replies."""

from __future__ import annotations

from rlproxy.resp.encoding import bulks
from rlproxy.session.waits import WAIT_QUIESCENT

from tests.unit.session.bench import (
    ARITY,
    FIVE,
    PING,
    PONG,
    WRONG_HIT,
)
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    GET,
    HIT,
    HIT_RULE,
    LATER,
    NIL,
    OK,
    QUIT,
    WAITING,
    World,
    absent,
    attempt,
    peek,
)


def test_between_other_commands() -> None:
    world = World()
    client = world.client()
    assert client.send(GET + WAITING + GET + HIT + PING) == GET
    assert client.session.wait == WAIT_QUIESCENT
    assert world.waiting.count == 0
    assert client.answer(NIL) == NIL
    assert client.up() == attempt()
    assert client.answer(LATER) == b""
    assert client.up() == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert client.up() == GET + absent(HIT_RULE) + PING
    assert client.answer(NIL + FIVE + PONG) == NIL + FIVE + PONG
    assert client.idle()


def test_behind_hits_on_the_lane() -> None:
    world = World()
    client = world.probed()
    assert client.send(HIT + WRONG_HIT + HIT + WAITING + HIT) == b""
    assert len(world.calls()) == 2
    world.lane_answers(FIVE)
    assert client.down() == FIVE + ARITY
    assert len(world.calls()) == 1
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert world.on_lanes() == [absent(HIT_RULE)]
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert client.idle()


def test_behind_wrong_hits_and_before_them() -> None:
    world = World()
    client = world.client()
    assert client.send(WRONG_HIT + WAITING + WRONG_HIT + PING) == attempt()
    assert client.down() == ARITY
    assert client.answer(ADMITTED) == ADMITTED_REPLY + ARITY
    assert client.up() == PING


def test_behind_a_select_it_is_in_that_database() -> None:
    world = World()
    client = world.probed()
    select = bulks(b"SELECT", b"3")
    assert client.send(select + WAITING) == select
    client.answer(OK)
    assert world.waiting.count == 1
    client.up()
    zero = world.client()
    zero.send(WAITING)
    assert world.waiting.count == 2
    three = world.client()
    three.send(select)
    three.answer(OK)
    assert three.send(WAITING) == peek()  # behind the first one there
    assert zero.up() == b""


def test_malformed_bytes_behind_it_wait() -> None:
    world = World()
    client = world.client()
    client.send(WAITING + b"*x\r\n", b"more")
    assert client.answer(LATER) == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert client.up() == b"*x\r\nmore"


def test_a_large_value_behind_it_waits() -> None:
    world = World()
    client = world.client()
    value = bulks(b"SET", b"k", b"v" * 100_000)
    client.send(WAITING + value[:50_000])
    client.send(value[50_000:])
    assert client.session.requests.unread() == len(value)
    client.answer(ADMITTED)
    assert client.up() == value
    assert client.session.requests.unread() == 0


def test_a_reply_that_makes_the_rest_uncountable_before_it() -> None:
    world = World()
    client = world.client()
    client.send(PING + WAITING + PING)
    assert client.answer(b"HTTP/1.1 400 no\r\n") == b"HTTP/1.1 400 no\r\n"
    assert client.up() == absent() + PING
    assert client.answer(b"x") == b"x"


def test_no_call_is_sent_behind_quit() -> None:
    world = World()
    client = world.client()
    sent = client.send(QUIT + WAITING)
    out = client.answer(OK)
    sent += client.up()
    client.loses_upstream()
    assert out + client.down() == OK
    assert sent.startswith(QUIT)
    assert client.session.closed
    assert world.waiting.count == 0
