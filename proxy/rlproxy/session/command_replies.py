"""The RL commands in the replies to COMMAND and its subcommands: the table of entries, and the
editing of Redis' own replies.

`plan()` reads the arguments of a COMMAND that goes upstream and returns the treatment of its reply:

- COMMAND, DOCS and LIST stream past with a higher count in their first line, and the proxy's
  entries follow the last one;
- INFO gets the proxy's entries where Redis sends nil;
- COUNT is raised by their number;
- GETKEYS is answered where Redis does not have the command.

Errors are not changed. The form (number of fields, sets or arrays) is that of Redis' own entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rlproxy.resp import encoding as r
from rlproxy.session import slots as s
from rlproxy.session.slots import Catch, Slot, Unfold

# Bytes; a longer COMMAND (names, or the keys of a GETKEYS) is not edited. Its arguments are stored
# until it is answered, and a client may send many such commands and read no reply.
MAX_EDITED: Final = 512

_INTEGER: Final = b"integer"
_TIME: Final = b"double"  # seconds, decimals allowed
_TOKEN: Final = b"pure-token"
_ONEOF: Final = b"oneof"
_BLOCK: Final = b"block"
_OPTIONAL: Final = (b"optional",)
_MANY: Final = (b"multiple",)
_OPTIONAL_MANY: Final = (b"optional", b"multiple", b"multiple_token")


class Argument:
    """One node of a command's argument tree in COMMAND DOCS."""

    __slots__ = ("below", "flags", "kind", "name", "token")

    def __init__(
        self,
        name: bytes,
        kind: bytes,
        token: bytes = b"",
        flags: tuple[bytes, ...] = (),
        below: tuple[Argument, ...] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.token = token
        self.flags = flags
        self.below = below


class Entry:
    """One row: the properties that COMMAND reports for the command `name`.

    `keys` are the flags of its key specification, empty if it has no keys. Its keys are the first
    argument, and all that follow if `many`.
    """

    __slots__ = (
        "arguments",
        "arity",
        "categories",
        "complexity",
        "flags",
        "keys",
        "many",
        "name",
        "since",
        "summary",
        "tips",
    )

    def __init__(
        self,
        name: bytes,
        arity: int,
        flags: bytes,
        categories: bytes,
        tips: bytes,
        keys: bytes,
        summary: bytes,
        complexity: bytes,
        arguments: tuple[Argument, ...] = (),
        many: bool = False,
        since: bytes = b"0.1.0",
    ) -> None:
        self.name = name
        self.arity = arity
        self.flags = flags.split()
        self.categories = categories.split()
        self.tips = tips.split()
        self.keys = keys.split()
        self.many = many
        self.summary = summary
        self.complexity = complexity
        self.arguments = arguments
        self.since = since


def _word(token: bytes) -> Argument:
    return Argument(token.lower(), _TOKEN, token, _OPTIONAL)


def _option(token: bytes, name: bytes, kind: bytes) -> Argument:
    return Argument(name, kind, token, _OPTIONAL)


_KEY: Final = Argument(b"key", b"key")
_MAX: Final = Argument(b"max", _INTEGER)
_WINDOW: Final = Argument(b"window", _TIME)
_RULE: Final = (_KEY, _MAX, _WINDOW)
_ALGO: Final = Argument(
    b"algorithm",
    _ONEOF,
    b"ALGO",
    _OPTIONAL,
    tuple(
        Argument(name.lower(), _TOKEN, name)
        for name in (b"LOG", b"ZLOG", b"FIXED", b"COUNTER", b"TOKEN", b"LEAKY", b"GCRA")
    ),
)
_BURST: Final = _option(b"BURST", b"burst", _INTEGER)
_SHAPE: Final = (
    _word(b"MS"),
    _ALGO,
    _option(b"COST", b"cost", _INTEGER),
    _BURST,
    _option(b"GAP", b"gap", _TIME),
)
_AND: Final = Argument(b"and", _BLOCK, b"AND", _OPTIONAL_MANY, (_MAX, _WINDOW))
_THROTTLE: Final = (
    _KEY,
    Argument(b"max_burst", _INTEGER),
    Argument(b"count", _INTEGER),
    Argument(b"period", _INTEGER),
    Argument(b"quantity", _INTEGER, b"", _OPTIONAL),
)
_HITS: Final = b"O(1), or O(N) in the N hits that have left the window or that a COST adds"
_WRITES: Final = b"write denyoom noscript fast"
_CHANGES: Final = b"RW access update"

# All RL commands. Flags: noscript because redis.call has none of them, blocking because of WAIT.
ENTRIES: Final = (
    Entry(
        b"rl.hit",
        -4,
        b"write denyoom noscript blocking fast",
        b"@write @fast @blocking @scripting",
        b"nondeterministic_output",
        _CHANGES,
        b"Counts a hit on a rate limiter and tells whether it is admitted.",
        _HITS,
        (
            *_RULE,
            *_SHAPE,
            _word(b"STRICT"),
            _option(b"PENALTY", b"penalty", _TIME),
            _option(b"WAIT", b"timeout", _TIME),
            _AND,
        ),
    ),
    Entry(
        b"rl.peek",
        -4,
        b"readonly noscript fast",
        b"@read @fast @scripting",
        b"nondeterministic_output",
        b"RO access",
        b"Tells what RL.HIT would answer, and writes nothing.",
        _HITS,
        (*_RULE, *_SHAPE, _AND),
    ),
    Entry(
        b"rl.refund",
        -5,
        b"write noscript fast",
        b"@write @fast @scripting",
        b"nondeterministic_output",
        _CHANGES,
        b"Gives back the newest hits of a rate limiter.",
        b"O(N) in the hits given back",
        (*_RULE, Argument(b"hits", _INTEGER), _word(b"MS"), _ALGO, _BURST, _AND),
    ),
    Entry(
        b"rl.reset",
        -2,
        b"write noscript",
        b"@keyspace @write @slow",
        b"request_policy:multi_shard response_policy:agg_sum",
        b"RM delete",
        b"Forgets rate limiters.",
        b"O(N) in the number of keys and of the hits that they hold",
        (Argument(b"key", b"key", b"", _MANY),),
        many=True,
    ),
    Entry(
        b"rl.help",
        1,
        b"noscript fast",
        b"@fast @scripting",
        b"",
        b"",
        b"Returns helpful text about the commands of the family.",
        b"O(1)",
    ),
    Entry(
        b"rl.stats",
        1,
        b"noscript fast",
        b"@fast @scripting",
        b"nondeterministic_output",
        b"",
        b"Returns what the proxy has counted since it began.",
        b"O(1)",
    ),
    Entry(
        b"rl.top",
        -2,
        b"noscript",
        b"@slow @scripting",
        b"nondeterministic_output",
        b"",
        b"Returns the keys with most hits, or refusals, of the last minute.",
        b"O(N) in the number of keys that are asked for",
        (Argument(b"keys", _INTEGER), _word(b"REFUSED")),
    ),
    *[
        Entry(
            name,
            -5,
            _WRITES,
            b"@write @fast @scripting",
            b"nondeterministic_output",
            _CHANGES,
            b"Takes from a GCRA rate limiter, with the arguments and the reply of redis-cell.",
            b"O(1)",
            _THROTTLE,
        )
        for name in (b"cl.throttle", b"rl.throttle")
    ],
)
GROUP: Final = b"module"  # of all commands that are not Redis' own

# Without CL.THROTTLE, for a Redis that has loaded redis-cell and lists that command itself.
_ALL: Final = {entry.name: entry for entry in ENTRIES}
_NO_THROTTLE: Final = {entry.name: entry for entry in ENTRIES if entry.name != b"cl.throttle"}

# -- the form of a server's entries ---------------------------------------------------------------


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
        told = [
            (b"summary", r.bulk(entry.summary)),
            (b"since", r.bulk(entry.since)),
            (b"group", r.bulk(GROUP)),
            (b"complexity", r.bulk(entry.complexity)),
        ]
        if entry.arguments:
            told.append((b"arguments", self._arguments(entry.arguments)))
        return r.bulk(entry.name) + self._map(told)

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
        told = [
            (b"flags", self.words(entry.keys)),
            (b"begin_search", self._map(index)),
            (b"find_keys", self._map([(kind, r.bulk(b"range")), (spec, self._map(reach))])),
        ]
        return self._map(told)

    def _arguments(self, arguments: tuple[Argument, ...]) -> bytes:
        return b"*%d\r\n" % len(arguments) + b"".join([self._argument(each) for each in arguments])

    def _argument(self, argument: Argument) -> bytes:
        told = [(b"name", r.bulk(argument.name)), (b"type", r.bulk(argument.kind))]
        if not argument.below:
            told.append((b"display_text", r.bulk(argument.name)))
        if argument.kind == b"key":
            told.append((b"key_spec_index", b":0\r\n"))
        if argument.token:
            told.append((b"token", r.bulk(argument.token)))
        if argument.flags:
            told.append((b"flags", self.words(list(argument.flags))))
        if argument.below:
            told.append((b"arguments", self._arguments(argument.below)))
        return self._map(told)

    def _set(self, members: list[bytes]) -> bytes:
        return (b"~%d\r\n" if self.resp3 else b"*%d\r\n") % len(members) + b"".join(members)

    def _map(self, pairs: list[tuple[bytes, bytes]]) -> bytes:
        head = b"%%%d\r\n" % len(pairs) if self.resp3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([r.bulk(name) + value for name, value in pairs])


# -- their places in the replies ------------------------------------------------------------------

FORM_CALL: Final = r.bulks(b"COMMAND", b"INFO", b"GET")  # its reply shows the form
UNKNOWN: Final = b"-ERR Invalid command specified\r\n"
KEYLESS: Final = b"-ERR The command has no key arguments\r\n"
WRONG_ARITY: Final = b"-ERR Invalid number of arguments specified for command\r\n"
NILS: Final = (b"$-1\r\n", b"_\r\n", b"*-1\r\n")


class Plan:
    """The treatment of one COMMAND: `slot` awaits its reply.

    If there is `asked`, FORM_CALL must be sent before the COMMAND, and `asked` awaits its reply.
    """

    __slots__ = ("asked", "slot")

    def __init__(self, slot: Slot, asked: Slot | None = None) -> None:
        self.slot = slot
        self.asked = asked


def plan(args: list[bytes], native_throttle: bool) -> Plan | None:
    """Return the treatment of a COMMAND; None if its reply is passed on unchanged.

    args: all its arguments.
    native_throttle: Redis itself has CL.THROTTLE.
    """
    entries = _NO_THROTTLE if native_throttle else _ALL
    word = args[0].upper() if args else b"INFO"
    rest = args[1:]
    if word == b"INFO":
        if not rest:
            return Plan(Unfold(_All(entries).unfold))
        named = _Named(rest, entries)
        if named.any:
            return Plan(Unfold(named.unfold), _asks(named.form))
    elif word == b"DOCS":
        found = _named_once(rest, entries) if rest else list(entries.values())
        if found:
            return Plan(Unfold(_Docs(found).unfold))
    elif word == b"LIST":
        names = _listed(rest, entries)
        if names:
            return Plan(Unfold(_List(names).unfold))
    elif word == b"COUNT":
        return Plan(Catch(_Count(len(entries)).edit))
    elif word in (b"GETKEYS", b"GETKEYSANDFLAGS") and rest:
        entry = entries.get(rest[0].lower())
        if entry is not None:
            keys = _Keys(entry, rest, word == b"GETKEYSANDFLAGS")
            return Plan(Catch(keys.edit), _asks(keys.form) if keys.flagged else None)
    return None


class _All:
    """The reply to COMMAND: the proxy's entries follow Redis' own, in the form of the first."""

    __slots__ = ("_entries", "_form", "_ours")

    def __init__(self, entries: dict[bytes, Entry]) -> None:
        self._entries = entries
        self._form = Form()
        self._ours = Slot(s.S_INSIDE)

    def unfold(self, line: bytes) -> list[Slot]:
        count = _count(line, b"*")
        if count < 1:
            return []
        head = Slot(s.S_INSIDE, b"*%d\r\n" % (count + len(self._entries)))
        return [head, Catch(self._first), _values(count - 1), self._ours]

    def _first(self, entry: bytes) -> bytes:
        self._form.learn(entry)
        self._ours.data = b"".join([self._form.info(each) for each in self._entries.values()])
        return entry


class _Named:
    """The reply to COMMAND INFO with names: the proxy's entries replace nil."""

    __slots__ = ("_entries", "_names", "any", "form")

    def __init__(self, names: list[bytes], entries: dict[bytes, Entry]) -> None:
        self._names = [name.lower() for name in names]
        self._entries = entries
        self.any = any(name in entries for name in self._names)
        self.form = Form()

    def unfold(self, line: bytes) -> list[Slot]:
        if _count(line, b"*") != len(self._names):
            return []
        slots = [Slot(s.S_INSIDE, line)]
        others = 0
        for name in self._names:
            entry = self._entries.get(name)
            if entry is None:
                others += 1
                continue
            slots.append(_values(others))
            slots.append(Catch(_Place(entry, self.form).edit))
            others = 0
        slots.append(_values(others))
        return slots


class _Place:
    """One value of that reply."""

    __slots__ = ("_entry", "_form")

    def __init__(self, entry: Entry, form: Form) -> None:
        self._entry = entry
        self._form = form

    def edit(self, frame: bytes) -> bytes:
        return self._form.info(self._entry) if frame in NILS else frame


class _Docs:
    """The reply to COMMAND DOCS: the proxy's entries follow Redis' own. An array in RESP2."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries

    def unfold(self, line: bytes) -> list[Slot]:
        resp3 = line[:1] == b"%"
        count = _count(line, b"%*")
        if count < 0:
            return []
        added = len(self._entries) * (1 if resp3 else 2)
        form = Form(resp3)
        ours = b"".join([form.docs(each) for each in self._entries])
        return [
            Slot(s.S_INSIDE, b"%b%d\r\n" % (line[:1], count + added)),
            _values(2 * count if resp3 else count),
            Slot(s.S_INSIDE, ours),
        ]


class _List:
    """The reply to COMMAND LIST: the proxy's names follow Redis' own."""

    __slots__ = ("_names",)

    def __init__(self, names: list[bytes]) -> None:
        self._names = names

    def unfold(self, line: bytes) -> list[Slot]:
        count = _count(line, b"*~")
        if count < 0:
            return []
        return [
            Slot(s.S_INSIDE, b"%b%d\r\n" % (line[:1], count + len(self._names))),
            _values(count),
            Slot(s.S_INSIDE, b"".join([r.bulk(name) for name in self._names])),
        ]


class _Count:
    """The reply to COMMAND COUNT."""

    __slots__ = ("_more",)

    def __init__(self, more: int) -> None:
        self._more = more

    def edit(self, frame: bytes) -> bytes:
        count = _count(frame, b":")
        return b":%d\r\n" % (count + self._more) if count >= 0 else frame


class _Keys:
    """The reply to COMMAND GETKEYS and GETKEYSANDFLAGS with an RL command `words`."""

    __slots__ = ("_entry", "_words", "flagged", "form")

    def __init__(self, entry: Entry, words: list[bytes], flagged: bool) -> None:
        self._entry = entry
        self._words = words
        self.flagged = flagged
        self.form = Form()

    def edit(self, frame: bytes) -> bytes:
        entry = self._entry
        if frame != UNKNOWN:
            return frame
        if not entry.keys:
            return KEYLESS
        size = len(self._words)
        if size < -entry.arity or (entry.arity > 0 and size != entry.arity):
            return WRONG_ARITY
        keys = [r.bulk(key) for key in (self._words[1:] if entry.many else self._words[1:2])]
        if self.flagged:
            keys = [b"*2\r\n" + key + self.form.words(entry.keys) for key in keys]
        return b"*%d\r\n" % len(keys) + b"".join(keys)


def _asks(form: Form) -> Slot:
    return Catch(_Asked(form).edit, s.S_ASKED)


class _Asked:
    """The reply to FORM_CALL."""

    __slots__ = ("_form",)

    def __init__(self, form: Form) -> None:
        self._form = form

    def edit(self, frame: bytes) -> bytes:
        line, _, entry = frame.partition(b"\r\n")
        if line == b"*1":
            self._form.resp3 = entry == b"_\r\n"
            self._form.learn(entry)
        return b""


def _values(count: int) -> Slot:
    slot = Slot(s.S_VALUES)
    slot.count = count
    return slot


def _count(line: bytes, kinds: bytes) -> int:
    """The number in a reply's first line if its type is one of `kinds`, else -1."""
    digits = line[1:-2]
    return int(digits) if line[:1] in kinds and digits.isdigit() else -1


def _named_once(names: list[bytes], entries: dict[bytes, Entry]) -> list[Entry]:
    """The RL commands among `names`, each once, in the order of their first occurrence."""
    lower = dict.fromkeys([name.lower() for name in names])
    return [entries[name] for name in lower if name in entries]


# -- COMMAND LIST ----------------------------------------------------------------------------------


def _listed(rest: list[bytes], entries: dict[bytes, Entry]) -> list[bytes]:
    """The RL commands in the reply to COMMAND LIST with the arguments `rest`."""
    if not rest:
        return list(entries)
    if len(rest) != 3 or rest[0].upper() != b"FILTERBY":
        return []
    kind = rest[1].upper()
    if kind == b"ACLCAT":
        category = b"@" + rest[2].partition(b"\0")[0].lower()
        return [entry.name for entry in entries.values() if category in entry.categories]
    if kind == b"PATTERN":
        return matching(rest[2], list(entries))
    return []  # no module of Redis contains the RL commands


def matching(pattern: bytes, names: list[bytes]) -> list[bytes]:
    """Return those of `names` (ASCII, lower case) that match the glob `pattern`.

    The match is that of Redis' stringmatchlen with nocase.
    """
    longest = max(len(name) for name in names)
    steps = 0
    elements: list[frozenset[int] | None] = []
    for element in _elements(pattern):
        if element is None:
            if elements and elements[-1] is None:
                continue
        else:
            steps += 1
            if steps > longest:
                return []
        elements.append(element)
    return [name for name in names if _matches(elements, name)]


def _matches(elements: list[frozenset[int] | None], name: bytes) -> bool:
    size = len(name)
    at = {0}  # lengths of the name that the elements so far may match
    for element in elements:
        if element is None:
            at = set(range(min(at), size + 1))
        else:
            at = {pos + 1 for pos in at if pos < size and name[pos] in element}
        if not at:
            return False
    return size in at


_ANY: Final = frozenset(range(128))


def _elements(pattern: bytes) -> Iterator[frozenset[int] | None]:
    """The elements of a glob: None for `*`, else the bytes that match at one place of a name."""
    size = len(pattern)
    pos = 0
    while pos < size:
        byte = pattern[pos]
        if byte == 42:  # *
            yield None
        elif byte == 63:  # ?
            yield _ANY
        elif byte == 91:  # [
            accepted: set[int] = set()
            pos += 1
            inverted = pos < size and pattern[pos] == 94  # ^
            if inverted:
                pos += 1
            while pos < size:
                left = size - pos
                byte = pattern[pos]
                if byte == 92 and left >= 2:
                    pos += 1
                    # Redis does not fold the case of an escaped byte here.
                    accepted.add(pattern[pos])
                elif byte == 93:  # ]
                    break
                elif left >= 3 and pattern[pos + 1] == 45:  # -
                    first, last = sorted((_signed(byte), _signed(pattern[pos + 2])))
                    accepted.update(range(max(_lower(first), 0), _lower(last) + 1))
                    pos += 2
                else:
                    accepted.add(_lower(byte))
                pos += 1
            yield frozenset(_ANY - accepted if inverted else accepted)
        else:
            if byte == 92 and pos + 1 < size:
                pos += 1
            yield frozenset([_lower(pattern[pos])])
        pos += 1


def _lower(byte: int) -> int:
    return byte + 32 if 65 <= byte <= 90 else byte


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte
