"""python -m bench.lane PORT UPSTREAM,...: a multiplexer that does nothing else, a floor for lanes.

Each command is written to one connection to its server, 16 at a time or at the end of the tick, as
the proxy does. The n-th reply goes to the client of the n-th command. It forwards commands as they
came, and supports only replies of one line, and arrays of five integers, as that of a hit is. It
checks no rule, counts nothing and has no timeouts.

With several UPSTREAM ports, each is a master with its share of the slots, see parts.shares(), and
clients send one command at a time.
"""

from __future__ import annotations

import asyncio
import sys
from binascii import crc_hqx
from typing import Final, cast

import uvloop

from .parts import SLOTS, shares

HOST: Final = "127.0.0.1"
MAX_UNSENT: Final = 16  # commands that wait for the end of the tick
LINES: Final = {b"*": 6}  # of a reply, by its first byte; one line of all others
KEY_AT: Final = 4  # line of a command that is its key
NO_CONFIG: Final = b"-ERR no configuration here\r\n"  # redis-benchmark asks for it first


class _Lane(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unsent: list[bytes] = []
        self._waiting = 0  # number of commands in `_unsent`
        self._scheduled = False
        self._owed: list[asyncio.Transport] = []  # a client for each command under way
        self._rest = b""  # an incomplete reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def submit(self, client: asyncio.Transport, commands: bytes) -> None:
        number = commands.count(b"*")
        self._unsent.append(commands)
        self._owed.extend([client] * number)
        self._waiting += number
        if self._waiting >= MAX_UNSENT:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()
            self._waiting = 0

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        kind = data[:1]
        _, *replies = data.split(kind)
        complete = len(replies) - (replies[-1].count(b"\n") < LINES.get(kind, 1))
        self._rest = kind + replies.pop() if complete < len(replies) else b""
        owed = self._owed
        start = 0
        while start < complete:
            client, end = owed[start], start + 1
            while end < complete and owed[end] is client:
                end += 1
            client.write(kind + kind.join(replies[start:end]))
            start = end
        del owed[:complete]


class _Client(asyncio.Protocol):
    def __init__(self, by_slot: list[_Lane]) -> None:
        self._by_slot = by_slot  # one lane: a single server, which has no slots

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        lanes = self._by_slot
        if b"CONFIG" in data:
            self._transport.write(NO_CONFIG * data.count(b"*"))
        elif len(lanes) == 1:
            lanes[0].submit(self._transport, data)
        else:
            key = data.split(b"\r\n", KEY_AT + 1)[KEY_AT]
            lanes[crc_hqx(key, 0) % SLOTS].submit(self._transport, data)


async def _serve(port: int, upstreams: list[int]) -> None:
    loop = asyncio.get_running_loop()
    lanes = [
        (await loop.create_connection(lambda: _Lane(loop), HOST, upstream))[1]
        for upstream in upstreams
    ]
    by_slot = lanes
    if len(lanes) > 1:
        masters = zip(lanes, shares(len(lanes)), strict=True)
        by_slot = [lane for lane, slots in masters for _ in slots]
    server = await loop.create_server(lambda: _Client(by_slot), HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), list(map(int, sys.argv[2].split(",")))))
