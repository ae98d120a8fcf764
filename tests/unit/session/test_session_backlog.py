"""session: the shares of backlogged clients, their turns, and slow readers."""

from __future__ import annotations

from functools import partial

import pytest
from rlproxy.fairness.budget import CLIENT_WORK, LEAST_HITS
from rlproxy.ratelimit.hit_replies import five
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits
from rlproxy.session.held_hit import HeldHit

from tests.contexts import MAX_CLIENT_HITS
from tests.unit.session.bench import (
    ARITY,
    FIVE,
    HIT,
    PING,
    PONG,
    WRONG_HIT,
    Bench,
    FakeLane,
    context_of,
    in_place,
    opened,
    probed,
)

BLPOP = bulks(b"BLPOP", b"k", b"0")
HELD = bulks(b"RL.HIT", b"held", b"10", b"60", b"WAIT", b"60")
REFUSED = five(1, 10, 0, 5, 5)
NIL = b"*-1\r\n"


def test_wrong_hits_that_wait_for_their_place_are_bounded() -> None:
    bench = opened()
    assert bench.send(BLPOP + (WRONG_HIT + PING) * 200) == BLPOP + PING * MAX_CLIENT_HITS
    out = bench.answer(NIL + PONG * MAX_CLIENT_HITS)
    assert out == NIL + (ARITY + PONG) * MAX_CLIENT_HITS + ARITY  # (the next one's place is here)
    assert bench.up() == PING * (MAX_CLIENT_HITS + 1)


def test_what_waits_for_answers_goes_on_when_these_are_late() -> None:
    bench = opened()
    bench.session.context.timeouts.timeout_s = 1.0
    bench.send(HIT * (MAX_CLIENT_HITS + 1))
    bench.session.overdue(1.5)
    # The circuit is open now: the last one is answered without Redis, too.
    assert bench.down().count(b"-UPSTREAMDOWN") == MAX_CLIENT_HITS + 1
    assert bench.up() == b""


def test_a_transaction_is_not_cut() -> None:
    bench = opened()
    sent = bench.send(bulks(b"MULTI") + HIT * 200)
    assert sent == bulks(b"MULTI") + in_place() * 200


class Crowded:
    """Sessions that share a lane."""

    def __init__(self, count: int) -> None:
        self.lane = FakeLane()
        self.shared = context_of(self.lane)
        self.shared.lane_of = lambda *_: self.lane
        self.benches = [probed(context=self.shared) for _ in range(count)]
        self.other = self.benches.pop()
        self.got = [b""] * len(self.benches)
        self.line: list[Bench] = []
        for bench in self.benches:
            bench.session.flush = partial(self.line.append, bench)

    def answer(self) -> list[int]:
        """Redis answers what is on its way; how many each has on its way then."""
        calls, self.lane.calls = self.lane.calls, []
        for call in calls:
            call.caller.lane_answered(call, REFUSED if isinstance(call.caller, HeldHit) else FIVE)
        for caller in dict.fromkeys(call.caller for call in calls):
            caller.resume()
        return self.turns()

    def turns(self) -> list[int]:
        """All have the turns of the loop that they wait for; how many each has on its way."""
        for bench in [*self.line, *self.benches]:
            if bench.session.wait == waits.TICK:
                self.shared.budget.work = 0
                bench.session.take_turn()
        self.line.clear()
        for number, bench in enumerate(self.benches):
            self.got[number] += bench.down()
        return [
            sum(call.caller is bench.session for call in self.lane.calls) for bench in self.benches
        ]


@pytest.mark.heavy
def test_backlogged_clients_share_the_hits_of_one() -> None:
    for count, each in ((1, MAX_CLIENT_HITS), (2, 32), (5, 12), (MAX_CLIENT_HITS, LEAST_HITS)):
        crowded = Crowded(count + 1)
        for bench in crowded.benches:
            bench.send(HIT * 300)
        # A client is backlogged once the first hits leave more buffered.
        assert crowded.turns() == [MAX_CLIENT_HITS] * count
        crowded.other.send(HIT)  # a client without a backlog is not concerned
        assert crowded.other.session.wait == waits.NOTHING
        assert crowded.answer() == [each] * count
        while any(crowded.answer()):
            pass
        assert crowded.got == [FIVE * 300] * count
        assert crowded.shared.budget.backlogged == 0


LEAVES = ["goes", "is lost", "is closed", "holds a hit", "sends something else", "is slow"]


@pytest.mark.parametrize("how", LEAVES)
def test_the_share_of_a_client_that_leaves_is_free_again(how: str) -> None:
    crowded = Crowded(3)
    rest = HELD if how == "holds a hit" else PING * 3
    leaver, stayer = crowded.benches
    leaver.send(HIT * (MAX_CLIENT_HITS + 40) + rest)
    stayer.send(HIT * 1000)
    assert crowded.answer() == [32, 32]
    session = leaver.session
    if how == "is lost":
        session.upstream_lost()
    elif how in ("goes", "is closed"):
        # Its replies may stay unread for long: only "goes" is followed by let_go().
        session.abandon()
        if how == "goes":
            session.let_go()
    elif how == "is slow":
        session.stops_reading()
    crowded.answer()
    crowded.answer()
    if how == "holds a hit":
        assert session.wait == waits.HELD
    assert crowded.shared.budget.backlogged == 1
    assert sum(crowded.answer()) == MAX_CLIENT_HITS


def test_requests_of_a_client_that_leaves_replies_unread_are_held() -> None:
    bench = opened()
    bench.session.stops_reading()
    assert bench.send(HIT + PING + WRONG_HIT) == b""
    assert bench.session.wait == waits.READ
    assert bench.down() == b""
    assert bench.session.outstanding()
    bench.session.reads_on()
    assert bench.up() == in_place() + PING
    assert bench.answer(FIVE + PONG) == FIVE + PONG + ARITY


def test_in_a_transaction_requests_go_on_while_replies_are_left_unread() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI"))
    bench.session.stops_reading()
    assert bench.send(HIT + PING) == in_place() + PING


@pytest.mark.parametrize("slow", [False, True])
def test_a_session_that_is_abandoned_waits_for_no_turn(slow: bool) -> None:
    """Else its owner would give it turns that it does not take."""
    bench = opened()
    if slow:
        bench.session.stops_reading()
        bench.session.receive(HIT)
    else:
        bench.session.receive(PING * 2 * CLIENT_WORK)
    assert bench.session.wait == (waits.READ if slow else waits.TICK)
    bench.session.abandon()
    assert bench.session.wait == waits.CLOSE
