"""private_stream: each request on the private connection has a slot, and each slot its reply."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import help_text, scripts
from rlproxy.ratelimit.grammar import Grammar, Policy
from rlproxy.ratelimit.hit_replies import admitted
from rlproxy.ratelimit.outcomes import ADMITTED, FAILED, HELP, POLICIES, STATS, TOP, UNSEEN
from rlproxy.ratelimit.scripts import SHADOW, SOURCE
from rlproxy.resp import commands, encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session.call import Call
from rlproxy.session.connection_state import RAW
from rlproxy.session.private_stream import MAX_LANE_CALL
from rlproxy.session.slots import S_DROP, S_PASS, Slot

from tests.unit.session.bench import DENIED, FIVE, PONG, call_of, in_place
from tests.unit.session.parts import Parts

OK = b"+OK\r\n"
AUTH = bulks(b"AUTH", b"bob", b"pw")
WAIT = bulks(b"WAIT", b"1", b"0")
ERROR = b"-ERR no\r\n"
WRITTEN = bulks(b"RL.HIT", b"k")


def send_hit(parts: Parts) -> int:
    """Send a hit on the private connection. Returns the row for its outcome."""
    call = call_of(parts.caller)
    row = call.row
    parts.private.hit(call)
    return row


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_it_is_not_unanswered_once_redis_has_sent_bytes(parts: Parts) -> None:
    parts.opened()
    parts.private.slots.expect_one()
    parts.private.started = True
    assert not parts.private.never_answered()
    parts.private.open(commands.PASS)
    parts.private.opened(parts.requests)
    assert parts.private.never_answered()


def test_the_first_bytes_show_that_redis_has_no_room(parts: Parts) -> None:
    called: list[bool] = []
    parts.context.server.on_refused = lambda: called.append(True)
    for first in (OK, encoding.NO_ROOM):
        parts.opened()
        parts.private.received(first)
        assert len(called) == (first == encoding.NO_ROOM)
        parts.private.received(encoding.NO_ROOM)  # a reply
        assert len(called) == (first == encoding.NO_ROOM)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", [b"GET", b"PING"])
def test_an_ordinary_command_that_lanes_may_carry_is_a_probe(share: bool, name: bytes) -> None:
    parts = Parts(share=share)
    parts.opened()
    parts.private.state.probed = False
    probes = share and name == b"GET"
    for reply in (ERROR, OK):
        for _ in range(3):
            parts.next(bulks(name, b"k"))
            parts.private.expect(parts.requests.command)
        assert parts.private.state.probing == probes
        assert parts.private.slots.count == 1  # one probe, and a run behind it
        parts.answer(reply * 3)
        assert parts.private.state.probed == (probes and reply == OK)
    parts.private.expect(parts.requests.command)
    assert not parts.private.state.probing


def test_a_stream_that_is_let_go_owes_nothing_and_counts_its_hits(parts: Parts) -> None:
    parts.opened()
    row = send_hit(parts)
    parts.private.let_go()
    assert parts.private.slots.quiescent()
    assert parts.context.stats.hits[row + UNSEEN] == 1


def test_bytes_of_redis_close_the_circuit_and_are_counted(parts: Parts) -> None:
    parts.opened()
    parts.context.circuit.open = True
    parts.now = 7.0
    parts.private.slots.expect_one()
    parts.private.received(PONG)
    assert parts.private.received_at == 7.0
    assert parts.private.started
    assert not parts.context.circuit.open
    assert parts.context.stats.upstream_in == len(PONG)
    parts.private.slots.answer()
    assert parts.down() == PONG


def test_a_hit_is_sent_as_eval_and_its_reply_counted(parts: Parts) -> None:
    parts.opened()
    row = send_hit(parts)
    assert parts.up() == in_place()
    assert parts.caller.fenced
    assert parts.caller.watches == 1
    assert parts.private.expanded > len(in_place()) // 2
    assert parts.answer(FIVE) == FIVE
    hits = parts.context.stats.hits
    assert hits[row + ADMITTED] == sum(hits) == 1


def test_a_hit_where_replies_are_not_counted_is_unseen(parts: Parts) -> None:
    parts.opened()
    parts.private.state.lower(RAW)
    row = send_hit(parts)
    assert parts.up() == in_place()
    assert parts.context.stats.hits[row + UNSEEN] == 1
    assert parts.caller.watches == 0


def test_a_hit_whose_connection_is_lost_has_failed(parts: Parts) -> None:
    parts.opened()
    row = send_hit(parts)
    assert not parts.private.slots.lost()
    hits = parts.context.stats.hits
    assert hits[row + FAILED] == sum(hits) == 1
    assert parts.context.stats.errors == {"lost": 1}


def test_a_hit_behind_bytes_that_are_no_reply_is_unseen_and_no_more_is_owed(parts: Parts) -> None:
    parts.opened()
    row = send_hit(parts)
    assert parts.answer(b"HTTP/1.1 400\r\n") == b"HTTP/1.1 400\r\n"
    assert parts.context.stats.hits[row + UNSEEN] == 1
    parts.private.slots.expect_one()
    assert parts.private.slots.count == 0
    assert not parts.private.slots.can_insert()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [(b"-ERR unknown command 'RL.HIT'\r\n", DENIED), (b"-NOAUTH first\r\n", b"-NOAUTH first\r\n")],
)
def test_only_unknown_command_is_replaced_as_the_reply_to_a_wrong_hit(
    parts: Parts, reply: bytes, expected: bytes
) -> None:
    parts.opened()
    parts.private.state.multi = True  # the place of the error is not certain
    parts.requests.feed(WRITTEN)
    parts.private.reject(DENIED, parts.requests, parts.requests.next())
    assert parts.up() == WRITTEN
    assert parts.answer(reply) == expected
    assert parts.context.stats.errors == {"syntax": 1}


@pytest.mark.parametrize(
    ("kinds", "passed", "complete", "last_is_open"),
    [
        ([], 0, False, False),
        ([S_DROP], 0, False, False),
        ([S_DROP], 1, True, False),
        ([S_DROP, commands.AUTH], 0, True, False),
        ([commands.AUTH], 0, True, False),
        ([commands.AUTH], 1, True, True),
        ([S_PASS], 1, True, False),
        ([S_PASS], 2, True, True),
        ([commands.AUTH, commands.AUTH], 0, True, True),
    ],
)
def test_which_replies_a_client_waits_for(
    parts: Parts, kinds: list[int], passed: int, complete: bool, last_is_open: bool
) -> None:
    """All but dropped ones, and but the one to a command that has not ended."""
    parts.opened()
    slots = parts.private.slots
    for kind in kinds:
        slots.expect(Slot(kind))
    for _ in range(passed):
        slots.expect_one()
    assert slots.owing(False) == complete
    assert slots.owing(True) == last_is_open
    parts.private.state.lower(RAW)  # the last command is not among those counted
    assert slots.owing(True) == complete


def test_behind_the_last_counted_reply_all_bytes_are_passed_on(parts: Parts) -> None:
    parts.opened()
    slots = parts.private.slots
    slots.expect_one()
    parts.private.state.lower(RAW)
    slots.expect_one()
    assert parts.answer(b"+OK\r\n") == b"+OK\r\n"
    assert parts.answer(b"no RESP") == b"no RESP"


@pytest.mark.parametrize(("longer", "kept"), [(0, True), (1, False)])
def test_the_key_that_wait_rewrites_is_bounded(parts: Parts, longer: int, kept: bool) -> None:
    parts.opened()
    key = b"k" * (MAX_LANE_CALL - len(b"$4096\r\n\r\n") + longer)
    parts.private.hit(call_of(parts.caller, key))
    assert parts.private.cover.last_hit == (encoding.bulk(key) if kept else b"")


def test_the_reply_to_a_call_of_a_held_hit_is_not_the_clients(parts: Parts) -> None:
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
        ((b"RL.HELP",), help_text.REQUEST, HELP),
        ((b"RL.STATS",), b"call RL.STATS ", STATS),
        ((b"RL.TOP", b"5"), b"call RL.TOP 5", TOP),
        ((b"RL.POLICIES",), b"call RL.POLICIES ", POLICIES),
    ],
)
def test_status_commands_are_answered_by_a_script(
    parts: Parts, words: tuple[bytes, ...], sent: bytes, row: int
) -> None:
    parts.opened()
    parts.context.report_request = lambda name, args: b"call %b %b" % (name, b" ".join(args))
    parts.next(bulks(*words))
    parts.private.answer_report(parts.requests)
    assert parts.up() == sent
    assert parts.context.stats.calls[row] == 1
    assert parts.answer(b"*0\r\n") == b"*0\r\n"


@pytest.mark.parametrize("shadow", [False, True])
def test_a_shadow_hit_whose_reply_is_not_counted_goes_by_a_text_that_admits(
    parts: Parts, shadow: bool
) -> None:
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
