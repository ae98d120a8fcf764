"""The editing of Redis' replies to COMMAND and its subcommands: the RL commands are added.

The reply is awaited whole:

- COMMAND, DOCS and LIST get the proxy's entries behind Redis' own;
- INFO gets the proxy's entries where Redis sends nil;
- COUNT is raised by their number;
- GETKEYS is answered where Redis does not have the command.

Errors are not changed.
"""

from __future__ import annotations

from typing import Final

from rlproxy.ratelimit import command_entries
from rlproxy.ratelimit.command_entries import ENTRIES, Entry
from rlproxy.resp import encoding
from rlproxy.resp.replies import ReplyFramer

# Bytes; a longer COMMAND (names, or the keys of a GETKEYS) is not edited. Its arguments are stored
# until it is answered, and a client may send many such commands and read no reply.
MAX_EDITED: Final = 512

UNKNOWN: Final = b"-ERR Invalid command specified\r\n"
KEYLESS: Final = b"-ERR The command has no key arguments\r\n"
WRONG_ARITY: Final = b"-ERR Invalid number of arguments specified for command\r\n"

# Without CL.THROTTLE, for a Redis that has loaded redis-cell and lists that command itself.
_ALL: Final = {entry.name: entry for entry in ENTRIES}
_NO_THROTTLE: Final = {entry.name: entry for entry in ENTRIES if entry.name != b"cl.throttle"}


def edited(reply: bytes, args: list[bytes], native_throttle: bool, resp3: bool) -> bytes:
    """Return the client's reply to a COMMAND.

    reply: that of Redis.
    args: all arguments of the COMMAND.
    native_throttle: Redis itself has CL.THROTTLE.
    resp3: whether the protocol is RESP3.
    """
    entries = _NO_THROTTLE if native_throttle else _ALL
    word = args[0].upper() if args else b"INFO"
    rest = args[1:]
    names = [name.lower() for name in rest]
    if word == b"INFO" and rest:
        return _info(reply, [entries.get(name) for name in names], resp3)
    if word == b"INFO":
        infos = [command_entries.info(each, resp3) for each in entries.values()]
        return _extended(reply, b"*", len(entries), b"".join(infos))
    if word == b"COUNT":
        return _extended(reply, b":", len(entries), b"")
    if word == b"LIST" and not rest:
        values = b"".join([encoding.bulk(name) for name in entries])
        return _extended(reply, b"*~", len(entries), values)
    if word == b"DOCS":
        # Each once, in the order of their first occurrence.
        found = [entries[name] for name in dict.fromkeys(names or entries) if name in entries]
        return _docs(reply, found)
    if word == b"GETKEYS" and names and names[0] in entries:
        return _keys(reply, entries[names[0]], rest)
    return reply


def _info(frame: bytes, entries: list[Entry | None], resp3: bool) -> bytes:
    """The reply to COMMAND INFO with names: the proxy's `entries` replace nil, one for each name.

    None for a name that is not the proxy's.
    """
    if _count(frame, b"*") != len(entries):
        return frame
    line, _, values = frame.partition(b"\r\n")
    framer = ReplyFramer()
    framer.feed(values)
    parts = [line, b"\r\n"]
    for entry in entries:
        value = framer.frame()
        if entry is not None and value in encoding.NILS:
            value = command_entries.info(entry, resp3)
        parts.append(value)
    return b"".join(parts)


def _docs(frame: bytes, entries: list[Entry]) -> bytes:
    """The reply to COMMAND DOCS: the proxy's entries follow Redis' own. An array in RESP2."""
    resp3 = frame.startswith(b"%")
    docs = b"".join([command_entries.docs(each, resp3) for each in entries])
    return _extended(frame, b"%*", len(entries) * (1 if resp3 else 2), docs)


def _extended(frame: bytes, kinds: bytes, added: int, values: bytes) -> bytes:
    """`frame` with the `added` values in `values` at its end, if its type is one of `kinds`."""
    count = _count(frame, kinds)
    if count < 0:
        return frame
    return b"%b%d\r\n%b%b" % (frame[:1], count + added, frame.partition(b"\r\n")[2], values)


def _keys(frame: bytes, entry: Entry, words: list[bytes]) -> bytes:
    """The reply to COMMAND GETKEYS for the command `words`."""
    if frame != UNKNOWN:
        return frame
    if not entry.keys:
        return KEYLESS
    size = len(words)
    if size < -entry.arity or (entry.arity > 0 and size != entry.arity):
        return WRONG_ARITY
    return encoding.bulks(*(words[1:] if entry.many else words[1:2]))


def _count(frame: bytes, kinds: bytes) -> int:
    """The number in a reply's first line if its type is one of `kinds`, else -1."""
    digits = frame.partition(b"\r\n")[0][1:]
    return int(digits) if frame[:1] in kinds and digits.isdigit() else -1
