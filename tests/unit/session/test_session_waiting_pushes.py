"""session: pushes that come while a hit waits."""

from __future__ import annotations

import pytest

from tests.unit.session.bench import (
    PING,
    PONG,
    PUSH,
)
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    BEHIND,
    HIT,
    LATER,
    PEEKED,
    WAITING,
    World,
    attempt,
)


def test_pushes_come_while_it_waits() -> None:
    world = World()
    client = world.client()
    client.send(WAITING)
    assert client.answer(PUSH + LATER + PUSH) == PUSH * 2
    assert client.answer(PUSH) == PUSH
    world.clock.advance(2)
    out = b""
    for at in range(len(PUSH)):
        out += client.answer(PUSH[at : at + 1])
    assert out == PUSH
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert client.idle()


@pytest.mark.parametrize("by_lane", [True, False])
def test_half_a_push_is_finished_first(by_lane: bool) -> None:
    world = World()
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


def test_half_a_push_and_then_nothing() -> None:
    world = World()
    client = world.waits()
    assert client.answer(PUSH[:4]) == PUSH[:4]
    client.loses_upstream()
    assert client.down() == b""
    assert client.session.closed
    assert world.waiting.count == 0


def test_pushes_around_a_peek() -> None:
    world = World()
    world.waits()
    client = world.client()
    client.send(HIT + PING)
    stream = PUSH + PEEKED + PUSH + PONG + PUSH
    expected = PUSH + BEHIND + PUSH + PONG + PUSH
    assert client.answer(*[stream[at : at + 1] for at in range(len(stream))]) == expected
