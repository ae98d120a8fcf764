"""Late calls of a lane, their replies, and a lane without room."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from rlproxy.resp import encoding as r
from rlproxy.session.call import Call
from rlproxy.upstream.call_times import DEAD_S
from rlproxy.upstream.hit_lane import HitLane

from tests.unit.upstream.test_lane import (
    ADMITTED,
    HIT,
    NO_EVALSHA,
    NO_KEY,
    NOSCRIPT,
    OK,
    REFUSED,
    STAYS,
    Bench,
    Loop,
    by_source,
    client,
    listed,
    opener,
)

LATE = r.late(1.0)


class Late:
    """A client: its calls, those that were late, and those that got a reply of Redis."""

    def __init__(self) -> None:
        self.session = client()
        self.calls: list[Call] = []

    @property
    def late(self) -> list[Call]:
        return [call for call in self.calls if call.reply == LATE]

    @property
    def got(self) -> list[Call]:
        return [call for call in self.calls if call.reply not in (b"", LATE)]


class Faulty(Bench):
    """A lane whose calls may be late, one second after they were written."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.pool.context.timeouts.timeout_s = 1.0
        assert isinstance(self.lane, HitLane)
        self.shared = self.lane
        self.circuit = self.pool.context.timeouts.circuit
        loop.now = 100.0

    def call_of(self, caller: Late) -> Call:
        """A call that is to be written."""
        call = self.hit(HIT, b"k", caller.session)
        caller.calls.append(call)
        return call

    def sent_call(self, caller: Late | None = None) -> Call:
        """A call that is written now."""
        call = self.call_of(caller or Late())
        self.sent()
        return call

    def look(self, now: float) -> bool:
        self.loop.now = now
        return self.shared.overdue(now)


@pytest.fixture
def bench() -> Iterator[Faulty]:
    loop = Loop()
    try:
        yield Faulty(loop)
    finally:
        loop.end()


def test_many_are_late_together_and_each_in_its_time(bench: Faulty) -> None:
    first, second = Late(), Late()
    calls = [bench.call_of(first) for _ in range(3)]
    bench.sent()
    assert bench.look(100.25)
    bench.loop.now = 100.3
    later = [bench.sent_call(second) for _ in range(2)]
    assert bench.look(100.5)
    assert bench.look(101.0)
    assert (first.late, second.late) == (calls, [])
    assert bench.circuit.open
    assert bench.circuit.counts.timeouts == 3
    assert bench.look(101.4)
    assert bench.look(101.5)
    assert second.late == later
    bench.answer(listed(*[ADMITTED] * 3))
    assert not bench.circuit.open
    assert bench.look(101.6)
    bench.answer(ADMITTED * 2)
    assert not bench.look(101.7)
    assert first.got == second.got == []


@pytest.mark.parametrize("error", [NO_KEY, NO_EVALSHA, NOSCRIPT])
def test_what_waits_behind_late_calls_is_written_and_late_in_turn(
    bench: Faulty, error: bytes
) -> None:
    first, second, third = Late(), Late(), Late()
    again = [bench.call_of(first) for _ in range(2)]
    bench.sent()
    silent = bench.sent_call(second)
    bench.look(100.0)
    bench.answer(error)
    waiting = bench.call_of(third)
    assert bench.sent() == b""
    bench.look(101.0)
    assert (first.late, second.late, third.late) == (again, [silent], [])
    assert bench.sent() != b""
    bench.look(101.1)
    bench.look(102.2)
    assert third.late == [waiting]


def test_a_hit_sent_without_a_timeout_is_late_once_there_is_one(bench: Faulty) -> None:
    timeouts, caller = bench.pool.context.timeouts, Late()
    timeouts.timeout_s = inf
    call = bench.sent_call(caller)
    assert bench.look(200.0)
    assert caller.late == []
    timeouts.timeout_s = 1.0
    assert bench.look(200.1)
    assert caller.late == [call]


def test_answered_ones_are_not_late_and_those_behind_are(bench: Faulty) -> None:
    caller = Late()
    calls = [bench.sent_call(caller) for _ in range(5)]
    bench.look(100.2)
    bench.answer(ADMITTED * 3)
    bench.circuit.replied(100.21)  # on another connection, after these were written
    bench.look(101.2)
    assert not bench.circuit.open
    assert caller.got == calls[:3]
    assert caller.late == calls[3:]
    new = bench.sent_call(caller)
    bench.answer(ADMITTED * 3)
    assert caller.got == [*calls[:3], new]


def test_calls_that_carry_their_script_are_late_each_in_its_time(bench: Faulty) -> None:
    bench.server.loaded = False
    caller = Late()
    first = bench.sent_call(caller)
    for now in (100.3, 100.6):
        bench.loop.now = now
        bench.sent_call(caller)
    bench.look(101.0)
    assert caller.late == [first]


def test_a_script_that_is_missing_is_not_brought_along_for_a_late_call(bench: Faulty) -> None:
    caller = Late()
    bench.sent_call(caller)
    bench.look(100.0)
    bench.look(101.0)
    bench.answer(NOSCRIPT)
    assert bench.sent() == b""
    assert not bench.server.loaded


def test_a_call_that_is_sent_again_has_the_timeout_anew(bench: Faulty) -> None:
    caller = Late()
    call = bench.sent_call(caller)
    bench.sent_call()
    bench.look(100.0)
    bench.loop.now = 100.4
    bench.answer(NOSCRIPT)
    assert bench.sent() == b""
    bench.loop.now = 100.8
    bench.answer(ADMITTED)
    assert bench.sent() == by_source(HIT)
    bench.look(100.8)
    bench.look(101.7)
    assert caller.late == []
    bench.look(101.8)
    assert caller.late == [call]
    bench.answer(ADMITTED)
    assert caller.got == []


def test_a_call_to_send_again_is_late_with_those_behind_it(bench: Faulty) -> None:
    caller, behind = Late(), Late()
    call, other = bench.sent_call(caller), bench.sent_call(behind)
    bench.look(100.0)
    bench.loop.now = 100.4
    bench.answer(NOSCRIPT)
    bench.look(100.9)
    assert caller.late == []
    bench.look(101.0)
    assert (caller.late, behind.late) == ([call], [other])
    assert bench.circuit.counts.timeouts == 2
    bench.answer(ADMITTED)
    assert bench.sent() == b""  # it is never sent again


def test_a_late_refusal_is_remembered_from_its_sending(bench: Faulty) -> None:
    bench.pool.context.timeouts.timeout_s = 0.2
    bench.ask(REFUSED)
    bench.call_of(Late())
    assert bench.sent() == opener(HIT)
    bench.look(100.0)
    bench.look(100.2)
    bench.loop.now = 100.5
    bench.answer(OK + STAYS)
    assert bench.known()
    bench.loop.now = 101.0  # a second since it was sent
    assert not bench.known()


def test_a_lane_whose_calls_are_answered_keeps_no_marks(bench: Faulty) -> None:
    for at in range(3):
        bench.sent_call()
        bench.answer(ADMITTED)
        assert not bench.look(100.0 + at)
    assert not bench.shared._times._marks


def test_a_lane_that_is_lost_tells_late_ones_nothing_more(bench: Faulty) -> None:
    caller = Late()
    late = bench.sent_call(caller)
    bench.look(100.0)
    bench.look(101.0)
    call = bench.sent_call(caller)
    bench.wire.abort()
    bench.loop.turns()
    assert caller.late == [late]
    assert caller.got == [call]
    assert call.reply == r.LOST
    assert bench.shared.room == bench.pool.context.max_lane_hits
    assert not bench.look(101.1)


def test_a_lane_that_is_silent_while_others_hear_redis_is_given_up(bench: Faulty) -> None:
    bench.sent_call()
    bench.look(100.0)
    bench.look(101.0)
    bench.circuit.replied(101.1)
    bench.look(101.1 + max(DEAD_S, 1.0) - 0.1)
    assert not bench.wire.aborted
    bench.look(101.2 + max(DEAD_S, 1.0))
    assert bench.wire.aborted


def test_a_lane_with_late_calls_is_silent_from_its_latest_reply_on(bench: Faulty) -> None:
    for _ in range(2):
        bench.sent_call()
    bench.look(100.0)
    bench.circuit.replied(100.9)
    bench.look(101.0)
    bench.answer(ADMITTED)
    bench.look(101.1)
    bench.circuit.replied(102.0)
    bench.look(102.0)
    assert not bench.wire.aborted
    bench.look(102.2)
    assert bench.wire.aborted


def test_room(bench: Faulty) -> None:
    bench.pool.context.max_lane_hits = 5
    bench.ask(ADMITTED, key=b"x")
    assert bench.shared.room == 5
    calls = [bench.sent_call() for _ in range(3)]
    assert bench.shared.room == 2
    bench.answer(ADMITTED * 2)
    assert bench.shared.room == 4
    assert len(calls) == 3
