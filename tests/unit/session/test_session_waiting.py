"""session: a hit with WAIT holds its client until it is admitted or its time is over."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.wait_queue import MAX_WAITING, Waiter
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits

from tests.unit.ratelimit.test_wait_queue import rule
from tests.unit.session.bench import FIVE, PING, PONG, PUSH
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    BEHIND,
    DISCARD,
    EXEC,
    GET,
    HIT,
    HIT_RULE,
    LATER,
    MULTI,
    NIL,
    OK,
    PEEKED,
    QUEUED,
    REFUSED_REPLY,
    RULE,
    WAITING,
    World,
    absent,
    attempt,
    peek,
)


@pytest.fixture
def world() -> World:
    return World()


# -- where nothing can be held: as if its WAIT were absent -----------------------------------------


@pytest.mark.parametrize(("end", "reply"), [(EXEC, b"*1\r\n+PONG\r\n"), (DISCARD, OK)])
def test_behind_a_transaction_in_one_write_it_waits(world: World, end: bytes, reply: bytes) -> None:
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


UNCOUNTABLE = [
    (bulks(b"SUBSCRIBE", b"c"), b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    (bulks(b"CLIENT", b"REPLY", b"OFF"), b""),
    (bulks(b"CLIENT", b"REPLY", b"SKIP"), b""),
    (bulks(b"MONITOR"), OK),
    (bulks(b"FOO"), OK),  # of a module
    (b"*x\r\n", b"-ERR Protocol error\r\n"),
]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(("before", "reply"), UNCOUNTABLE)
def test_where_nothing_can_be_held_it_acts_as_if_absent(
    world: World, before: bytes, reply: bytes, answered: bool
) -> None:
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
    waits.session.abandon()


def test_too_many_wait_already(world: World) -> None:
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
    others.pop().leave(b"")
    blocking = world.waits()
    assert client.send(WAITING + PING) == peek() + PING  # it doesn't overtake either
    assert client.answer(LATER + PONG) == five(1, 10, 0, 2, 9) + PONG
    blocking.session.abandon()


# -- a client leaves, or a connection is lost ------------------------------------------------------


def test_a_hit_that_may_take_a_lane_joins_the_queue_of_its_key(world: World) -> None:
    world.waits()
    second = world.probed()
    second.send(WAITING)
    assert second.session.wait == waits.HELD
    assert world.on_lanes() == [peek()]
    third = world.probed()
    third.send(HIT)
    assert third.session.wait == waits.NOTHING
    assert world.on_lanes() == [peek(), peek(HIT_RULE)]


def test_a_waiting_client_that_half_closes_leaves(world: World) -> None:
    one, two = world.waits(), world.waits()
    one.session.receive_eof()
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
        client.session.receive_eof()
        assert not client.session.closed
        out = client.answer(frame)
        while world.calls():
            world.lane_answers(frame)
        out += client.answer(frame) if client.up() else client.down()
        assert out == reply
        assert client.session.wants_eof
        assert world.waiting.count == 0


@pytest.mark.parametrize("by_lane", [True, False])
def test_the_private_connection_is_lost_with_a_question_under_way(
    world: World, by_lane: bool
) -> None:
    one = world.probed() if by_lane else world.client()
    one.send(WAITING)
    if not by_lane:
        one.answer(ADMITTED[:7])
    one.session.upstream_lost()
    assert one.down() == b""
    assert one.session.closed
    assert world.waiting.count == 0
    if by_lane:
        world.lane_answers(ADMITTED)
    assert one.down() == b""


def test_the_lane_is_lost_with_questions_of_many(world: World) -> None:
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


# -- hits without WAIT ----------------------------------------------------------------------------


def test_in_a_transaction_it_can_overtake(world: World) -> None:
    """The reply is inside EXEC's, which is passed on as it came."""
    world.waits()
    client = world.client()
    assert client.send(MULTI + HIT + EXEC) == MULTI + absent(HIT_RULE) + EXEC


def test_behind_a_select_in_one_write_it_is_in_that_database(world: World) -> None:
    waits = world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"3")
    sent = client.send(select + HIT + GET)
    out = client.answer(OK)
    sent += client.up()
    assert sent == select + absent(HIT_RULE) + GET
    assert out + client.answer(FIVE + NIL) == OK + FIVE + NIL
    # and in that database, when no hit waits in database 0
    waits.session.abandon()
    world.allowed = False
    three = world.client()
    three.send(select)
    three.answer(OK)
    three.send(WAITING)
    three.answer(LATER)
    client.send(bulks(b"SELECT", b"0"))
    client.answer(OK)
    sent = client.send(HIT + select + HIT)
    out = client.answer(FIVE + OK)
    sent += client.up()
    assert sent == absent(HIT_RULE) + select + peek(HIT_RULE)
    assert out + client.answer(PEEKED) == FIVE + OK + BEHIND


# -- what is given back ----------------------------------------------------------------------------

GIVES = [
    (bulks(b"RL.RESET", b"k"), b":1\r\n", True),
    (bulks(b"RL.RESET", b"a", b"k", b"b"), b":2\r\n", True),
    (bulks(b"RL.RESET", b"a", b"b", b"k"), b":1\r\n", True),
    (b"rl.reset a k\r\n", b":0\r\n", True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), FIVE, True),
    (bulks(b"RL.BLOCK", b"k", b"0"), FIVE, True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"k"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"K"), b":1\r\n", False),
    (bulks(b"RL.PEEK", b"k", b"10", b"60"), FIVE, False),
]


@pytest.mark.parametrize("pushes", [True, False])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("command", "answer", "wakes"), GIVES)
def test_returned_quota_wakes_waiting_hits(
    world: World, command: bytes, answer: bytes, wakes: bool, early: bool, pushes: bool
) -> None:
    """early: the command is sent before the hits wait, and Redis runs it later."""
    client = world.client()
    if early:
        assert client.send(GET + command + GET) != b""
    head, other = world.waits(), world.waits()
    if not early:
        assert client.send(GET + command + GET) != b""
    stream = NIL + (PUSH if pushes else b"") + answer + NIL
    assert client.answer(*[stream[at : at + 1] for at in range(len(stream))]) == stream
    assert world.on_lanes() == ([attempt()] if wakes else [])
    if wakes:
        world.lane_answers(ADMITTED)
        assert head.down() == ADMITTED_REPLY
        assert world.callers() == [other.session]


# -- pushes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_lane", [True, False])
def test_half_a_push_is_finished_first(world: World, by_lane: bool) -> None:
    world.allowed = by_lane
    client = world.probed()
    client.send(WAITING)
    if by_lane:
        world.lane_answers(LATER)
    else:
        client.answer(LATER)
    world.clock.advance(2)
    out = client.answer(PUSH[:-3])
    if world.calls():
        world.lane_answers(ADMITTED)
        assert ADMITTED_REPLY not in client.down()
        out += client.answer(PUSH[-3:])
    else:
        assert client.up() == attempt()
        out += client.answer(PUSH[-3:] + ADMITTED)
    assert out == PUSH + ADMITTED_REPLY
    assert client.send(PING) == PING
    assert client.answer(PONG) == PONG
    assert client.idle()
