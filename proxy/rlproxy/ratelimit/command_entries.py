"""The entries of the RL commands for COMMAND: flags, keys and arguments, one row per command.

info() and docs() return an entry in the form of Redis 7, as RESP2 or RESP3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.arguments import Argument, Time
from rlproxy.ratelimit.grammar import OPTIONS
from rlproxy.resp.encoding import bulk, encoded

SINCE: Final = b"0.1.0"
GROUP: Final = b"module"  # of all commands that are not Redis' own
_VARIES: Final = (b"nondeterministic_output",)


class ArgumentNode(NamedTuple):
    """One node of a command's argument tree in COMMAND DOCS."""

    name: bytes
    kind: bytes
    token: bytes = b""
    flags: tuple[bytes, ...] = ()
    below: tuple[ArgumentNode, ...] = ()


class Entry(NamedTuple):
    """One row: the properties that COMMAND reports for the command `name`.

    keys: flags of its key specification, empty if it has no keys.
    many: its keys are all arguments; else the first one.
    """

    name: bytes
    arity: int
    flags: list[bytes]
    categories: list[bytes]
    summary: bytes
    complexity: bytes = b"O(1)"
    tips: tuple[bytes, ...] = _VARIES
    keys: tuple[bytes, ...] = ()
    arguments: tuple[ArgumentNode, ...] = ()
    many: bool = False


_INTEGER: Final = b"integer"
_TIME: Final = b"double"  # seconds, decimals allowed
_TOKEN: Final = b"pure-token"
_OPTIONAL: Final = (b"optional",)


_KEY: Final = ArgumentNode(b"key", b"key")
_MAX: Final = ArgumentNode(b"max", _INTEGER)
_WINDOW: Final = ArgumentNode(b"window", _TIME)
_NAMES: Final = tuple([ArgumentNode(name.lower(), _TOKEN, name) for name in ALGORITHMS])
_ALGO: Final = ArgumentNode(b"algorithm", b"oneof", b"ALGO", _OPTIONAL, _NAMES)
_NAME: Final = ArgumentNode(b"policy", b"string", b"POLICY")
_RULE: Final = ArgumentNode(
    b"rule", b"oneof", below=(ArgumentNode(b"limit", b"block", below=(_MAX, _WINDOW)), _NAME)
)
_STATE: Final = ArgumentNode(  # the sort of limiter that RL.BLOCK expects at the key
    b"limiter", b"oneof", flags=_OPTIONAL, below=(_ALGO._replace(flags=()), _NAME)
)
_AND: Final = ArgumentNode(
    b"and", b"block", b"AND", (b"optional", b"multiple", b"multiple_token"), (_MAX, _WINDOW)
)
_TIMEOUT: Final = ArgumentNode(b"timeout", _TIME, b"WAIT", _OPTIONAL)
# The options whose nodes do not follow from their words and values.
_OTHERS: Final = {b"ALGO": _ALGO, b"AND": _AND, b"WAIT": _TIMEOUT}


def _option(word: bytes, values: tuple[Argument, ...] = ()) -> ArgumentNode:
    """Return the node of an option word and the values behind it."""
    if word in _OTHERS:
        return _OTHERS[word]
    kind = _TOKEN
    if values:
        kind = _TIME if isinstance(values[0], Time) else _INTEGER
    return ArgumentNode(word.lower(), kind, word, _OPTIONAL)


def _options(command: bytes) -> list[ArgumentNode]:
    return [_option(word, values) for word, values in OPTIONS[command].items()]


_HITS: Final = b"O(1), or O(N) in the N hits that have left the window or that a COST adds"
_CHANGES: Final = (b"RW", b"access", b"update")
_WRITE: Final = [b"@write", b"@fast", b"@scripting"]
_REPORT: Final = [b"@fast", b"@scripting"]

# All RL commands. Flags: noscript because redis.call has none of them, blocking because of WAIT.
ENTRIES: Final = (
    Entry(
        name=b"rl.hit",
        arity=-4,
        flags=[b"write", b"denyoom", b"noscript", b"blocking", b"fast"],
        categories=[b"@write", b"@fast", b"@blocking", b"@scripting"],
        keys=_CHANGES,
        summary=b"Counts a hit on a rate limiter and returns whether it is admitted.",
        complexity=_HITS,
        arguments=(_KEY, _RULE, *_options(b"RL.HIT")),
    ),
    Entry(
        name=b"rl.peek",
        arity=-4,
        flags=[b"readonly", b"noscript", b"fast"],
        categories=[b"@read", b"@fast", b"@scripting"],
        keys=(b"RO", b"access"),
        summary=b"Returns what RL.HIT would return, and writes nothing.",
        complexity=_HITS,
        arguments=(_KEY, _RULE, *_options(b"RL.PEEK")),
    ),
    Entry(
        name=b"rl.refund",
        arity=-5,
        flags=[b"write", b"noscript", b"fast"],
        categories=_WRITE,
        keys=_CHANGES,
        summary=b"Gives back the newest hits of a rate limiter.",
        complexity=b"O(N) in the hits given back",
        arguments=(_KEY, _RULE, ArgumentNode(b"hits", _INTEGER), *_options(b"RL.REFUND")),
    ),
    Entry(
        name=b"rl.reset",
        arity=-2,
        flags=[b"write", b"noscript"],
        categories=[b"@keyspace", b"@write", b"@slow"],
        tips=(b"request_policy:multi_shard", b"response_policy:agg_sum"),
        keys=(b"RM", b"delete"),
        summary=b"Forgets rate limiters.",
        complexity=b"O(N) in the number of keys and of the hits that they hold",
        arguments=(ArgumentNode(b"key", b"key", flags=(b"multiple",)),),
        many=True,
    ),
    Entry(
        name=b"rl.block",
        arity=-3,
        flags=[b"write", b"denyoom", b"noscript", b"fast"],
        categories=_WRITE,
        keys=_CHANGES,
        summary=b"Refuses every hit on a rate limiter for a time.",
        arguments=(_KEY, ArgumentNode(b"block", _TIME), _option(b"MS"), _STATE),
    ),
    Entry(
        name=b"rl.help",
        arity=1,
        flags=[b"noscript", b"fast"],
        categories=_REPORT,
        tips=(),
        summary=b"Returns helpful text about the commands of the family.",
    ),
    Entry(
        name=b"rl.stats",
        arity=1,
        flags=[b"noscript", b"fast"],
        categories=_REPORT,
        summary=b"Returns what the proxy has counted since it began.",
    ),
    Entry(
        name=b"rl.top",
        arity=-2,
        flags=[b"noscript"],
        categories=[b"@slow", b"@scripting"],
        summary=b"Returns the keys with most hits, or refusals, of the last minute.",
        complexity=b"O(N) in the number of keys that are returned",
        arguments=(ArgumentNode(b"keys", _INTEGER), _option(b"REFUSED")),
    ),
    Entry(
        name=b"rl.policies",
        arity=1,
        flags=[b"noscript"],
        categories=[b"@slow", b"@scripting"],
        summary=b"Returns the policies, their hits and how many of these were refused.",
        complexity=b"O(N) in the number of policies",
    ),
    *[
        Entry(
            name=name,
            arity=-5,
            flags=[b"write", b"denyoom", b"noscript", b"fast"],
            categories=_WRITE,
            keys=_CHANGES,
            summary=b"Takes from a GCRA rate limiter, with the arguments and the reply of"
            b" redis-cell.",
            arguments=(
                *(_KEY, ArgumentNode(b"max_burst", _INTEGER), ArgumentNode(b"count", _INTEGER)),
                ArgumentNode(b"period", _INTEGER),
                ArgumentNode(b"quantity", _INTEGER, flags=_OPTIONAL),
            ),
        )
        for name in (b"cl.throttle", b"rl.throttle")
    ],
)


def info(entry: Entry, resp3: bool) -> bytes:
    """Return `entry` as in the reply to COMMAND and COMMAND INFO."""
    reach = {b"lastkey": -1 if entry.many else 0, b"keystep": 1, b"limit": 0}
    spec = {
        b"flags": _words(entry.keys),
        b"begin_search": {b"type": b"index", b"spec": {b"index": 1}},
        b"find_keys": {b"type": b"range", b"spec": reach},
    }
    fields: list[Any] = [
        *(entry.name, entry.arity, _words(entry.flags)),
        # The first key, the last one, the step.
        *((1, -1 if entry.many else 1, 1) if entry.keys else (0, 0, 0)),
        *(_words(entry.categories), entry.tips, (spec,) if entry.keys else ()),
        [],  # subcommands
    ]
    return encoded(fields, resp3)


def docs(entry: Entry, resp3: bool) -> bytes:
    """Return `entry` as in the reply to COMMAND DOCS: its name and its documentation."""
    fields: dict[bytes, Any] = {
        b"summary": entry.summary,
        b"since": SINCE,
        b"group": GROUP,
        b"complexity": entry.complexity,
    }
    if entry.arguments:
        fields[b"arguments"] = [_argument(each) for each in entry.arguments]
    return bulk(entry.name) + encoded(fields, resp3)


def _words(words: Iterable[bytes]) -> tuple[str, ...]:
    """Return a set of simple strings."""
    return tuple([word.decode() for word in words])


def _argument(argument: ArgumentNode) -> dict[bytes, Any]:
    fields: dict[bytes, Any] = {b"name": argument.name, b"type": argument.kind}
    if not argument.below:
        fields[b"display_text"] = argument.name
    if argument.kind == b"key":
        fields[b"key_spec_index"] = 0
    if argument.token:
        fields[b"token"] = argument.token
    if argument.flags:
        fields[b"flags"] = _words(argument.flags)
    if argument.below:
        fields[b"arguments"] = [_argument(each) for each in argument.below]
    return fields
