"""python -m bench.splice PORT UPSTREAM: a bare two-way splice, the floor for a proxy on this loop.

Each client gets a connection of its own to the server, and each chunk that is read on one side is
written to the other. Nothing is parsed, counted or held back: no proxy on uvloop can use less CPU.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

HOST = "127.0.0.1"


class _Side(asyncio.Protocol):
    """One side of a client's two connections; `other` is the opposite one's transport."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self.early: list[bytes] = []  # chunks that came before the server's connection was open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is None:
            self.early.append(data)
        elif other.transport is not None:
            other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _serve(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def connect(client: _Side) -> None:
        server = _Side()
        server.other = client
        await loop.create_connection(lambda: server, HOST, upstream)
        client.other = server
        if server.transport is not None:
            server.transport.write(b"".join(client.early))

    class Client(_Side):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            task = loop.create_task(connect(self))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await loop.create_server(Client, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
