"""The private connection of one client: its socket, and when it is read."""

from __future__ import annotations

import asyncio
from typing import cast

from rlproxy.config.urls import Address
from rlproxy.downstream.clients import Client
from rlproxy.downstream.fan_out_reader import PIECE, STAYS_S
from rlproxy.fairness.budget import LARGE
from rlproxy.net.tls_stream import last_words
from rlproxy.session.waits import WAIT_HELD


class PrivateConnection(asyncio.Protocol):
    """The protocol of one private connection, of `client`.

    full: Redis takes no more bytes for now.
    reading: it is read; see read().
    resting: it is not read until the client's next turn.
    """

    # Its base is not compiled: without slots each connection would have a dict.
    __slots__ = (
        "_apart",
        "_client",
        "_descriptor",
        "_fan_out_until",
        "_transport",
        "full",
        "reading",
        "resting",
    )

    def __init__(self, client: Client) -> None:
        self.full = False
        self.reading = True
        self.resting = False
        self._apart = False  # whether reading waits for the fan-out reader
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._fan_out_until: float = 0.0  # loop time until which the fan-out reader schedules it
        self._descriptor: int = -1

    def reached_at(self) -> Address | None:
        """Return the address by which its client reached the proxy; None for a unix socket."""
        return self._client.reached_at()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # uvloop's transports have the interface of asyncio.Transport, but are no subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._client.stats.private += 1

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        client = self._client
        client.session.upstream_received(data)
        if client.session.private.slots.awaits_lane():
            self.read()
        if len(data) > PIECE:
            apart = client.session.gets_pushes() and self._stands_apart(len(data))
            if not apart and len(data) > LARGE and client.clients.rests(len(data)):
                self.resting = True
                self.read()
                client.queue()
        client.flush()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.full = True
        self._client.flush()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.full = False
        self._client.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        client = self._client
        if exc is not None:
            left = last_words(self._transport)
            if left:
                client.session.upstream_received(left)
                client.flush()
        self._transport = None
        client.stats.private -= 1
        self._leave_fan_out()
        client.upstream_lost(self)

    # -- for its client ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send `data` to Redis."""
        if self._transport is not None:
            self._client.stats.upstream_out += len(data)
            self._transport.write(data)

    def write_eof(self) -> None:
        """Pass the client's end of file on."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection behind what is written."""
        if self._transport is not None:
            self._transport.close()

    def read(self) -> None:
        """Read the connection, or pause that, as the state of its client requires.

        It is read while the client reads its replies. It is also read while a hit is held: then it
        only carries replies to the proxy's own calls. It is not read while a hit is sent again.
        """
        session = self._client.session
        want = not session.slow or session.wait == WAIT_HELD
        if self.resting or self._apart or session.private.slots.awaits_lane():
            want = False
        if self._transport is not None and want != self.reading:
            self.reading = want
            if want:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # -- fan-out ----------------------------------------------------------------------------------

    def _stands_apart(self, size: int) -> bool:
        """Hand the connection to the fan-out reader if many are readable together.

        The fan-out reader keeps a connection for STAYS_S after that.

        size: the number of bytes just read, which the client did not request (pub/sub).
        Returns whether the connection is now read only when the fan-out reader gives it a turn.
        """
        client = self._client
        fan_out = client.clients.fan_out
        now = client.clients.clock()
        if fan_out.many(size):
            self._fan_out_until = now + STAYS_S
        elif now >= self._fan_out_until:
            return False
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None:
            return False
        self._descriptor = sock.fileno()
        try:
            fan_out.watch(self._descriptor, self._its_turn)
        except (OSError, ValueError):  # the connection is ending, or has no descriptor any more
            return False
        self._apart = True
        self.read()
        return True

    def _its_turn(self, many: bool) -> None:
        """Read the connection: it is readable, and the fan-out reader gives it a turn.

        many: more connections may be readable.
        """
        self._apart = False
        if many:
            self._fan_out_until = self._client.clients.clock() + STAYS_S
        self.read()

    def _leave_fan_out(self) -> None:
        if self._apart:
            self._apart = False
            self._client.clients.fan_out.forget(self._descriptor, self._its_turn)
