"""fail_open: what is answered without Redis, and what must not be."""

from __future__ import annotations

from typing import cast

import pytest
from rlproxy.fairness.budget import CLIENT_WORK, WORK_OF_OURS
from rlproxy.ratelimit.hit_replies import five
from rlproxy.ratelimit.outcomes import FAILED_OPEN, NO_ROW
from rlproxy.resp import commands, encoding
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import OPEN
from rlproxy.session import command_policy
from rlproxy.session.connection_state import RAW
from rlproxy.session.held_hit import HeldHit
from rlproxy.session.private_stream import PRIVATE_NONE, PRIVATE_OPENING
from rlproxy.session.router import Router
from rlproxy.session.waits import CLOSE, WAIT_NOTHING, WAIT_OPEN, WAIT_TICK

from tests.unit.session.bench import ARITY, FIVE, HIT, PING, PONG, WRONG_HIT, call_of
from tests.unit.session.parts import Parts

ERROR = b"-UPSTREAMDOWN x\r\n"
ADMITS = five(0, 10, 10, -1, 0)
REFUSES = five(1, 10, 0, 1, 1)
LATE = encoding.late(1.0)
MULTI, EXEC, QUIT = bulks(b"MULTI"), bulks(b"EXEC"), bulks(b"QUIT")
AUTH = bulks(b"AUTH", b"pw")
PEEK = bulks(b"RL.PEEK", b"k", b"10", b"60")
OK = b"+OK\r\n"
LARGE = bulks(b"SET", b"k", b"v" * 100_000)


class Failing(Parts):
    """The parts of a client, and its answers without Redis."""

    def __init__(self, mode: str = "error") -> None:
        super().__init__()
        self.context.failure.mode = mode
        self.context.timeouts.timeout_s = 1.0
        self.router = Router(self.parts)
        self.fail_open = self.router.fail_open

    def hits(self, data: bytes, most: int = 0) -> int:
        """Answer the hits of `data` that come first. Returns their number; -1: not all of them."""
        self.requests.feed(data)
        counts = self.context.circuit.counts
        before = counts.without
        if not self.fail_open.answer_hits(ERROR, "unreachable", most):
            return -1
        return counts.without - before

    def fail(self, data: bytes) -> int:
        """Fail the connection that `data` waits for. Returns the wait."""
        self.requests.feed(data)
        self.private.failed(ERROR, self.requests.unread())
        return self.router.route()

    def overdue(self, now: float, unsent_at: float | None = None) -> tuple[int, bool]:
        return self.fail_open.answer_late(now, unsent_at, None)


# -- the hits that come first ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reply"), [("error", ERROR), ("allow", ADMITS), ("deny", REFUSES)]
)
def test_the_reply_to_a_hit_is_that_of_the_mode(mode: str, reply: bytes) -> None:
    failing = Failing(mode)
    assert failing.hits(HIT + HIT) == 2
    assert failing.down() == reply * 2
    assert failing.requests.unread() == 0


@pytest.mark.parametrize(
    ("sent", "number", "down", "left"),
    [
        (HIT + PING + HIT, 1, ADMITS, PING + HIT),
        (WRONG_HIT + HIT, 1, ARITY + ADMITS, b""),
        (PEEK, 1, ERROR, b""),
        (b"\r\n" + HIT + HIT[:9], 1, ADMITS, HIT[:9]),
        (MULTI + HIT, 0, b"", MULTI + HIT),
        (AUTH + HIT, 1, OK + ADMITS, b""),
        (bulks(b"RL.HELP") + HIT, 1, ERROR + ADMITS, b""),
    ],
)
def test_requests_are_answered_up_to_the_first_that_needs_redis(
    sent: bytes, number: int, down: bytes, left: bytes
) -> None:
    failing = Failing("allow")
    assert failing.hits(sent) == number
    assert failing.down() == down
    assert failing.requests.unread() == len(left)


def owing(failing: Failing) -> None:
    failing.opened()
    failing.private.slots.expect_one()


def calling(failing: Failing) -> None:
    failing.lanes.append(call_of(failing.caller))


def uncounted(failing: Failing) -> None:
    failing.private.state.lower(RAW)


def quitting(failing: Failing) -> None:
    failing.private.state.quitting = True


def discarding(failing: Failing) -> None:
    failing.requests.discarding = True


def in_command(failing: Failing) -> None:
    failing.requests.feed(LARGE[:20_000])
    assert failing.requests.next() == OPEN


@pytest.mark.parametrize("state", [owing, calling, uncounted, quitting, discarding, in_command])
def test_no_hit_is_answered_where_its_place_or_meaning_is_not_certain(state: object) -> None:
    failing = Failing("allow")
    assert callable(state)
    state(failing)
    assert failing.hits(HIT) == 0
    assert failing.down() == b""
    assert failing.requests.unread() == len(HIT)
    assert failing.requests.in_command() == (state is in_command)


@pytest.mark.parametrize("rest", [b"*x\r\n", bulks(b"SET", b"k", b"v" * 70_000)[:68_000]])
def test_a_request_that_is_not_whole_gets_no_error_of_a_denied_command(rest: bytes) -> None:
    failing = Failing("allow")
    failing.requests.commands = command_policy.table(("keys", "set"), False)
    assert failing.hits(HIT + bulks(b"KEYS", b"*") + rest) == 1
    assert failing.down().count(b"-NOPERM") == 1
    assert failing.requests.unread() == len(rest)


def test_the_work_is_bounded() -> None:
    failing = Failing("allow")
    assert failing.hits(HIT * 100, 10 * (WORK_OF_OURS + 1)) == -1
    assert failing.down() == ADMITS * 10
    assert failing.context.budget.work == 10 * (WORK_OF_OURS + 1)
    assert failing.requests.unread() == 90 * len(HIT)


IN_A_TICK = -(-CLIENT_WORK // (WORK_OF_OURS + 1))  # hits that are answered in one tick


@pytest.mark.parametrize(("sent", "within"), [(b"", True), (PING, True), (HIT * 200, False)])
def test_while_the_circuit_is_open_the_error_names_its_reason(sent: bytes, within: bool) -> None:
    failing = Failing("error")
    failing.context.circuit.why = "refused"
    failing.requests.feed(sent)
    assert failing.fail_open.answer_unreachable() == within
    assert failing.down() == (
        b"" if within else encoding.unreachable("redis:1", "refused") * IN_A_TICK
    )


def test_a_handshake_is_recorded_only_before_the_connection_is_open() -> None:
    failing = Failing("allow")
    failing.opened()
    assert failing.hits(AUTH + HIT) == 0
    assert failing.private.handshake is None
    assert failing.down() == b""


def test_a_command_that_is_refused_here_is_not_sent_later() -> None:
    failing = Failing("allow")
    assert failing.hits(bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON")) == 0
    assert failing.down().startswith(b"-ERR unknown subcommand")
    assert failing.private.handshake is None


def test_a_handshake_is_not_answered_where_hits_get_errors() -> None:
    failing = Failing("error")
    assert failing.hits(AUTH) == 0
    assert failing.down() == b""


# -- everything that waits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "down", "wait"),
    [
        (PING + HIT + WRONG_HIT + PING, ERROR + ADMITS + ARITY + ERROR, WAIT_NOTHING),
        (MULTI + HIT + EXEC + HIT, ERROR + ADMITS + ERROR + ADMITS, WAIT_NOTHING),
        (PING + QUIT + PING, ERROR + OK, CLOSE),
        (PING + b"*x\r\n", ERROR * 2, CLOSE),
        (AUTH + HIT, OK + ADMITS, WAIT_NOTHING),
        (bulks(b"RL.HELP"), ERROR, WAIT_NOTHING),
        (b"", b"", WAIT_NOTHING),
    ],
)
def test_everything_that_waits_is_answered(sent: bytes, down: bytes, wait: int) -> None:
    failing = Failing("allow")
    assert failing.fail(sent) == wait
    assert failing.down() == down
    assert failing.context.stats.errors.get("syntax", 0) == down.count(ARITY)
    assert failing.private.status == PRIVATE_NONE
    assert (failing.private.unopened > 0) == (wait == CLOSE)


@pytest.mark.parametrize("value", [LARGE, bulks(b"RL.HIT", b"k", b"1" * 100_000)])
def test_a_command_in_parts_is_answered_once_and_dropped(value: bytes) -> None:
    failing = Failing("allow")
    assert failing.fail(value[:60_000]) == WAIT_NOTHING
    assert failing.down() == ERROR
    assert failing.requests.discarding
    assert failing.fail(value[60_000:] + PING) == WAIT_NOTHING
    assert failing.down() == ERROR
    assert not failing.requests.discarding


def test_a_denied_quit_gets_its_error() -> None:
    failing = Failing("allow")
    failing.requests.commands = command_policy.table(("quit",), False)
    assert failing.fail(QUIT) == WAIT_NOTHING
    assert failing.down().startswith(b"-NOPERM command 'quit'")


def test_many_requests_are_answered_in_turns() -> None:
    failing = Failing()
    assert failing.fail(PING * 300) == WAIT_TICK
    assert len(failing.to_client) == IN_A_TICK
    assert failing.router.route() == WAIT_TICK
    failing.requests.feed(PING * 200)  # most of them are for the next connection
    assert failing.router.route() == WAIT_OPEN
    assert len(failing.to_client) == 300
    assert failing.private.status == PRIVATE_OPENING


# -- late hits -------------------------------------------------------------------------------------


def late() -> Failing:
    """A client whose hit was sent on the private connection at 10 s."""
    failing = Failing()
    failing.opened()
    failing.context.circuit.replied(9.0)  # on another connection
    failing.now = 10.0
    failing.private.hit(call_of(failing.caller))
    return failing


def test_a_late_hit_is_answered_and_its_reply_dropped() -> None:
    failing = late()
    assert failing.overdue(10.9) == (0, True)
    assert failing.overdue(11.0) == (1, False)
    assert failing.down() == LATE
    assert failing.context.circuit.open
    assert failing.context.circuit.counts.timeouts == 1
    failing.private.slots.expect_one()
    assert failing.answer(FIVE + PONG) == PONG


class Held:
    """A held hit whose call is owed by the private connection."""

    owed_since: float | None = 10.0

    def late(self) -> None:
        self.owed_since = None


def test_a_held_hit_is_late_by_its_call() -> None:
    failing, held = Failing(), Held()
    failing.opened()
    failing.context.circuit.replied(9.0)

    def overdue(now: float) -> tuple[int, bool]:
        return failing.fail_open.answer_late(now, None, cast("HeldHit", held))

    assert overdue(10.9) == (0, True)
    assert overdue(11.0) == (1, True)
    assert held.owed_since is None
    assert failing.context.circuit.open
    assert overdue(12.0) == (0, False)


def test_without_a_hit_there_is_nothing_to_watch() -> None:
    failing = Failing()
    failing.opened()
    assert failing.overdue(100.0) == (0, False)


def test_hits_that_wait_for_the_connection_are_late() -> None:
    failing = Failing("allow")
    failing.private.status = PRIVATE_OPENING
    failing.context.circuit.replied(9.0)  # on another connection
    failing.requests.feed(HIT + PING)
    assert failing.overdue(10.9, unsent_at=10.0) == (0, True)
    assert failing.down() == b""
    assert not failing.context.circuit.open
    assert failing.overdue(11.0, unsent_at=10.0) == (1, True)
    assert failing.context.circuit.open
    assert failing.down() == ADMITS
    assert failing.requests.unread() == len(PING)


def test_a_silent_connection_is_reported_once() -> None:
    """Redis hangs, and the client has only sent a command that is no hit."""
    failing = Failing()
    failing.now = 10.0
    failing.opened()
    failing.private.slots.expect_one()
    assert failing.overdue(10.5) == (0, True)
    assert not failing.context.circuit.open
    assert failing.overdue(11.0) == (0, False)
    assert failing.context.circuit.open
    assert failing.down() == b""


@pytest.mark.parametrize("first", [commands.HELLO, commands.PASS])
def test_a_client_whose_handshake_is_not_answered_is_watched_until_the_circuit_opens(
    first: int,
) -> None:
    failing = Failing("allow")
    failing.private.open(first)
    failing.private.opened(failing.requests)
    failing.private.slots.expect_one()
    failing.context.circuit.replied(0.5)  # to another client
    assert failing.overdue(1.0) == (0, first == commands.HELLO)
    assert failing.fail_open.awaits_handshake() == (first == commands.HELLO)
    failing.private.received(b"+OK")
    assert not failing.fail_open.awaits_handshake()


def test_a_call_of_a_lane_gets_the_reply_of_its_own_rule() -> None:
    """A hit that must not overtake is answered as the hit that it is, not as its peek."""
    failing = Failing("allow")
    call = call_of(failing.caller)
    row = call.row
    call.original_rule = call.rule
    call.rule = call.rule.peek()
    call.reply = failing.context.failure.reply(call, ERROR, "lost")
    assert call.reply == ADMITS
    assert call.row == NO_ROW
    assert failing.context.stats.hits[row + FAILED_OPEN] == 1
