"""SCAN over all masters, one after the other; it begins again if the slots have moved since.

cursor 0 ─> first master ─> ... ─> last master ─> CLUSTER SLOTS of all ─┬─ as before: cursor 0
   ^                                                                    │
   └──────────────────────── begins anew ───────────────────────────────┴─ changed

A key whose slot moves during the iteration may come twice, and is not missed. One that is migrated
to a master that was scanned already is missed if the iteration ends before the slot has moved.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import hiredis

from rlproxy.resp.encoding import bulks, error
from rlproxy.upstream.cluster import discovery
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.gather import UNEXPECTED, is_error
from rlproxy.upstream.cluster.request import Divided, Request
from rlproxy.upstream.cluster.slot_map import MARKS, SlotMap

_MAX_CURSOR: Final = (1 << 64) - 1  # servers and clients parse cursors as 64 bits
_MAX_CURSOR_DIGITS: Final = 20
_CURSOR_TOO_LARGE: Final = error("ERR the cursor of the node is too large for a cluster")
_REPLY: Final = re.compile(rb"\*2\r\n\$[0-9]{1,2}\r\n([0-9]{1,20})\r\n")
_SLOTS: Final = bulks(b"CLUSTER", b"SLOTS")
_END: Final = b"*2\r\n$1\r\n0\r\n*0\r\n"
_ANEW: Final = b"*2\r\n$1\r\n1\r\n*0\r\n"  # below MARKS: for the first master, cursor 0


def send_scan(exchange: Exchange, args: list[bytes], written: bytes) -> None:
    """Send SCAN to the master that its cursor names.

    args: the arguments behind the name; written: the command as a request.
    """
    known = exchange.cluster.map
    nodes, mark = len(known.shards), known.mark()
    found = split(args[0], nodes + 1, mark) if args else None
    if found is None:
        exchange.send_home(written)
        return
    index, cursor = found
    if index == nodes:
        _check(exchange, known)
        return
    on_reply = partial(with_cursor, step=index, steps=nodes + 1, mark=mark)
    request = Request(bulks(b"SCAN", cursor, *args[1:]), on_reply=on_reply)
    exchange.send(exchange.links.to(known.shards[index].address), request)


def _check(exchange: Exchange, known: SlotMap) -> None:
    """End an iteration that ran by the map `known` if all masters have the same one."""
    links = exchange.links.masters()
    hosts = [link.address.host for link in links]

    def checked(replies: list[bytes]) -> bytes:
        for reply, host in zip(replies, hosts, strict=True):
            if not is_error(reply) and _mark(reply, host) != known.mark():
                exchange.cluster.refresh()
                return _ANEW
        return _END

    exchange.send_parts(Divided(len(links), checked), ((link, Request(_SLOTS)) for link in links))


def _mark(reply: bytes, host: str) -> int:
    reader = hiredis.Reader()
    reader.feed(reply)
    return discovery.read_slots(reader.gets(), host).mark()


def split(cursor: bytes, steps: int, mark: int) -> tuple[int, bytes] | None:
    """Return the step that a client's SCAN goes on with, and the cursor for its node.

    steps: one for each master, and the look at the slots.
    mark: the map's; a cursor with another one begins anew, so that no key is missed.
    Returns None for an invalid cursor.
    """
    valid = cursor.isdigit() and len(cursor) <= _MAX_CURSOR_DIGITS
    if not valid or int(cursor) > _MAX_CURSOR:
        return None
    number, found = divmod(int(cursor), MARKS)
    if found != mark:
        return 0, b"0"
    number, step = divmod(number, steps)
    return step, b"%d" % number


def with_cursor(reply: bytes, step: int, steps: int, mark: int) -> bytes:
    """Return the reply of a node to SCAN with the cursor for the client.

    The cursor is ((cursor of the node x steps + step) x MARKS + mark). Cursors of servers have as
    many bits as the number of keys, and Redis 8 and Valkey put 14 bits of the slot behind them, so
    the result has 64 bits at most.
    """
    match = _REPLY.match(reply)
    if match is None:
        return reply if is_error(reply) else UNEXPECTED
    number = int(match[1])
    if not number:
        step += 1  # this node is done
    number = (number * steps + step) * MARKS + mark
    if number > _MAX_CURSOR:
        return _CURSOR_TOO_LARGE
    cursor = b"%d" % number
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(cursor), cursor, reply[match.end() :])
