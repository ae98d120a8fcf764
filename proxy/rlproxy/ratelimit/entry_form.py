"""The entries of the RL commands for COMMAND in the form of Redis 7, as RESP2 or RESP3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlproxy.ratelimit.command_entries import GROUP, SINCE, ArgumentNode, Entry
from rlproxy.resp.encoding import bulk, encoded


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
