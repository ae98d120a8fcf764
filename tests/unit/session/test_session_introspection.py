"""session and answers: COMMAND's replies are edited at their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.command_entries import ENTRIES
from rlproxy.ratelimit.entry_form import Form
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.session import reply_slots
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.command_replies import MAX_EDITED, UNKNOWN
from rlproxy.session.connection_state import ConnectionState
from rlproxy.session.context import FailurePolicy, ServerFacts
from rlproxy.session.reply_slots import ReplySlots
from rlproxy.session.slots import S_PASS, Catch, Slot
from rlproxy.session.timeouts import HitTimeouts

from tests.unit.session.bench import FIVE, HIT, PING, PONG, in_place, opened, probed

COUNT = bulks(b"COMMAND", b"COUNT")
ALL = bulks(b"COMMAND")
LIST = bulks(b"COMMAND", b"LIST")
DOCS = bulks(b"COMMAND", b"DOCS", b"GET", b"RL.HELP")
INFO = bulks(b"COMMAND", b"INFO", b"get", b"RL.HIT")
KEYS = bulks(b"COMMAND", b"GETKEYS", b"RL.HIT", b"k", b"1", b"2")
OURS = len(ENTRIES)
GET = b"*7\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@read\r\n"
GET_SETS = GET.replace(b"*2", b"~2").replace(b"*1", b"~1")
NOPERM = b"-NOPERM no\r\n"


INFOS = [Form(False).info(entry) for entry in ENTRIES]
HELP_DOCS = next(Form(True).docs(entry) for entry in ENTRIES if entry.name == b"rl.help")
NAMES = b"".join(bulk(entry.name) for entry in ENTRIES)
PAIR = bulk(b"get") + b"%1\r\n" + bulk(b"group") + bulk(b"string")

# request, what goes upstream, Redis' reply, what the client gets
ROWS: dict[str, tuple[bytes, bytes, bytes, bytes]] = {
    "COUNT": (COUNT, COUNT, b":240\r\n", b":%d\r\n" % (240 + OURS)),
    "inline COUNT": (
        b"command  'count'\r\n",
        b"command  'count'\r\n",
        b":240\r\n",
        b":%d\r\n" % (240 + OURS),
    ),
    "all": (ALL, ALL, b"*2\r\n" + GET * 2, b"*%d\r\n" % (2 + OURS) + GET * 2 + b"".join(INFOS)),
    "INFO": (INFO, INFO, b"*2\r\n" + GET + b"$-1\r\n", b"*2\r\n" + GET + INFOS[0]),
    "DOCS": (DOCS, DOCS, b"%1\r\n" + PAIR, b"%2\r\n" + PAIR + HELP_DOCS),
    "DOCS of ours alone": (DOCS, DOCS, b"%0\r\n", b"%1\r\n" + HELP_DOCS),
    "LIST": (
        LIST,
        LIST,
        bulks(b"get", b"set"),
        bulks(b"get", b"set").replace(b"*2", b"*%d" % (2 + OURS)) + NAMES,
    ),
    "LIST of ours alone": (LIST, LIST, b"*0\r\n", b"*%d\r\n" % OURS + NAMES),
    "GETKEYS": (KEYS, KEYS, UNKNOWN, bulks(b"k")),
    "NOPERM": (COUNT, COUNT, NOPERM, NOPERM),
    "NOPERM for INFO": (INFO, INFO, NOPERM, NOPERM),
    "NOPERM for all": (ALL, ALL, NOPERM, NOPERM),
    "NOPERM for keys": (KEYS, KEYS, NOPERM, NOPERM),
    "HELP": (bulks(b"COMMAND", b"HELP"),) * 2 + (b"*1\r\n+no\r\n",) * 2,
    "INFO of Redis' own": (bulks(b"COMMAND", b"INFO", b"get"),) * 2 + (b"*1\r\n" + GET,) * 2,
}


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> tuple[bytes, bytes, bytes, bytes]:
    return ROWS[str(request.param)]


def each(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_in_a_pipeline(row: tuple[bytes, bytes, bytes, bytes]) -> None:
    request, up, reply, expected = row
    bench = opened()
    written = PING + HIT + request + HIT + request + request + PING
    sent = PING + in_place() + up + in_place() + up + up + PING
    replies = PONG + FIVE + reply + FIVE + reply + reply + PONG
    got = PONG + FIVE + expected + FIVE + expected + expected + PONG
    for send in ([written], each(written)):
        assert bench.send(*send) == sent
        assert bench.answer(replies) == got
        assert bench.send(*send) == sent
        assert bench.answer(*each(replies)) == got


def test_hits_go_by_lane_behind_it(row: tuple[bytes, bytes, bytes, bytes]) -> None:
    request, up, reply, expected = row
    bench = probed()
    assert bench.send(request) == up
    assert bench.send(HIT) == in_place()  # its reply is not here yet
    assert bench.answer(reply + FIVE) == expected + FIVE
    assert bench.send(HIT) == b""
    assert bench.settle() == FIVE


def test_the_protocol_is_that_of_the_reply() -> None:
    bench = opened()
    hello = bulks(b"HELLO", b"3")
    bench.send(ALL + hello + INFO + ALL)
    bench.answer(b"*1\r\n" + GET + b"%0\r\n")
    sets = [Form(True).info(entry) for entry in ENTRIES]
    expected = b"*2\r\n" + GET_SETS + sets[0]
    expected += b"*%d\r\n" % (1 + OURS) + GET_SETS + b"".join(sets)
    assert bench.answer(b"*2\r\n" + GET_SETS + b"_\r\n" + b"*1\r\n" + GET_SETS) == expected


def test_untouched_in_a_transaction_and_edited_behind_it() -> None:
    bench = opened()
    multi, execute = bulks(b"MULTI"), bulks(b"EXEC")
    assert bench.send(multi + COUNT + execute + COUNT) == multi + COUNT + execute + COUNT
    queued = b"+OK\r\n+QUEUED\r\n*1\r\n:240\r\n"
    assert bench.answer(queued + b":240\r\n") == queued + b":240\r\n"  # sent before EXEC's reply
    bench.send(COUNT)
    assert bench.answer(b":240\r\n") == b":%d\r\n" % (240 + OURS)


@pytest.mark.parametrize("reply", [UNKNOWN, b"*1\r\n$1\r\nk\r\n"])
def test_arguments_too_long_to_be_looked_at(reply: bytes) -> None:
    bench = opened()
    long = b"x" * 20000
    request = bulks(b"COMMAND", b"GETKEYS", b"RL.HIT", long, b"1", b"2")
    pieces = [request[at : at + 3000] for at in range(0, len(request), 3000)]
    for written in ([request], pieces):
        assert bench.send(*written, PING) == request + PING
        assert bench.answer(reply + PONG) == reply + PONG
    many = bulks(b"COMMAND", b"INFO", *[b"rl.hit"] * 6000)
    assert bench.send(many) == many
    nils = b"*6000\r\n" + b"$-1\r\n" * 6000
    assert bench.answer(nils) == nils


@pytest.mark.parametrize("words", [[b"INFO"], [b"GETKEYS", b"RL.RESET"]])
def test_what_would_have_to_be_remembered_at_length_passes_untouched(words: list[bytes]) -> None:
    bench = opened()
    request = bulks(b"COMMAND", *words, *[b"rl.hit"] * (MAX_EDITED // 12))
    assert len(request) > MAX_EDITED
    assert bench.send(request + PING) == request + PING
    assert bench.answer(b"-ERR theirs\r\n" + PONG) == b"-ERR theirs\r\n" + PONG


def test_an_edited_reply_leaves_once_it_is_whole() -> None:
    bench = opened()
    bench.send(ALL)
    assert bench.answer(b"*1000\r\n" + GET + GET[:9]) == b""
    assert bench.answer(GET[9:] + GET * 997 + GET[:-2]) == b""
    assert bench.session.outstanding()
    ours = b"".join(INFOS)
    assert bench.answer(GET[-2:] + PONG) == b"*%d\r\n" % (1000 + OURS) + GET * 1000 + ours + PONG
    assert not bench.session.outstanding()


@pytest.mark.parametrize("pieces", [lambda data: [data], each])
def test_a_push_behind_the_last_value_stays_behind_ours(
    pieces: Callable[[bytes], list[bytes]],
) -> None:
    bench = opened()
    subscribe = bulks(b"SUBSCRIBE", b"c")
    push = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    for request, up, reply, expected in ROWS.values():
        bench = opened()
        assert bench.send(request + subscribe) == up + subscribe
        assert bench.answer(*pieces(reply + push)) == expected + push


def test_a_push_before_it_goes_before_it(row: tuple[bytes, bytes, bytes, bytes]) -> None:
    request, _, reply, expected = row
    push = b">2\r\n$3\r\nfoo\r\n:1\r\n"
    for pieces in ([push + reply + push], each(push + reply + push)):
        bench = opened()
        bench.send(request)
        assert bench.answer(*pieces) == push + expected + push


def test_lost_in_the_middle() -> None:
    for request, _, reply, expected in ROWS.values():
        for size in range(len(reply)):
            bench = opened()
            bench.send(request + bulks(b"RL.HIT", b"k"))
            got = bench.answer(reply[:size])
            bench.session.upstream_lost()
            got += bench.down()
            assert expected.startswith(got)
            assert bench.session.closed


def test_what_is_no_resp_goes_on_as_it_comes() -> None:
    bench = opened()
    bench.send(COUNT)
    assert bench.answer(b"<html>\r\n") == b"<html>\r\n"
    assert bench.answer(b"x") == b"x"


def test_where_no_more_is_counted_nothing_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    if reply_slots.__file__.endswith(".so"):
        pytest.skip("compiled: its constants are fixed")
    monkeypatch.setattr(reply_slots, "MAX_SLOTS", 2)
    bench = opened()
    assert bench.send(COUNT) == COUNT
    assert bench.answer(b":240\r\n") == b":240\r\n"


# -- Catch alone -------------------------------------------------------------------


def owed(*slots: Slot) -> tuple[ReplySlots, list[bytes]]:
    out: list[bytes] = []
    failure = FailurePolicy(ServerFacts("redis:1"), HitTimeouts(CircuitBreaker()), Counters())
    made = ReplySlots(ConnectionState(), out, failure)
    for slot in slots:
        slot.passed = int(slot.kind == S_PASS)
        made.expect(slot)
    return made, out


def test_a_caught_reply_is_given_whole() -> None:
    seen: list[bytes] = []

    def edit(frame: bytes) -> bytes:
        seen.append(frame)
        return b"+%d\r\n" % len(seen)

    made, out = owed(Slot(S_PASS), Catch(edit), Catch(edit))
    made.expect_one()
    nested = b"*2\r\n*1\r\n$2\r\n\r\n\r\n%1\r\n+a\r\n:1\r\n"
    for byte in each(PONG + nested + b"$-1\r\n" + PONG):
        made.feed(byte)
        made.answer()
    assert seen == [nested, b"$-1\r\n"]
    assert b"".join(out) == PONG + b"+1\r\n+2\r\n" + PONG
    assert made.quiescent()
