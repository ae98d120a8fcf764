"""The grammar of the RL commands: from arguments to a script call, or to the error that names the
mistake.

The contract is a table: `OPTIONS` lists the option words of each command and the values behind each
word. Each range is written there once, for the check and for the error text. A rule is a command
without its key. It is parsed once and cached by the bytes that the client sent, so that a repeated
hit costs one look-up. The module does not depend on connections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rlproxy.ratelimit import algorithms, outcomes, scripts
from rlproxy.ratelimit.algorithms import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    FIELDS,
    MAX_HITS,
    MICROSECONDS,
    MILLISECONDS,
    SECONDS,
    Algorithm,
    Limiter,
)
from rlproxy.ratelimit.arguments import Argument, Form, GrammarError, Name, Time
from rlproxy.ratelimit.scripts import LOADED, Script
from rlproxy.resp import encoding
from rlproxy.resp.escape import quoted

MAX_WINDOW_US: Final = 315_360_000_000_000  # ten years
MAX_WAIT_US: Final = 3_600_000_000  # one hour
MAX_BURST_CELL: Final = 999_999_999  # largest max_burst of CL.THROTTLE: MAX_HITS - 1
MAX_CELL: Final = 9_223_372_036_854_775_807  # largest integer that Redis parses
MAX_TOP: Final = 1000  # largest number of keys in a reply to RL.TOP
MAX_LIMITS: Final = 8  # largest number of ANDs in a command
RULES_KEPT: Final = 4096  # bound of the cache of rules
RULE_BYTES: Final = 512  # longest rule that is cached, bytes; a longer one is parsed each time

OUT_OF_RANGE: Final = "ERR rate or burst out of range"

MAX: Final = Argument("max", 1, MAX_HITS)
WINDOW: Final = Time("window", 1000, MAX_WINDOW_US)
GIVEN_BACK: Final = Argument("n", 1, MAX_HITS)
BLOCKED: Final = Time("t", 0, MAX_WINDOW_US)  # length of a block: 0, or at least a millisecond
COST: Final = Argument("COST", 0, MAX_HITS)
GAP: Final = Time("GAP", 0, MAX_WINDOW_US, "the longest window")

# The values behind each option word.
_OPTIONS: Final[dict[bytes, tuple[Argument, ...]]] = {
    b"MS": (),
    b"ALGO": (Name("ALGO"),),
    b"COST": (COST,),
    b"BURST": (Argument("BURST", 1, MAX_HITS),),
    b"GAP": (GAP,),
    b"STRICT": (),
    b"PENALTY": (Time("PENALTY", 1000, MAX_WINDOW_US),),
    b"WAIT": (Time("WAIT", 1000, MAX_WAIT_US),),
    b"AND": (MAX, WINDOW),
}
POLICY: Final = b"POLICY"  # in place of max and window: the name of a policy follows
_BESIDE: Final[tuple[bytes, ...]] = (b"COST", b"WAIT")  # options of a command that names a policy
# The option words of each command.
OPTIONS: Final[dict[bytes, dict[bytes, tuple[Argument, ...]]]] = {
    b"RL.HIT": _OPTIONS,
    b"RL.PEEK": {word: _OPTIONS[word] for word in b"MS ALGO COST BURST GAP AND".split()},
    b"RL.REFUND": {word: _OPTIONS[word] for word in b"MS ALGO BURST AND".split()},
    b"RL.BLOCK": {word: _OPTIONS[word] for word in b"MS ALGO".split()},
}
_OF_BLOCK: Final[dict[bytes, tuple[Argument, ...]]] = {
    **OPTIONS[b"RL.BLOCK"],
    POLICY: (Name("POLICY"),),
}
_OPTIONS_AT: Final = {b"RL.REFUND": 4}  # index of the first option; 3 in the other commands
THROTTLES: Final = (b"CL.THROTTLE", b"RL.THROTTLE")
# The arguments of CL.THROTTLE and RL.THROTTLE behind the key. The last one is optional.
_THROTTLE: Final = (
    Argument("max_burst", 0, MAX_BURST_CELL),
    Argument("count", 1, MAX_CELL),
    Argument("period", 1, MAX_CELL),
    Argument("quantity", 0, MAX_CELL),
)
# What differs in an attempt: a refusal writes nothing, and times are in microseconds.
_ATTEMPT: Final[dict[str, Any]] = {"unit_us": 1, "strict": False, "penalty_us": 0}
_KEYS: Final = Argument("n", 1, MAX_TOP)  # number of keys, argument of RL.TOP
_PLAIN: Final = Form(MICROSECONDS, None)  # form of commands without MS and ALGO


class Policy:
    """A named rule of the settings file.

    text: RL.HIT's words behind the key.
    limiter: the hit that `text` describes.
    shadow: its hits are decided and counted, and answered as admitted.
    row: the pair of its hits; see `outcomes`.
    """

    def __init__(self, name: bytes, text: bytes, shadow: bool) -> None:
        """Parse `text`, of two words at least. Raises GrammarError."""
        self.name = name
        self.text = text
        self.limiter = _limiter(b"RL.HIT", [b"", *text.split()], None)
        self.shadow = shadow
        self.row: int = outcomes.ROWS[self.limiter.algorithm.name]


class Rule:
    """An RL command without its key, encoded for Redis, or the error reply to it.

    error: reply to a command with a mistake; empty for a correct one.

    A request is words(), the key as a bulk string, then `tail`. A rule holds no script source,
    because up to RULES_KEPT rules are cached.
    """

    def __init__(self, error: bytes = b"") -> None:
        self.error = error
        self.script: Script | None = None
        self.limiter: Limiter | None = None
        self.count = b""  # header `*n`, the number of words; empty without a script
        self.head = b""  # everything before the key, with a script by EVALSHA
        self.tail = b""  # everything after the key
        self.group_words = b""  # its arguments in a group; empty: no group takes it
        self.row: int = outcomes.NO_ROW  # row in the counters
        self.unit_us = 1  # unit of the times in the reply, microseconds
        self.takes = False  # admission consumes quota
        self.limit = 0  # limit in replies made without Redis; 0: not a hit
        self.denies = False  # its refusals may enter the denial cache
        self.frees = False  # gives quota back or lifts a block: hits that wait may try again
        self.waits = False  # may be held until it is admitted (WAIT)
        self.shapes = False  # held for the time that the script returns (WAIT with SHAPING)
        self._label = b""  # cached label()
        self._variants: dict[str, Rule] = {}

    def words(self, way: int) -> bytes:
        """Return the request up to the key.

        way: how the call names its script: scripts.LOADED, SOURCE or SHADOW.
        """
        script = self.script
        return self.head if way == LOADED or script is None else self.count + script.words[way]

    def label(self) -> bytes:
        """Return the name of the policy, or else RL.HIT's words behind the key."""
        if not self._label and self.limiter is not None:
            self._label = self.limiter.text()
        return self._label

    def writes(self) -> bool:
        """Return whether a call may write: it takes quota or frees it."""
        return self.takes or self.frees

    def peek(self) -> Rule:
        """Return the rule that peeks at the same hit. Its reply is in microseconds."""
        return self._variant("peek", mode=algorithms.PEEK, **_ATTEMPT)

    def attempt(self) -> Rule:
        """Return the same hit without STRICT and PENALTY, so that a refusal writes nothing.

        Its reply is in microseconds. If the rule shapes, it has a sixth integer: the time to hold
        the reply; of a refusal the time until a penalty ends that alone refuses the hit, or 0.
        """
        return self._variant("attempt", shapes=self.shapes, **_ATTEMPT)

    def in_microseconds(self) -> Rule:
        """Return the same hit with all its options. Its reply has the form of attempt()'s."""
        return self._variant("in_microseconds", shapes=self.shapes, unit_us=1)

    def within(self, wait_us: int) -> Rule:
        """Return the same hit with `wait_us` microseconds of WAIT, at least 1."""
        return self._made(wait_us=wait_us)

    def _variant(self, name: str, **changes: Any) -> Rule:
        """Return the variant `name`, made once; see _made()."""
        if name not in self._variants:
            self._variants[name] = self._made(**changes)
        return self._variants[name]

    def _made(self, **changes: Any) -> Rule:
        assert self.script is not None
        assert self.limiter is not None
        made = script_call(self.script, replace(self.limiter, **changes))
        made._label = self.label()
        return made


class Grammar:
    """The parser of RL commands, with a cache of rules.

    scripts: scripts by name; see scripts.load().
    policies: the policies in force, by name; see use().
    """

    def __init__(self, scripts: dict[str, Script]) -> None:
        self._scripts = scripts
        self._by_bytes: dict[bytes, Rule] = {}
        self.policies: dict[bytes, Policy] = {}

    def use(self, policies: dict[bytes, Policy]) -> None:
        """Replace all policies at once.

        All later calls have rules of the new policies. Calls under way keep the rule that they
        have. A remembered refusal answers only calls of the rule that was refused: no later call.
        """
        self.policies = policies
        self._by_bytes = {}

    def known(self, written: bytes) -> Rule | None:
        """Return the cached rule for these bytes (command name, then arguments), if any."""
        return self._by_bytes.get(written)

    def rule(self, written: bytes, name: bytes, args: list[bytes]) -> Rule:
        """Parse a command and cache its rule.

        written: cache key, the bytes passed to known().
        name: command name in upper case.
        args: arguments, key included.
        Never raises: a mistake becomes `Rule.error`.
        """
        try:
            rule = self._parse(name, args)
        except GrammarError as refused:
            rule = Rule(encoding.error(str(refused)))
        if len(written) <= RULE_BYTES:
            if len(self._by_bytes) >= RULES_KEPT:
                self._by_bytes.clear()
            self._by_bytes[written] = rule
        return rule

    def _parse(self, name: bytes, args: list[bytes]) -> Rule:
        if name == b"RL.BLOCK":
            return self._block(name, args)
        if name in THROTTLES:
            return self._rule(_throttle(name, args))
        if len(args) < _OPTIONS_AT.get(name, 3):
            raise GrammarError(wrong_arity(name))
        if args[1].upper() != POLICY:
            return self._rule(_limiter(name, args, None))
        policy = self._policy(args[2])
        limiter = _limiter(name, args, policy)
        rule = self._rule(limiter)
        rule._label = policy.name
        if rule.takes:
            rule.row = policy.row + (outcomes.WIDTH if policy.shadow else 0)
        elif limiter.mode == algorithms.HIT and policy.shadow:
            rule.row = outcomes.SHADOW_PEEK
        return rule

    def _rule(self, limiter: Limiter) -> Rule:
        return script_call(self._scripts[limiter.algorithm.script], limiter)

    def _policy(self, name: bytes) -> Policy:
        policy = self.policies.get(name)
        if policy is None:
            raise GrammarError(f"ERR no such policy {quoted(name)}")
        return policy

    def _block(self, name: bytes, args: list[bytes]) -> Rule:
        """Parse RL.BLOCK. Its MS is the unit of t, also with POLICY. Raises GrammarError."""
        if len(args) < 2:
            raise GrammarError(wrong_arity(name))
        form = _form(_OF_BLOCK, args[2:])
        block_us = BLOCKED.read(args[1], form)
        if 0 < block_us < MILLISECONDS:
            raise BLOCKED.wrong(form)
        given = dict(_given(_OF_BLOCK, args[2:], form, set()))
        if POLICY in given:
            if b"ALGO" in given:
                raise GrammarError("ERR POLICY can't be combined with ALGO")
            at = [word.upper() for word in args].index(POLICY, 2)
            policy = self._policy(args[at + 1])
            limiter = _limiter(b"RL.PEEK", [b"", POLICY, policy.name], policy)
            limiter.mode = b"%d" % block_us
            script = self._scripts[scripts.blocking(limiter.algorithm.script)]
            rule = script_call(script, limiter)
        else:
            algorithm = form.algorithm or ALGORITHMS[DEFAULT_ALGORITHM]
            rule = Rule()
            rule.unit_us = form.unit_us
            argv = [algorithm.name, b"%d" % block_us, b"%d" % rule.unit_us]
            _call(rule, self._scripts[scripts.BLOCK], argv)
        rule.frees = True
        rule.row = outcomes.other(outcomes.BLOCK)
        return rule


def _limiter(name: bytes, args: list[bytes], policy: Policy | None) -> Limiter:
    """Parse RL.HIT, RL.PEEK or RL.REFUND, by `policy` if one is named. Raises GrammarError.

    What the policy's rule has and the command lacks, as RL.PEEK lacks STRICT, is left out.
    """
    options, barred, first = OPTIONS[name], {POLICY}, _OPTIONS_AT.get(name, 3)
    if policy is None:
        form = _form(options, args[first:])
        limiter = Limiter(
            form.algorithm or ALGORITHMS[DEFAULT_ALGORITHM],
            MAX.read(args[1], form),
            WINDOW.read(args[2], form),
            form.unit_us,
        )
    else:
        limiter = replace(policy.limiter)
        form = Form(limiter.unit_us, limiter.algorithm)
        options = {word: options[word] for word in _BESIDE if word in options}
        barred = set(_OPTIONS) - set(_BESIDE)
    if name != b"RL.HIT":
        limiter.mode = algorithms.PEEK
        limiter.strict = False
        limiter.penalty_us = limiter.wait_us = 0
    if name == b"RL.REFUND":
        limiter.mode = algorithms.REFUND
        limiter.gap_us = 0
        limiter.cost = GIVEN_BACK.read(args[3], form)
    given = _given(options, args[first:], form, barred)
    for word, values in given:
        if word == b"AND":
            limiter.limits.append((values[0], values[1]))
        elif word == b"STRICT":
            limiter.strict = True
        elif word in FIELDS:
            setattr(limiter, FIELDS[word], values[0])
    _check(limiter, {word for word, _ in given}, form)
    if policy is not None and policy.shadow:
        limiter.wait_us = 0  # a hit under shadow never waits
    return limiter


def _given(
    options: dict[bytes, tuple[Argument, ...]], args: list[bytes], form: Form, barred: set[bytes]
) -> list[tuple[bytes, list[int]]]:
    """Parse the options of a command: (word, values), in their order. Raises GrammarError.

    barred: words that can't stand in a command with, or without, POLICY.
    """
    given: list[tuple[bytes, list[int]]] = []
    at = 0
    while at < len(args):
        word = args[at].upper()
        if word in barred:
            beside = "max" if word == POLICY else word.decode()
            raise GrammarError(f"ERR POLICY can't be combined with {beside}")
        arguments = options.get(word)
        most = MAX_LIMITS if word == b"AND" else 1
        repeated = len([seen for seen, _ in given if seen == word]) == most
        if arguments is None or repeated or at + len(arguments) >= len(args):
            raise _syntax_error(args[at])
        at += 1
        values = []
        for argument in arguments:
            values.append(argument.read(args[at], form))
            at += 1
        given.append((word, values))
    return given


def _form(options: dict[bytes, tuple[Argument, ...]], args: list[bytes]) -> Form:
    """Find MS and ALGO in `args`: the first of each that is not the value of another option."""
    algorithm: Algorithm | None = ALGORITHMS[DEFAULT_ALGORITHM]
    seen: set[bytes] = set()
    at = 0
    while at < len(args):
        word = args[at].upper()
        if word == b"ALGO" and word not in seen and at + 1 < len(args):
            algorithm = ALGORITHMS.get(args[at + 1].upper())
        seen.add(word)
        at += 1 + len(options.get(word, ()))
    return Form(MILLISECONDS if b"MS" in seen else MICROSECONDS, algorithm)


def _check(limiter: Limiter, seen: set[bytes], form: Form) -> None:
    """Check the bounds and options of the algorithm. Raises GrammarError."""
    algorithm = limiter.algorithm
    for most in [limiter.max] + [most for most, _ in limiter.limits]:
        MAX.check(most, form)
    if limiter.mode != algorithms.REFUND:
        COST.check(limiter.cost, form)
    for word in sorted(seen - {b"MS", b"ALGO"} - algorithm.options):
        raise GrammarError(
            f"ERR {word.decode()} is not supported by ALGO {algorithm.name.decode()}"
        )
    if limiter.gap_us > max([limiter.window_us] + [window for _, window in limiter.limits]):
        raise GAP.wrong(form)
    if not limiter.exact():
        raise GrammarError(OUT_OF_RANGE)


def _throttle(name: bytes, args: list[bytes]) -> Limiter:
    """Parse CL.THROTTLE or RL.THROTTLE. Raises GrammarError."""
    if not 4 <= len(args) <= 5:
        raise GrammarError(wrong_arity(name))
    values = [_THROTTLE[at].read(word, _PLAIN) for at, word in enumerate(args[1:])]
    limiter = Limiter(ALGORITHMS[b"GCRA"], values[1], values[2] * MICROSECONDS, MICROSECONDS)
    limiter.burst = values[0] + 1
    if len(values) == 4:
        limiter.cost = values[3]
    if not limiter.exact():
        raise GrammarError(OUT_OF_RANGE)
    return limiter


def _call(rule: Rule, script: Script, argv: list[bytes]) -> None:
    """Set the parts of the request of a rule that calls `script` with one key and `argv`."""
    rule.script = script
    rule.count = b"*%d\r\n" % (4 + len(argv))
    rule.head = rule.count + script.words[LOADED]
    rule.tail = b"".join([encoding.bulk(word) for word in argv])


def script_call(script: Script, limiter: Limiter) -> Rule:
    """Return the rule that calls `script` with one key."""
    rule = Rule()
    rule.limiter = limiter
    rule.unit_us = limiter.unit_us
    rule.takes = limiter.takes()
    rule.limit = limiter.limit() if limiter.mode == algorithms.HIT else 0
    rule.frees = limiter.mode == algorithms.REFUND
    if rule.takes:
        rule.row = outcomes.ROWS[limiter.algorithm.name]
    else:
        rule.row = outcomes.other(outcomes.REFUND if rule.frees else outcomes.PEEK)
    rule.waits = rule.takes and limiter.wait_us > 0
    rule.denies = rule.takes and limiter.cost == 1 and not limiter.strict and not rule.waits
    rule.shapes = rule.waits and limiter.algorithm.name == algorithms.SHAPING
    argv = limiter.argv()
    _call(rule, script, argv)
    if script.group is not None and len(argv) <= 3:
        rule.group_words = rule.tail if len(argv) == 3 else rule.tail + encoding.bulk(SECONDS)
    return rule


def wrong_report(name: bytes, args: list[bytes]) -> bytes:
    """Return the error reply to a wrong command of commands.REPORTS; empty for a correct one."""
    least, most = (1, 2) if name == b"RL.TOP" else (0, 0)
    if not least <= len(args) <= most:
        return encoding.error(wrong_arity(name))
    try:
        if args:
            _KEYS.read(args[0], _PLAIN)
        if len(args) == 2 and args[1].upper() != b"REFUSED":
            raise _syntax_error(args[1])
    except GrammarError as wrong:
        return encoding.error(str(wrong))
    return b""


def wrong_arity(name: bytes) -> str:
    """Return Redis' error text for a wrong number of arguments."""
    return f"ERR wrong number of arguments for '{name.decode().lower()}' command"


def _syntax_error(word: bytes) -> GrammarError:
    return GrammarError(f"ERR syntax error near {quoted(word)}")
