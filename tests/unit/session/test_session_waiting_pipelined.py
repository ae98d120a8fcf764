"""session: hits with WAIT among other commands, and the order of all replies."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import MAX_CLIENT_HITS
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.session.waits import WAIT_HELD, WAIT_QUIESCENT

from tests.unit.ratelimit.test_wait_queue import refused
from tests.unit.session.bench import (
    ARITY,
    FIVE,
    PING,
    PONG,
    WRONG_HIT,
)
from tests.unit.session.waiting import (
    ADMITTED,
    GET,
    HIT,
    HIT_RULE,
    LATER,
    NIL,
    OK,
    QUIT,
    TOLD,
    WAITING,
    World,
    absent,
    attempt,
    look,
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
    assert client.down() == TOLD
    assert client.up() == GET + absent(HIT_RULE) + PING
    assert client.answer(NIL + FIVE + PONG) == NIL + FIVE + PONG
    assert client.idle()


def test_replies_in_pieces_before_it() -> None:
    world = World()
    client = world.client()
    client.send(GET + PING + WAITING)
    frames = b"$2\r\nab\r\n+PONG\r\n"
    out = b""
    for at in range(len(frames)):
        assert client.up() == b""
        out += client.answer(frames[at : at + 1])
    assert out == frames
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD


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
    assert client.down() == TOLD
    assert world.on_lanes() == [absent(HIT_RULE)]
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert client.idle()


def test_behind_a_full_window_of_the_lane() -> None:
    world = World()
    client = world.probed()
    client.send(HIT * (MAX_CLIENT_HITS + 3) + WAITING + PING)
    got = b""
    while world.calls():
        assert world.waiting.count == 0
        world.lane_answers(FIVE)
        got += client.down()
        if client.session.wait == WAIT_HELD:
            break
    assert got == FIVE * (MAX_CLIENT_HITS + 3)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.up() == PING


def test_several_in_one_pipeline() -> None:
    world = World()
    client = world.client()
    assert client.send(WAITING * 3 + PING) == attempt()
    client.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert len(world.calls()) == 1
    world.lane_answers(ADMITTED)
    world.lane_answers(refused(5_000_001))
    assert client.down() == TOLD + r.five(1, 10, 0, 6, 9)
    assert client.up() == PING
    assert client.answer(PONG) == PONG
    assert client.idle()


def test_behind_wrong_hits_and_before_them() -> None:
    world = World()
    client = world.client()
    assert client.send(WRONG_HIT + WAITING + WRONG_HIT + PING) == attempt()
    assert client.down() == ARITY
    assert client.answer(ADMITTED) == TOLD + ARITY
    assert client.up() == PING


def test_a_pipeline_of_two_that_wait_for_each_other_in_turn() -> None:
    world = World()
    one, two = world.client(), world.client()
    one.send(WAITING * 2)
    two.send(WAITING * 2)
    assert (one.up(), two.up()) == (b"", b"")
    one.answer(LATER)
    two.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert one.down() == TOLD
    # the second of the first client queues behind the first of the second
    kinds = [(call.caller is one.session, call.rule.reads) for call in world.calls()]
    assert sorted(kinds) == [(False, False), (True, True)]
    for call in list(world.calls()):
        world.lane_answers(LATER if call.caller is one.session else ADMITTED)
    assert (one.down(), two.down()) == (b"", TOLD)
    while world.calls():
        world.lane_answers(ADMITTED)
    assert one.down() + two.down() == TOLD * 2
    assert world.waiting.count == 0


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
    assert three.send(WAITING) == look()  # behind the first one there
    assert zero.up() == b""


def test_malformed_bytes_behind_it_wait() -> None:
    world = World()
    client = world.client()
    client.send(WAITING + b"*x\r\n", b"more")
    assert client.answer(LATER) == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
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


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_an_uncountable_reply_in_pieces_before_it(cut: int) -> None:
    world = World()
    client = world.client()
    client.send(PING + WAITING + PING)
    wrong = b"*1\r\nHTTP/1.1 400 no\r\n"
    client.answer(wrong[:cut], wrong[cut:])
    assert client.up() == absent() + PING


def test_nothing_is_asked_behind_quit() -> None:
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
