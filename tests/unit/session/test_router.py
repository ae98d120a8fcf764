"""router: where a request goes, and what the requests behind it wait for, by the session's state.

One row per destination: state, requests, calls on the lane, bytes on the private connection,
bytes for the client, wait. Hits with WAIT are in test_session_waiting.py, ordinary commands on
lanes in test_session_share.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.fairness.budget import MAX_CLIENT_HITS
from rlproxy.resp.encoding import bulks
from rlproxy.session import command_policy, waits
from rlproxy.session.router import MAX_EXPANDED

from tests.unit.session.bench import ARITY, HIT, PING, WRONG_HIT, Bench, in_place, opened, probed

GET = bulks(b"GET", b"k")
WAITS = bulks(b"RL.HIT", b"k", b"10", b"60", b"WAIT", b"5")
RESET = bulks(b"RL.RESET", b"k")
AUTH = bulks(b"AUTH", b"pw")
BROKEN = b"*x\r\n"
MULTI = bulks(b"MULTI")
NO_GET = b"-NOPERM command 'get' is denied by rlproxy (--deny-command)\r\n"

# -- states ----------------------------------------------------------------------------------------


def closed() -> Bench:
    """The private connection is not open."""
    return Bench()


def new() -> Bench:
    """The private connection is open; no hit was answered yet."""
    return opened()


def plain() -> Bench:
    """Hits may take the lane."""
    return probed()


def no_lane() -> Bench:
    """The identity may use no lane."""
    bench = probed()
    bench.allowed = False
    return bench


def busy() -> Bench:
    """The lane owes one reply."""
    bench = probed()
    bench.send(HIT)
    bench.lane.calls.clear()
    return bench


def owing() -> Bench:
    """The private connection owes the reply to a PING."""
    bench = probed()
    bench.send(PING)
    return bench


def full_lane() -> Bench:
    """The client has as many calls on the lane as it may."""
    bench = probed()
    bench.send(HIT * MAX_CLIENT_HITS)
    bench.lane.calls.clear()
    return bench


def full_private() -> Bench:
    """The client has as many hits on the private connection as it may."""
    bench = opened()
    bench.send(HIT * MAX_CLIENT_HITS)
    return bench


def transaction() -> Bench:
    """The private connection is in MULTI."""
    bench = probed()
    bench.send(MULTI)
    bench.answer(b"+OK\r\n")
    return bench


def denies() -> Bench:
    """The client must not send GET."""
    bench = probed()
    bench.session.requests.use(command_policy.table(("get",), False))
    return bench


DESTINATIONS: list[tuple[Callable[[], Bench], bytes, int, bytes, bytes, int]] = [
    # the lane
    (plain, HIT, 1, b"", b"", waits.WAIT_NOTHING),
    (plain, HIT + WRONG_HIT + HIT, 2, b"", b"", waits.WAIT_NOTHING),
    (plain, WRONG_HIT, 0, b"", ARITY, waits.WAIT_NOTHING),
    (plain, b"\r\n" + HIT + b"\r\n", 1, b"", b"", waits.WAIT_NOTHING),
    (plain, HIT + HIT[:9], 1, b"", b"", waits.WAIT_NOTHING),
    (busy, HIT, 1, b"", b"", waits.WAIT_NOTHING),
    (plain, HIT * 100, MAX_CLIENT_HITS, b"", b"", waits.WAIT_LANE),
    (full_lane, HIT, 0, b"", b"", waits.WAIT_LANE),
    (busy, PING, 0, b"", b"", waits.WAIT_LANE_EMPTY),
    (busy, HIT + PING, 0, b"", b"", waits.WAIT_LANE_EMPTY),
    (busy, WAITS, 0, b"", b"", waits.WAIT_LANE_EMPTY),
    (busy, RESET, 0, b"", b"", waits.WAIT_LANE_EMPTY),
    # the private connection
    (closed, HIT, 0, b"", b"", waits.WAIT_OPEN),
    (closed, b"\r\n", 0, b"", b"", waits.WAIT_NOTHING),
    (new, HIT, 0, in_place(), b"", waits.WAIT_NOTHING),
    (no_lane, HIT, 0, in_place(), b"", waits.WAIT_NOTHING),
    (plain, PING, 0, PING, b"", waits.WAIT_NOTHING),
    (plain, HIT + PING, 0, in_place() + PING, b"", waits.WAIT_NOTHING),
    (plain, RESET, 0, bulks(b"DEL", b"k"), b"", waits.WAIT_NOTHING),
    (owing, HIT, 0, in_place(), b"", waits.WAIT_NOTHING),
    (owing, WRONG_HIT, 0, b"", b"", waits.WAIT_NOTHING),
    (owing, WAITS, 0, b"", b"", waits.WAIT_QUIESCENT),
    (owing, AUTH, 0, b"", b"", waits.WAIT_QUIESCENT),
    (new, AUTH, 0, AUTH, b"", waits.WAIT_NOTHING),
    (full_private, HIT, 0, b"", b"", waits.WAIT_IN_PLACE),
    (full_private, PING, 0, PING, b"", waits.WAIT_NOTHING),
    (transaction, HIT, 0, in_place(), b"", waits.WAIT_NOTHING),
    (transaction, WRONG_HIT, 0, WRONG_HIT, b"", waits.WAIT_NOTHING),
    (plain, bulks(b"RL.STATS"), 0, bulks(b"EVAL", b"return ''", b"0"), b"", waits.WAIT_NOTHING),
    (denies, GET, 0, b"", NO_GET, waits.WAIT_NOTHING),
    # no further framing
    (plain, PING + BROKEN + PING, 0, PING + BROKEN + PING, b"", waits.WAIT_NOTHING),
    (denies, PING + BROKEN + PING, 0, PING + BROKEN, b"", waits.WAIT_NOTHING),
]


@pytest.mark.parametrize(
    ("state", "sent", "calls", "up", "down", "wait"),
    DESTINATIONS,
    ids=[f"{row[0].__name__}-{row[1][:24]!r}" for row in DESTINATIONS],
)
def test_destination(
    state: Callable[[], Bench], sent: bytes, calls: int, up: bytes, down: bytes, wait: int
) -> None:
    bench = state()
    bench.session.receive(sent)
    assert bench.session.wait == wait
    assert (len(bench.lane.calls), bench.up(), bench.down()) == (calls, up, down)


@pytest.mark.parametrize(
    ("state", "sent"), [(closed, PING), (busy, PING), (full_lane, HIT), (full_private, HIT)]
)
def test_a_request_that_waits_stays_unread(state: Callable[[], Bench], sent: bytes) -> None:
    bench = state()
    bench.send(sent)
    assert bench.session.requests.unread() == len(sent)


def test_the_text_of_scripts_per_tick_is_bounded() -> None:
    bench = opened()
    bench.send(bulks(b"SUBSCRIBE", b"c"))  # from here on, no bound of unanswered hits applies
    bench.session.receive(HIT * 1000)
    assert bench.session.wait == waits.WAIT_TICK
    sent = b"".join(bench.session.private.to_redis)
    assert len(sent) <= MAX_EXPANDED + 2 * len(in_place())
