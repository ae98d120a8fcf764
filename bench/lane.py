"""python -m bench.lane PORT UPSTREAM: the least multiplexer, the floor for a hit by lane.

Each command is written to one connection to the server, 16 at a time or at the end of the tick, as
the proxy does. The n-th reply goes to the client of the n-th command. It forwards commands as they
came, and supports only those whose reply is an array of integers, as that of a hit is. It checks no
rule, counts nothing and has no timeouts: no multiplexer on uvloop can use less CPU.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import uvloop

HOST: Final = "127.0.0.1"
MAX_UNSENT: Final = 16  # commands that wait for the end of the tick
INTEGERS: Final = 5  # of a reply
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
            self._loop.call_soon(self._tick_over)

    def _tick_over(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        if self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()
            self._waiting = 0

    def data_received(self, data: bytes) -> None:
        _, *replies = (self._rest + data).split(b"*")
        complete = len(replies) - (replies[-1].count(b"\n") <= INTEGERS)
        self._rest = b"*" + replies.pop() if complete < len(replies) else b""
        owed = self._owed
        start = 0
        while start < complete:
            client, end = owed[start], start + 1
            while end < complete and owed[end] is client:
                end += 1
            client.write(b"*" + b"*".join(replies[start:end]))
            start = end
        del owed[:complete]


class _Client(asyncio.Protocol):
    def __init__(self, lane: _Lane) -> None:
        self._lane = lane

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if b"CONFIG" in data:
            self._transport.write(NO_CONFIG * data.count(b"*"))
        else:
            self._lane.submit(self._transport, data)


async def _serve(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    _, lane = await loop.create_connection(lambda: _Lane(loop), HOST, upstream)
    server = await loop.create_server(lambda: _Client(lane), HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
