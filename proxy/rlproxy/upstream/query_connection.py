"""Query connections: the connections for the proxy's own commands to Redis and to Sentinels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import hiredis

from rlproxy.net.tls_contexts import TlsFailure
from rlproxy.net.tls_stream import last_words
from rlproxy.resp import encoding
from rlproxy.upstream.connector import Target

MAX_UNREAD: Final = 1 << 20  # bytes that arrive between two reads; more end the connection
_HTTP: Final = (b"HTTP/", b"<")  # first bytes of a web server's error
_ALERT: Final = b"\x15\x03"  # first bytes of a TLS alert, the reply of a TLS port to plain bytes
_HAS_TLS: Final = "that port has TLS: write rediss:// instead of redis:// in --upstream"


class Closed(OSError):  # noqa: N818
    """The server closed the connection."""

    def __init__(self) -> None:
        super().__init__("connection closed by the server")


class NoRoom(OSError):  # noqa: N818
    """Redis has no room for another client: its `maxclients` is reached."""

    def __init__(self) -> None:
        super().__init__("max number of clients reached")


class QueryConnection(asyncio.Protocol):
    """One connection for the proxy's own commands, to be connected by Target.connect().

    on_data: called whenever bytes arrive.
    limit_s: limit of the replies to each query; None: without a limit.
    """

    def __init__(
        self, on_data: Callable[[], None] | None = None, limit_s: float | None = None
    ) -> None:
        self.answered = False  # whether any byte has arrived
        self.lost = asyncio.Event()
        self._on_data = on_data
        self._limit_s = limit_s
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._unread = 0  # bytes
        self._replies: list[Any] = []
        self._error: OSError | None = None  # why no further reply comes
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.answered = True
        self._unread += len(data)
        if self._on_data is not None:
            self._on_data()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if not isinstance(reply, hiredis.PushNotification):
                    self._replies.append(reply)
            if self._unread > MAX_UNREAD:
                raise hiredis.ProtocolError("a reply is too large")
        except hiredis.ProtocolError as error:
            self._end(OSError(_foreign(data) or f"not a Redis server: {error}"))
            self.abort()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TlsFailure):
            self._end(exc)
        left = last_words(self._transport) if exc is not None else b""
        if left:
            self.data_received(left)
        # At its `maxclients`, Redis sends the refusal before any command, and closes the socket.
        self._end(NoRoom() if any(map(_no_room, self._replies)) else Closed())
        self.lost.set()

    def _end(self, error: OSError) -> None:
        self._error = self._error or error
        self._changed.set()

    async def query(self, *words: bytes) -> Any:
        """Send one command and return its reply. Raises OSError."""
        return (await self.query_all([words]))[0]

    async def query_all(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        """Send `commands` in one write and return their replies. Raises OSError."""
        self.send(b"".join([encoding.bulks(*words) for words in commands]))
        async with asyncio.timeout(self._limit_s):
            return await self.read(len(commands))

    def send(self, data: bytes) -> None:
        """Send bytes; does nothing after the end of the connection."""
        if self._transport is not None and self._error is None:
            self._transport.write(data)

    async def read(self, number: int = 1) -> list[Any]:
        """Return the next replies, once there are `number` of them.

        An error reply is a hiredis.ReplyError in the list. Raises OSError if the connection ends,
        or carries another protocol.
        """
        while len(self._replies) < number:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        found, self._replies = self._replies[:number], self._replies[number:]
        self._unread = 0
        if _no_room(found[0]):
            raise NoRoom
        return found

    def settled(self) -> bool:
        """Return whether the connection goes on, and all bytes that have arrived were read."""
        return self._error is None and not self._replies and not self._reader.has_data()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


@contextlib.asynccontextmanager
async def opened(target: Target, limit_s: float | None = None) -> AsyncIterator[QueryConnection]:
    """Open a connection to `target` for the block. Raises OSError.

    limit_s: limit of the connection, and of the replies to each query; None: that of `target`
        alone. A login and a query so have this time each: on a slow line, the sum is longer.
    """
    connection = QueryConnection(limit_s=limit_s)
    try:
        async with asyncio.timeout(limit_s):
            await target.connect(lambda: connection)
        yield connection
    finally:
        connection.abort()


def text(found: object, default: str = "") -> str:
    """Decode a string of a reply; `default` for any other type."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else default


def error_in(reply: object) -> bytes:
    """Return the error that a reply is, as RESP; empty if it is none."""
    return encoding.error(str(reply)) if isinstance(reply, hiredis.ReplyError) else b""


def _no_room(reply: object) -> bool:
    """Return whether a reply is Redis' refusal of a connection beyond `maxclients`."""
    return error_in(reply).startswith(encoding.NO_ROOM)


def _foreign(data: bytes) -> str:
    """Name the other protocol that `data` belongs to; empty if it is not recognized."""
    if data.startswith(_ALERT):
        return _HAS_TLS
    return "not a Redis server, but an HTTP server" if data.startswith(_HTTP) else ""
