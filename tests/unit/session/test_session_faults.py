"""session: what hits get while Redis does not answer, and what becomes of late replies."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import inf

import pytest
from rlproxy.ratelimit.hit_replies import five
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.session.session import Session
from rlproxy.session.timeouts import MAX_S

from tests.contexts import hit_timeouts, worker_context
from tests.unit.session.bench import (
    ARITY,
    FIVE,
    GRAMMAR,
    HIT,
    PING,
    PONG,
    WRONG_HIT,
    Bench,
    call_of,
    in_place,
)

MODES = {"error": None, "allow": five(0, 10, 10, -1, 0), "deny": five(1, 10, 0, 1, 1)}
LATE = encoding.late(1.0)
REFUSED = encoding.unreachable("redis:1", "connection refused")
PEEK = bulks(b"RL.PEEK", b"k", b"10", b"60")
HIT_WAIT = bulks(b"RL.HIT", b"k", b"10", b"60", b"WAIT", b"10")
MULTI, EXEC = bulks(b"MULTI"), bulks(b"EXEC")


class Faulty(Bench):
    """A session whose hits may be late, one second after they were sent."""

    def __init__(self, mode: str = "error") -> None:
        super().__init__()
        self.circuit = CircuitBreaker()
        self.now = 0.0
        self.looks: list[Callable[[], None]] = []  # that are due
        self.timeouts = hit_timeouts(
            self.circuit, 1.0, lambda: self.now, lambda _, look: self.looks.append(look)
        )
        shared = worker_context(
            grammar=GRAMMAR,
            server=ServerFacts("redis:1"),
            lane_of=self.lane_of,
            timeouts=self.timeouts,
        )
        shared.failure.mode = mode
        self.session = Session(shared)
        self.mode = mode

    def answer_at(self, now: float, data: bytes) -> bytes:
        self.now = now
        return self.answer(data)

    def send_at(self, now: float, data: bytes) -> bytes:
        self.now = now
        return self.send(data)

    def without(self, error: bytes) -> bytes:
        """What a hit gets."""
        return MODES[self.mode] or error

    def open(self) -> Faulty:
        """Open the private connection."""
        self.send(PING)
        self.session.upstream_opened()
        self.up()
        assert self.answer(PONG) == PONG
        return self


each_mode = pytest.mark.parametrize("mode", MODES)


@each_mode
def test_late_on_the_private_connection(mode: str) -> None:
    bench = Faulty(mode).open()
    assert bench.send_at(10.0, HIT + HIT + PEEK)
    assert bench.session.overdue(10.9)
    assert bench.down() == b""
    assert bench.session.overdue(11.0)
    assert bench.down() == bench.without(LATE) * 2 + LATE
    assert not bench.session.outstanding()
    assert bench.circuit.open
    assert bench.circuit.counts.timeouts == 3
    assert not bench.session.overdue(11.1)
    # the replies are dropped when they come, and what is behind them is in its place
    assert bench.send_at(12.0, PING) == PING
    assert bench.answer_at(13.0, FIVE + FIVE[:3]) == b""
    assert bench.answer_at(13.0, FIVE[3:] + b"-WRONGTYPE x\r\n" + PONG) == PONG
    assert not bench.circuit.open


def test_requests_behind_those_that_waited_for_the_connection_open_it_again() -> None:
    bench = Faulty()
    bench.send(PING + PING[:-1])
    bench.session.stops_reading()
    bench.session.upstream_failed("connection refused")
    assert bench.send(PING[-1:] + PING) + bench.down() == b""
    bench.session.reads_on()
    assert bench.down() == REFUSED * 2
    bench.session.upstream_opened()
    assert bench.up() == PING


def test_hits_behind_a_held_one_that_is_late_do_not_count_as_late() -> None:
    bench = Faulty().open()
    bench.send_at(10.0, HIT_WAIT + HIT * 2)
    bench.circuit.connect_failed(10.5, "connection refused")
    assert bench.session.overdue(11.0)
    assert bench.down() == LATE + REFUSED * 2
    assert bench.circuit.counts.timeouts == 1
    assert bench.circuit.counts.without == 3


def test_a_session_is_looked_at_until_its_hits_are_answered() -> None:
    bench = Faulty().open()
    flushed: list[bytes] = []
    bench.session.flush = lambda: flushed.append(bench.down())
    bench.send_at(10.0, HIT)
    while bench.looks and bench.now < 20.0:
        bench.now += MAX_S
        bench.looks.pop()()
    assert flushed == [LATE]
    assert 11.0 <= bench.now < 11.2


def test_no_hit_is_late_while_the_timeout_is_off() -> None:
    bench = Faulty().open()
    bench.timeouts.timeout_s = inf
    bench.send_at(10.0, HIT)
    assert bench.session.overdue(20.0)
    assert bench.down() == b""
    bench.timeouts.timeout_s = 1.0
    bench.session.overdue(20.0)
    assert bench.down() == LATE


def test_each_hit_has_its_own_time() -> None:
    bench = Faulty("allow").open()
    bench.send_at(10.0, HIT)
    bench.send_at(10.5, HIT)
    assert bench.session.overdue(11.0)
    assert bench.down() == bench.without(b"")
    bench.session.overdue(11.5)
    assert bench.down() == bench.without(b"")


def test_counted_from_when_all_before_it_were_answered() -> None:
    bench = Faulty("allow").open()
    bench.send_at(10.0, bulks(b"BLPOP", b"q", b"0") + HIT + WRONG_HIT + PING)
    assert bench.session.overdue(60.0)
    assert bench.answer_at(60.0, b"*-1\r\n") == b"*-1\r\n"
    assert bench.session.overdue(60.9)
    bench.session.overdue(61.0)
    assert bench.down() == bench.without(b"") + ARITY
    assert bench.answer_at(62.0, FIVE + PONG) == PONG


def test_never_in_a_transaction_nor_where_replies_cant_be_counted() -> None:
    for before in (MULTI, bulks(b"CLIENT", b"REPLY", b"OFF"), bulks(b"SUBSCRIBE", b"c")):
        bench = Faulty("allow").open()
        bench.send_at(10.0, before + HIT)
        assert not bench.session.overdue(100.0)
        assert bench.down() == b""


def test_never_while_the_client_leaves_its_replies_unread() -> None:
    bench = Faulty("allow").open()
    bench.send_at(10.0, HIT)
    bench.session.stops_reading()
    assert bench.session.overdue(20.0)
    bench.now = 20.5
    bench.session.reads_on()
    assert bench.session.overdue(21.0)
    assert bench.down() == b""
    bench.session.overdue(21.5)
    assert bench.down() == bench.without(b"")


def test_no_part_holds_a_session_that_is_let_go() -> None:
    """Reference counts free it, even if a lane returns a call, or Redis can't be reached."""
    bench = Faulty()
    bench.session.context.shares = True
    bench.session = Session(bench.session.context)
    bench.send(HIT * 2)
    bench.session.abandon()
    bench.session.let_go()
    bench.session.lane_returned(call_of(bench.session))
    bench.session.upstream_failed("connection refused")
    holders = [type(each) for each in gc.get_referrers(bench.session)]
    assert [each.__name__ for each in holders if each.__module__.startswith("rlproxy.")] == []


def test_what_was_lost_with_its_connection_is_not_admitted() -> None:
    bench = Faulty("allow").open()
    bench.send(HIT)
    bench.session.upstream_lost()
    assert bench.down() == b""
    assert bench.session.closed
    assert bench.circuit.counts.without == 0


def test_a_command_that_blocks_is_no_outage_unless_nothing_was_ever_answered() -> None:
    bench = Faulty().open()
    bench.send_at(10.0, bulks(b"BLPOP", b"k", b"0"))
    bench.session.overdue(20.0)
    assert not bench.circuit.open
    fresh = Faulty()
    fresh.send_at(10.0, bulks(b"BLPOP", b"k", b"0"))
    fresh.session.upstream_opened()
    fresh.up()
    fresh.session.overdue(20.0)
    assert fresh.circuit.open


def test_late_while_it_opens() -> None:
    bench = Faulty("allow")
    bench.send_at(10.0, HIT)
    assert bench.session.overdue(10.9)
    assert bench.down() == b""
    bench.session.overdue(11.0)
    assert bench.down() == bench.without(b"")


def test_hits_that_come_while_it_opens_are_answered_at_once() -> None:
    bench = Faulty("allow")
    bench.send(HIT)
    bench.circuit.connect_failed(1.0, "connection refused")
    assert bench.down() == b""
    bench.send(HIT)
    assert bench.down() == bench.without(b"") * 2


@each_mode
def test_while_the_circuit_is_open_no_hit_is_sent(mode: str) -> None:
    bench = Faulty(mode)
    bench.circuit.connect_failed(10.0, "connection refused")
    assert bench.send_at(11.0, HIT * 3 + WRONG_HIT + PEEK) == b""
    assert bench.down() == bench.without(REFUSED) * 3 + ARITY + REFUSED
    assert bench.session.private.status == private_stream.PRIVATE_NONE
    bench.send_at(11.0, HIT + PING + HIT)  # an ordinary command goes its way
    assert bench.down() == bench.without(REFUSED)
    assert bench.session.private.status == private_stream.PRIVATE_OPENING
    bench.session.upstream_opened()
    assert bench.up() == PING + in_place()
    assert bench.answer_at(12.0, PONG + FIVE) == PONG + FIVE
    assert not bench.circuit.open


def test_while_it_is_open_a_lane_gets_no_more() -> None:
    bench = Faulty("allow").open()
    bench.send(HIT)
    bench.answer(FIVE)
    bench.send(HIT)
    bench.circuit.timed_out(1, 1.0, 2.0, 1.0)
    assert bench.circuit.open
    bench.send_at(2.0, HIT)
    assert len(bench.lane.calls) == 1
    bench.session.lane_failed(bench.lane.calls[0], LATE, "late")
    bench.session.resume()
    assert bench.down() == bench.without(b"") * 2
    bench.send_at(9.0, HIT)
    assert len(bench.lane.calls) == 1
