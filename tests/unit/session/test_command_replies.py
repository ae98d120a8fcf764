"""command_replies: what is done about each COMMAND, and globs as Redis' own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.ratelimit.command_entries import ENTRIES
from rlproxy.ratelimit.entry_form import Form
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.session import slots as s
from rlproxy.session.command_replies import KEYLESS, MAX_EDITED, UNKNOWN, WRONG_ARITY, Plan, plan

from tests.unit.session.entries import GET_6, GET_7, PING_10, PING_ARRAY, PING_SETS, form, split

BY_NAME = {entry.name: entry for entry in ENTRIES}
NAMES = list(BY_NAME)
LISTED = b"*2\r\n$3\r\nget\r\n$3\r\nset\r\n"


def planned(*words: bytes, native: bool = False) -> Plan | None:
    return plan(list(words), native)


def caught(reply: bytes, *words: bytes, native: bool = False) -> bytes:
    """What becomes of a reply."""
    made = planned(*words, native=native)
    assert made is not None
    return made.slot.edit(reply)


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
    assert made.slot.edit(reply) == reply


@pytest.mark.parametrize("native", [False, True])
def test_count(native: bool) -> None:
    made = planned(b"COUNT", native=native)
    assert made is not None
    assert made.slot.edit(b":240\r\n") == b":%d\r\n" % (240 + len(ENTRIES) - native)


@pytest.mark.parametrize("words", [(), (b"INFO",)])
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("first", [GET_6, GET_7, PING_10, PING_SETS, PING_ARRAY])
def test_all(words: tuple[bytes, ...], native: bool, first: bytes) -> None:
    ours = [entry for entry in ENTRIES if not native or entry.name != b"cl.throttle"]
    got = caught(b"*3\r\n" + first * 3, *words, native=native)
    told = b"".join(form(first).info(entry) for entry in ours)
    assert got == b"*%d\r\n" % (3 + len(ours)) + first * 3 + told
    assert caught(b"*1\r\n" + first, *words, native=native).endswith(first + told)


def test_nothing_is_added_where_there_is_no_form_to_follow() -> None:
    assert caught(b"*0\r\n", b"INFO") == b"*0\r\n"  # Redis 6.2


@pytest.mark.parametrize("nil", [b"$-1\r\n", b"_\r\n", b"*-1\r\n"])
@pytest.mark.parametrize("learnt", [GET_7, PING_SETS, PING_10])
def test_info(nil: bytes, learnt: bytes) -> None:
    words = (b"INFO", b"nosuch", b"RL.HIT", b"get", b"ping", b"rl.help", b"rl.hit")
    made = planned(*words)
    assert made is not None
    assert made.asked is not None
    assert made.asked.kind == s.S_ASKED
    assert made.asked.edit(b"*1\r\n" + learnt) == b""
    redis = [nil, nil, GET_7, PING_10, nil, nil]
    hit, help_ = (form(learnt).info(BY_NAME[name]) for name in (b"rl.hit", b"rl.help"))
    expected = [nil, hit, GET_7, PING_10, help_, hit]
    assert made.slot.edit(b"*6\r\n" + b"".join(redis)) == b"*6\r\n" + b"".join(expected)


def test_info_of_what_redis_knows_itself_is_redis_own() -> None:
    made = planned(b"INFO", b"cl.throttle")
    assert made is not None
    assert made.slot.edit(b"*1\r\n" + GET_7) == b"*1\r\n" + GET_7
    assert planned(b"INFO", b"cl.throttle", native=True) is None


def test_info_of_another_length_stays_as_it_is() -> None:
    made = planned(b"INFO", b"rl.hit", b"get")
    assert made is not None
    assert made.slot.edit(b"*3\r\n" + GET_7 * 3) == b"*3\r\n" + GET_7 * 3


@pytest.mark.parametrize(
    ("reply", "resp3"), [(b"*1\r\n_\r\n", True), (b"*1\r\n$-1\r\n", False), (b"-NOPERM\r\n", False)]
)
def test_a_get_that_is_not_there_tells_the_protocol_at_least(reply: bytes, resp3: bool) -> None:
    made = planned(b"GETKEYSANDFLAGS", b"RL.RESET", b"a")
    assert made is not None
    assert made.asked is not None
    assert made.asked.edit(reply) == b""
    two = b"~2\r\n" if resp3 else b"*2\r\n"
    assert made.slot.edit(UNKNOWN) == b"*1\r\n*2\r\n" + bulk(b"a") + two + b"+RM\r\n+delete\r\n"


def test_docs() -> None:
    pair = bulk(b"get") + b"%1\r\n" + bulk(b"group") + bulk(b"string")
    named = (b"DOCS", b"rl.help", b"get", b"RL.HELP", b"rl.reset", b"rl.foo")
    help_, reset = BY_NAME[b"rl.help"], BY_NAME[b"rl.reset"]
    ours = Form(True).docs(help_) + Form(True).docs(reset)
    assert caught(b"%1\r\n" + pair, *named) == b"%3\r\n" + pair + ours
    assert caught(b"%0\r\n", *named) == b"%2\r\n" + ours
    pair = bulk(b"get") + bulks(b"group", b"string")
    ours = Form().docs(help_) + Form().docs(reset)
    assert caught(b"*2\r\n" + pair, *named) == b"*6\r\n" + pair + ours
    assert caught(b"*0\r\n", *named) == b"*4\r\n" + ours


@pytest.mark.parametrize("native", [False, True])
def test_docs_of_all(native: bool) -> None:
    count = len(ENTRIES) - native
    got = caught(b"%0\r\n", b"DOCS", native=native)
    assert got.startswith(b"%%%d\r\n" % count)
    got = caught(b"*2\r\n" + PING_10 * 2, b"DOCS", native=native)
    assert got.startswith(b"*%d\r\n" % (2 + 2 * count) + PING_10 * 2)
    assert (b"cl.throttle" in got) == (not native)


def listed(*words: bytes, native: bool = False) -> list[bytes]:
    """The names of ours that COMMAND LIST with `words` appends."""
    made = planned(b"LIST", *words, native=native)
    if made is None:
        return []
    line, values = split(caught(LISTED, b"LIST", *words, native=native))
    assert line == b"*%d\r\n" % len(values)
    assert b"".join(values[:2]) == LISTED[4:]
    return [value.split(b"\r\n")[1] for value in values[2:]]


def test_list() -> None:
    assert listed() == NAMES
    assert listed(native=True) == [name for name in NAMES if name != b"cl.throttle"]
    assert caught(b"*0\r\n", b"LIST", b"FILTERBY", b"PATTERN", b"rl.hit") == bulks(b"rl.hit")
    assert caught(b"~0\r\n", b"LIST", b"FILTERBY", b"PATTERN", b"rl.hit")[:4] == b"~1\r\n"


LISTS: list[tuple[bytes, bytes, set[bytes]]] = [
    (b"PATTERN", b"*", set(NAMES)),
    (b"pattern", b"*THROTTLE", {b"cl.throttle", b"rl.throttle"}),
    (b"PATTERN", b"RL.?e*", {b"rl.peek", b"rl.help", b"rl.refund", b"rl.reset"}),
    (b"PATTERN", b"rl.[Hp]*", set()),
    (b"PATTERN", b"rl.\\hit", set()),
    (b"PATTERN", b"", set()),
    (b"ACLCAT", b"READ", {b"rl.peek"}),
    (b"aclcat", b"keyspace", {b"rl.reset"}),
    (b"ACLCAT", b"slow\0x", {b"rl.policies", b"rl.reset", b"rl.top"}),
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
    ((b"RL.BLOCK", b"k"), WRONG_ARITY),
    ((b"RL.BLOCK", b"k", b"60"), bulks(b"k")),
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
    assert made.asked is not None
    made.asked.edit(b"*1\r\n" + PING_SETS)
    assert made.slot.edit(UNKNOWN) == b"*1\r\n*2\r\n" + bulk(b"k") + flags.replace(b"*", b"~")
    assert caught(UNKNOWN, b"GETKEYSANDFLAGS", b"RL.HIT") == WRONG_ARITY


# -- globs -----------------------------------------------------------------------------------------


def stringmatch(pattern: bytes, name: bytes) -> bool:
    """Redis' stringmatchlen() with nocase, for patterns without brackets and escapes."""
    if not pattern or not name:
        return not pattern.lstrip(b"*") and not name
    if pattern[:1] == b"*":
        return stringmatch(pattern[1:], name) or stringmatch(pattern, name[1:])
    same = pattern[:1] in (b"?", name[:1], name[:1].upper())
    return same and stringmatch(pattern[1:], name[1:])


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
    (b"rl.hit\n", False),
    (b"rl!hit", False),
    (b"rl.hi\xd4", False),
]


@pytest.mark.parametrize(("pattern", "expected"), GLOBS)
def test_glob(pattern: bytes, expected: bool) -> None:
    assert (b"rl.hit" in listed(b"FILTERBY", b"PATTERN", pattern)) == expected
    assert stringmatch(pattern, b"rl.hit") == expected


GLOB = st.lists(
    st.one_of(
        st.sampled_from(
            [b"*", b"?", b"]", b"^", b"-", b"!", b"{", b"rl.", b"R", b"L", b"hit", b"t"]
        ),
        st.binary(min_size=1, max_size=1).filter(lambda byte: byte not in b"[\\"),
    ),
    max_size=9,
).map(b"".join)


@given(GLOB)
def test_globs_match_as_in_redis(pattern: bytes) -> None:
    assert listed(b"FILTERBY", b"PATTERN", pattern) == [
        name for name in NAMES if stringmatch(pattern, name)
    ]


@pytest.mark.parametrize("pattern", [b"[r]l.*", b"*]rl.[", b"rl\\.*", b"\\*", b"[!x]*"])
def test_patterns_with_brackets_or_escapes_are_left_to_redis(pattern: bytes) -> None:
    assert planned(b"LIST", b"FILTERBY", b"PATTERN", pattern) is None


@pytest.mark.parametrize("part", [b"*?", b"*a", b"*", b"?", b"*.", b"*l*t"])
def test_a_monstrous_glob_is_soon_refused(part: bytes) -> None:
    pattern = part * (MAX_EDITED // len(part)) + b"x"
    assert listed(b"FILTERBY", b"PATTERN", pattern) == []
