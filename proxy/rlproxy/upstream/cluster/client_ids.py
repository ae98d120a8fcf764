"""Client ids over several nodes: each node counts its own clients, so a shown id names the node.

A shown id is the node's number in the upper bits, and the id that the node gave in the lower 40.
It stays below 2^53, so that every client parses it. The ids of node 0 are shown as they are.
`send_with_ids` sends the commands that have them: CLIENT ID, LIST, KILL, UNBLOCK and the like.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from rlproxy.resp.encoding import bulk, bulks
from rlproxy.upstream.cluster import gather
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.gather import as_text, text_of
from rlproxy.upstream.cluster.request import Divided, Request
from rlproxy.upstream.cluster.routes import Route

_BITS: Final = 40  # bits of an id on its node
_MAX_DIGITS: Final = 19
_NONE: Final = b"%d" % ((1 << _BITS) - 1)  # an id that no client of any node has
_IN_LINE: Final = re.compile(rb"^id=([0-9]+)|(?<= )redir=([0-9]+)(?= |$)", re.MULTILINE)
_IN_HELLO: Final = re.compile(rb"\$2\r\nid\r\n:([0-9]+)\r\n")


def shown_id(own: int, node: int) -> int:
    """Return the id that clients see.

    own: id on the node.
    node: number of the node, below slot_map.MAX_NODES; it stays the same for the life of the node.
    """
    return node << _BITS | own


def shown_integer(reply: bytes, node: int) -> bytes:
    """Return a node's reply to CLIENT ID as clients see it; errors stay."""
    return b":%d\r\n" % shown_id(int(reply[1:-2]), node) if reply[:1] == b":" else reply


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

    def edited(match: re.Match[bytes]) -> bytes:
        return bulk(b"id") + b":%d\r\n" % shown_id(int(match[1]), node)

    return _IN_HELLO.sub(edited, reply, count=1)


def args_for(args: list[bytes], node: int) -> list[bytes]:
    """Return the arguments of CLIENT LIST, KILL or UNBLOCK for one node: with its ids.

    args: those of the client, the subcommand first. The ids of clients of other nodes become _NONE.
    """
    out: list[bytes] = []
    begins = False  # the next word may be an id
    for word in args:
        listed = begins and word.isdigit() and len(word) <= _MAX_DIGITS
        begins = listed or word.upper() in (b"ID", b"NOT-ID", b"UNBLOCK")
        if listed:
            owner, own = divmod(int(word), 1 << _BITS)
            out.append(b"%d" % own if owner == node or own == 0 else _NONE)
        else:
            out.append(word)
    return out


def send_with_ids(exchange: Exchange, route: Route, args: list[bytes], written: bytes) -> None:
    """Send a command with ids of clients: to all masters if it has them in its arguments.

    args: the arguments behind CLIENT; written: the command as a request.
    """
    numbers = exchange.cluster.map.numbers
    if route.name not in (b"CLIENT LIST", b"CLIENT KILL", b"CLIENT UNBLOCK"):
        shown = shown_text if route.name == b"CLIENT INFO" else shown_integer
        node = numbers.get(exchange.links.home().address, 0)
        exchange.send_home(written, partial(shown, node=node))
        return
    parts = []
    for link in exchange.links.masters():
        node = numbers.get(link.address, 0)
        request = Request(bulks(b"CLIENT", *args_for(args, node)))
        request.on_reply = partial(shown_text, node=node)
        parts.append((link, request))
    merge = gather.text if route.name == b"CLIENT LIST" else gather.summed
    if route.name == b"CLIENT KILL" and len(args) == 2:  # that of an address replies +OK
        merge = gather.one_succeeded
    exchange.send_parts(Divided(len(parts), merge), iter(parts))
