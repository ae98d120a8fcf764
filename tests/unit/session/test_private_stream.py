"""private_stream: each request on the private connection has a slot, and each slot its reply."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import help_text, scripts
from rlproxy.ratelimit.grammar import Grammar, Policy
from rlproxy.ratelimit.hit_replies import admitted
from rlproxy.ratelimit.outcomes import ADMITTED, HELP, POLICIES, STATS, TOP, UNSEEN
from rlproxy.ratelimit.scripts import SHADOW, SOURCE
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, OPEN
from rlproxy.session import wait_cover
from rlproxy.session.call import Call, Caller
from rlproxy.session.connection_state import RAW
from rlproxy.session.deferred_handshake import DeferredHandshake
from rlproxy.session.private_stream import (
    MAX_LANE_CALL,
    PRIVATE_NONE,
    PRIVATE_OPEN,
    PRIVATE_OPENING,
    REFRESH_S,
)
from rlproxy.session.waits import WAIT_HANDSHAKE, WAIT_NOTHING

from tests.unit.session.bench import (
    DENIED,
    FIVE,
    PING,
    PONG,
    UNKNOWN,
    in_place,
)
from tests.unit.session.parts import Parts, call_of

OK = b"+OK\r\n"
AUTH = bulks(b"AUTH", b"bob", b"pw")
WAIT = bulks(b"WAIT", b"1", b"0")
ERROR = b"-ERR no\r\n"


def followed(parts: Parts, data: bytes) -> int:
    """Forward the command `data`, which may change the connection's state. Returns the wait."""
    code = parts.next(data)
    wait = parts.private.follow(parts.requests, code)
    parts.private.to_redis.append(data)
    return wait


# -- the connection --------------------------------------------------------------------------------


def test_a_connection_is_opened_and_then_open() -> None:
    parts = Parts()
    assert parts.private.status == PRIVATE_NONE
    parts.private.open()
    assert parts.private.status == PRIVATE_OPENING
    parts.private.opened(parts.requests)
    assert parts.private.status == PRIVATE_OPEN
    assert parts.up() == b""


def test_it_owes_what_was_sent() -> None:
    parts = Parts()
    parts.opened()
    assert parts.private.may_leave()
    parts.private.slots.expect_one()
    assert not parts.private.slots.quiescent()
    assert parts.private.never_answered()
    assert not parts.private.may_leave()
    assert parts.answer(PONG) == PONG
    assert parts.private.slots.quiescent()
    assert parts.private.may_leave()


def test_it_is_not_unanswered_once_redis_has_sent_bytes() -> None:
    parts = Parts()
    parts.opened()
    parts.private.slots.expect_one()
    parts.private.started = True
    assert not parts.private.never_answered()
    parts.private.open()
    parts.private.opened(parts.requests)
    assert parts.private.never_answered()


@pytest.mark.parametrize(
    ("silent_s", "status", "ignores_empty", "sent"),
    [
        (REFRESH_S - 0.01, PRIVATE_OPEN, True, b""),
        (REFRESH_S, PRIVATE_OPEN, True, b"*0\r\n"),
        (REFRESH_S, PRIVATE_OPENING, True, b""),
        (REFRESH_S, PRIVATE_OPEN, False, b""),
    ],
)
def test_a_silent_connection_gets_an_empty_request(
    silent_s: float, status: int, ignores_empty: bool, sent: bytes
) -> None:
    parts = Parts()
    parts.opened()
    parts.private.status = status
    parts.context.server.found.ignores_empty = ignores_empty
    parts.now = silent_s
    parts.private.keep_alive(REFRESH_S)
    assert parts.up() == sent
    parts.private.keep_alive(REFRESH_S)
    assert parts.up() == b""  # its silence begins again
    assert parts.private.slots.quiescent()


def test_a_stream_that_is_let_go_owes_nothing_and_counts_its_hits() -> None:
    parts = Parts()
    parts.opened()
    call = call_of(parts.caller)
    row = call.row
    parts.private.hit(call)
    parts.private.let_go(Caller())
    assert parts.private.slots.quiescent()
    assert parts.context.stats.hits[row + UNSEEN] == 1


def test_bytes_of_redis_close_the_circuit_and_are_counted() -> None:
    parts = Parts()
    parts.opened()
    parts.context.circuit.open = True
    parts.now = 7.0
    parts.private.slots.expect_one()
    assert parts.private.received(PONG)
    assert parts.private.received_at == 7.0
    assert parts.private.started
    assert not parts.context.circuit.open
    assert parts.context.stats.upstream_in == len(PONG)
    parts.private.slots.answer()
    assert parts.down() == PONG


def test_bytes_that_are_not_counted_are_passed_on() -> None:
    parts = Parts()
    parts.opened()
    parts.private.slots.raw = True
    assert not parts.private.received(b"anything")
    assert parts.down() == b"anything"


# -- the deferred handshake ------------------------------------------------------------------------


def handshaking() -> Parts:
    """A client whose AUTH was answered during an outage; Redis is back."""
    parts = Parts()
    parts.next(AUTH)
    handshake = DeferredHandshake()
    assert handshake.take(parts.requests, b"redis", b"7.0.0") == OK
    parts.private.handshake = handshake
    parts.private.open()
    return parts


@pytest.mark.parametrize(("reply", "refused"), [(OK, False), (b"-WRONGPASS no\r\n", True)])
def test_the_handshake_is_sent_first_and_its_replies_are_dropped(
    reply: bytes, refused: bool
) -> None:
    parts = handshaking()
    parts.private.opened(parts.requests)
    assert parts.requests.unread() == len(AUTH)
    assert parts.requests.next() == COMMAND
    assert parts.private.follow(parts.requests, COMMAND) == WAIT_HANDSHAKE
    assert parts.private.update_handshake() is None
    assert parts.private.handshake is not None
    assert parts.answer(reply) == b""
    assert parts.private.update_handshake() == (reply if refused else None)
    assert parts.private.handshake is None


def test_replies_go_to_the_client_once_the_handshake_is_over() -> None:
    parts = handshaking()
    parts.private.opened(parts.requests)
    parts.requests.next()
    parts.private.follow(parts.requests, COMMAND)
    parts.answer(OK)
    parts.private.update_handshake()
    parts.private.slots.expect_one()
    assert parts.answer(PONG) == PONG


# -- commands that change the state ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "owing", "eof", "waits"),
    [
        (AUTH, True, False, True),
        (AUTH, False, False, False),
        (AUTH, True, True, False),
        (bulks(b"HELLO", b"3", b"AUTH", b"a", b"b"), True, False, True),
        (bulks(b"HELLO", b"3"), True, False, False),
        (PING, True, False, False),
    ],
)
def test_auth_waits_until_nothing_is_owed(sent: bytes, owing: bool, eof: bool, waits: bool) -> None:
    parts = Parts()
    parts.opened()
    if owing:
        parts.private.slots.expect_one()
    parts.requests.eof = eof
    parts.next(sent)
    assert parts.private.waits_to_authenticate(parts.requests) == waits


# -- RL commands in place --------------------------------------------------------------------------


def test_a_hit_is_sent_as_eval_and_its_reply_counted() -> None:
    parts = Parts()
    parts.opened()
    call = call_of(parts.caller)
    row = call.row
    parts.private.hit(call)
    assert parts.up() == in_place()
    assert parts.caller.fenced
    assert parts.caller.watches == 1
    assert parts.private.expanded > len(in_place()) // 2
    assert parts.answer(FIVE) == FIVE
    hits = parts.context.stats.hits
    assert hits[row + ADMITTED] == sum(hits) == 1


def test_a_hit_where_replies_are_not_counted_is_unseen() -> None:
    parts = Parts()
    parts.opened()
    parts.private.state.lower(RAW)
    call = call_of(parts.caller)
    row = call.row
    parts.private.hit(call)
    assert parts.up() == in_place()
    assert parts.context.stats.hits[row + UNSEEN] == 1
    assert parts.caller.watches == 0


@pytest.mark.parametrize("counted", [True, False])
def test_a_hit_that_must_not_overtake_peeks_only_where_its_reply_can_be_edited(
    counted: bool,
) -> None:
    parts = Parts()
    parts.opened()
    if not counted:
        parts.private.state.lower(RAW)
    call = call_of(parts.caller)
    hit = call.behind = call.rule
    call.rule = hit.peek()
    parts.private.hit(call)
    assert (call.rule is hit) == (not counted)
    assert (call.behind is None) == (not counted)
    head = parts.private.slots.head
    assert head is not None
    assert head.call is (call if counted else None)


@pytest.mark.parametrize(("longer", "kept"), [(0, True), (1, False)])
def test_the_key_that_wait_rewrites_is_bounded(longer: int, kept: bool) -> None:
    parts = Parts()
    parts.opened()
    key = b"k" * (MAX_LANE_CALL - len(b"$4096\r\n\r\n") + longer)
    parts.private.hit(call_of(parts.caller, key))
    assert parts.private.cover.last_hit == (encoding.bulk(key) if kept else b"")


def test_the_reply_to_a_call_of_a_held_hit_is_not_the_clients() -> None:
    parts = Parts()
    parts.opened()
    got: list[bytes] = []

    def answered(reply: bytes) -> bytes:
        got.append(reply)
        return b""

    parts.private.query(call_of(parts.caller), answered)
    assert parts.up() == in_place()
    assert parts.answer(FIVE[:9]) == b""
    assert parts.answer(FIVE[9:]) == b""
    assert got == [FIVE]
    assert parts.caller.watches == 1


@pytest.mark.parametrize(
    ("words", "sent", "row"),
    [
        ((b"RL.HELP",), help_text.CALL, HELP),
        ((b"RL.STATS",), b"call RL.STATS ", STATS),
        ((b"RL.TOP", b"5"), b"call RL.TOP 5", TOP),
        ((b"RL.POLICIES",), b"call RL.POLICIES ", POLICIES),
    ],
)
def test_status_commands_are_answered_by_a_script(
    words: tuple[bytes, ...], sent: bytes, row: int
) -> None:
    parts = Parts()
    parts.opened()
    parts.context.status_call = lambda name, args: b"call %b %b" % (name, b" ".join(args))
    parts.next(bulks(*words))
    parts.private.answer_status(parts.requests)
    assert parts.up() == sent
    assert parts.context.stats.calls[row] == 1
    assert parts.answer(b"*0\r\n") == b"*0\r\n"


def test_status_commands_abort_a_transaction() -> None:
    parts = Parts()
    parts.opened()
    parts.private.state.multi = True
    request = bulks(b"RL.HELP")
    parts.next(request)
    parts.private.answer_status(parts.requests)
    assert parts.up() == request
    assert parts.answer(UNKNOWN) == b"-ERR RL.HELP is not allowed in transactions\r\n"


@pytest.mark.parametrize(("level", "here"), [(None, True), (RAW, False)])
def test_a_wrong_command_is_rejected_where_its_place_is_certain(
    level: int | None, here: bool
) -> None:
    parts = Parts()
    parts.opened()
    if level is not None:
        parts.private.state.lower(level)
    parts.private.reject(ERROR, b"written")
    assert parts.context.stats.errors == {"syntax": 1}
    assert parts.up() == (b"" if here else b"written")
    assert parts.down() == (ERROR if here else b"")
    if not here:
        assert parts.answer(UNKNOWN) == ERROR


def test_an_error_leaves_in_its_place() -> None:
    parts = Parts()
    parts.opened()
    parts.private.slots.expect_one()
    parts.private.reject(ERROR, b"written")
    assert parts.down() == b""
    assert parts.answer(PONG) == PONG + ERROR


@pytest.mark.parametrize("counted", [True, False])
def test_a_denied_command_never_reaches_redis(counted: bool) -> None:
    """Where replies can't be counted, and after ASKING, another command is sent in its place."""
    parts = Parts()
    parts.opened()
    if not counted:
        assert followed(parts, bulks(b"ASKING")) == WAIT_NOTHING
        parts.up()
    code = parts.next(bulks(b"KEYS", b"*"))
    parts.private.deny(ERROR, parts.requests, code)
    assert parts.up() == (b"" if counted else bulks(b"RL.DENIED", b"KEYS"))
    if not counted:
        parts.answer(OK + UNKNOWN)
    else:
        assert parts.down() == ERROR


def test_the_rest_of_a_denied_command_is_dropped() -> None:
    parts = Parts()
    parts.opened()
    code = parts.next(b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 50_000)
    assert code == OPEN
    parts.private.deny(ERROR, parts.requests, code)
    assert parts.requests.discarding


# -- calls that no lane has sent -------------------------------------------------------------------


def test_a_call_that_no_lane_has_sent_is_sent_here() -> None:
    parts = Parts(share=True)
    parts.opened()
    parts.private.resend(call_of(parts.caller))
    assert parts.up() == in_place()
    assert parts.answer(FIVE) == FIVE


# -- WAIT ------------------------------------------------------------------------------------------


def test_wait_follows_the_rewrite_of_the_latest_hit() -> None:
    parts = Parts()
    parts.opened()
    parts.private.cover.lane_wrote = True
    parts.private.cover.last_hit = b"$1\r\nk\r\n"
    code = parts.next(WAIT)
    parts.private.cover_wait(parts.requests, code)
    assert parts.up() == wait_cover.REWRITE + b"$1\r\nk\r\n" + WAIT
    assert parts.answer(b":1\r\n:2\r\n") == b":2\r\n"
    assert parts.caller.fenced


@pytest.mark.parametrize("counted", [True, False])
def test_wait_is_an_error_where_no_rewrite_can_cover_it(counted: bool) -> None:
    parts = Parts()
    parts.opened()
    parts.private.cover.lane_wrote = True
    if not counted:
        parts.private.cover.last_hit = b"$1\r\nk\r\n"
        parts.private.state.lower(RAW)
    code = parts.next(WAIT)
    parts.private.cover_wait(parts.requests, code)
    if counted:
        assert parts.up() == b""
        assert parts.down() == wait_cover.not_covered(b"WAIT")
    else:
        assert parts.up() == bulks(b"RL.DENIED", b"WAIT")


# -- COMMAND ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "edited"), [(None, True), (RAW, False)])
def test_the_reply_to_command_is_edited_where_its_place_is_certain(
    level: int | None, edited: bool
) -> None:
    parts = Parts()
    parts.opened()
    if level is not None:
        parts.private.state.lower(level)
    code = parts.next(bulks(b"COMMAND", b"COUNT"))
    parts.private.introspect(parts.requests, code)
    assert not parts.private.slots.quiescent()
    assert (parts.answer(b":240\r\n") > b":240\r\n") == edited


def test_a_probe_shows_whether_ordinary_commands_may_share() -> None:
    parts = Parts(share=True)
    parts.opened()
    parts.private.state.probed = False
    parts.next(bulks(b"GET", b"k"))
    parts.private.forward(parts.requests.command)
    assert parts.private.state.probing
    assert parts.answer(b"$-1\r\n") == b"$-1\r\n"
    assert parts.private.state.probed
    assert not parts.private.state.probing


@pytest.mark.parametrize("shadow", [False, True])
def test_a_shadow_hit_whose_reply_is_not_counted_goes_by_a_text_that_admits(shadow: bool) -> None:
    parts = Parts()
    parts.opened()
    grammar = Grammar(scripts.load())
    grammar.use({b"p": Policy(b"p", b"10 60", shadow)})
    rule = grammar.rule(b"", b"RL.HIT", [b"k", b"POLICY", b"p"])
    parts.private.hit(Call(parts.caller, rule, b"$1\r\nk\r\n"))
    assert parts.up() == rule.words(SOURCE) + b"$1\r\nk\r\n" + rule.tail
    assert parts.answer(DENIED) == (admitted(DENIED) if shadow else DENIED)
    parts.private.state.multi = True
    parts.private.hit(Call(parts.caller, rule, b"$1\r\nk\r\n"))
    way = SHADOW if shadow else SOURCE
    assert parts.up() == rule.words(way) + b"$1\r\nk\r\n" + rule.tail
