"""The connector to the master that Sentinels name: it moves when the master does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlproxy.config.urls import Address
from rlproxy.net.tls_contexts import TlsFailure
from rlproxy.upstream.connector import Target


class MasterTarget(Target):
    """Opens connections to the present master.

    A connection that is being opened when the master moves is opened to the new master instead.

    name: the master's name in errors and logs until its address is known.
    on_failure: called when a connection fails to open.
    """

    def __init__(self, name: str, timeout_s: float, keepalive_s: int = 0) -> None:
        super().__init__(Address(), timeout_s, keepalive_s=keepalive_s)
        self.where = name
        self._unknown = "not queried yet"  # reason why no master is known; empty if one is
        self._moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_failure: Callable[[], None] = lambda: None

    def move(self, address: Address) -> None:
        """Open connections to `address` from now on."""
        self.address = address
        self.where = str(address)
        self._unknown = ""
        moved, self._moved = self._moved, asyncio.get_running_loop().create_future()
        moved.set_result(None)

    def unknown(self, why: str) -> None:
        """Let connect() fail with the reason `why`, because no master is known."""
        self._unknown = why

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Open a connection to the master. Raises OSError; see Target.connect()."""
        while True:
            if self._unknown:
                self.on_failure()
                raise OSError(self._unknown)
            moved = self._moved
            gate = _Gate()
            # A protocol must not see a connection that is dropped again because the master moved.
            # So the gate buffers the first bytes until the connection is certain to be used.
            opening = asyncio.ensure_future(super().connect(lambda gate=gate: gate))  # type: ignore[misc]
            try:
                await asyncio.wait((opening, moved), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                _drop(opening)
                raise
            if moved.done():
                _drop(opening)
                continue
            try:
                transport = opening.result()
                if gate.lost is not None:
                    raise gate.lost
            except OSError:
                self.on_failure()
                raise
            made = protocol()
            transport.set_protocol(made)
            made.connection_made(transport)
            for data in gate.data:
                made.data_received(data)
            return transport


class _Gate(asyncio.Protocol):
    """Buffers the input of a new connection until its protocol is made."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.lost: OSError | None = None  # why the connection ended

    def data_received(self, data: bytes) -> None:
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        closed = OSError("connection closed by the server")
        self.lost = exc if isinstance(exc, TlsFailure) else closed


def _drop(opening: asyncio.Future[asyncio.Transport]) -> None:
    """Cancel `opening`, and abort the connection if it is open already."""

    def close(done: asyncio.Future[asyncio.Transport]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().abort()

    opening.add_done_callback(close)
    opening.cancel()
