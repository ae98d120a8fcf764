"""held_hit: a hit with WAIT asks by lane or privately, and ends once with one reply."""

from __future__ import annotations

from math import inf

import pytest
from rlproxy.ratelimit.hit_replies import integers, rounded
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp import encoding
from rlproxy.session.held_hit import HeldHit

from tests.unit.ratelimit.test_wait_queue import ADMITTED, Clock, refused
from tests.unit.session.bench import PING, call_of
from tests.unit.session.parts import Parts

LATE = encoding.late(inf)
ADMITS = rounded([0, 10, 4, -1, 1_000_000], 1_000_000)


class Held(Parts):
    """A client that holds a hit.

    got: replies that the hit ended with.
    """

    def __init__(self, *, by_lane: bool = True) -> None:
        self.clock = Clock()
        super().__init__(waiting=WaitQueues(self.clock.time, self.clock.call_at))
        self.opened()
        self.allowed = by_lane
        self.got = self.parts.got
        self.held = call_of(self.caller, text=b"10 60 WAIT 50")
        self.lanes.append(self.held)
        self.hit = HeldHit(self.parts, self.held)

    def time(self) -> float:
        return self.clock.now

    def start(self) -> None:
        self.hit.start()

    def reply(self, data: bytes) -> None:
        """Redis replies to the request under way."""
        if self.lane.calls:
            call = self.lane.calls.pop()
            call.caller.lane_answered(call, data)
        else:
            assert self.answer(data) == b""
            self.hit.pass_reply()


@pytest.mark.parametrize("by_lane", [True, False])
def test_an_admitted_hit_ends_with_its_reply(by_lane: bool) -> None:
    held = Held(by_lane=by_lane)
    held.start()
    assert held.got == []
    assert len(held.lane.calls) == int(by_lane)
    assert (b"EVAL" in held.up()) == (not by_lane)
    assert (held.hit.owed_since is None) == by_lane
    held.reply(ADMITTED)
    assert held.got == [ADMITS]
    assert held.context.waiting.count == 0
    assert held.hit.owed_since is None


@pytest.mark.parametrize("by_lane", [True, False])
def test_a_refused_hit_is_sent_again_after_its_retry_after(by_lane: bool) -> None:
    held = Held(by_lane=by_lane)
    held.start()
    held.up()
    held.reply(refused(3_000_000))
    assert held.got == []
    held.clock.advance(2.9)
    assert not held.lane.calls
    held.up()
    held.clock.advance(0.2)
    assert bool(held.lane.calls) == by_lane
    held.reply(ADMITTED)
    assert held.got == [ADMITS]


def test_a_hit_by_lane_is_a_write_that_wait_must_cover() -> None:
    held = Held()
    held.start()
    assert held.private.cover.lane_wrote
    assert not held.private.cover.can_rewrite()
    held.reply(ADMITTED)
    assert held.private.cover.can_rewrite()
    held = Held(by_lane=False)
    held.start()
    assert not held.private.cover.lane_wrote


def test_calls_by_lane_keep_the_private_connection_alive() -> None:
    held = Held()
    held.start()
    assert held.up() == b""
    for _ in range(3):
        held.reply(refused(400_000))  # sooner than the timer would keep it alive
        held.clock.advance(0.41)
        assert held.lane.calls
        assert held.up() == encoding.EMPTY_REQUEST


@pytest.mark.parametrize("why", ["owing", "no room"])
def test_it_takes_the_private_connection_where_the_lane_is_unusable(why: str) -> None:
    held = Held()
    if why == "owing":
        held.private.slots.expect_one()
    else:
        held.lane.room = 0
    held.start()
    assert held.lane.calls == []
    assert held.hit.owed_since == held.clock.now


def test_an_array_by_the_private_connection_is_a_probe() -> None:
    held = Held(by_lane=False)
    held.private.state.probed = False
    held.start()
    held.reply(refused(3_000_000))
    assert held.private.state.probed


def test_an_error_ends_the_wait_without_the_name_of_the_script() -> None:
    held = Held(by_lane=False)
    held.private.state.probed = False
    held.start()
    held.reply(b"-OOM no script: " + b"0" * 40 + b", on @user_script:1.\r\n")
    assert held.got == [b"-OOM no\r\n"]
    assert not held.private.state.probed


def test_after_its_end_of_file_a_client_waits_for_one_reply() -> None:
    held = Held()
    held.requests.eof = True
    held.start()
    held.reply(refused(3_000_000))
    assert len(held.got) <= 1
    if not held.got:
        held.reply(refused(3_000_000))
    assert [integers(reply)[0] for reply in held.got] == [1]


def test_the_end_of_file_causes_a_last_call() -> None:
    held = Held()
    held.start()
    held.reply(refused(3_000_000))
    replies = held.hit.end_of_file()
    assert replies == bool(held.lane.calls)


def test_a_cancelled_hit_gets_no_reply() -> None:
    held = Held()
    held.start()
    held.hit.cancel()
    assert held.context.waiting.count == 0
    held.reply(ADMITTED)
    assert held.got == []
    assert held.hit.end_of_file()
    held.hit.cancel()


@pytest.mark.parametrize("by_lane", [True, False])
def test_a_late_call_ends_the_wait(by_lane: bool) -> None:
    held = Held(by_lane=by_lane)
    held.start()
    held.hit.late()
    assert held.got == [LATE]
    assert held.hit.owed_since is None
    held.hit.late()
    held.reply(ADMITTED)
    assert held.got == [LATE]


def test_a_call_whose_node_is_down_ends_the_wait_with_that_error() -> None:
    held, error = Held(), encoding.unreachable("redis:2", "refused")
    held.start()
    call = held.lane.calls.pop()
    call.caller.lane_failed(call, error, "unreachable")
    assert held.got == [error]
    assert held.context.stats.errors == {"unreachable": 1}


def test_a_late_reply_on_the_private_connection_is_dropped() -> None:
    held = Held(by_lane=False)
    held.start()
    held.hit.late()
    assert held.private.slots.settled()  # the client is owed nothing
    assert held.answer(ADMITTED) == b""
    held.hit.pass_reply()
    assert held.got == [LATE]
    held.private.slots.expect_one()
    assert held.answer(PING) == PING


def test_the_private_connection_is_kept_alive() -> None:
    held = Held()
    held.start()
    held.up()
    held.reply(refused(20_000_000))
    held.clock.advance(2.0)
    sent = held.up()
    assert sent == b"*0\r\n" * sent.count(b"*0\r\n")
    assert 2 <= sent.count(b"*0\r\n") <= 4
