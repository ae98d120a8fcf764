"""session: a hit with WAIT holds its client until it is admitted or its time is over."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.hit_replies import five
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream
from rlproxy.session.waits import WAIT_HELD

from tests.unit.ratelimit.test_wait_queue import script_reply
from tests.unit.session.bench import (
    FIVE,
    PING,
)
from tests.unit.session.waiting import (
    ADMITTED,
    ADMITTED_REPLY,
    HIT,
    LATER,
    SHAPED,
    WAITING,
    Client,
    World,
    attempt,
    peek,
)

# -- alone -----------------------------------------------------------------------------------------


def test_the_first_hit_of_a_client_takes_its_private_connection() -> None:
    world = World()
    client = world.client()
    assert client.send(WAITING) == attempt()
    assert client.session.wait == WAIT_HELD
    assert client.session.outstanding()
    assert client.answer(LATER) == b""
    world.clock.advance(1.99)
    assert (client.up(), world.calls()) == (b"", [])
    world.clock.advance(0.02)
    assert client.up() == b""  # Redis has let it pass: the lane it is
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert client.down() == ADMITTED_REPLY
    assert client.idle()
    assert world.waiting.count == 0


def test_as_the_first_command_of_all() -> None:
    world = World()
    client = Client(world)
    assert client.send(WAITING) == b""
    assert client.session.private.status == private_stream.PRIVATE_OPENING
    assert world.waiting.count == 0
    client.session.upstream_opened()
    client.session.flush()
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == ADMITTED_REPLY


def test_it_takes_the_private_connection_where_the_lane_has_no_room() -> None:
    world = World()
    client = world.probed()
    client.send(HIT)
    world.lane_answers(FIVE)
    world.lane.room = 0
    assert client.send(WAITING) == attempt()


@pytest.mark.parametrize(
    "written",
    [
        b"RL.HIT k 10 1 WAIT 5\r\n",
        b"rl.hit k 10 1 wait 5\r\n",
        b"rl.Hit \"k\" 10 1 'wait' 5\n",
        bulks(b"rl.hit", b"k", b"10", b"1", b"wAIt", b"5"),
        b"\r\n*0\r\n" + WAITING,
    ],
)
@pytest.mark.parametrize("piecemeal", [True, False])
def test_however_it_is_written(written: bytes, piecemeal: bool) -> None:
    world = World()
    client = world.waits()
    other = world.probed()
    pieces = [written[at : at + 1] for at in range(len(written))] if piecemeal else [written]
    assert other.send(*pieces) == b""
    assert world.on_lanes() == [peek()]  # in the same queue, behind the other
    world.lane_answers(LATER)
    client.vanishes()
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert other.down() == ADMITTED_REPLY


# -- LEAKY -----------------------------------------------------------------------------------------


def test_what_follows_a_held_hit_waits_for_its_reply() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED + PING)
    assert client.answer(script_reply(0, 10, 5, -1, 100_000, 100_000)) == b""
    assert client.up() == b""
    world.clock.advance(0.1)
    assert client.down() == five(0, 10, 5, -1, 1)
    assert client.up() == PING
