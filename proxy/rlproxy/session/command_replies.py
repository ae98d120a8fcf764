"""The editing of Redis' replies to COMMAND and its subcommands: the RL commands are added.

`plan()` reads the arguments of a COMMAND that goes upstream and returns the treatment of its reply:

- COMMAND, DOCS and LIST stream past with a higher count in their first line, and the proxy's
  entries follow the last one;
- INFO gets the proxy's entries where Redis sends nil;
- COUNT is raised by their number;
- GETKEYS is answered where Redis does not have the command.

Errors are not changed. The form (number of fields, sets or arrays) is that of Redis' own entries.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Final, NamedTuple

from rlproxy.ratelimit.command_entries import ENTRIES, Entry
from rlproxy.ratelimit.entry_form import Form
from rlproxy.resp import encoding as r
from rlproxy.session import slots as s
from rlproxy.session.slots import Catch, Slot, Unfold

# Bytes; a longer COMMAND (names, or the keys of a GETKEYS) is not edited. Its arguments are stored
# until it is answered, and a client may send many such commands and read no reply.
MAX_EDITED: Final = 512

FORM_CALL: Final = r.bulks(b"COMMAND", b"INFO", b"GET")  # its reply shows the form
UNKNOWN: Final = b"-ERR Invalid command specified\r\n"
KEYLESS: Final = b"-ERR The command has no key arguments\r\n"
WRONG_ARITY: Final = b"-ERR Invalid number of arguments specified for command\r\n"
NILS: Final = (b"$-1\r\n", b"_\r\n", b"*-1\r\n")

# Without CL.THROTTLE, for a Redis that has loaded redis-cell and lists that command itself.
_ALL: Final = {entry.name: entry for entry in ENTRIES}
_NO_THROTTLE: Final = {entry.name: entry for entry in ENTRIES if entry.name != b"cl.throttle"}


class Plan(NamedTuple):
    """The treatment of one COMMAND: `slot` awaits its reply.

    If there is `asked`, FORM_CALL must be sent before the COMMAND, and `asked` awaits its reply.
    """

    slot: Slot
    asked: Slot | None = None


def plan(args: list[bytes], native_throttle: bool) -> Plan | None:
    """Return the treatment of a COMMAND; None if its reply is passed on unchanged.

    args: all its arguments.
    native_throttle: Redis itself has CL.THROTTLE.
    """
    entries = _NO_THROTTLE if native_throttle else _ALL
    word = args[0].upper() if args else b"INFO"
    rest = args[1:]
    names = [name.lower() for name in rest]
    form = Form()
    if word == b"INFO" and not rest:
        return Plan(_all(list(entries.values())))
    if word == b"COUNT":
        return Plan(Catch(lambda frame: _raised(frame, len(entries))))
    if word == b"LIST":
        listed = _listed(rest, entries)
        return Plan(_list(listed)) if listed else None
    if word == b"DOCS":
        # Each once, in the order of their first occurrence.
        found = [entries[name] for name in dict.fromkeys(names or entries) if name in entries]
        return Plan(_docs(found)) if found else None
    if word == b"INFO" and any(name in entries for name in names):
        return Plan(_info([entries.get(name) for name in names], form), _form_slot(form))
    if word in (b"GETKEYS", b"GETKEYSANDFLAGS") and names and names[0] in entries:
        entry = entries[names[0]]
        if word == b"GETKEYS":
            return Plan(Catch(lambda frame: _keys(frame, entry, rest, None)))
        return Plan(Catch(lambda frame: _keys(frame, entry, rest, form)), _form_slot(form))
    return None


def _all(entries: list[Entry]) -> Slot:
    """The reply to COMMAND: the proxy's entries follow Redis' own, in the form of the first."""
    ours = Slot(s.S_INSIDE)

    def first(frame: bytes) -> bytes:
        form = Form()
        form.learn(frame)
        ours.data = b"".join([form.info(each) for each in entries])
        return frame

    def unfold(line: bytes) -> list[Slot]:
        count = _count(line, b"*")
        if count < 1:
            return []
        head = Slot(s.S_INSIDE, b"*%d\r\n" % (count + len(entries)))
        return [head, Catch(first), _values(count - 1), ours]

    return Unfold(unfold)


def _info(entries: list[Entry | None], form: Form) -> Slot:
    """The reply to COMMAND INFO with names: the proxy's `entries` replace nil, one for each name.

    None for a name that is not the proxy's.
    """

    def unfold(line: bytes) -> list[Slot]:
        if _count(line, b"*") != len(entries):
            return []
        return [Slot(s.S_INSIDE, line), *[_value(entry, form) for entry in entries]]

    return Unfold(unfold)


def _value(entry: Entry | None, form: Form) -> Slot:
    if entry is None:
        return _values(1)
    return Catch(lambda frame: form.info(entry) if frame in NILS else frame)


def _docs(entries: list[Entry]) -> Slot:
    """The reply to COMMAND DOCS: the proxy's entries follow Redis' own. An array in RESP2."""

    def unfold(line: bytes) -> list[Slot]:
        resp3 = line[:1] == b"%"
        form = Form(resp3)
        docs = b"".join([form.docs(each) for each in entries])
        return _extended(line, b"%*", len(entries) * (1 if resp3 else 2), docs)

    return Unfold(unfold)


def _list(names: list[bytes]) -> Slot:
    """The reply to COMMAND LIST: the proxy's names follow Redis' own."""
    ours = b"".join([r.bulk(name) for name in names])
    return Unfold(lambda line: _extended(line, b"*~", len(names), ours))


def _extended(line: bytes, kinds: bytes, added: int, ours: bytes) -> list[Slot]:
    """The slots of a reply with the first line `line`, followed by `added` values in `ours`."""
    count = _count(line, kinds)
    if count < 0:
        return []
    head = Slot(s.S_INSIDE, b"%b%d\r\n" % (line[:1], count + added))
    return [head, _values(2 * count if line[:1] == b"%" else count), Slot(s.S_INSIDE, ours)]


def _raised(frame: bytes, added: int) -> bytes:
    """The reply to COMMAND COUNT."""
    count = _count(frame, b":")
    return b":%d\r\n" % (count + added) if count >= 0 else frame


def _keys(frame: bytes, entry: Entry, words: list[bytes], form: Form | None) -> bytes:
    """The reply to COMMAND GETKEYS, or GETKEYSANDFLAGS (with a `form`), for the command `words`."""
    if frame != UNKNOWN:
        return frame
    if not entry.keys:
        return KEYLESS
    size = len(words)
    if size < -entry.arity or (entry.arity > 0 and size != entry.arity):
        return WRONG_ARITY
    keys = [r.bulk(key) for key in (words[1:] if entry.many else words[1:2])]
    if form is not None:
        flags = form.words(entry.keys)
        keys = [b"*2\r\n" + key + flags for key in keys]
    return b"*%d\r\n" % len(keys) + b"".join(keys)


def _form_slot(form: Form) -> Slot:
    """The reply to FORM_CALL, which `form` is taken from."""

    def learn(frame: bytes) -> bytes:
        line, _, entry = frame.partition(b"\r\n")
        if line == b"*1":
            form.resp3 = entry == b"_\r\n"
            form.learn(entry)
        return b""

    return Catch(learn, s.S_ASKED)


def _listed(rest: list[bytes], entries: dict[bytes, Entry]) -> list[bytes]:
    """The RL commands in the reply to COMMAND LIST with the arguments `rest`."""
    if not rest:
        return list(entries)
    if len(rest) != 3 or rest[0].upper() != b"FILTERBY":
        return []
    kind = rest[1].upper()
    word = rest[2].lower()
    if kind == b"ACLCAT":
        category = b"@" + word.partition(b"\0")[0]
        return [entry.name for entry in entries.values() if category in entry.categories]
    if kind == b"PATTERN" and b"[" not in word and b"\\" not in word:
        # The brackets of fnmatch are not those of Redis, and it has no escapes.
        glob = re.compile(fnmatch.translate(word.decode("latin1")))
        return [name for name in entries if glob.match(name.decode())]
    return []  # no module of Redis contains the RL commands


def _values(count: int) -> Slot:
    slot = Slot(s.S_VALUES)
    slot.count = count
    return slot


def _count(line: bytes, kinds: bytes) -> int:
    """The number in a reply's first line if its type is one of `kinds`, else -1."""
    digits = line[1:-2]
    return int(digits) if line[:1] in kinds and digits.isdigit() else -1
