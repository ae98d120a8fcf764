"""RL.* arguments to the script call they stand for, or to the error that says what is wrong.

The contract is a table: `OPTIONS` are the words of each command. A rule (everything of a command
but its key) is parsed once and remembered by the bytes it was written in: after that a hit costs
one look-up. Nothing here knows of connections.
"""

from __future__ import annotations

import re
from typing import Final

from . import limiters, replies, stats
from .limiters import ALGORITHMS, DEFAULT_ALGORITHM, MAX_HITS, MICROSECONDS, MILLISECONDS, Limiter
from .scripts import Script

MAX_WINDOW_S: Final = 315_360_000  # ten years
MAX_WAIT_S: Final = 3600
MAX_BURST_CELL: Final = 999_999_999  # CL.THROTTLE's, one less than the limit
MAX_CELL: Final = 9_223_372_036_854_775_807  # what Redis takes for an integer
MAX_TOP: Final = 1000  # keys that RL.TOP tells
MAX_LIMITS: Final = 8  # how often AND may stand
RULES_KEPT: Final = 4096
RULE_BYTES: Final = 512  # longer ones are parsed each time

NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
SYNTAX_ERROR: Final = "ERR syntax error"
OUT_OF_RANGE: Final = "ERR rate or burst out of range"

_INTEGER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_SECONDS: Final = re.compile(rb"([0-9]{1,18})(?:\.([0-9]{1,6}))?")


class GrammarError(Exception):
    """A command that is refused before Redis is asked; its text is the reply's."""


# Every option word of each command, and how many words follow it.
OPTIONS: Final[dict[bytes, dict[bytes, int]]] = {
    b"RL.HIT": {
        b"MS": 0,
        b"ALGO": 1,
        b"COST": 1,
        b"BURST": 1,
        b"GAP": 1,
        b"STRICT": 0,
        b"PENALTY": 1,
        b"WAIT": 1,
        b"AND": 2,
    },
    b"RL.PEEK": {b"MS": 0, b"ALGO": 1, b"COST": 1, b"BURST": 1, b"GAP": 1, b"AND": 2},
    b"RL.REFUND": {b"MS": 0, b"ALGO": 1, b"BURST": 1, b"AND": 2},
}
THROTTLES: Final = (b"CL.THROTTLE", b"RL.THROTTLE")

HELP: Final = (
    "RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:",
    (
        "RL.HIT <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>] [STRICT]"
        " [PENALTY <t>] [WAIT <t>] [AND <max> <window> ...]"
    ),
    "    Count a hit on <key>: at most <max> are admitted in any <window> seconds.",
    "    Answers limited (0 or 1), limit, remaining, retry_after, reset_after.",
    "    * MS: all times of the command and of its reply in milliseconds.",
    "    * ALGO: LOG (default), ZLOG, FIXED, COUNTER, TOKEN, LEAKY or GCRA.",
    "    * COST: what the hit weighs (default 1); 0 looks without writing.",
    "    * BURST: capacity of TOKEN, LEAKY and GCRA (default <max>).",
    "    * GAP: least time between two hits that count (LOG, ZLOG).",
    "    * STRICT: refused hits count too (LOG, ZLOG, FIXED).",
    "    * PENALTY: once refused, refuse everything on the key for so long.",
    "    * WAIT: hold the reply until the hit is admitted, at most so long.",
    "    * AND: a further limit on the same key, up to 8 times (LOG, ZLOG).",
    (
        "RL.PEEK <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>]"
        " [AND <max> <window> ...]"
    ),
    "    What RL.HIT would answer; writes nothing, replicas answer it too.",
    "RL.REFUND <key> <max> <window> <n> [MS] [ALGO <name>] [BURST <n>] [AND <max> <window> ...]",
    "    Give back up to <n> hits, the newest first; answers as RL.PEEK does then.",
    "RL.RESET <key> [<key> ...]",
    "    Forget the limiters; answers how many there were.",
    "CL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    As redis-cell: GCRA, <count> per <period> seconds, bursts of <max_burst> + 1.",
    "RL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
    "    The same.",
    "RL.STATS",
    "    What the proxy has counted since it began, in the style of INFO.",
    "RL.TOP <n> [REFUSED]",
    "    The keys with most hits, or refusals, of the last minute; of each its error, too.",
    "RL.HELP",
    "    Print this help.",
)


class Rule:
    """A command of the family, all but its key: ready to be sent, or refused.

    `error` is the reply of a refused one, else empty. What words() returns goes before the key's
    bulk, `tail` after it. The script's source is not kept here: rules are many.
    """

    __slots__ = (
        "_attempt",
        "_final",
        "_look",
        "by_ro",
        "denies",
        "error",
        "frees",
        "head",
        "limit",
        "limiter",
        "reads",
        "row",
        "script",
        "shapes",
        "tail",
        "takes",
        "unit_us",
        "waits",
    )

    def __init__(self, error: bytes = b"") -> None:
        self.error = error
        self.script: Script | None = None
        self.limiter: Limiter | None = None
        self.head = b""  # the number of words; without a script, all that goes before the key
        self.by_ro = False  # goes by EVAL_RO where the server has that
        self.tail = b""
        self.reads = False
        self.row: int = stats.NO_ROW  # where it is counted
        self.unit_us = 1  # of the times in the reply
        self.takes = False  # takes something if it is admitted
        self.limit = 0  # what is told as its limit where Redis is not asked; 0: it is no hit
        self.denies = False  # a refusal of it may be remembered
        self.frees = False  # gives back: those who wait on its keys may ask again
        self.waits = False  # may be held until it is admitted
        self.shapes = False  # and the script itself says how long
        self._look: Rule | None = None
        self._attempt: Rule | None = None
        self._final: Rule | None = None

    def words(self, way: int, knows_ro: bool = False) -> bytes:
        """What goes before the key. `way` is one of scripts.LOADED ..., `knows_ro` whether the
        server has EVAL_RO and EVALSHA_RO.
        """
        script = self.script
        return self.head if script is None else self.head + script.words(way, knows_ro & self.by_ro)

    def look(self) -> Rule:
        """The rule that looks at the same hit, answered in microseconds."""
        if self._look is None:
            self._look = self._variant(self._known().look(), False)
            self._look.by_ro = False  # with the rights of a hit
        return self._look

    def attempt(self) -> Rule:
        """The same hit, a refusal of which leaves nothing behind; answered in microseconds, and
        where the script itself says how long to hold it, with that as a sixth integer.
        """
        if self._attempt is None:
            self._attempt = self._variant(self._known().attempt(), self.shapes)
        return self._attempt

    def final(self) -> Rule:
        """The same hit with all its options, answered as attempt() is."""
        if self._final is None:
            self._final = self._variant(self._known().final(), self.shapes)
        return self._final

    def _known(self) -> Limiter:
        assert self.limiter is not None
        return self.limiter

    def _variant(self, limiter: Limiter, shape: bool) -> Rule:
        assert self.script is not None
        return script_call(self.script, limiter, shape)


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
        limiter = _throttle(name, args) if name in THROTTLES else _limiter(name, args)
        return script_call(self._scripts[limiter.algorithm.script], limiter, False)


def _limiter(name: bytes, args: list[bytes]) -> Limiter:
    """RL.HIT, RL.PEEK or RL.REFUND. Raises GrammarError."""
    refund = name == b"RL.REFUND"
    first = 4 if refund else 3  # where the options begin
    if len(args) < first:
        raise GrammarError(wrong_arity(name))
    options = OPTIONS[name]
    # MS changes how every time is read, wherever the word stands.
    milliseconds = b"MS" in _words(options, args[first:])
    most = integer(args[1], 1, MAX_HITS)
    window_us = _time("window", args[2], milliseconds, 1000)
    limiter = Limiter(
        ALGORITHMS[DEFAULT_ALGORITHM],
        most,
        window_us,
        MILLISECONDS if milliseconds else MICROSECONDS,
    )
    if refund:
        limiter.mode = limiters.REFUND
        limiter.cost = integer(args[3], 1, MAX_HITS)
    elif name == b"RL.PEEK":
        limiter.mode = limiters.PEEK
    seen: set[bytes] = set()
    at = first
    while at < len(args):
        word = args[at].upper()
        count = options.get(word)
        values = args[at + 1 : at + 1 + (count or 0)]
        repeated = word in seen and (word != b"AND" or len(limiter.limits) == MAX_LIMITS)
        if count is None or repeated or len(values) < count:
            raise GrammarError(SYNTAX_ERROR)
        seen.add(word)
        _take(limiter, word, values, milliseconds)
        at += 1 + count
    _check(limiter, seen)
    return limiter


def _take(limiter: Limiter, word: bytes, values: list[bytes], milliseconds: bool) -> None:
    """One option, as far as it can be judged by itself. Raises GrammarError."""
    if word == b"ALGO":
        found = ALGORITHMS.get(values[0].upper())
        if found is None:
            raise GrammarError(SYNTAX_ERROR)
        limiter.algorithm = found
    elif word == b"COST":
        limiter.cost = integer(values[0], 0, MAX_HITS)
    elif word == b"BURST":
        limiter.burst = integer(values[0], 1, MAX_HITS)
    elif word == b"GAP":
        limiter.gap_us = _time("GAP", values[0], milliseconds, 0)
    elif word == b"STRICT":
        limiter.strict = True
    elif word == b"PENALTY":
        limiter.penalty_us = _time("PENALTY", values[0], milliseconds, 1000)
    elif word == b"WAIT":
        limiter.wait_us = _time("WAIT", values[0], milliseconds, 1000, MAX_WAIT_S)
    elif word == b"AND":
        most = integer(values[0], 1, MAX_HITS)
        limiter.limits.append((most, _time("window", values[1], milliseconds, 1000)))


def _check(limiter: Limiter, seen: set[bytes]) -> None:
    """What the algorithm has to say about it. Raises GrammarError."""
    algorithm = limiter.algorithm
    most = max([limiter.max] + [most for most, _ in limiter.limits])
    cost = 0 if limiter.mode == limiters.REFUND else limiter.cost
    if most > algorithm.max_hits or cost > algorithm.max_cost:
        raise GrammarError(NOT_AN_INTEGER)
    for word in sorted(seen - {b"MS", b"ALGO"} - algorithm.options):
        raise GrammarError(
            f"ERR {word.decode()} is not supported by ALGO {algorithm.name.decode()}"
        )
    if limiter.gap_us > max([limiter.window_us] + [window for _, window in limiter.limits]):
        raise _no_time("GAP", limiter.unit_us == MILLISECONDS)
    if not limiter.exact():
        raise GrammarError(OUT_OF_RANGE)


def _throttle(name: bytes, args: list[bytes]) -> Limiter:
    """CL.THROTTLE and RL.THROTTLE. Raises GrammarError."""
    if not 4 <= len(args) <= 5:
        raise GrammarError(wrong_arity(name))
    burst = integer(args[1], 0, MAX_BURST_CELL) + 1
    count = integer(args[2], 1, MAX_CELL)
    period_us = integer(args[3], 1, MAX_CELL) * MICROSECONDS
    limiter = Limiter(ALGORITHMS[b"GCRA"], count, period_us, MICROSECONDS)
    limiter.burst = burst
    if len(args) == 5:
        limiter.cost = integer(args[4], 0, MAX_CELL)
    if not limiter.exact():
        raise GrammarError(OUT_OF_RANGE)
    return limiter


def script_call(script: Script, limiter: Limiter, shape: bool) -> Rule:
    """The rule that calls `script` with one key for `limiter`; see Limiter.argv()."""
    argv = limiter.argv(shape)
    rule = Rule()
    rule.script = script
    rule.limiter = limiter
    rule.reads = limiter.mode == limiters.PEEK
    rule.unit_us = limiter.unit_us
    rule.takes = limiter.takes()
    rule.limit = limiter.limit() if limiter.mode == limiters.HIT else 0
    rule.frees = limiter.mode == limiters.REFUND
    rule.row = stats.row_of(limiter.algorithm.name) if rule.takes else _other(limiter)
    rule.waits = rule.takes and limiter.wait_us > 0
    rule.denies = rule.takes and limiter.cost == 1 and not limiter.strict and not rule.waits
    rule.shapes = rule.waits and limiter.algorithm.name == limiters.SHAPING
    rule.head = b"*%d\r\n" % (4 + len(argv))
    rule.by_ro = rule.reads
    rule.tail = b"".join([replies.bulk(word) for word in argv])
    return rule


def _other(limiter: Limiter) -> int:
    """Where a call is counted that is no hit."""
    return stats.other(stats.REFUND if limiter.mode == limiters.REFUND else stats.PEEK)


def wrong_told(name: bytes, args: list[bytes]) -> bytes:
    """What is wrong with a command by which the proxy tells of itself; empty: nothing."""
    if (len(args) != 0) if name != b"RL.TOP" else not 1 <= len(args) <= 2:
        return replies.error(wrong_arity(name))
    try:
        if args:
            integer(args[0], 1, MAX_TOP)
    except GrammarError as wrong:
        return replies.error(str(wrong))
    if len(args) == 2 and args[1].upper() != b"REFUSED":
        return replies.error(SYNTAX_ERROR)
    return b""


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
    raise _no_time(what, False)


def _time(
    what: str, word: bytes, milliseconds: bool, least_us: int, most_s: int = MAX_WINDOW_S
) -> int:
    """A time in the command's unit, in microseconds. Raises GrammarError."""
    if milliseconds:
        return integer(word, least_us // 1000, most_s * 1000) * 1000
    return seconds(what, word, least_us, most_s)


def _no_time(what: str, milliseconds: bool) -> GrammarError:
    if milliseconds:
        return GrammarError(NOT_AN_INTEGER)
    return GrammarError(f"ERR {what} is not a valid number of seconds")


def _words(options: dict[bytes, int], args: list[bytes]) -> set[bytes]:
    """The option words among `args`, as far as they can be told: a value is not taken for one."""
    found: set[bytes] = set()
    index = 0
    while index < len(args):
        word = args[index].upper()
        found.add(word)
        index += 1 + options.get(word, 0)
    return found


def _help_call() -> bytes:
    lines = ",".join("{ok='" + line.replace("'", "\\'") + "'}" for line in HELP)
    return replies.bulks(b"EVAL", b"return {" + lines.encode() + b"}", b"0")
