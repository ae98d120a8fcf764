"""session: a client that is gone leaves no object that only a garbage collection would free."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from rlproxy.resp import encoding
from rlproxy.session.context import ServerFacts
from rlproxy.session.session import Session

from tests.contexts import worker_context
from tests.unit.ratelimit.test_wait_queue import refused
from tests.unit.session.bench import FIVE, GRAMMAR, HIT, PUSH, FakeLane
from tests.unit.session.test_session_share import GET, NIL
from tests.unit.session.waiting import ADMITTED, WAITING, Client, World

# What a lane does with a call.
EVENTS = ["lane_answered", "lane_failed", "lane_returned", "lost"]


class Freed:
    """Clients of a process without garbage collection, and without a look at older objects."""

    def __init__(self) -> None:
        self.world = World()

    def leaves(self, client: Client) -> None:
        """The client's socket is gone."""
        client.session.abandon()
        client.session.let_go()

    def left(self) -> int:
        """The number of clients whose objects are not freed."""
        self.world.clock.live()  # it forgets cancelled timers
        self.world.settings.timeouts._look()
        return sum(type(each) is Session for each in gc.get_objects())


@pytest.fixture
def freed() -> Iterator[Freed]:
    gc.disable()
    gc.freeze()
    try:
        yield Freed()
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_client_that_is_connected_is_counted(freed: Freed) -> None:
    client = freed.world.probed()
    assert freed.left() == 1
    freed.leaves(client)
    del client
    assert freed.left() == 0


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("hits", "reply"), [(WAITING, ADMITTED), (HIT, FIVE), (HIT * 3, FIVE)])
def test_hits_on_the_lane(freed: Freed, event: str, hits: bytes, reply: bytes) -> None:
    client = freed.world.probed()
    client.send(hits)
    freed.leaves(client)
    del client
    _ends(freed, event, reply)
    assert freed.left() == 0


@pytest.mark.parametrize("event", EVENTS)
def test_a_hit_behind_one_that_waits(freed: Freed, event: str) -> None:
    """On the private connection, its reply would be edited by a function that refers to it."""
    first = freed.world.waits()
    client = freed.world.probed()
    client.send(HIT)
    assert freed.world.calls()[0].original_rule is not None
    freed.leaves(client)
    del client
    _ends(freed, event, refused(2_000_000))
    assert freed.left() == 1
    assert first.session.outstanding()


def test_hits_whose_replies_waited_for_the_rest_of_a_push(freed: Freed) -> None:
    client = freed.world.probed()
    client.send(HIT)
    client.answer(PUSH[:9])
    _ends(freed, "lane_answered", FIVE)
    assert client.down() == b""
    freed.leaves(client)
    del client
    assert freed.left() == 0


def _ends(freed: Freed, event: str, reply: bytes) -> None:
    """The lane does with its calls what `event` names."""
    for call in freed.world.calls():
        if event == "lane_answered":
            call.caller.lane_answered(call, reply)
        elif event == "lane_failed":
            call.caller.lane_failed(call, encoding.LOST, "late")
        elif event == "lane_returned":
            call.caller.lane_returned(call)
        else:
            call.caller.lane_answered(call, encoding.LOST)
    freed.world.lane.calls.clear()


def test_a_batch_whose_replies_waited_for_the_rest_of_a_push(freed: Freed) -> None:
    lane = FakeLane()
    context = worker_context(
        grammar=GRAMMAR, server=ServerFacts("redis:1"), lane_of=lambda *_: lane, shares=True
    )
    session = Session(context)
    session.receive(GET)
    session.upstream_opened()
    session.upstream_received(NIL)
    session.receive(GET)
    session.upstream_received(PUSH[:9])
    call = lane.calls.pop()
    call.caller.lane_answered(call, NIL)
    call.caller.resume()
    session.abandon()
    session.let_go()
    context.timeouts._look()
    del session, call
    assert freed.left() == 0
