"""session: a hit with WAIT holds its client until it is admitted or its time is over."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream
from rlproxy.session.waits import WAIT_HELD

from tests.unit.ratelimit.test_wait_queue import refused
from tests.unit.ratelimit.test_wait_queue import script_reply as says
from tests.unit.session.bench import (
    PING,
)
from tests.unit.session.waiting import (
    ADMITTED,
    GET,
    HIT,
    KEPT,
    LATER,
    NIL,
    SHAPED,
    SHAPED_RULE,
    TOLD,
    TOLD_LATER,
    WAITING,
    Client,
    World,
    attempt,
    final,
    look,
)

# -- alone -----------------------------------------------------------------------------------------


def test_the_first_hit_of_a_connection_asks_over_that_connection() -> None:
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
    assert client.down() == TOLD
    assert client.idle()
    assert world.waiting.count == 0


def test_admitted_at_once() -> None:
    world = World()
    client = world.client()
    client.send(WAITING)
    assert client.answer(ADMITTED) == TOLD
    assert client.idle()
    assert client.send(HIT) == b""  # it was a probe
    assert len(world.calls()) == 1


def test_by_lane() -> None:
    world = World()
    client = world.probed()
    assert client.send(WAITING) == b""
    assert world.on_lanes() == [attempt()]
    world.lane_answers(LATER)
    assert client.down() == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()
    assert client.send(PING) == PING


def test_no_lane_for_this_identity() -> None:
    world = World()
    client = world.probed()
    world.allowed = False
    assert client.send(WAITING) == attempt()
    client.answer(LATER)
    world.clock.advance(2)
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD
    assert client.idle()


def test_a_lane_that_is_not_ready_when_asked() -> None:
    world = World()
    client = world.probed()
    client.send(WAITING)
    world.lane_answers(LATER)
    world.lane.ready = False
    world.clock.advance(2)
    assert client.up() == attempt()
    assert world.lane.woken == 1
    assert client.answer(ADMITTED) == TOLD


def test_as_the_first_command_of_all() -> None:
    world = World()
    client = Client(world)
    assert client.send(WAITING) == b""
    assert client.session.private.status == private_stream.OPENING
    assert world.waiting.count == 0
    client.session.upstream_opened()
    client.session.flush()
    assert client.up() == attempt()
    assert client.answer(ADMITTED) == TOLD


def test_no_upstream() -> None:
    world = World()
    client = Client(world)
    client.send(WAITING + WAITING)
    client.session.upstream_failed("refused")
    client.session.flush()
    assert client.down() == r.unreachable("redis:1", "refused") * 2
    assert world.waiting.count == 0


@pytest.mark.parametrize(
    ("text", "frame", "told"),
    [
        (b"5", refused(5_000_001), [1, 10, 0, 6, 9]),
        (b"5 COST 11", says(1, 10, 10, -1, 0), [1, 10, 10, -1, 0]),
        (b"5000 MS", refused(5_000_001), [1, 10, 0, 5001, 9000]),
    ],
)
def test_refused_at_once(text: bytes, frame: bytes, told: list[int]) -> None:
    world = World()
    client = world.client()
    words = text.split()
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1000", b"WAIT", *words))
    assert r.integers(client.answer(frame)) == told
    assert client.idle()


def test_refused_when_its_time_is_over() -> None:
    world = World()
    client = world.client()
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"3", b"PENALTY", b"9"))
    client.answer(LATER)
    world.clock.advance(2)
    world.lane_answers(LATER)
    assert client.down() == b""
    world.clock.advance(1)
    assert world.on_lanes() == [final("10 1 WAIT 3 PENALTY 9")]
    world.lane_answers(refused(9_000_000))
    assert client.down() == r.five(1, 10, 0, 9, 9)
    assert client.idle()


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
    assert world.on_lanes() == [look()]  # in the same queue, behind the other
    world.lane_answers(LATER)
    client.vanishes()
    assert world.on_lanes() == [attempt()]
    world.lane_answers(ADMITTED)
    assert other.down() == TOLD


@pytest.mark.parametrize("cut", [1, 10, len(WAITING) - 1])
def test_whatever_comes_in_pieces_behind_it(cut: int) -> None:
    world = World()
    client = world.client()
    both = WAITING + WAITING
    client.send(both[: len(WAITING) + cut])
    client.answer(LATER)
    assert client.send(both[len(WAITING) + cut :]) == b""
    world.clock.advance(2)
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    world.lane_answers(ADMITTED)
    assert client.down() == TOLD
    assert client.idle()


def test_the_private_connection_of_a_held_hit_is_kept_alive() -> None:
    """More often than the least timeout of Redis (1 s), whether questions go by lane or not."""
    world = World()
    client = world.probed()
    world.settings.server.ignores_empty = True
    client.send(bulks(b"RL.HIT", b"k", b"10", b"1", b"WAIT", b"200"))
    client.up()
    world.lane_answers(refused(700_000))
    last = world.clock.now
    while world.clock.now < last + 1 and world.clock.now < 1100:
        world.clock.advance(0.05)
        if sent := client.up():
            assert sent == KEPT
            last = world.clock.now
        if world.calls():
            world.lane_answers(refused(700_000))
    assert world.clock.now >= 1100
    assert client.session.wait == WAIT_HELD


# -- LEAKY -----------------------------------------------------------------------------------------


def test_shaped_hits_take_their_places_at_once() -> None:
    world = World()
    clients = [world.client() for _ in range(3)]
    for number, client in enumerate(clients):
        assert client.send(SHAPED) == attempt(SHAPED_RULE)
        assert client.answer(says(0, 10, 5, -1, 100_000, number * 100_000)) == (
            b"" if number else r.five(0, 10, 5, -1, 1)
        )
    other = world.client()
    hit = bulks(b"RL.HIT", b"k", b"10", b"1", b"ALGO", b"LEAKY", b"MS")
    world.clock.now -= 0.00001  # (a float is no exact number of microseconds)
    assert other.send(hit) == look("10 1 ALGO LEAKY MS")
    assert other.answer(says(0, 10, 5, -1, 300_000)) == r.five(1, 10, 0, 101, 300)
    world.clock.advance(0.10001)
    assert clients[1].down() == r.five(0, 10, 5, -1, 1)
    assert clients[2].down() == b""
    world.clock.advance(0.1)
    assert clients[2].down() == r.five(0, 10, 5, -1, 1)
    assert all(client.idle() for client in clients)
    assert world.waiting.count == 0


def test_what_follows_a_held_hit_waits_for_its_reply() -> None:
    world = World()
    client = world.client()
    client.send(SHAPED + PING)
    assert client.answer(says(0, 10, 5, -1, 100_000, 100_000)) == b""
    assert client.up() == b""
    world.clock.advance(0.1)
    assert client.down() == r.five(0, 10, 5, -1, 1)
    assert client.up() == PING


# -- the end ---------------------------------------------------------------------------------------


def test_drain() -> None:
    world = World()
    one, two = world.waits(), world.waits()
    behind = world.client()
    behind.send(GET + WAITING)
    world.waiting.drain()
    assert [call.rule.reads for call in world.calls()] == [False, True]
    world.lane_answers(LATER, LATER)
    assert (one.down(), two.down()) == (TOLD_LATER, TOLD_LATER)
    behind.answer(NIL)
    behind.answer(LATER)
    while world.calls():
        world.lane_answers(LATER)
    assert behind.down() == TOLD_LATER
    assert not any(client.session.outstanding() for client in (one, two, behind))
