"""Commands with ids of clients: CLIENT ID, LIST, KILL, UNBLOCK and the like. See `client_ids`."""

from __future__ import annotations

from functools import partial
from typing import Final

from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster import client_ids, gather
from rlproxy.upstream.cluster import routes as r
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.request import Divided, Request
from rlproxy.upstream.cluster.routes import Route

_CLIENT: Final = b"CLIENT"
_NONE: Final = b"%d" % client_ids.UNUSED


def send_with_ids(exchange: Exchange, route: Route, args: list[bytes], written: bytes) -> None:
    """Send a command whose arguments or reply contain ids of clients.

    args: the arguments behind CLIENT; written: the command as a request.
    """
    if route.how == r.CLIENT_UNBLOCK:
        _unblock(exchange, args, written)
    elif route.how == r.HOME:
        home = exchange.home()
        request = Request(written)
        node = number(exchange, home)
        if route.name == b"CLIENT ID":
            request.answered = partial(_shown, exchange, node)
        elif route.name == b"CLIENT INFO":
            request.answered = partial(client_ids.shown_text, node=node)
        else:
            request.answered = partial(client_ids.shown_integer, node=node)
        exchange.send(home, request)
    else:
        _to_all(exchange, route, args)


def _shown(exchange: Exchange, node: int, frame: bytes) -> bytes:
    """Return the reply to CLIENT ID, and have other clients of this process find this one by it."""
    shown = client_ids.shown_integer(frame, node)
    if shown[:1] == b":":
        exchange.known_as(int(shown[1:-2]))
    return shown


def number(exchange: Exchange, link: Link) -> int:
    """Return the number of the node of `link`."""
    return exchange.cluster.map.number(link.address)


def _to_all(exchange: Exchange, route: Route, args: list[bytes]) -> None:
    """Send CLIENT LIST or KILL to the masters whose clients it may name."""
    links: list[Link] = []
    parts: list[Request] = []
    for link in exchange.masters():
        node = number(exchange, link)
        words = client_ids.args_for(args, node)
        if words is not None:
            part = Request(bulks(_CLIENT, *words))
            part.answered = partial(client_ids.shown_text, node=node)
            links.append(link)
            parts.append(part)
    if not parts:  # no node has such a client: any node reports that
        words = [_NONE if word.isdigit() else word for word in args]
        exchange.send(exchange.home(), Request(bulks(_CLIENT, *words)))
        return
    exchange.send_parts(links, Divided(parts, partial(gather.joined, route.how)))


def _unblock(exchange: Exchange, args: list[bytes], written: bytes) -> None:
    """Send CLIENT UNBLOCK to the node where the client blocks, or else to the one its id names."""
    word = args[1] if len(args) > 1 else b""
    if not word.isdigit() or len(word) > client_ids.MAX_DIGITS:
        exchange.send(exchange.home(), Request(written))
        return
    other = exchange.clients.get(int(word))
    blocked = other.blocked() if other is not None else None
    if blocked is not None:
        words = (_CLIENT, args[0], b"%d" % blocked.client_id, *args[2:])
        exchange.send(exchange.link(blocked.address), Request(bulks(*words)))
        return
    node, own_id = client_ids.owner_of(int(word))
    known = exchange.cluster.map
    found = [shard.address for shard in known.shards if known.number(shard.address) == node]
    link = exchange.link(found[0]) if found else exchange.home()
    own_word = b"%d" % own_id if found else _NONE
    exchange.send(link, Request(bulks(_CLIENT, args[0], own_word, *args[2:])))
