"""session: a client leaves, or a connection is lost, while a hit waits."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding

from tests.unit.ratelimit.test_wait_queue import script_reply
from tests.unit.session.bench import (
    NOAUTH,
    PING,
    PONG,
)
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    GET,
    HIT,
    HIT_RULE,
    LATER,
    NIL,
    REFUSED_REPLY,
    SHAPED,
    WAITING,
    Client,
    World,
    attempt,
    final,
    peek,
)


def test_a_waiting_client_that_half_closes_leaves() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.ends()
    assert one.session.closed
    assert one.down() == b""
    assert world.callers() == [two.session]  # the next one tries at once
    world.lane_answers(ADMITTED)
    assert two.down() == ADMITTED_REPLY


def test_a_client_that_half_closes_before_the_first_reply_gets_it() -> None:
    for frame, reply in ((ADMITTED, ADMITTED_REPLY), (LATER, REFUSED_REPLY)):
        world = World()
        client = world.client()
        client.send(WAITING)
        client.ends()
        assert not client.session.closed
        out = client.answer(frame)
        while world.calls():
            world.lane_answers(frame)
        out += client.answer(frame) if client.up() else client.down()
        assert out == reply
        assert client.session.wants_eof
        assert world.waiting.count == 0


def test_a_client_that_half_closes_before_its_first_call_gets_one_reply() -> None:
    """printf 'GET x\\r\\nRL.HIT k 10 1 WAIT 5\\r\\n' | nc: it gets its answer, and at once."""
    world = World()
    client = world.client()
    assert client.send(GET + WAITING) == GET
    client.ends()  # which has to reach Redis: GET might be a BLPOP
    assert client.up().startswith(b"*6\r\n$4\r\nEVAL\r\n")
    assert client.session.wants_eof
    assert client.answer(NIL) == NIL
    assert client.answer(REFUSED_REPLY) == REFUSED_REPLY
    assert world.waiting.count == 0


def test_a_client_that_half_closes_while_its_connection_opens_gets_one_reply() -> None:
    world = World()
    client = Client(world)
    client.send(WAITING)
    client.ends()
    client.session.upstream_opened()
    client.session.flush()
    assert client.up() == attempt()
    client.answer(LATER)
    assert world.on_lanes() == [final()]
    world.lane_answers(LATER)
    assert client.down() == REFUSED_REPLY
    assert client.session.wants_eof


def test_a_client_that_half_closes_behind_several_hits_gets_a_reply_to_each() -> None:
    world = World()
    client = world.client()
    client.send(WAITING * 3 + PING)
    client.ends()
    out = client.answer(LATER)
    for _ in range(10):
        if world.calls():
            world.lane_answers(LATER)
    out += client.down()
    assert out == REFUSED_REPLY * 3
    assert client.up().endswith(PING)
    assert client.answer(PONG) == PONG
    assert client.session.wants_eof


def test_a_held_client_that_half_closes_leaves_and_keeps_its_slot() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED)
    client.answer(script_reply(0, 10, 5, -1, 100_000, 3_000_000))
    client.ends()
    assert client.session.closed
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_a_client_that_is_gone_while_its_question_is_on_its_connection() -> None:
    world = World()
    one = world.client()
    one.send(WAITING)
    one.up()
    two = world.waits()
    one.vanishes()
    assert world.callers() == [two.session]
    assert one.answer(ADMITTED) == b""
    world.lane_answers(ADMITTED)
    assert two.down() == ADMITTED_REPLY
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_the_private_connection_is_lost_while_it_waits() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.send(PING)
    one.loses_upstream()
    assert one.down() == b""
    assert one.session.closed
    assert world.callers() == [two.session]


@pytest.mark.parametrize("by_lane", [True, False])
def test_the_private_connection_is_lost_with_a_question_under_way(by_lane: bool) -> None:
    world = World()
    one = world.probed() if by_lane else world.client()
    one.send(WAITING)
    if not by_lane:
        one.answer(ADMITTED[:7])
    one.loses_upstream()
    assert one.down() == b""
    assert one.session.closed
    assert world.waiting.count == 0
    if by_lane:
        world.lane_answers(ADMITTED)
    assert one.down() == b""


def test_the_lane_is_lost_with_questions_of_many() -> None:
    world = World()
    clients = [world.probed() for _ in range(4)]
    for client in clients:
        client.send(WAITING)
    assert len(world.calls()) == 4
    world.lane_lost(sent=2)
    # an attempt may have been counted; a peek, sent or not, is asked again
    assert [client.down() for client in clients] == [encoding.LOST, b"", b"", b""]
    assert [client.up() for client in clients] == [b"", peek(), peek(), peek()]
    clients[1].answer(LATER)
    assert clients[1].up() == attempt()
    assert clients[1].answer(ADMITTED) == ADMITTED_REPLY
    clients[3].answer(LATER)
    clients[2].answer(LATER)
    assert clients[2].up() == attempt()
    assert clients[2].answer(ADMITTED) == ADMITTED_REPLY
    assert clients[3].up() == attempt()
    assert clients[3].answer(ADMITTED) == ADMITTED_REPLY
    assert world.waiting.count == 0


def test_an_unauthenticated_hit_does_not_wait() -> None:
    world = World()
    head = world.waits()
    one = world.client()
    assert one.send(WAITING) == peek()
    assert one.answer(NOAUTH) == NOAUTH
    assert one.send(HIT) == peek(HIT_RULE)  # it was no probe
    assert one.answer(NOAUTH) == NOAUTH
    assert head.down() == b""
    assert world.waiting.count == 1
