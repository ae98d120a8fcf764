"""router: where a request goes, and what the requests behind it wait for, by the session's state.

One row per destination: state, requests, calls on the lane, bytes on the private connection, wait.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.fairness.budget import CLIENT_WORK
from rlproxy.ratelimit.hit_replies import TOO_LONG
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import BROKEN_BULK
from rlproxy.session import command_policy, waits
from rlproxy.session.connection_state import RAW
from rlproxy.session.private_stream import MAX_LANE_CALL
from rlproxy.session.router import MAX_EXPANDED, Router

from tests.contexts import MAX_CLIENT_HITS
from tests.unit.session.bench import (
    ARITY,
    DENIED,
    FIVE,
    HIT,
    PING,
    WRONG_HIT,
    in_place,
    numbered,
)
from tests.unit.session.parts import Parts

GET = bulks(b"GET", b"k")
WAITS = bulks(b"RL.HIT", b"k", b"10", b"60", b"WAIT", b"5")
RESET = bulks(b"RL.RESET", b"k")
AUTH = bulks(b"AUTH", b"pw")
BROKEN = b"*x\r\n"
MULTI = bulks(b"MULTI")


class Routed(Parts):
    """A router with the parts that it sends to."""

    def __init__(self, *, share: bool = False) -> None:
        super().__init__(share=share)
        self.router = Router(self.parts)

    def route(self, data: bytes = b"") -> int:
        """Feed `data`, and route. Returns the wait."""
        self.requests.feed(data)
        return self.router.route()


@pytest.fixture
def parts() -> Routed:
    return Routed()


# -- states ----------------------------------------------------------------------------------------


def closed(parts: Routed) -> None:
    """The private connection is not open."""


def new(parts: Routed) -> None:
    """The private connection is open; no hit was answered yet."""
    parts.opened()
    parts.private.state.probed = False


def plain(parts: Routed) -> None:
    """Hits may take the lane."""
    parts.opened()
    parts.router.sends_hits = True


def no_lane(parts: Routed) -> None:
    """The identity may use no lane."""
    plain(parts)
    parts.allowed = False


def busy(parts: Routed) -> None:
    """The lane owes one reply."""
    plain(parts)
    parts.route(HIT)
    parts.lane.calls.clear()


def owing(parts: Routed) -> None:
    """The private connection owes the reply to a PING."""
    plain(parts)
    parts.route(PING)
    parts.up()


def uncounted(parts: Routed) -> None:
    """The private connection owes the reply to a SELECT; later ones cannot be counted."""
    plain(parts)
    parts.route(bulks(b"SELECT", b"1"))
    parts.up()
    parts.private.state.lower(RAW)


def full_lane(parts: Routed) -> None:
    """The client has as many calls on the lane as it may."""
    plain(parts)
    parts.route(HIT * MAX_CLIENT_HITS)
    parts.lane.calls.clear()


def full_private(parts: Routed) -> None:
    """The client has as many hits on the private connection as it may."""
    new(parts)
    parts.route(HIT * MAX_CLIENT_HITS)
    parts.up()


def transaction(parts: Routed) -> None:
    """The private connection is in MULTI."""
    plain(parts)
    parts.route(MULTI)
    parts.answer(b"+OK\r\n")
    parts.up()


def denies(parts: Routed) -> None:
    """The client must not send GET."""
    plain(parts)
    parts.requests.commands = command_policy.table(("get",), False)


State = Callable[[Routed], None]
LONG = b"k" * MAX_LANE_CALL
EXEC, STATS, COUNT = bulks(b"EXEC"), bulks(b"RL.STATS"), bulks(b"COMMAND", b"COUNT")
REPORT = bulks(b"EVAL", b"return ''", b"0")
NO_GET = b"-NOPERM command 'get' is denied by rlproxy (--deny-command)\r\n"

DESTINATIONS: list[tuple[State, bytes, int, bytes, bytes, int]] = [
    # state, requests, new calls on the lane, to Redis, to the client, wait
    # the lane
    (plain, HIT, 1, b"", b"", waits.NOTHING),
    (plain, HIT + WRONG_HIT + HIT, 2, b"", b"", waits.NOTHING),
    (plain, WRONG_HIT, 0, b"", ARITY, waits.NOTHING),
    (plain, b"\r\n" + HIT + b"\r\n", 1, b"", b"", waits.NOTHING),
    (plain, HIT + HIT[:9], 1, b"", b"", waits.NOTHING),
    (busy, HIT, 1, b"", b"", waits.NOTHING),
    (plain, HIT * 100, MAX_CLIENT_HITS, b"", b"", waits.ROOM),
    (full_lane, HIT, 0, b"", b"", waits.ROOM),
    (busy, PING, 0, b"", b"", waits.EMPTY),
    (busy, HIT + PING, 0, b"", b"", waits.EMPTY),
    (busy, WAITS, 0, b"", b"", waits.EMPTY),
    (busy, HIT + WAITS, 1, b"", b"", waits.EMPTY),
    (busy, RESET, 0, b"", b"", waits.EMPTY),
    # the private connection
    (closed, HIT, 0, b"", b"", waits.OPEN),
    (closed, b"\r\n", 0, b"", b"", waits.NOTHING),
    (new, HIT, 0, in_place(), b"", waits.NOTHING),
    (no_lane, HIT, 0, in_place(), b"", waits.NOTHING),
    (plain, PING, 0, PING, b"", waits.NOTHING),
    (plain, HIT + PING, 0, in_place() + PING, b"", waits.NOTHING),
    (plain, numbered(LONG), 0, in_place(LONG), b"", waits.NOTHING),
    (plain, RESET, 0, bulks(b"DEL", b"k"), b"", waits.NOTHING),
    (owing, HIT, 0, in_place(), b"", waits.NOTHING),
    (owing, WRONG_HIT, 0, b"", b"", waits.NOTHING),
    (full_private, HIT, 0, b"", b"", waits.ROOM),
    (full_private, PING, 0, PING, b"", waits.NOTHING),
    (transaction, HIT, 0, in_place(), b"", waits.NOTHING),
    (transaction, WRONG_HIT, 0, WRONG_HIT, b"", waits.NOTHING),
    (plain, STATS, 0, REPORT, b"", waits.NOTHING),
    (plain, STATS + STATS, 0, REPORT, b"", waits.EMPTY),
    (owing, STATS, 0, b"", b"", waits.EMPTY),
    (plain, MULTI + EXEC + STATS, 0, MULTI + EXEC, b"", waits.EMPTY),
    (transaction, STATS, 0, STATS, b"", waits.NOTHING),
    (plain, COUNT, 0, COUNT, b"", waits.NOTHING),
    (plain, MULTI + EXEC + COUNT, 0, MULTI + EXEC, b"", waits.EMPTY),
    (uncounted, COUNT, 0, COUNT, b"", waits.NOTHING),
    (uncounted, STATS + STATS, 0, REPORT + REPORT, b"", waits.NOTHING),
    # held
    (plain, WAITS, 0, b"", b"", waits.HELD),
    (new, WAITS, 0, b"", b"", waits.HELD),
    (owing, WAITS, 0, b"", b"", waits.EMPTY),
    (owing, AUTH, 0, b"", b"", waits.EMPTY),
    (new, AUTH, 0, AUTH, b"", waits.NOTHING),
    (uncounted, WAITS, 0, in_place(), b"", waits.NOTHING),
    (uncounted, AUTH, 0, AUTH, b"", waits.NOTHING),
    # denied
    (denies, GET, 0, b"", NO_GET, waits.NOTHING),
    # no further framing
    (plain, PING + BROKEN + PING, 0, PING + BROKEN + PING, b"", waits.NOTHING),
]


@pytest.mark.parametrize(
    ("state", "sent", "calls", "up", "down", "wait"),
    DESTINATIONS,
    ids=[f"{row[0].__name__}-{row[1][:24]!r}" for row in DESTINATIONS],
)
def test_destination(
    parts: Routed, state: State, sent: bytes, calls: int, up: bytes, down: bytes, wait: int
) -> None:
    state(parts)
    parts.down()
    assert parts.route(sent) == wait
    assert (len(parts.lane.calls), parts.up(), parts.down()) == (calls, up, down)


# -- what waits ------------------------------------------------------------------------------------


def test_the_held_hit_is_left_for_the_session(parts: Routed) -> None:
    plain(parts)
    assert parts.route(WAITS + PING) == waits.HELD
    call = parts.lanes.head
    assert call is not None and call.rule.waits
    assert call.caller is parts.caller
    assert parts.requests.unread() == len(PING)


# -- bounds ----------------------------------------------------------------------------------------


def test_one_tick_has_the_work_of_one_client(parts: Routed) -> None:
    plain(parts)
    assert parts.route(PING * (CLIENT_WORK + 1)) == waits.TICK
    assert parts.up() == PING * CLIENT_WORK
    assert parts.context.stats.commands == CLIENT_WORK
    assert CLIENT_WORK <= parts.context.budget.work <= CLIENT_WORK + 1
    assert parts.route() == waits.NOTHING
    assert parts.up() == PING


def test_the_text_of_scripts_per_tick_is_bounded(parts: Routed) -> None:
    new(parts)
    parts.router.route()
    parts.private.state.lower(RAW)  # no bound of hits applies
    assert parts.route(HIT * 1000) == waits.TICK
    sent = parts.up()
    assert len(sent) <= MAX_EXPANDED + 2 * len(in_place())


# -- the lane --------------------------------------------------------------------------------------


def test_a_reply_that_the_lane_knows_leaves_at_once(parts: Routed) -> None:
    plain(parts)
    parts.lane.known[b"$1\r\nk\r\n"] = DENIED
    parts.route(HIT)
    assert parts.down() == DENIED
    assert parts.lanes.head is None
    assert not parts.private.cover.lane_wrote


def test_a_reply_that_the_lane_knows_waits_for_the_end_of_a_push(parts: Routed) -> None:
    plain(parts)
    parts.route(HIT)
    parts.private.slots.feed(b">2\r\n$7\r\nmess")
    parts.private.slots.pass_pushes()
    parts.down()
    assert parts.lanes.head is not None
    parts.lanes.head.reply = FIVE
    parts.lane.known[b"$1\r\nx\r\n"] = DENIED
    parts.route(bulks(b"RL.HIT", b"x", b"10", b"60"))
    assert parts.down() == b""
    parts.lanes.emit()
    assert parts.down() == FIVE + DENIED


# -- the pipe --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "command", "error"),
    [
        (denies, bulks(b"GET", b"k" * 100_000), NO_GET),
        (plain, bulks(b"RL.HIT", b"k" * 100_000, b"10", b"60"), TOO_LONG),
    ],
)
def test_a_command_in_parts_that_redis_must_not_get(
    parts: Routed, state: State, command: bytes, error: bytes
) -> None:
    state(parts)
    for start in range(0, len(command), 30_000):
        assert parts.route(command[start : start + 30_000]) == waits.NOTHING
    assert parts.down() == error
    parts.route(HIT)
    assert len(parts.lane.calls) == 1
    assert parts.up() == b""


def test_a_denied_command_in_parts_that_becomes_malformed(parts: Routed) -> None:
    """Redis gets a mistake in its place, and nothing that follows."""
    denies(parts)
    parts.route(b"*3\r\n$3\r\nGET\r\n$100000\r\n" + b"k" * 50_000)
    assert parts.down() == NO_GET
    parts.route(b"k" * 50_000 + b"\r\nx\r\n")
    assert parts.up() == BROKEN_BULK
    assert parts.router.piped
    parts.router.pipe(GET)
    assert parts.up() == b""
    assert parts.context.stats.errors == {"denied": 1, "protocol": 1}
