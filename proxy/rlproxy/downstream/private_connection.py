"""The private connection of one client: its socket, and when it is read."""

from __future__ import annotations

import asyncio
from typing import cast

from rlproxy.config.urls import Address
from rlproxy.downstream.clients import Client
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
        "_client",
        "_transport",
        "full",
        "reading",
        "resting",
    )

    def __init__(self, client: Client) -> None:
        self.full = False
        self.reading = True
        self.resting = False
        self._client = client
        self._transport: asyncio.Transport | None = None

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
        if len(data) > LARGE and client.clients.rests(len(data)):
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
        if self.resting or session.private.slots.awaits_lane():
            want = False
        if self._transport is not None and want != self.reading:
            self.reading = want
            if want:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
