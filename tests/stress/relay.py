"""A TCP relay that injects faults: it delays, throttles, stalls, cuts within a frame, and
refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket


class Relay:
    """A relay from 127.0.0.1:`port` to a server's port. The attributes may be set at any time."""

    def __init__(self, to_port: int, source: random.Random) -> None:
        self.delay_s = 0.0  # of each read
        self.bytes_per_s = 0.0  # of each direction of each connection; 0: no bound
        self.stalled = False  # nothing moves
        self.refuses = False  # new connections are closed at once
        self.port = 0
        self.connections = 0  # so far
        self.cuts = 0
        self.to_port = to_port
        self._source = source
        self._server: asyncio.Server | None = None
        self._open: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
        for link in list(self._open):
            link.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """Remove all faults."""
        self.delay_s = self.bytes_per_s = 0.0
        self.stalled = self.refuses = False
        for link in list(self._open):
            link.cut_after = -1

    def cut(self, share: float, reset: bool = False) -> int:
        """Close some of the connections now; return their number."""
        chosen = [link for link in self._open if self._source.random() < share]
        for link in chosen:
            link.cut(reset)
        self.cuts += len(chosen)
        return len(chosen)

    def cut_in_frame(self, share: float, most: int) -> int:
        """Close some of the connections after a few more bytes of the server's; return their
        number.
        """
        chosen = [link for link in self._open if self._source.random() < share]
        for link in chosen:
            link.cut_after = self._source.randrange(1, most)
        self.cuts += len(chosen)
        return len(chosen)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self.refuses:
                writer.transport.abort()
                return
            try:
                there = await asyncio.open_connection("127.0.0.1", self.to_port)
            except OSError:
                writer.transport.abort()
                return
            link = _Link(self, (reader, writer), there)
            self._open.add(link)
            try:
                await link.run()
            finally:
                self._open.discard(link)
        finally:
            self._tasks.discard(task)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    def __init__(self, relay: Relay, here: Stream, there: Stream) -> None:
        self._relay = relay
        self._here = here
        self._there = there
        self.cut_after = -1  # more bytes of the server's to forward; -1: no bound

    async def run(self) -> None:
        ways = [
            asyncio.create_task(self._move(self._here[0], self._there[1], False)),
            asyncio.create_task(self._move(self._there[0], self._here[1], True)),
        ]
        try:
            await asyncio.gather(*ways)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()

    def cut(self, reset: bool = False) -> None:
        for _, writer in (self._here, self._there):
            with contextlib.suppress(OSError, RuntimeError, AttributeError):
                sock = writer.get_extra_info("socket")
                if reset and sock is not None:
                    linger = b"\1\0\0\0\0\0\0\0"  # on, 0 s: a reset, not an end of file
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()

    async def _move(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: bool
    ) -> None:
        relay = self._relay
        while True:
            size = 65536
            if relay.bytes_per_s:
                size = max(1, int(relay.bytes_per_s / 50))
            data = await reader.read(size)
            while relay.stalled:
                await asyncio.sleep(0.01)
            if not data:
                if writer.can_write_eof():
                    writer.write_eof()
                return
            if relay.delay_s:
                await asyncio.sleep(relay.delay_s)
            sent = 0.0
            while relay.bytes_per_s and sent < len(data):  # until the fault is removed
                await asyncio.sleep(0.01)
                sent += relay.bytes_per_s * 0.01
            if back and self.cut_after >= 0:
                data = data[: self.cut_after]
                self.cut_after -= len(data)
                if self.cut_after <= 0:
                    writer.write(data)
                    with contextlib.suppress(TimeoutError, OSError):
                        await asyncio.wait_for(writer.drain(), 0.1)
                    writer.close()  # an abort would drop data just written
                    raise ConnectionResetError
            writer.write(data)
            await writer.drain()
