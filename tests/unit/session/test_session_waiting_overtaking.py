"""session: hits without WAIT do not overtake; returned quota wakes waiting hits."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks

from tests.unit.session.bench import (
    FIVE,
    PING,
    PUSH,
    WRONG_HIT,
)
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
    WAITING,
    World,
    absent,
    attempt,
    peek,
)

# -- hits without WAIT ----------------------------------------------------------------------------


def test_a_hit_does_not_overtake_by_lane() -> None:
    world = World()
    waits = world.waits()
    client = world.probed()
    assert client.send(HIT + bulks(b"RL.HIT", b"other", b"10", b"60")) == b""
    assert world.on_lanes() == [peek(HIT_RULE), absent(HIT_RULE, b"other")]
    world.lane_answers(PEEKED, FIVE)
    assert client.down() == BEHIND + FIVE
    world.clock.advance(2)
    assert len(world.calls()) == 1
    world.lane_answers(ADMITTED)
    assert waits.down() == ADMITTED_REPLY
    client.send(HIT)
    assert world.on_lanes() == [absent(HIT_RULE)]


def test_a_hit_does_not_overtake_on_its_own_connection() -> None:
    world = World()
    world.waits()
    client = world.client()
    assert client.send(GET + HIT + HIT + GET) == GET + peek(HIT_RULE) * 2 + GET
    replies = NIL + PEEKED + PEEKED + NIL
    out = client.answer(*[replies[at : at + 1] for at in range(len(replies))])
    assert out == NIL + BEHIND * 2 + NIL
    assert client.idle()


def test_a_hit_that_was_peeked_at_while_its_lane_was_lost() -> None:
    world = World()
    world.waits()
    client = world.probed()
    client.send(HIT * 2)
    world.lane_lost(sent=1)
    assert client.down() == encoding.LOST
    assert client.up() == peek(HIT_RULE)
    assert client.answer(PEEKED) == BEHIND
    assert client.idle()


def test_the_private_connection_is_lost_with_a_peek_on_it() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(HIT + WRONG_HIT + HIT)
    client.answer(PEEKED[:9])
    client.loses_upstream()
    assert client.session.closed
    assert b":1\r\n" not in client.down()


def test_in_a_transaction_it_can_overtake() -> None:
    """The reply is inside EXEC's, which is passed on as it came."""
    world = World()
    world.waits()
    client = world.client()
    assert client.send(MULTI + HIT + EXEC) == MULTI + absent(HIT_RULE) + EXEC


@pytest.mark.parametrize(("end", "reply"), [(EXEC, b"*1\r\n+PONG\r\n"), (DISCARD, OK)])
def test_behind_a_transaction_in_one_write_it_does_not(end: bytes, reply: bytes) -> None:
    world = World()
    world.waits()
    client = world.client()
    sent = client.send(MULTI + PING + end + HIT)
    client.answer(OK + QUEUED + reply)
    assert sent + client.up() == MULTI + PING + end + peek(HIT_RULE)
    assert client.answer(PEEKED) == BEHIND


def test_behind_a_select_in_one_write_it_is_in_that_database() -> None:
    world = World()
    waits = world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"3")
    sent = client.send(select + HIT + GET)
    out = client.answer(OK)
    sent += client.up()
    assert sent == select + absent(HIT_RULE) + GET
    assert out + client.answer(FIVE + NIL) == OK + FIVE + NIL
    # and in that database, when no hit waits in database 0
    waits.vanishes()
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


def test_a_reset_behind_a_select_in_one_write_is_in_that_database() -> None:
    world = World()
    world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"3")
    assert client.send(select + bulks(b"RL.RESET", b"k")) == select
    assert client.answer(OK) == OK
    assert client.up() == bulks(b"DEL", b"k")
    assert client.answer(b":1\r\n") == b":1\r\n"
    assert world.calls() == []  # the hit in database 0 waits on


def test_behind_a_select_that_failed_in_one_write() -> None:
    world = World()
    world.waits()
    client = world.client()
    select = bulks(b"SELECT", b"99")
    error = b"-ERR DB index is out of range\r\n"
    sent = client.send(select + HIT)
    client.answer(error)
    assert sent + client.up() == select + peek(HIT_RULE)
    assert client.answer(PEEKED) == BEHIND


LOOKING = [
    bulks(b"RL.PEEK", b"k", b"10", b"60"),
    bulks(b"RL.HIT", b"k", b"10", b"60", b"COST", b"0"),
    bulks(b"RL.HIT", b"k", b"10", b"60", b"COST", b"0", b"WAIT", b"5"),
    bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"),
    bulks(b"RL.RESET", b"k"),
    bulks(b"CL.THROTTLE", b"k", b"9", b"10", b"60", b"0"),
]


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize("lane", [True, False])
def test_what_takes_nothing_does_not_mind_the_queue(command: bytes, lane: bool) -> None:
    world = World()
    world.waits()
    client = world.probed() if lane else world.client()
    sent = client.send(command)
    if world.calls():
        assert world.calls()[0].behind is None
        assert world.calls()[0].caller is client.session
        world.lane_answers(FIVE)
        assert client.down() == FIVE
    else:
        assert sent
        assert client.answer(FIVE) == FIVE
    assert world.waiting.count == 1


@pytest.mark.parametrize("name", [b"CL.THROTTLE", b"RL.THROTTLE"])
def test_throttles_don_t_overtake(name: bytes) -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(bulks(name, b"k", b"9", b"10", b"60"))
    assert client.answer(PEEKED) == BEHIND


# -- what is given back ----------------------------------------------------------------------------

GIVES = [
    (bulks(b"RL.RESET", b"k"), b":1\r\n", True),
    (bulks(b"RL.RESET", b"a", b"k", b"b"), b":2\r\n", True),
    (b"rl.reset a k\r\n", b":0\r\n", True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), FIVE, True),
    (bulks(b"RL.BLOCK", b"k", b"0"), FIVE, True),
    (bulks(b"RL.REFUND", b"k", b"10", b"60", b"1"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"k"), b"-NOPERM no\r\n", False),
    (bulks(b"RL.RESET", b"K"), b":1\r\n", False),
    (bulks(b"RL.PEEK", b"k", b"10", b"60"), FIVE, False),
]


@pytest.mark.parametrize("pushes", [True, False])
@pytest.mark.parametrize(("command", "answer", "wakes"), GIVES)
def test_returned_quota_wakes_waiting_hits(
    command: bytes, answer: bytes, wakes: bool, pushes: bool
) -> None:
    world = World()
    head, other = world.waits(), world.waits()
    client = world.client()
    assert client.send(GET + command + GET) != b""
    stream = NIL + (PUSH if pushes else b"") + answer + NIL
    assert client.answer(*[stream[at : at + 1] for at in range(len(stream))]) == stream
    assert world.on_lanes() == ([attempt()] if wakes else [])
    if wakes:
        world.lane_answers(ADMITTED)
        assert head.down() == ADMITTED_REPLY
        assert world.callers() == [other.session]


def test_a_refund_by_lane_wakes_waiting_hits() -> None:
    world = World()
    head = world.waits()
    client = world.probed()
    assert client.send(GIVES[3][0]) == b""
    world.lane_answers(FIVE)
    assert client.down() == FIVE
    assert world.callers() == [head.session]
    world.lane_answers(ADMITTED)
    assert head.down() == ADMITTED_REPLY


def test_returned_quota_in_a_transaction_wakes_no_hit() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(MULTI + GIVES[0][0] + EXEC)
    replies = OK + QUEUED + b"*1\r\n:1\r\n"
    assert client.answer(replies) == replies
    assert world.calls() == []
