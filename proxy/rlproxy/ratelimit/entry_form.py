"""The form of a server's entries for COMMAND, and the entries of the RL commands in that form."""

from __future__ import annotations

from rlproxy.ratelimit.command_entries import GROUP, SINCE, Argument, Entry
from rlproxy.resp import encoding as r


class Form:
    """The form of a server's entries on one connection. Before learn(): Valkey 9.1 in RESP2."""

    __slots__ = ("fields", "no_subcommands", "resp3")

    def __init__(self, resp3: bool = False) -> None:
        self.resp3 = resp3
        self.fields = 10  # fields of an entry; servers before 7.0 leave out the later ones
        self.no_subcommands = b"*0\r\n"  # an empty set in RESP3 of some servers

    def learn(self, entry: bytes) -> None:
        """Take the form from a server's own `entry`; a nil or an error changes nothing."""
        lines = entry.split(b"\r\n", 5)
        if len(lines) < 6 or lines[0][:1] != b"*" or lines[4][:1] not in (b"*", b"~"):
            return
        self.fields = int(lines[0][1:])
        self.resp3 = lines[4][:1] == b"~"
        # An entry ends with its field of subcommands, or with that of its last subcommand.
        last = entry[-4:]
        self.no_subcommands = last if last == b"~0\r\n" else b"*0\r\n"

    def info(self, entry: Entry) -> bytes:
        """Return `entry` as in the reply to COMMAND and COMMAND INFO."""
        keys = b":1\r\n:%d\r\n:1\r\n" % (-1 if entry.many else 1) if entry.keys else b":0\r\n" * 3
        first, last, step = keys.splitlines(True)
        fields = [
            r.bulk(entry.name),
            b":%d\r\n" % entry.arity,
            self.words(entry.flags),
            first,
            last,
            step,
            self.words(entry.categories),
            self._set([r.bulk(tip) for tip in entry.tips]),
            self._set([self._key_spec(entry)] if entry.keys else []),
            self.no_subcommands,
        ]
        fields = fields[: self.fields]
        return b"*%d\r\n" % len(fields) + b"".join(fields)

    def docs(self, entry: Entry) -> bytes:
        """Return `entry` as in the reply to COMMAND DOCS: its name and its documentation."""
        pairs = [
            (b"summary", r.bulk(entry.summary)),
            (b"since", r.bulk(SINCE)),
            (b"group", r.bulk(GROUP)),
            (b"complexity", r.bulk(entry.complexity)),
        ]
        if entry.arguments:
            pairs.append((b"arguments", self._arguments(entry.arguments)))
        return r.bulk(entry.name) + self._map(pairs)

    def words(self, words: list[bytes]) -> bytes:
        """Return a set of flags or categories."""
        return self._set([b"+%b\r\n" % word for word in words])

    def _key_spec(self, entry: Entry) -> bytes:
        kind, spec = b"type", b"spec"
        index = [(kind, r.bulk(b"index")), (spec, self._map([(b"index", b":1\r\n")]))]
        reach = [
            (b"lastkey", b":%d\r\n" % (-1 if entry.many else 0)),
            (b"keystep", b":1\r\n"),
            (b"limit", b":0\r\n"),
        ]
        pairs = [
            (b"flags", self.words(entry.keys)),
            (b"begin_search", self._map(index)),
            (b"find_keys", self._map([(kind, r.bulk(b"range")), (spec, self._map(reach))])),
        ]
        return self._map(pairs)

    def _arguments(self, arguments: tuple[Argument, ...]) -> bytes:
        return b"*%d\r\n" % len(arguments) + b"".join([self._argument(each) for each in arguments])

    def _argument(self, argument: Argument) -> bytes:
        pairs = [(b"name", r.bulk(argument.name)), (b"type", r.bulk(argument.kind))]
        if not argument.below:
            pairs.append((b"display_text", r.bulk(argument.name)))
        if argument.kind == b"key":
            pairs.append((b"key_spec_index", b":0\r\n"))
        if argument.token:
            pairs.append((b"token", r.bulk(argument.token)))
        if argument.flags:
            pairs.append((b"flags", self.words([*argument.flags])))
        if argument.below:
            pairs.append((b"arguments", self._arguments(argument.below)))
        return self._map(pairs)

    def _set(self, members: list[bytes]) -> bytes:
        return (b"~%d\r\n" if self.resp3 else b"*%d\r\n") % len(members) + b"".join(members)

    def _map(self, pairs: list[tuple[bytes, bytes]]) -> bytes:
        head = b"%%%d\r\n" % len(pairs) if self.resp3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([r.bulk(name) + value for name, value in pairs])
