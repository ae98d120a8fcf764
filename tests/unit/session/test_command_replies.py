"""introspection: the table of entries, what is done about each COMMAND, and globs as Redis' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.ratelimit import algorithms, grammar
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.resp.replies import ReplyFramer
from rlproxy.session import slots as s
from rlproxy.session.command_replies import (
    ENTRIES,
    KEYLESS,
    UNKNOWN,
    WRONG_ARITY,
    Argument,
    Entry,
    Form,
    Plan,
    matching,
    plan,
)
from rlproxy.session.slots import Catch, Slot, Unfold

BY_NAME = {entry.name: entry for entry in ENTRIES}
NAMES = list(BY_NAME)
IDS = [name.decode() for name in NAMES]
LISTED = b"*2\r\n$3\r\nget\r\n$3\r\nset\r\n"

# As Redis names them (server.c, acl.c).
FLAGS = {b"write", b"readonly", b"denyoom", b"noscript", b"blocking", b"loading", b"stale", b"fast"}
CATEGORIES = {b"@keyspace", b"@read", b"@write", b"@fast", b"@slow", b"@blocking", b"@scripting"}
KEY_FLAGS = {b"RO", b"RW", b"OW", b"RM", b"access", b"update", b"insert", b"delete"}
KINDS = {b"key", b"integer", b"double", b"pure-token", b"oneof", b"block"}


def planned(*words: bytes, native: bool = False) -> Plan | None:
    return plan(list(words), native)


def caught(reply: bytes, *words: bytes) -> bytes:
    """What becomes of a reply that is awaited whole."""
    made = planned(*words)
    assert made is not None
    assert isinstance(made.slot, Catch)
    return made.slot.edit(reply)


def run(slots: list[Slot], values: list[bytes]) -> bytes:
    """What goes to the client when `slots` meet `values`."""
    left = list(values)
    out = []
    for slot in slots:
        if slot.kind == s.S_INSIDE:
            out.append(slot.data)
        elif isinstance(slot, Catch):
            out.append(slot.edit(left.pop(0)))
        else:
            assert slot.kind == s.S_VALUES
            out += [left.pop(0) for _ in range(slot.count)]
    assert not left
    return b"".join(out)


def split(reply: bytes) -> tuple[bytes, list[bytes]]:
    """The first line of an aggregate, and its values."""
    framer = ReplyFramer()
    framer.feed(reply)
    line = framer.line()
    framer.open()
    values = []
    while framer.pos < len(reply):
        value = framer.frame()
        assert value, reply[framer.pos :]
        values.append(value)
    return line, values


def unfolded(reply: bytes, *words: bytes, native: bool = False) -> bytes:
    """What becomes of a reply that is edited as it streams past."""
    made = planned(*words, native=native)
    assert made is not None
    assert isinstance(made.slot, Unfold)
    line, values = split(reply)
    slots = made.slot.unfold(line)
    return run(slots, values) if slots else reply


# -- the table -------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_entry(entry: Entry) -> None:
    assert entry.name == entry.name.lower()
    assert set(entry.flags) <= FLAGS
    assert set(entry.categories) <= CATEGORIES
    assert set(entry.keys) <= KEY_FLAGS
    assert (b"write" in entry.flags) == (b"@write" in entry.categories)
    assert (b"readonly" in entry.flags) == (b"@read" in entry.categories)
    assert (b"fast" in entry.flags) == (b"@fast" in entry.categories)
    assert (b"write" in entry.flags) == bool({b"RW", b"RM"} & set(entry.keys))
    assert entry.summary.endswith(b".")
    assert entry.arity != 0


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_the_arity_is_that_of_the_arguments(entry: Entry) -> None:
    needed = [each for each in entry.arguments if b"optional" not in each.flags]
    fixed = len(needed) == len(entry.arguments) and not entry.many
    assert abs(entry.arity) == 1 + len(needed)
    assert (entry.arity > 0) == fixed


def nodes(arguments: tuple[Argument, ...]) -> Iterator[Argument]:
    for each in arguments:
        yield each
        yield from nodes(each.below)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_the_tree_is_one_that_redis_could_tell(entry: Entry) -> None:
    for each in nodes(entry.arguments):
        assert each.kind in KINDS
        assert bool(each.below) == (each.kind in (b"oneof", b"block"))
        assert each.kind != b"pure-token" or each.token
        assert set(each.flags) <= {b"optional", b"multiple", b"multiple_token"}
    assert [each.kind for each in entry.arguments].count(b"key") == bool(entry.keys)
    if entry.keys:
        assert entry.arguments[0].kind == b"key"


def test_names_are_there_once() -> None:
    assert len(BY_NAME) == len(ENTRIES)


@pytest.mark.parametrize("name", grammar.OPTIONS, ids=bytes.decode)
def test_every_option_is_told(name: bytes) -> None:
    arguments = BY_NAME[name.lower()].arguments
    assert {each.token for each in arguments} - {b""} == set(grammar.OPTIONS[name])
    (algorithm,) = (each for each in arguments if each.token == b"ALGO")
    assert {each.token for each in algorithm.below} == set(algorithms.ALGORITHMS)


# -- the form --------------------------------------------------------------------------------------

HIT_7 = (
    b"*7\r\n$6\r\nrl.hit\r\n:-4\r\n"
    b"*5\r\n+write\r\n+denyoom\r\n+noscript\r\n+blocking\r\n+fast\r\n"
    b":1\r\n:1\r\n:1\r\n*4\r\n+@write\r\n+@fast\r\n+@blocking\r\n+@scripting\r\n"
)
RESET_10 = (
    b"*10\r\n$8\r\nrl.reset\r\n:-2\r\n~2\r\n+write\r\n+noscript\r\n:1\r\n:-1\r\n:1\r\n"
    b"~3\r\n+@keyspace\r\n+@write\r\n+@slow\r\n"
    b"~2\r\n$26\r\nrequest_policy:multi_shard\r\n$23\r\nresponse_policy:agg_sum\r\n"
    b"~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RM\r\n+delete\r\n"
    b"$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n"
    b"%1\r\n$5\r\nindex\r\n:1\r\n"
    b"$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n"
    b"%3\r\n$7\r\nlastkey\r\n:-1\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
    b"~0\r\n"
)
HELP_10 = (
    b"*10\r\n$7\r\nrl.help\r\n:1\r\n*2\r\n+noscript\r\n+fast\r\n:0\r\n:0\r\n:0\r\n"
    b"*2\r\n+@fast\r\n+@scripting\r\n*0\r\n*0\r\n*0\r\n"
)
GET_6 = b"*6\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n"
GET_7 = b"*7\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@read\r\n"
PING_10 = b"*10\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*0\r\n"
PING_SETS = PING_10.replace(b"*1\r\n", b"~1\r\n").replace(b"*0", b"~0")
PING_ARRAY = PING_SETS[:-4] + b"*0\r\n"


def form(learnt: bytes) -> Form:
    made = Form()
    made.learn(learnt)
    return made


def test_entries_in_each_form() -> None:
    hit, reset, help_ = BY_NAME[b"rl.hit"], BY_NAME[b"rl.reset"], BY_NAME[b"rl.help"]
    assert form(GET_7).info(hit) == HIT_7
    assert form(GET_7.replace(b"*2", b"~2")).info(hit) == HIT_7.replace(b"*4", b"~4").replace(
        b"*5", b"~5"
    )
    assert form(PING_SETS).info(reset) == RESET_10
    assert form(PING_ARRAY).info(reset) == RESET_10[:-4] + b"*0\r\n"
    assert form(PING_10).info(help_) == HELP_10
    assert form(GET_6).info(hit) == HIT_7.replace(b"*7", b"*6").partition(b"*4\r\n")[0]


@pytest.mark.parametrize("nothing", [b"", b"$-1\r\n", b"_\r\n", b"-NOPERM no\r\n", b"*0\r\n"])
def test_what_tells_no_form(nothing: bytes) -> None:
    assert form(nothing).info(BY_NAME[b"rl.help"]) == HELP_10


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
@pytest.mark.parametrize("learnt", [GET_6, GET_7, PING_10, PING_SETS, PING_ARRAY])
def test_entries_are_whole_frames(entry: Entry, learnt: bytes) -> None:
    line, values = split(form(learnt).info(entry))
    assert line == learnt[: len(line)]
    assert values[0] == bulk(entry.name)


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
@pytest.mark.parametrize("resp3", [False, True])
def test_docs_are_whole_frames(entry: Entry, resp3: bool) -> None:
    line, values = split(b"*2\r\n" + Form(resp3).docs(entry))
    assert values[0] == bulk(entry.name)
    line, values = split(values[1])
    assert line[:1] == (b"%" if resp3 else b"*")
    told = dict(zip(values[::2], values[1::2], strict=True))
    assert int(line[1:]) == (len(told) if resp3 else 2 * len(told))
    assert list(told)[:4] == [
        bulk(word) for word in (b"summary", b"since", b"group", b"complexity")
    ]
    assert (bulk(b"arguments") in told) == bool(entry.arguments)


THROTTLE_DOCS = (
    b"%5\r\n$7\r\nsummary\r\n$79\r\n"
    b"Takes from a GCRA rate limiter, with the arguments and the reply of redis-cell.\r\n"
    b"$5\r\nsince\r\n$5\r\n0.1.0\r\n$5\r\ngroup\r\n$6\r\nmodule\r\n"
    b"$10\r\ncomplexity\r\n$4\r\nO(1)\r\n$9\r\narguments\r\n*5\r\n"
    b"%4\r\n$4\r\nname\r\n$3\r\nkey\r\n$4\r\ntype\r\n$3\r\nkey\r\n"
    b"$12\r\ndisplay_text\r\n$3\r\nkey\r\n$14\r\nkey_spec_index\r\n:0\r\n"
    b"%3\r\n$4\r\nname\r\n$9\r\nmax_burst\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$9\r\nmax_burst\r\n"
    b"%3\r\n$4\r\nname\r\n$5\r\ncount\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$5\r\ncount\r\n"
    b"%3\r\n$4\r\nname\r\n$6\r\nperiod\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$6\r\nperiod\r\n"
    b"%4\r\n$4\r\nname\r\n$8\r\nquantity\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$8\r\nquantity\r\n$5\r\nflags\r\n~1\r\n+optional\r\n"
)
AND_RESP2 = (
    b"*10\r\n$4\r\nname\r\n$3\r\nand\r\n$4\r\ntype\r\n$5\r\nblock\r\n$5\r\ntoken\r\n$3\r\nAND\r\n"
    b"$5\r\nflags\r\n*3\r\n+optional\r\n+multiple\r\n+multiple_token\r\n$9\r\narguments\r\n*2\r\n"
    b"*6\r\n$4\r\nname\r\n$3\r\nmax\r\n$4\r\ntype\r\n$7\r\ninteger\r\n"
    b"$12\r\ndisplay_text\r\n$3\r\nmax\r\n"
    b"*6\r\n$4\r\nname\r\n$6\r\nwindow\r\n$4\r\ntype\r\n$6\r\ndouble\r\n"
    b"$12\r\ndisplay_text\r\n$6\r\nwindow\r\n"
)


def test_docs_in_each_form() -> None:
    assert Form(True).docs(BY_NAME[b"rl.throttle"]) == b"$11\r\nrl.throttle\r\n" + THROTTLE_DOCS
    assert Form().docs(BY_NAME[b"rl.hit"]).endswith(AND_RESP2)


# -- what is done about a COMMAND ------------------------------------------------------------------

UNTOUCHED = [
    (b"HELP",),
    (b"FOO",),
    (b"FOO", b"rl.hit"),
    (b"INFO", b"get", b"rl.foo", b"rl.hit|x", b"rl"),
    (b"DOCS", b"get", b"rl.foo"),
    (b"GETKEYS",),
    (b"GETKEYS", b"GET", b"k"),
    (b"GETKEYS", b"RL.FOO", b"k"),
    (b"GETKEYSANDFLAGS",),
    (b"GETKEYSANDFLAGS", b"GET", b"rl.hit"),
    (b"LIST", b"FILTERBY"),
    (b"LIST", b"FILTERBY", b"PATTERN"),
    (b"LIST", b"FILTERBY", b"PATTERN", b"g*"),
    (b"LIST", b"FILTERBY", b"PATTERN", b"rl.*", b"x"),
    (b"LIST", b"FILTERBY", b"ACLCAT", b"@write"),
    (b"LIST", b"FILTERBY", b"ACLCAT", b"nosuch"),
    (b"LIST", b"FILTERBY", b"MODULE", b"rlproxy"),
    (b"LIST", b"FILTERBY", b"FOO", b"*"),
    (b"LIST", b"BY", b"PATTERN", b"*"),
]


@pytest.mark.parametrize("words", UNTOUCHED, ids=str)
def test_untouched(words: tuple[bytes, ...]) -> None:
    assert planned(*words) is None


ERRORS = [b"-NOPERM no\r\n", b"-NOAUTH x\r\n", b"-ERR syntax error\r\n", b"+QUEUED\r\n", b"_\r\n"]
EDITED = [
    (),
    (b"INFO",),
    (b"info", b"RL.HIT"),
    (b"DOCS",),
    (b"docs", b"RL.hit"),
    (b"LIST",),
    (b"list", b"filterby", b"pattern", b"RL*"),
    (b"COUNT",),
    (b"count",),
    (b"GetKeys", b"rl.HIT", b"k", b"1", b"2"),
    (b"GETKEYSANDFLAGS", b"RL.HIT", b"k", b"1", b"2"),
]


@pytest.mark.parametrize("words", EDITED, ids=str)
@pytest.mark.parametrize("reply", ERRORS)
def test_what_is_not_the_reply_stays_as_it_is(words: tuple[bytes, ...], reply: bytes) -> None:
    made = planned(*words)
    assert made is not None
    if isinstance(made.slot, Catch):
        assert made.slot.edit(reply) == reply
    else:
        assert isinstance(made.slot, Unfold)
        assert made.slot.unfold(reply) == []


@pytest.mark.parametrize("native", [False, True])
def test_count(native: bool) -> None:
    made = planned(b"COUNT", native=native)
    assert made is not None
    assert isinstance(made.slot, Catch)
    assert made.slot.edit(b":240\r\n") == b":%d\r\n" % (240 + len(ENTRIES) - native)


@pytest.mark.parametrize("words", [(), (b"INFO",)])
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("first", [GET_6, GET_7, PING_10, PING_SETS, PING_ARRAY])
def test_all(words: tuple[bytes, ...], native: bool, first: bytes) -> None:
    ours = [entry for entry in ENTRIES if not native or entry.name != b"cl.throttle"]
    got = unfolded(b"*3\r\n" + first + PING_10 * 2, *words, native=native)
    told = b"".join(form(first).info(entry) for entry in ours)
    assert got == b"*%d\r\n" % (3 + len(ours)) + first + PING_10 * 2 + told
    assert unfolded(b"*1\r\n" + first, *words, native=native).endswith(first + told)


def test_nothing_is_added_where_there_is_no_form_to_follow() -> None:
    assert unfolded(b"*0\r\n", b"INFO") == b"*0\r\n"  # Redis 6.2


@pytest.mark.parametrize("nil", [b"$-1\r\n", b"_\r\n", b"*-1\r\n"])
@pytest.mark.parametrize("learnt", [GET_7, PING_SETS, PING_10])
def test_info(nil: bytes, learnt: bytes) -> None:
    words = (b"INFO", b"nosuch", b"RL.HIT", b"get", b"ping", b"rl.help", b"rl.hit")
    made = planned(*words)
    assert made is not None
    assert isinstance(made.asked, Catch)
    assert isinstance(made.slot, Unfold)
    assert made.asked.kind == s.S_ASKED
    assert made.asked.edit(b"*1\r\n" + learnt) == b""
    redis = [nil, nil, GET_7, PING_10, nil, nil]
    hit, help_ = (form(learnt).info(BY_NAME[name]) for name in (b"rl.hit", b"rl.help"))
    expected = [nil, hit, GET_7, PING_10, help_, hit]
    assert run(made.slot.unfold(b"*6\r\n"), redis) == b"*6\r\n" + b"".join(expected)


def test_info_of_what_redis_knows_itself_is_redis_own() -> None:
    made = planned(b"INFO", b"cl.throttle")
    assert made is not None
    assert isinstance(made.slot, Unfold)
    assert run(made.slot.unfold(b"*1\r\n"), [GET_7]) == b"*1\r\n" + GET_7
    assert planned(b"INFO", b"cl.throttle", native=True) is None


def test_info_of_another_length_stays_as_it_is() -> None:
    made = planned(b"INFO", b"rl.hit", b"get")
    assert made is not None
    assert isinstance(made.slot, Unfold)
    assert made.slot.unfold(b"*3\r\n") == []


@pytest.mark.parametrize(
    ("reply", "resp3"), [(b"*1\r\n_\r\n", True), (b"*1\r\n$-1\r\n", False), (b"-NOPERM\r\n", False)]
)
def test_a_get_that_is_not_there_tells_the_protocol_at_least(reply: bytes, resp3: bool) -> None:
    made = planned(b"GETKEYSANDFLAGS", b"RL.RESET", b"a")
    assert made is not None
    assert isinstance(made.asked, Catch)
    assert isinstance(made.slot, Catch)
    assert made.asked.edit(reply) == b""
    two = b"~2\r\n" if resp3 else b"*2\r\n"
    assert made.slot.edit(UNKNOWN) == b"*1\r\n*2\r\n" + bulk(b"a") + two + b"+RM\r\n+delete\r\n"


def test_docs() -> None:
    pair = bulk(b"get") + b"%1\r\n" + bulk(b"group") + bulk(b"string")
    named = (b"DOCS", b"rl.help", b"get", b"RL.HELP", b"rl.reset", b"rl.foo")
    help_, reset = BY_NAME[b"rl.help"], BY_NAME[b"rl.reset"]
    ours = Form(True).docs(help_) + Form(True).docs(reset)
    assert unfolded(b"%1\r\n" + pair, *named) == b"%3\r\n" + pair + ours
    assert unfolded(b"%0\r\n", *named) == b"%2\r\n" + ours
    pair = bulk(b"get") + bulks(b"group", b"string")
    ours = Form().docs(help_) + Form().docs(reset)
    assert unfolded(b"*2\r\n" + pair, *named) == b"*6\r\n" + pair + ours
    assert unfolded(b"*0\r\n", *named) == b"*4\r\n" + ours


@pytest.mark.parametrize("native", [False, True])
def test_docs_of_all(native: bool) -> None:
    count = len(ENTRIES) - native
    got = unfolded(b"%0\r\n", b"DOCS", native=native)
    assert got.startswith(b"%%%d\r\n" % count)
    got = unfolded(b"*2\r\n" + PING_10 * 2, b"DOCS", native=native)
    assert got.startswith(b"*%d\r\n" % (2 + 2 * count) + PING_10 * 2)
    assert (b"cl.throttle" in got) == (not native)


def listed(*words: bytes, native: bool = False) -> list[bytes]:
    """The names of ours that COMMAND LIST with `words` appends."""
    made = planned(b"LIST", *words, native=native)
    if made is None:
        return []
    line, values = split(unfolded(LISTED, b"LIST", *words, native=native))
    assert line == b"*%d\r\n" % len(values)
    assert b"".join(values[:2]) == LISTED[4:]
    return [value.split(b"\r\n")[1] for value in values[2:]]


def test_list() -> None:
    assert listed() == NAMES
    assert listed(native=True) == [name for name in NAMES if name != b"cl.throttle"]
    assert unfolded(b"*0\r\n", b"LIST", b"FILTERBY", b"PATTERN", b"rl.hit") == bulks(b"rl.hit")
    assert unfolded(b"~0\r\n", b"LIST", b"FILTERBY", b"PATTERN", b"rl.hit")[:4] == b"~1\r\n"


LISTS: list[tuple[bytes, bytes, set[bytes]]] = [
    (b"PATTERN", b"*", set(NAMES)),
    (b"pattern", b"*THROTTLE", {b"cl.throttle", b"rl.throttle"}),
    (b"PATTERN", b"rl.[Hp]*", {b"rl.hit", b"rl.help", b"rl.peek"}),
    (b"PATTERN", b"rl.hit\\", set()),
    (b"PATTERN", b"", set()),
    (b"ACLCAT", b"READ", {b"rl.peek"}),
    (b"aclcat", b"keyspace", {b"rl.reset"}),
    (b"ACLCAT", b"slow\0x", {b"rl.reset", b"rl.top"}),
    (b"ACLCAT", b"", set()),
    (b"MODULE", b"*", set()),
]


@pytest.mark.parametrize(("kind", "word", "expected"), LISTS)
def test_list_filterby(kind: bytes, word: bytes, expected: set[bytes]) -> None:
    assert set(listed(b"FILTERBY", kind, word)) == expected
    assert set(listed(b"filterby", kind, word, native=True)) == expected - {b"cl.throttle"}


GETKEYS: list[tuple[tuple[bytes, ...], bytes]] = [
    ((b"rl.hit", b"k", b"10", b"60"), bulks(b"k")),
    ((b"RL.HIT", b"k", b"x", b"y", b"z"), bulks(b"k")),
    ((b"RL.HIT", b"k", b"10"), WRONG_ARITY),
    ((b"RL.HIT",), WRONG_ARITY),
    ((b"RL.PEEK", b"", b"10", b"60"), bulks(b"")),
    ((b"RL.REFUND", b"k", b"10", b"60"), WRONG_ARITY),
    ((b"RL.REFUND", b"k", b"10", b"60", b"1"), bulks(b"k")),
    ((b"RL.RESET", b"a", b"b", b"c"), bulks(b"a", b"b", b"c")),
    ((b"RL.RESET",), WRONG_ARITY),
    ((b"RL.HELP",), KEYLESS),
    ((b"RL.HELP", b"x"), KEYLESS),
    ((b"CL.THROTTLE", b"k", b"1", b"2", b"3"), bulks(b"k")),
    ((b"RL.THROTTLE", b"k", b"1", b"2"), WRONG_ARITY),
]


@pytest.mark.parametrize(("words", "expected"), GETKEYS, ids=str)
def test_getkeys(words: tuple[bytes, ...], expected: bytes) -> None:
    assert caught(UNKNOWN, b"GETKEYS", *words) == expected
    theirs = bulks(b"theirs")
    assert caught(theirs, b"GETKEYS", *words) == theirs


def test_getkeys_and_flags() -> None:
    words = (b"GETKEYSANDFLAGS", b"RL.HIT", b"k", b"10", b"60")
    flags = b"*3\r\n+RW\r\n+access\r\n+update\r\n"
    assert caught(UNKNOWN, *words) == b"*1\r\n*2\r\n" + bulk(b"k") + flags
    made = planned(*words)
    assert made is not None
    assert isinstance(made.asked, Catch)
    assert isinstance(made.slot, Catch)
    made.asked.edit(b"*1\r\n" + PING_SETS)
    assert made.slot.edit(UNKNOWN) == b"*1\r\n*2\r\n" + bulk(b"k") + flags.replace(b"*", b"~")
    assert caught(UNKNOWN, b"GETKEYSANDFLAGS", b"RL.HIT") == WRONG_ARITY


# -- globs -----------------------------------------------------------------------------------------


def lower(char: str) -> str:
    return char.lower() if char.isascii() else char


def stringmatch(pattern: str, string: str) -> bool:
    """Redis' stringmatchlen() with nocase, line by line (characters are bytes, Latin 1)."""
    while pattern and string:
        match pattern[0]:
            case "*":
                while pattern[1:2] == "*":
                    pattern = pattern[1:]
                if len(pattern) == 1:
                    return True
                return any(stringmatch(pattern[1:], string[at:]) for at in range(len(string)))
            case "?":
                string = string[1:]
            case "[":
                pattern = pattern[1:]
                inverted = pattern[:1] == "^"
                if inverted:
                    pattern = pattern[1:]
                found = False
                while True:
                    if pattern[:1] == "\\" and len(pattern) >= 2:
                        pattern = pattern[1:]
                        found |= pattern[0] == string[0]
                    elif pattern[:1] == "]":
                        break
                    elif not pattern:
                        pattern = "x"  # one byte back
                        break
                    elif len(pattern) >= 3 and pattern[1] == "-":
                        ends = [(ord(char) + 128) % 256 - 128 for char in (pattern[0], pattern[2])]
                        first, last = (low + 32 * (65 <= low <= 90) for low in sorted(ends))
                        found |= first <= ord(lower(string[0])) <= last
                        pattern = pattern[2:]
                    else:
                        found |= lower(pattern[0]) == lower(string[0])
                    pattern = pattern[1:]
                if found == inverted:
                    return False
                string = string[1:]
            case _:
                if pattern[0] == "\\" and len(pattern) >= 2:
                    pattern = pattern[1:]
                if lower(pattern[0]) != lower(string[0]):
                    return False
                string = string[1:]
        pattern = pattern[1:]
        if not string:
            pattern = pattern.lstrip("*")
            break
    return not pattern and not string


GLOBS: list[tuple[bytes, bool]] = [
    (b"rl.hit", True),
    (b"RL.HIT", True),
    (b"rl.hi", False),
    (b"rl.hitt", False),
    (b"*", True),
    (b"**", True),
    (b"r*t", True),
    (b"*.*", True),
    (b"rl.hit*", True),
    (b"rl.hit**", True),
    (b"rl.hit*?", False),
    (b"??????", True),
    (b"?????", False),
    (b"r[a-z].hit", True),
    (b"r[z-a].hit", True),
    (b"r[A-Z].hit", True),
    (b"r[^a-z].hit", False),
    (b"r[^L].hit", False),
    (b"r[\\l].hit", True),
    (b"r[\\L].hit", False),
    (b"r[l.hit", False),
    (b"rl.hi[t", True),
    (b"rl.hi[", False),
    (b"rl.hi[^", True),
    (b"rl\\.hit", True),
    (b"rl.hit\\", False),
    (b"\\r\\l*", True),
    (b"r[\x80-z].hit", True),
    (b"r[z-\xff].hit", True),
]


@pytest.mark.parametrize(("pattern", "expected"), GLOBS)
def test_glob(pattern: bytes, expected: bool) -> None:
    assert bool(matching(pattern, [b"rl.hit"])) == expected
    assert stringmatch(pattern.decode("latin1"), "rl.hit") == expected


GLOB = st.lists(
    st.one_of(
        st.sampled_from(
            [b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"rl.", b"R", b"L", b"hit", b"t"]
        ),
        st.binary(min_size=1, max_size=1),
    ),
    max_size=9,
).map(b"".join)


@given(GLOB, st.sampled_from([b"rl.hit", b"rl.reset", b"cl.throttle", b"a-b^]\\"]))
def test_globs_match_as_in_redis(pattern: bytes, name: bytes) -> None:
    expected = stringmatch(pattern.decode("latin1"), name.decode())
    assert bool(matching(pattern, [name])) == expected


def test_a_monstrous_glob_is_soon_refused() -> None:
    for pattern in (b"*?" * 8000, b"*a" * 8000, b"*" * 16000, b"[" + b"a-z" * 5000, b"?" * 16000):
        matching(pattern, NAMES)
