"""python -m bench.stub PORT: a server that refuses each command, the floor for a refused hit.

It has no Redis, parses nothing and counts nothing: no proxy on uvloop that answers refusals itself
can use less CPU.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import uvloop

HOST: Final = "127.0.0.1"
REFUSAL: Final = b"*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n"


class _Client(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(REFUSAL * data.count(b"*"))


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Client, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
