"""fail_open: what is answered without Redis, and what must not be."""

from __future__ import annotations

from typing import cast

import pytest
from rlproxy.fairness.budget import WORK_OF_OURS
from rlproxy.ratelimit.hit_replies import five
from rlproxy.resp.encoding import bulks, late
from rlproxy.resp.requests import OPEN
from rlproxy.session import command_policy, waits
from rlproxy.session.circuit_breaker import Counts
from rlproxy.session.connection_state import RAW
from rlproxy.session.held_hit import HeldHit
from rlproxy.session.private_stream import PRIVATE_NONE
from rlproxy.session.router import Router

from tests.unit.session.bench import ARITY, HIT, PING, WRONG_HIT, call_of
from tests.unit.session.parts import Parts

ERROR = b"-UPSTREAMDOWN x\r\n"
ADMITS = five(0, 10, 10, -1, 0)
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


def in_command(failing: Failing) -> None:
    failing.requests.feed(LARGE[:20_000])
    assert failing.requests.next() == OPEN


@pytest.mark.parametrize("state", [owing, calling, uncounted, in_command])
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


# -- everything that waits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "down", "wait"),
    [
        (PING + HIT + WRONG_HIT + PING, ERROR + ADMITS + ARITY + ERROR, waits.NOTHING),
        (MULTI + HIT + EXEC + HIT, ERROR + ADMITS + ERROR + ADMITS, waits.NOTHING),
        (PING + QUIT + PING, ERROR + OK, waits.CLOSE),
        (PING + b"*x\r\n", ERROR * 2, waits.CLOSE),
        (AUTH + HIT, OK + ADMITS, waits.NOTHING),
        (bulks(b"RL.HELP"), ERROR, waits.NOTHING),
        (b"", b"", waits.NOTHING),
    ],
)
def test_everything_that_waits_is_answered(sent: bytes, down: bytes, wait: int) -> None:
    failing = Failing("allow")
    assert failing.fail(sent) == wait
    assert failing.down() == down
    assert failing.context.stats.errors.get("syntax", 0) == down.count(ARITY)
    assert failing.private.status == PRIVATE_NONE
    assert (failing.private.unopened > 0) == (wait == waits.CLOSE)


# -- late hits -------------------------------------------------------------------------------------


class Held:
    """A held hit whose call is owed by the private connection."""

    owed_since: float | None = 10.0

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def fail(self, error: bytes, kind: str) -> None:
        assert (error, kind) == (late(1.0), "late")
        self.owed_since = None
        self.counts.without += 1


def test_a_held_hit_is_late_by_its_call() -> None:
    failing = Failing()
    held = Held(failing.context.circuit.counts)
    failing.opened()
    failing.context.circuit.replied(9.0)

    def overdue(now: float) -> tuple[int, bool]:
        return failing.fail_open.answer_late(now, None, cast("HeldHit", held))

    assert overdue(10.9) == (0, True)
    assert overdue(11.0) == (1, True)
    assert held.owed_since is None
    assert failing.context.circuit.open
    assert overdue(12.0) == (0, False)
