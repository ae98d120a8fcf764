"""By which command and text a call names its script, after each reply of Redis."""

from __future__ import annotations

import hashlib

import pytest
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.scripts import BRING, BROUGHT, LOADED, SOURCE
from rlproxy.upstream.script_calls import MISLED_S, ScriptCalls

GRAMMAR = Grammar(scripts.load())
HIT = GRAMMAR.rule(b"hit", b"RL.HIT", [b"k", b"10", b"60"])
PEEK = GRAMMAR.rule(b"peek", b"RL.PEEK", [b"k", b"10", b"60"])
FIXED = GRAMMAR.rule(b"fixed", b"RL.HIT", [b"k", b"10", b"60", b"ALGO", b"FIXED"])


def test_each_script_is_brought_once_and_again_when_one_is_missing() -> None:
    ways = ScriptCalls()
    assert ways.words(HIT, False) == HIT.words(LOADED)
    ways.choose(False, 0.0)
    for _ in range(2):
        assert ways.words(HIT, True) == HIT.words(BRING)
        assert ways.words(PEEK, True) == PEEK.words(BROUGHT, True)
        assert ways.words(FIXED, True) == FIXED.words(BRING)
        assert ways.words(FIXED, True) == FIXED.words(BROUGHT)
        ways.missing(True, 0.0)
    ways.choose(True, 0.0)
    assert ways.words(HIT, False) == HIT.words(LOADED)


def test_each_lane_brings_a_text_of_its_own() -> None:
    found = set()
    for number in (1, 2, 3):
        ways = ScriptCalls(number)
        ways.choose(False, 0.0)
        brings, brought = ways.words(HIT, False), ways.words(HIT, False)
        assert hashlib.sha1(text_of(brings)).hexdigest().encode() == text_of(brought)
        found.add(text_of(brought))
    assert len(found) == 3


def text_of(words: bytes) -> bytes:
    """The script, or its digest, in the words of a call."""
    return words[: -len(b"\r\n$1\r\n1\r\n")].split(b"\r\n", 4)[4]


def test_scripts_that_were_loaded_and_are_missing_are_brought_for_a_time() -> None:
    ways = ScriptCalls()
    ways.missing(False, 5.0)
    ways.choose(True, 5.0)
    assert ways.loaded
    ways.missing(True, 5.0)
    ways.choose(True, 5.0)
    assert not ways.loaded
    ways.choose(True, 5.0 + MISLED_S)
    assert ways.loaded


NO_RIGHT = b"-NOPERM %b has no permissions to run the '%b' command\r\n"
NO_RIGHT_6 = b"-NOPERM this user has no permissions to run the '%b' command or its subcommand\r\n"
UNKNOWN = b"-ERR unknown command '%b', with args beginning with: 'x' \r\n"
UNKNOWN_6 = b"-ERR unknown command `%b`, with args beginning with: `x`, \r\n"

# An error; whether the call goes again; how hits and looks go then.
ERRORS = [
    (NO_RIGHT_6 % b"evalsha", True, SOURCE, LOADED, True),
    (NO_RIGHT % (b"User bob", b"evalsha"), True, SOURCE, LOADED, True),
    (NO_RIGHT % (b"User bob", b"evalsha_ro"), True, LOADED, SOURCE, True),
    (UNKNOWN % b"EVALSHA", True, SOURCE, LOADED, True),
    (UNKNOWN_6 % b"EVALSHA", True, SOURCE, LOADED, True),
    (UNKNOWN % b"EVALSHA_RO", True, LOADED, LOADED, False),
    (UNKNOWN % b"EVAL_RO", True, LOADED, LOADED, False),
    (UNKNOWN % b"EVAL", False, LOADED, LOADED, True),
    (UNKNOWN_6 % b"EVAL", False, LOADED, LOADED, True),
    (NO_RIGHT % (b"User bob", b"eval"), False, LOADED, LOADED, True),
    (NO_RIGHT % (b"User run the 'evalsha' command", b"eval"), False, LOADED, LOADED, True),
    (b"-NOPERM No permissions to access a key\r\n", False, LOADED, LOADED, True),
    (b"-ERR unknown command called from script 'EVALSHA'\r\n", False, LOADED, LOADED, True),
    (b"-READONLY You can't write against a read only replica.\r\n", False, LOADED, LOADED, True),
]


@pytest.mark.parametrize(("error", "again", "hit", "look", "ro"), ERRORS)
def test_errors_that_say_that_a_command_is_not_possible(
    error: bytes, again: bool, hit: int, look: int, ro: bool
) -> None:
    ways = ScriptCalls()
    assert ways.changes(error) == again
    assert ways.words(HIT, True) == HIT.words(hit)
    assert ways.words(PEEK, True) == PEEK.words(look, ro)


def test_without_eval_evalsha_is_tried_again() -> None:
    ways = ScriptCalls()
    assert ways.changes(NO_RIGHT_6 % b"evalsha")
    assert not ways.changes(NO_RIGHT_6 % b"eval")
    assert ways.words(HIT, True) == HIT.words(LOADED)
