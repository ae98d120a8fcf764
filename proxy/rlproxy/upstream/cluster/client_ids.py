"""Client ids over several nodes: each node counts its own clients, so a shown id names the node.

A shown id is the node's number in the upper bits, and the id that the node gave in the lower 40.
It stays below 2^53, so that every client parses it. The ids of node 0 are shown as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from rlproxy.resp.encoding import bulk
from rlproxy.upstream.cluster.gather import as_text, text_of

_BITS: Final = 40  # bits of an id on its node
MAX_NODES: Final = 1 << 13  # numbers of nodes are below this
_MASK: Final = (1 << _BITS) - 1
UNUSED: Final = _MASK  # an id that no client of any node has
MAX_DIGITS: Final = 19
_IN_LINE: Final = re.compile(rb"^id=([0-9]+)|(?<= )redir=([0-9]+)(?= |$)", re.MULTILINE)
_IN_HELLO: Final = re.compile(rb"\$2\r\nid\r\n:([0-9]+)\r\n")


def node_numbers(ids: Sequence[str]) -> list[int]:
    """Return the numbers of nodes, by their ids: each from its own id, or the next that is free.

    ids: sorted, so that all processes with the same nodes number them alike.
    """
    found: dict[int, str] = {}
    for each in ids:
        number = crc32(each.encode()) % MAX_NODES
        while number in found and len(found) < MAX_NODES:
            number = (number + 1) % MAX_NODES
        found[number] = each
    return list(found)


def shown_id(own: int, node: int) -> int:
    """Return the id that clients see.

    own: id on the node.
    node: number of the node, below MAX_NODES; it stays the same for the life of the node.
    """
    return node << _BITS | own


def owner_of(shown: int) -> tuple[int, int]:
    """Return the number of the node of a shown id, and the id there."""
    return shown >> _BITS, shown & _MASK


def shown_integer(reply: bytes, node: int) -> bytes:
    """Return a node's reply to CLIENT ID or GETREDIR as clients see it; -1, 0 and errors stay."""
    if reply[:1] != b":" or not reply[1:-2].isdigit() or reply == b":0\r\n":
        return reply
    return b":%d\r\n" % shown_id(int(reply[1:-2]), node)


def shown_text(reply: bytes, node: int) -> bytes:
    """Return a node's reply to CLIENT LIST or INFO, with ids as clients see them."""
    found = text_of(reply)
    if found is None:
        return reply

    def edited(match: re.Match[bytes]) -> bytes:
        word, _, number = match[0].partition(b"=")
        return b"%b=%d" % (word, shown_id(int(number), node) if int(number) else 0)

    return as_text(_IN_LINE.sub(edited, found), reply)


def shown_hello(reply: bytes, node: int) -> bytes:
    """Return a node's reply to HELLO, with the id as clients see it."""
    if reply[:1] not in (b"*", b"%"):
        return reply
    match = _IN_HELLO.search(reply)
    if match is None:
        return reply
    own = bulk(b"id") + b":%d\r\n" % shown_id(int(match[1]), node)
    return reply[: match.start()] + own + reply[match.end() :]


def args_for(args: list[bytes], node: int) -> list[bytes] | None:
    """Return the arguments of CLIENT LIST or KILL for one node: with its ids, and only those.

    args: those of the client, the subcommand first.
    Returns None if its ID filter names no client of this node: the node needs no request.
    """
    out: list[bytes] = []
    at = 0
    size = len(args)
    while at < size:
        word = args[at].upper()
        out.append(args[at])
        at += 1
        if word not in (b"ID", b"NOT-ID"):
            continue
        named = 0
        kept = 0
        while at < size and args[at].isdigit() and len(args[at]) <= MAX_DIGITS:
            owner, own = owner_of(int(args[at]))
            if owner == node:
                out.append(b"%d" % own)
                kept += 1
            named += 1
            at += 1
        if named and not kept:
            if word == b"ID":
                return None
            out.pop()  # it excludes clients of other nodes only
    return out
