"""command_replies: what is done about each COMMAND, and globs as Redis' own."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.command_entries import ENTRIES, docs, info
from rlproxy.resp.encoding import bulk, bulks
from rlproxy.session.command_replies import KEYLESS, UNKNOWN, WRONG_ARITY, edited

from tests.unit.session.entries import GET_7, PING_10, PING_SETS, split

BY_NAME = {entry.name: entry for entry in ENTRIES}
NAMES = list(BY_NAME)
LISTED = b"*2\r\n$3\r\nget\r\n$3\r\nset\r\n"


def caught(reply: bytes, *words: bytes, native: bool = False, resp3: bool = False) -> bytes:
    """What becomes of a reply."""
    return edited(reply, list(words), native, resp3)


# -- what is done about a COMMAND ------------------------------------------------------------------

UNTOUCHED = [
    (b"HELP",),
    (b"FOO",),
    (b"FOO", b"rl.hit"),
    (b"INFO", b"get", b"rl.foo", b"rl.hit|x", b"rl"),
    (b"DOCS", b"get", b"rl.foo"),
]


@pytest.mark.parametrize("words", UNTOUCHED, ids=str)
def test_untouched(words: tuple[bytes, ...]) -> None:
    for reply in (b"*2\r\n$-1\r\n:1\r\n", b"%1\r\n$3\r\nget\r\n%0\r\n", b"-ERR no\r\n"):
        assert caught(reply, *words) == reply


ERRORS = [b"-NOPERM no\r\n", b"-NOAUTH x\r\n", b"-ERR syntax error\r\n", b"+QUEUED\r\n", b"_\r\n"]
EDITED = [
    (),
    (b"INFO",),
    (b"info", b"RL.HIT"),
    (b"DOCS",),
    (b"docs", b"RL.hit"),
    (b"LIST",),
    (b"COUNT",),
    (b"count",),
    (b"GetKeys", b"rl.HIT", b"k", b"1", b"2"),
]


@pytest.mark.parametrize("words", EDITED, ids=str)
@pytest.mark.parametrize("reply", ERRORS)
def test_what_is_not_the_reply_stays_as_it_is(words: tuple[bytes, ...], reply: bytes) -> None:
    assert caught(reply, *words) == reply


@pytest.mark.parametrize("native", [False, True])
def test_count(native: bool) -> None:
    total = 240 + len(ENTRIES) - native
    assert caught(b":240\r\n", b"COUNT", native=native) == b":%d\r\n" % total


@pytest.mark.parametrize("words", [(), (b"INFO",)])
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("resp3", [False, True])
@pytest.mark.parametrize("theirs", [b"", PING_10 * 3, PING_SETS * 3])
def test_all(words: tuple[bytes, ...], native: bool, resp3: bool, theirs: bytes) -> None:
    ours = [entry for entry in ENTRIES if not native or entry.name != b"cl.throttle"]
    count = 3 if theirs else 0
    got = caught(b"*%d\r\n" % count + theirs, *words, native=native, resp3=resp3)
    entries = b"".join(info(entry, resp3) for entry in ours)
    assert got == b"*%d\r\n" % (count + len(ours)) + theirs + entries


@pytest.mark.parametrize("nil", [b"$-1\r\n", b"_\r\n", b"*-1\r\n"])
@pytest.mark.parametrize("resp3", [False, True])
def test_info(nil: bytes, resp3: bool) -> None:
    words = (b"INFO", b"nosuch", b"RL.HIT", b"get", b"ping", b"rl.help", b"rl.hit")
    redis = [nil, nil, GET_7, PING_10, nil, nil]
    hit, help_ = (info(BY_NAME[name], resp3) for name in (b"rl.hit", b"rl.help"))
    expected = [nil, hit, GET_7, PING_10, help_, hit]
    got = caught(b"*6\r\n" + b"".join(redis), *words, resp3=resp3)
    assert got == b"*6\r\n" + b"".join(expected)


def test_info_of_what_redis_knows_itself_is_redis_own() -> None:
    assert caught(b"*1\r\n" + GET_7, b"INFO", b"cl.throttle") == b"*1\r\n" + GET_7
    nil = b"*1\r\n_\r\n"
    assert caught(nil, b"INFO", b"cl.throttle", native=True) == nil


def test_docs() -> None:
    pair = bulk(b"get") + b"%1\r\n" + bulk(b"group") + bulk(b"string")
    named = (b"DOCS", b"rl.help", b"get", b"RL.HELP", b"rl.reset", b"rl.foo")
    help_, reset = BY_NAME[b"rl.help"], BY_NAME[b"rl.reset"]
    ours = docs(help_, True) + docs(reset, True)
    assert caught(b"%1\r\n" + pair, *named) == b"%3\r\n" + pair + ours
    assert caught(b"%0\r\n", *named) == b"%2\r\n" + ours
    pair = bulk(b"get") + bulks(b"group", b"string")
    ours = docs(help_, False) + docs(reset, False)
    assert caught(b"*2\r\n" + pair, *named) == b"*6\r\n" + pair + ours
    assert caught(b"*0\r\n", *named) == b"*4\r\n" + ours


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", [b"*", b"~"])
def test_list(native: bool, kind: bytes) -> None:
    names = [name for name in NAMES if not native or name != b"cl.throttle"]
    line, values = split(caught(kind + LISTED[1:], b"LIST", native=native))
    assert line == kind + b"%d\r\n" % len(values)
    assert b"".join(values) == LISTED[4:] + b"".join(bulk(name) for name in names)


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
