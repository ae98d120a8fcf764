"""RL.* arguments to the script call they stand for, or to the error that says what is wrong.

The contract is a table: `OPTIONS` are the words, `ALGORITHMS` the rows of RL.HIT's ALGO. A rule
(everything of a command but its key) is parsed once and remembered by the bytes it was written in:
after that a hit costs one look-up. Nothing here knows of connections.
"""

from __future__ import annotations

import re
from typing import Final

from . import replies
from .scripts import Script

MICROSECONDS: Final = 1_000_000
MAX_HITS: Final = 1_000_000_000  # max, COST
MAX_WINDOW_S: Final = 315_360_000  # ten years
RULES_KEPT: Final = 4096
RULE_BYTES: Final = 512  # longer ones are parsed each time

NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
SYNTAX_ERROR: Final = "ERR syntax error"

_INTEGER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_SECONDS: Final = re.compile(rb"([0-9]{1,18})(?:\.([0-9]{1,6}))?")


class GrammarError(Exception):
    """A command that is refused before Redis is asked; its text is the reply's."""


class Algorithm:
    """One row of the table: an ALGO name, its script, its bounds, the options it supports."""

    __slots__ = ("max_cost", "max_hits", "name", "options", "script")

    def __init__(
        self, name: bytes, script: str, max_hits: int, max_cost: int, options: frozenset[bytes]
    ) -> None:
        self.name = name
        self.script = script
        self.max_hits = max_hits
        self.max_cost = max_cost
        self.options = options


# Every ALGO: the file it runs, the largest max and COST it takes, the options it supports.
ALGORITHMS: Final = {
    b"LOG": Algorithm(b"LOG", "sliding_window_log", 1_000_000, 100_000, frozenset([b"COST"])),
}
DEFAULT_ALGORITHM: Final = b"LOG"

# Every option word of each command, and how many words follow it.
OPTIONS: Final[dict[bytes, dict[bytes, int]]] = {
    b"RL.HIT": {b"MS": 0, b"ALGO": 1, b"COST": 1},
    b"RL.PEEK": {b"MS": 0, b"ALGO": 1, b"COST": 1},
}

HELP: Final = (
    "RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:",
    "RL.HIT <key> <max> <window> [MS] [ALGO LOG] [COST <n>]",
    "    Count a hit on <key>: at most <max> are admitted in any <window> seconds.",
    "    Answers limited (0 or 1), limit, remaining, retry_after, reset_after.",
    "    * MS: all times of the command and of its reply in milliseconds.",
    "    * COST: what the hit weighs (default 1); 0 looks without writing.",
    "RL.PEEK <key> <max> <window> [MS] [ALGO LOG] [COST <n>]",
    "    What RL.HIT would answer; writes nothing.",
    "RL.RESET <key> [<key> ...]",
    "    Forget the limiters; answers how many there were.",
    "RL.HELP",
    "    Print this help.",
)


class Rule:
    """A command of the family, all but its key: ready to be sent, or refused.

    `error` is the reply of a refused one, else empty. `evalsha` and `eval` are what goes before
    the key's bulk, `tail` what goes after it.
    """

    __slots__ = ("error", "eval", "evalsha", "limit", "script", "tail")

    def __init__(self, error: bytes = b"") -> None:
        self.error = error
        self.script: Script | None = None
        self.evalsha = b""
        self.eval = b""
        self.tail = b""
        self.limit = 0


class Grammar:
    """Parses the family's commands into calls of the given scripts."""

    __slots__ = ("_by_bytes", "_scripts", "help_call")

    def __init__(self, scripts: dict[str, Script]) -> None:
        self._scripts = scripts
        self._by_bytes: dict[bytes, Rule] = {}
        self.help_call = _help_call()

    def known(self, written: bytes) -> Rule | None:
        """The rule that was last written as `written` (command name, then arguments), if any."""
        return self._by_bytes.get(written)

    def rule(self, written: bytes, name: bytes, args: list[bytes]) -> Rule:
        """The rule of command `name` with `args` (key included); remembered under `written`.

        Never raises: what is wrong with it becomes `Rule.error`.
        """
        try:
            rule = self._parse(name, args)
        except GrammarError as refused:
            rule = Rule(replies.error(str(refused)))
        if len(written) <= RULE_BYTES:
            if len(self._by_bytes) >= RULES_KEPT:
                self._by_bytes.clear()
            self._by_bytes[written] = rule
        return rule

    def _parse(self, name: bytes, args: list[bytes]) -> Rule:
        if len(args) < 3:
            raise GrammarError(wrong_arity(name))
        limit = integer(args[1], 1, MAX_HITS)
        # MS changes how every time is read, wherever the word stands.
        words = _words(name, args[3:])
        milliseconds = b"MS" in words
        window_us = (
            integer(args[2], 1, MAX_WINDOW_S * 1000) * 1000
            if milliseconds
            else seconds("window", args[2], 1000, MAX_WINDOW_S)
        )
        cost = 1
        algorithm = ALGORITHMS[DEFAULT_ALGORITHM]
        seen: set[bytes] = set()
        rest = args[3:]
        while rest:
            word = rest.pop(0).upper()
            count = OPTIONS[name].get(word)
            if count is None or word in seen or len(rest) < count:
                raise GrammarError(SYNTAX_ERROR)
            seen.add(word)
            if word == b"COST":
                cost = integer(rest.pop(0), 0, MAX_HITS)
            elif word == b"ALGO":
                found = ALGORITHMS.get(rest.pop(0).upper())
                if found is None:
                    raise GrammarError(SYNTAX_ERROR)
                algorithm = found
        if limit > algorithm.max_hits or cost > algorithm.max_cost:
            raise GrammarError(NOT_AN_INTEGER)
        for word in sorted(seen - {b"MS", b"ALGO"} - algorithm.options):
            raise GrammarError(
                f"ERR {word.decode()} is not supported by ALGO {algorithm.name.decode()}"
            )
        call = [
            b"%d" % limit,
            b"%d" % window_us,
            b"1000" if milliseconds else b"1000000",
        ]
        if cost != 1 or name == b"RL.PEEK":
            call.append(b"%d" % cost)
        if name == b"RL.PEEK":
            call.append(b"peek")
        return script_call(self._scripts[algorithm.script], call, limit)


def script_call(script: Script, call: list[bytes], limit: int) -> Rule:
    """The rule that calls `script` with one key and the ARGV `call`."""
    rule = Rule()
    rule.script = script
    rule.limit = limit
    head = b"*%d\r\n" % (4 + len(call))
    one_key = b"$1\r\n1\r\n"
    rule.evalsha = head + b"$7\r\nEVALSHA\r\n" + replies.bulk(script.sha) + one_key
    rule.eval = head + b"$4\r\nEVAL\r\n" + replies.bulk(script.source) + one_key
    rule.tail = b"".join(replies.bulk(word) for word in call)
    return rule


def wrong_arity(name: bytes) -> str:
    """Redis' text for too few or too many arguments."""
    return f"ERR wrong number of arguments for '{name.decode().lower()}' command"


def integer(word: bytes, least: int, most: int) -> int:
    """`word` as Redis parses an integer. Raises GrammarError outside least..most."""
    if _INTEGER.fullmatch(word) is None or not least <= int(word) <= most:
        raise GrammarError(NOT_AN_INTEGER)
    return int(word)


def seconds(what: str, word: bytes, least_us: int, most_s: int) -> int:
    """A time in seconds, with up to six decimals, in microseconds. Raises GrammarError."""
    match = _SECONDS.fullmatch(word)
    if match is not None:
        fraction = match[2] or b""
        value = int(match[1]) * MICROSECONDS + int(fraction.ljust(6, b"0"))
        if least_us <= value <= most_s * MICROSECONDS:
            return value
    raise GrammarError(f"ERR {what} is not a valid number of seconds")


def _words(name: bytes, args: list[bytes]) -> set[bytes]:
    """The option words among `args`, as far as they can be told: a value is not taken for one."""
    found: set[bytes] = set()
    options = OPTIONS[name]
    index = 0
    while index < len(args):
        word = args[index].upper()
        found.add(word)
        index += 1 + options.get(word, 0)
    return found


def _help_call() -> bytes:
    lines = ",".join("{ok='" + line.replace("'", "\\'") + "'}" for line in HELP)
    return replies.bulks(b"EVAL", b"return {" + lines.encode() + b"}", b"0")
