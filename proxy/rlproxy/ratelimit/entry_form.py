"""The entries of the RL commands for COMMAND in the form of Redis 7, as RESP2 or RESP3."""

from __future__ import annotations

from collections.abc import Iterable

from rlproxy.ratelimit.command_entries import GROUP, SINCE, ArgumentNode, Entry
from rlproxy.resp import encoding


class EntryForm:
    """The form of entries in one protocol: RESP2, or RESP3 with sets and maps."""

    def __init__(self, resp3: bool) -> None:
        self._resp3 = resp3

    def info(self, entry: Entry) -> bytes:
        """Return `entry` as in the reply to COMMAND and COMMAND INFO."""
        keys = b":1\r\n:%d\r\n:1\r\n" % (-1 if entry.many else 1) if entry.keys else b":0\r\n" * 3
        fields = [
            encoding.bulk(entry.name),
            b":%d\r\n" % entry.arity,
            self._words(entry.flags),
            keys,  # the first one, the last one, the step
            self._words(entry.categories),
            self._set([encoding.bulk(tip) for tip in entry.tips]),
            self._set([self._key_spec(entry)] if entry.keys else []),
            b"*0\r\n",  # subcommands
        ]
        return b"*10\r\n" + b"".join(fields)

    def docs(self, entry: Entry) -> bytes:
        """Return `entry` as in the reply to COMMAND DOCS: its name and its documentation."""
        pairs = [
            (b"summary", encoding.bulk(entry.summary)),
            (b"since", encoding.bulk(SINCE)),
            (b"group", encoding.bulk(GROUP)),
            (b"complexity", encoding.bulk(entry.complexity)),
        ]
        if entry.arguments:
            pairs.append((b"arguments", self._arguments(entry.arguments)))
        return encoding.bulk(entry.name) + self._map(pairs)

    def _words(self, words: Iterable[bytes]) -> bytes:
        return self._set([b"+%b\r\n" % word for word in words])

    def _key_spec(self, entry: Entry) -> bytes:
        kind, spec = b"type", b"spec"
        index = [(kind, encoding.bulk(b"index")), (spec, self._map([(b"index", b":1\r\n")]))]
        reach = [
            (b"lastkey", b":%d\r\n" % (-1 if entry.many else 0)),
            (b"keystep", b":1\r\n"),
            (b"limit", b":0\r\n"),
        ]
        pairs = [
            (b"flags", self._words(entry.keys)),
            (b"begin_search", self._map(index)),
            (b"find_keys", self._map([(kind, encoding.bulk(b"range")), (spec, self._map(reach))])),
        ]
        return self._map(pairs)

    def _arguments(self, arguments: tuple[ArgumentNode, ...]) -> bytes:
        return b"*%d\r\n" % len(arguments) + b"".join([self._argument(each) for each in arguments])

    def _argument(self, argument: ArgumentNode) -> bytes:
        pairs = [(b"name", encoding.bulk(argument.name)), (b"type", encoding.bulk(argument.kind))]
        if not argument.below:
            pairs.append((b"display_text", encoding.bulk(argument.name)))
        if argument.kind == b"key":
            pairs.append((b"key_spec_index", b":0\r\n"))
        if argument.token:
            pairs.append((b"token", encoding.bulk(argument.token)))
        if argument.flags:
            pairs.append((b"flags", self._words(argument.flags)))
        if argument.below:
            pairs.append((b"arguments", self._arguments(argument.below)))
        return self._map(pairs)

    def _set(self, members: list[bytes]) -> bytes:
        return (b"~%d\r\n" if self._resp3 else b"*%d\r\n") % len(members) + b"".join(members)

    def _map(self, pairs: list[tuple[bytes, bytes]]) -> bytes:
        return encoding.named(pairs, self._resp3)
