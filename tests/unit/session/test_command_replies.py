"""command_replies: what is done about each COMMAND, and globs as Redis' own."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session.command_replies import KEYLESS, UNKNOWN, WRONG_ARITY, edited


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
