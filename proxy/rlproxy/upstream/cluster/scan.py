"""SCAN over all masters, one after the other; then a look at whether the slots have moved since.

cursor 0 ─> first master ─> ... ─> last master ─> CLUSTER SLOTS of all ─┬─ as before: cursor 0
   ^                                                                    │
   └──────────────────────── begins anew ───────────────────────────────┴─ changed

A key whose slot moves during the iteration may come twice, and is not missed.
"""

from __future__ import annotations

from typing import Final

import hiredis

from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster import discovery
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.gather import is_error, scan_joined, scan_split
from rlproxy.upstream.cluster.request import Divided, Request
from rlproxy.upstream.cluster.slot_map import SlotMap

_SLOTS: Final = bulks(b"CLUSTER", b"SLOTS")
_END: Final = b"*2\r\n$1\r\n0\r\n*0\r\n"
_ANEW: Final = b"*2\r\n$1\r\n1\r\n*0\r\n"  # below gather.MARKS: for the first master, cursor 0


def send_scan(exchange: Exchange, args: list[bytes], written: bytes) -> None:
    """Send SCAN to the master that its cursor names.

    args: the arguments behind the name; written: the command as a request.
    """
    known = exchange.cluster.map
    nodes, mark = len(known.shards), known.mark
    found = scan_split(args[0], nodes + 1, mark) if args and nodes else None
    if found is None:
        exchange.send(exchange.home(), Request(written))
        return
    index, cursor = found
    if index == nodes:
        _check(exchange, known)
        return
    request = Request(bulks(b"SCAN", cursor, *args[1:]))
    request.answered = lambda frame: scan_joined(frame, index, nodes + 1, mark)
    exchange.send(exchange.link(known.shards[index].address), request)


def _check(exchange: Exchange, known: SlotMap) -> None:
    """End an iteration that ran by the map `known` if all masters have the same one."""
    links = exchange.masters()
    hosts = [link.address.host for link in links]

    def joined(replies: list[bytes]) -> bytes:
        for reply, host in zip(replies, hosts, strict=True):
            if not is_error(reply) and _mark(reply, host) != known.mark:
                exchange.cluster.refresh()
                return _ANEW
        return _END

    exchange.send_parts(links, Divided([Request(_SLOTS) for _ in links], joined))


def _mark(reply: bytes, host: str) -> int:
    reader = hiredis.Reader()
    reader.feed(reply)
    return SlotMap(discovery.shards(reader.gets(), host)).mark
