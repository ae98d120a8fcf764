"""The RL commands as RL.HELP and COMMAND describe them: one row per command.

info() and docs() return an entry in the form of Redis 7, as RESP2 or RESP3.
"""

from __future__ import annotations

import re
from typing import Any, Final

from rlproxy.resp.encoding import bulk, bulks, encoded

SINCE: Final = b"0.1.0"
GROUP: Final = b"module"  # of all commands that are not Redis' own

_VARIES: Final = (b"nondeterministic_output",)
_HITS: Final = b"O(1), or O(N) in the N hits that have left the window or that a COST adds"
_WRITE: Final = "write denyoom noscript fast"
_ITEM: Final = re.compile(r"<\w+>|\[[^]]+\]")
_TYPES: Final = {"key": b"key", "window": b"double", "t": b"double", "name": b"string"}


class Entry:
    """One row.

    syntax: the form of the command in RL.HELP. `<n>` is a value, an integer unless _TYPES has
        another type. An item in brackets may be left out, and with `...` be repeated.
    lines: what RL.HELP has below it. COMMAND DOCS has the first one.
    flags: noscript because redis.call has none of the commands, blocking because of WAIT.
    many: its keys are all arguments, and it runs as DEL; else it has at most one key.
    keys: flags of its key specification, empty if it has no keys.
    """

    def __init__(
        self,
        syntax: str,
        flags: str,
        *lines: str,
        complexity: bytes = b"O(1)",
        tips: tuple[bytes, ...] = _VARIES,
    ) -> None:
        self.syntax = syntax
        self.lines = lines
        self.complexity = complexity
        self.tips = tips
        self.name = syntax.partition(" ")[0].lower().encode()
        items = _ITEM.findall(syntax)
        least = 1 + len([item for item in items if item.startswith("<")])
        self.arity = least if least == 1 + len(items) else -least
        self.arguments = _arguments(items)
        self.many = "<key> ..." in syntax
        self.flags = flags.split()
        self.keys: list[str] = []
        if self.many:
            self.keys = ["RM", "delete"]
        elif "<key>" in syntax:
            self.keys = ["RW", "access", "update"] if "write" in self.flags else ["RO", "access"]

    def categories(self) -> list[str]:
        """Return its ACL categories: as for Redis' own commands, they follow from the flags."""
        kinds = {"write": "@write", "readonly": "@read", "fast": "@fast", "blocking": "@blocking"}
        found = [kind for flag, kind in kinds.items() if flag in self.flags]
        if "fast" not in self.flags:
            found.append("@slow")
        return ["@keyspace", *found] if self.many else [*found, "@scripting"]


def _arguments(items: list[str]) -> list[dict[bytes, Any]]:
    """Return the arguments of COMMAND DOCS for the items of a command's form."""
    found: list[dict[bytes, Any]] = []
    for item in items:
        token = "".join(re.findall("[A-Z]+", item))
        values = [_value(name) for name in re.findall(r"<(\w+)>", item)]
        repeats = item.endswith("...]")
        if repeats and not token:  # `<key> [<key> ...]` is one argument
            found[-1][b"flags"] = ("multiple",)
            continue
        kind = b"block" if values else b"pure-token"
        node: dict[bytes, Any] = {b"name": token.lower().encode(), b"type": kind}
        if len(values) == 1:
            node = values[0]
        if token:
            node[b"token"] = token.encode()
        if item.startswith("["):
            more = ("multiple", "multiple_token") if repeats else ()
            node[b"flags"] = ("optional", *more)
        if len(values) > 1:
            node[b"arguments"] = values
        found.append(node)
    return found


def _value(name: str) -> dict[bytes, Any]:
    kind = _TYPES.get(name, b"integer")
    node: dict[bytes, Any] = {b"name": name.encode(), b"type": kind, b"display_text": name.encode()}
    if kind == b"key":
        node[b"key_spec_index"] = 0
    return node


ENTRIES: Final = (
    Entry(
        "RL.HIT <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>] [STRICT]"
        " [PENALTY <t>] [WAIT <t>] [AND <max> <window> ...]",
        "write denyoom noscript blocking fast",
        "Counts a hit on <key>: at most <max> are admitted in any <window> seconds.",
        "Replies limited (0 or 1), limit, remaining, retry_after, reset_after.",
        "* MS: all times of the command and of its reply in milliseconds.",
        "* ALGO: LOG (default), ZLOG, FIXED, COUNTER, TOKEN, LEAKY or GCRA.",
        "* COST: weight of the hit (default 1); 0 counts nothing.",
        "* BURST: capacity of TOKEN, LEAKY and GCRA (default <max>).",
        "* GAP: least time between two hits that count (LOG, ZLOG).",
        "* STRICT: refused hits count too (LOG, ZLOG, FIXED).",
        "* PENALTY: after a refusal, refuse every hit on the key for <t>.",
        "* WAIT: hold the reply until the hit is admitted, at most for <t>.",
        "* AND: a further limit on the same key, up to 8 times (LOG, ZLOG).",
        "* POLICY <name> instead of <max> <window>: a rule of the settings file; COST and WAIT",
        "  may follow. RL.PEEK and RL.REFUND take it, too.",
        complexity=_HITS,
    ),
    Entry(
        "RL.PEEK <key> <max> <window> [MS] [ALGO <name>] [COST <n>] [BURST <n>] [GAP <t>]"
        " [AND <max> <window> ...]",
        "readonly noscript fast",
        "Returns what RL.HIT would reply. Writes nothing, so replicas accept it too.",
        complexity=_HITS,
    ),
    Entry(
        "RL.REFUND <key> <max> <window> <n> [MS] [ALGO <name>] [BURST <n>]"
        " [AND <max> <window> ...]",
        "write noscript fast",
        "Gives back up to <n> hits, the newest first. Replies as RL.PEEK afterwards.",
        complexity=b"O(N) in the hits given back",
    ),
    Entry(
        "RL.RESET <key> [<key> ...]",
        "write noscript",
        "Deletes the keys. Replies how many there were.",
        complexity=b"O(N) in the number of keys and of the hits that they hold",
        tips=(b"request_policy:multi_shard", b"response_policy:agg_sum"),
    ),
    Entry(
        "RL.BLOCK <key> <t> [MS] [ALGO <name>]",
        _WRITE,
        "Refuses every hit of this ALGO (default LOG) on <key> until <t> is over; 0 lifts it.",
        "* POLICY <name> instead of ALGO: replies as RL.PEEK by this policy.",
    ),
    Entry(
        "CL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
        _WRITE,
        "As redis-cell: GCRA, <count> per <period> seconds, bursts of <max_burst> + 1.",
    ),
    Entry(
        "RL.THROTTLE <key> <max_burst> <count> <period> [<quantity>]",
        _WRITE,
        "CL.THROTTLE under the name proposed for Valkey.",
    ),
    Entry(
        "RL.STATS",
        "noscript fast",
        "Returns the proxy's counters since its start, in the style of INFO.",
    ),
    Entry(
        "RL.TOP <n> [REFUSED]",
        "noscript",
        "Returns [key, count, error] of the keys with most hits of the last minute.",
        "With REFUSED those with most refusals, and the policy or rule that refused them.",
        complexity=b"O(N) in the number of keys that are returned",
    ),
    Entry(
        "RL.POLICIES",
        "noscript",
        "Returns [name, rule, mode, hits, refused] of each policy; mode is enforced or shadow.",
        complexity=b"O(N) in the number of policies",
    ),
    Entry("RL.HELP", "noscript fast", "Returns this help.", tips=()),
)

# The lines of RL.HELP, and the request by which Redis sends them to a client.
HELP: Final = ["RL.<subcommand> key [<arg> [value] [opt] ...]. Subcommands are:"]
for _entry in ENTRIES:
    HELP.extend([_entry.syntax, *[f"    {_line}" for _line in _entry.lines]])
_TABLE: Final = ",".join(["{ok='" + line.replace("'", "\\'") + "'}" for line in HELP])
HELP_REQUEST: Final = bulks(b"EVAL", b"return {" + _TABLE.encode() + b"}", b"0")


def info(entry: Entry, resp3: bool) -> bytes:
    """Return `entry` as in the reply to COMMAND and COMMAND INFO."""
    last = -1 if entry.many else 0  # counted from the first key
    spec = {
        b"flags": tuple(entry.keys),
        b"begin_search": {b"type": b"index", b"spec": {b"index": 1}},
        b"find_keys": {
            b"type": b"range",
            b"spec": {b"lastkey": last, b"keystep": 1, b"limit": 0},
        },
    }
    fields: list[Any] = [
        *(entry.name, entry.arity, tuple(entry.flags)),
        # The first key, the last one, the step.
        *((1, -1 if entry.many else 1, 1) if entry.keys else (0, 0, 0)),
        *(tuple(entry.categories()), entry.tips, (spec,) if entry.keys else ()),
        [],  # subcommands
    ]
    return encoded(fields, resp3)


def docs(entry: Entry, resp3: bool) -> bytes:
    """Return `entry` as in the reply to COMMAND DOCS: its name and its documentation."""
    fields: dict[bytes, Any] = {
        b"summary": entry.lines[0].encode(),
        b"since": SINCE,
        b"group": GROUP,
        b"complexity": entry.complexity,
    }
    if entry.arguments:
        fields[b"arguments"] = entry.arguments
    return bulk(entry.name) + encoded(fields, resp3)
