"""private_stream: each request on the private connection has a slot, and each slot its reply."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit import help_text, scripts
from rlproxy.ratelimit.grammar import Grammar, Policy
from rlproxy.ratelimit.hit_replies import admitted
from rlproxy.ratelimit.outcomes import HELP, POLICIES, STATS, TOP, UNSEEN
from rlproxy.ratelimit.scripts import SHADOW, SOURCE
from rlproxy.resp import commands, encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session.call import Call
from rlproxy.session.private_stream import MAX_LANE_CALL
from rlproxy.session.slots import S_DROP, S_PASS, Slot

from tests.unit.session.bench import DENIED, call_of
from tests.unit.session.parts import Parts

OK = b"+OK\r\n"
WAIT = bulks(b"WAIT", b"1", b"0")


def send_hit(parts: Parts) -> int:
    """Send a hit on the private connection. Returns the row for its outcome."""
    call = call_of(parts.caller)
    row = call.row
    parts.private.hit(call)
    return row


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_the_first_bytes_show_that_redis_has_no_room(parts: Parts) -> None:
    called: list[bool] = []
    parts.context.server.on_refused = lambda: called.append(True)
    for first in (OK, encoding.NO_ROOM):
        parts.opened()
        parts.private.received(first)
        assert len(called) == (first == encoding.NO_ROOM)
        parts.private.received(encoding.NO_ROOM)  # a reply
        assert len(called) == (first == encoding.NO_ROOM)


def test_a_stream_that_is_let_go_owes_nothing_and_counts_its_hits(parts: Parts) -> None:
    parts.opened()
    row = send_hit(parts)
    parts.private.let_go()
    assert parts.private.slots.quiescent()
    assert parts.context.stats.hits[row + UNSEEN] == 1


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
    assert (slots.owed() > 0) == complete
    assert (slots.owed() > 1) == last_is_open


@pytest.mark.parametrize(("longer", "kept"), [(0, True), (1, False)])
def test_the_key_that_wait_rewrites_is_bounded(parts: Parts, longer: int, kept: bool) -> None:
    parts.opened()
    key = b"k" * (MAX_LANE_CALL - len(b"$4096\r\n\r\n") + longer)
    parts.private.hit(call_of(parts.caller, key))
    assert parts.private.cover.last_hit == (encoding.bulk(key) if kept else b"")


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
