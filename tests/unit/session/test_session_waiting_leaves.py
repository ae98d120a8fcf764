"""session: a client leaves, or a connection is lost, while a hit waits."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding as r

from tests.unit.ratelimit.test_wait_queue import script_reply as says
from tests.unit.session.bench import (
    NOAUTH,
    PING,
    PONG,
)
from tests.unit.session.waiting import (
    ADMITTED,
    GET,
    HIT,
    HIT_RULE,
    LATER,
    NIL,
    SHAPED,
    TOLD,
    TOLD_LATER,
    WAITING,
    Client,
    World,
    attempt,
    final,
    look,
)


def test_who_half_closes_while_it_waits_leaves() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.ends()
    assert one.session.closed
    assert one.down() == b""
    (call,) = world.calls()
    assert call.caller is two.session  # the next one tries at once
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD


def test_who_half_closes_before_the_first_answer_gets_it() -> None:
    for frame, told in ((ADMITTED, TOLD), (LATER, TOLD_LATER)):
        world = World()
        client = world.client()
        client.send(WAITING)
        client.ends()
        assert not client.session.closed
        out = client.answer(frame)
        while world.calls():
            world.lane_answers(frame)
        out += client.answer(frame) if client.up() else client.down()
        assert out == told
        assert client.session.wants_eof
        assert world.waiting.count == 0


def test_who_half_closes_before_its_turn_to_be_asked_gets_one_answer() -> None:
    """printf 'GET x\\r\\nRL.HIT k 10 1 WAIT 5\\r\\n' | nc: it gets its answer, and at once."""
    world = World()
    client = world.client()
    assert client.send(GET + WAITING) == GET
    client.ends()  # which has to reach Redis: GET might be a BLPOP
    assert client.up().startswith(b"*6\r\n$4\r\nEVAL\r\n")
    assert client.session.wants_eof
    assert client.answer(NIL) == NIL
    assert client.answer(TOLD_LATER) == TOLD_LATER
    assert world.waiting.count == 0


def test_who_half_closes_while_its_connection_opens_gets_one_answer() -> None:
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
    assert client.down() == TOLD_LATER
    assert client.session.wants_eof


def test_who_half_closes_behind_several_gets_an_answer_to_each() -> None:
    world = World()
    client = world.client()
    client.send(WAITING * 3 + PING)
    client.ends()
    out = client.answer(LATER)
    for _ in range(10):
        if world.calls():
            world.lane_answers(LATER)
    out += client.down()
    assert out == TOLD_LATER * 3
    assert client.up().endswith(PING)
    assert client.answer(PONG) == PONG
    assert client.session.wants_eof


def test_who_half_closes_while_it_is_held_leaves_and_keeps_its_slot() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED)
    client.answer(says(0, 10, 5, -1, 100_000, 3_000_000))
    client.ends()
    assert client.session.closed
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_a_client_that_is_gone_while_its_question_is_on_the_lane() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    two = world.waits()
    one.vanishes()
    assert [call.caller for call in world.calls()] == [one.session, two.session]
    world.lane_answers(ADMITTED)
    assert (one.down(), one.up(), two.down()) == (b"", b"", b"")
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD
    assert world.waiting.count == 0


def test_a_client_that_is_gone_while_its_question_is_on_its_connection() -> None:
    world = World()
    one = world.client()
    one.send(WAITING)
    one.up()
    two = world.waits()
    one.vanishes()
    assert [call.caller for call in world.calls()] == [two.session]
    assert one.answer(ADMITTED) == b""
    world.lane_answers(ADMITTED)
    assert two.down() == TOLD
    assert world.waiting.count == 0
    assert world.clock.live() == []


def test_who_is_gone_asks_no_more() -> None:
    world = World()
    one = world.waits()
    one.vanishes()
    world.clock.advance(100)
    assert one.up() == b""
    assert world.calls() == []


def test_the_private_connection_is_lost_while_it_waits() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    one.send(PING)
    one.loses_upstream()
    assert one.down() == b""
    assert one.session.closed
    assert [call.caller for call in world.calls()] == [two.session]


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


def test_the_lane_is_lost_with_a_question_sent() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    two = world.waits()
    world.lane_lost(sent=1)
    assert one.down() == r.LOST
    assert one.idle()
    assert not one.session.closed
    assert two.up() == attempt()  # its turn
    assert two.answer(ADMITTED) == TOLD


def test_the_lane_is_lost_with_a_question_not_sent() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    world.lane_lost(sent=0)
    assert one.down() == b""
    assert one.up() == attempt()
    assert one.answer(LATER) == b""
    world.clock.advance(2)
    assert one.up() == attempt()
    assert one.answer(ADMITTED) == TOLD
    assert one.idle()


def test_the_lane_is_lost_with_questions_of_many() -> None:
    world = World()
    clients = [world.probed() for _ in range(4)]
    for client in clients:
        client.send(WAITING)
    assert len(world.calls()) == 4
    world.lane_lost(sent=2)
    # an attempt may have been counted; a look, sent or not, is asked again
    assert [client.down() for client in clients] == [r.LOST, b"", b"", b""]
    assert [client.up() for client in clients] == [b"", look(), look(), look()]
    clients[1].answer(LATER)
    assert clients[1].up() == attempt()
    assert clients[1].answer(ADMITTED) == TOLD
    clients[3].answer(LATER)
    clients[2].answer(LATER)
    assert clients[2].up() == attempt()
    assert clients[2].answer(ADMITTED) == TOLD
    assert clients[3].up() == attempt()
    assert clients[3].answer(ADMITTED) == TOLD
    assert world.waiting.count == 0


def test_the_lane_is_lost_while_it_sleeps() -> None:
    world = World()
    one = world.probed()
    one.send(WAITING)
    world.lane_answers(LATER)
    world.lane_lost(sent=0)
    assert (one.up(), one.down()) == (b"", b"")
    world.clock.advance(2)
    assert one.up() == attempt()


def test_a_missing_right_is_told_to_the_client() -> None:
    world = World()
    one = world.client()
    wrong = b"-NOPERM this user has no permissions script: abc, on @user_script:5.\r\n"
    one.send(WAITING + PING)
    assert one.answer(wrong) == r.clean_error(wrong)
    assert one.up() == PING
    assert world.waiting.count == 0


def test_a_stranger_waits_for_nothing() -> None:
    world = World()
    head = world.waits()
    one = world.client()
    assert one.send(WAITING) == look()
    assert one.answer(NOAUTH) == NOAUTH
    assert one.send(HIT) == look(HIT_RULE)  # it was no probe
    assert one.answer(NOAUTH) == NOAUTH
    assert head.down() == b""
    assert world.waiting.count == 1
