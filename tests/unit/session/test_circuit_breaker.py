"""When hits stop going to Redis, and when they go again; times are numbers."""

from __future__ import annotations

import pytest
from rlproxy.session.circuit_breaker import SETTLED_S, CircuitBreaker


def opened(now: float = 100.0) -> CircuitBreaker:
    made = CircuitBreaker()
    made.connect_failed(now, "connection refused")
    assert made.open
    return made


def test_a_refused_connection_opens_it_at_once() -> None:
    circuit = CircuitBreaker()
    assert not circuit.open
    circuit.connect_failed(5.0, "connection refused")
    assert (circuit.open, circuit.since, circuit.why) == (True, 5.0, "connection refused")
    assert circuit.counts.connects_failed == 1
    circuit.connect_failed(6.0, "no answer")
    assert (circuit.since, circuit.why) == (5.0, "connection refused")
    assert (circuit.counts.connects_failed, circuit.counts.opened) == (2, 1)


def test_a_connection_that_failed_for_want_of_something_here_does_not() -> None:
    circuit = CircuitBreaker()
    circuit.connect_failed(5.0, "Too many open files", lacking=True)
    assert not circuit.open
    assert circuit.counts.connects_failed == 1


def test_a_recent_reply_keeps_it_closed() -> None:
    circuit = CircuitBreaker()
    circuit.replied(5.0)
    circuit.connect_failed(5.0 + SETTLED_S / 2, "connection refused")
    assert not circuit.open
    circuit.connect_failed(5.001 + SETTLED_S, "connection refused")
    assert circuit.open


@pytest.mark.parametrize(("replied_at", "opens"), [(9.0, True), (10.0, True), (10.1, False)])
def test_late_hits_open_it_without_a_later_reply(replied_at: float, opens: bool) -> None:
    circuit = CircuitBreaker()
    circuit.replied(replied_at)
    circuit.timed_out(3, 10.0, 11.0, 1.0)
    assert circuit.open is opens
    assert circuit.counts.timeouts == 3
    assert circuit.why == ("no answer within 1000 ms" if opens else "")


def test_any_reply_closes_it_and_the_hits_without_redis_are_logged() -> None:
    logged: list[tuple[float, int]] = []
    circuit = CircuitBreaker()
    circuit.counts.without = 7  # before
    circuit.on_close = lambda out_s, without: logged.append((out_s, without))
    circuit.connect_failed(100.0, "connection refused")
    circuit.counts.without += 6
    circuit.replied(103.5)
    assert not circuit.open
    assert (circuit.since, circuit.why, circuit.last_reply_at) == (103.5, "", 103.5)
    circuit.replied(104.0)
    assert logged == [(3.5, 6)]
