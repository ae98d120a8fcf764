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
    assert ways.words(HIT) == HIT.words(LOADED)
    ways.choose(False, 0.0)
    for _ in range(2):
        assert ways.words(HIT) == HIT.words(BRING)
        assert ways.words(PEEK) == PEEK.words(BROUGHT)
        assert ways.words(FIXED) == FIXED.words(BRING)
        assert ways.words(FIXED) == FIXED.words(BROUGHT)
        ways.missing(True, 0.0)
    ways.choose(True, 0.0)
    assert ways.words(HIT) == HIT.words(LOADED)


def test_each_lane_brings_a_text_of_its_own() -> None:
    found = set()
    for number in (1, 2, 3):
        ways = ScriptCalls(number)
        ways.choose(False, 0.0)
        brings, brought = ways.words(HIT), ways.words(HIT)
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

# An error, and whether the call goes again: all calls go by their source then.
ERRORS = [
    (NO_RIGHT_6 % b"evalsha", True),
    (NO_RIGHT % (b"User bob", b"evalsha"), True),
    (UNKNOWN % b"EVALSHA", True),
    (UNKNOWN_6 % b"EVALSHA", True),
    (UNKNOWN % b"EVAL", False),
    (UNKNOWN_6 % b"EVAL", False),
    (NO_RIGHT % (b"User bob", b"eval"), False),
    (NO_RIGHT % (b"User run the 'evalsha' command", b"eval"), False),
    (b"-NOPERM No permissions to access a key\r\n", False),
    (b"-ERR unknown command called from script 'EVALSHA'\r\n", False),
    (b"-READONLY You can't write against a read only replica.\r\n", False),
]


@pytest.mark.parametrize(("error", "again"), ERRORS)
def test_errors_that_say_that_a_command_is_not_possible(error: bytes, again: bool) -> None:
    ways = ScriptCalls()
    assert ways.changes(error) == again
    assert ways.words(HIT) == HIT.words(SOURCE if again else LOADED)


def test_without_eval_evalsha_is_tried_again() -> None:
    ways = ScriptCalls()
    assert ways.changes(NO_RIGHT_6 % b"evalsha")
    assert not ways.changes(NO_RIGHT_6 % b"eval")
    assert ways.words(HIT) == HIT.words(LOADED)
