"""The lingering close: a client's connection ends without losing its last replies.

A socket that is closed with unread input resets its connection, and the reset discards replies that
are still in the kernel's send buffer. So the writing side is closed first, behind the last reply.
Input is then read and discarded until the client closes its side, for a bounded time.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Final

from rlproxy.net.tls_stream import TlsStream

LINGER_S: Final = 1.0  # seconds for the client to close after its system acknowledged every byte
TAKES_S: Final = 60.0  # seconds for the whole lingering close
LOOK_S: Final = 0.25  # seconds between checks of both limits
MAX_DISCARDED: Final = 16 << 20  # bytes of input to discard; after that the socket is not read
FULL_READ: Final = 250_000  # bytes; after a full read by uvloop, other connections come first


def unacknowledged(transport: asyncio.Transport) -> int:
    """Return the number of written bytes in the kernel that the peer has not acknowledged.

    The result is 0 where the kernel does not report it.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def pending(transport: asyncio.Transport) -> bool:
    """Return whether the peer has not yet acknowledged all written bytes."""
    return transport.get_write_buffer_size() > 0 or unacknowledged(transport) > 0


def linger(
    transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, at_once: bool = False
) -> None:
    """Close `transport` behind the written data. Its protocol only gets connection_lost().

    at_once: the client sends nothing more, so that no reply can be lost.
    """
    if transport.is_closing():
        return
    plain = transport.end() if isinstance(transport, TlsStream) else transport
    plain.set_protocol(_Lingering(plain, loop))
    if at_once:
        plain.close()
    else:
        plain.write_eof()
        plain.resume_reading()


class _Lingering(asyncio.Protocol):
    """The protocol of a plain transport that closes. It discards all input."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._served = transport.get_protocol()
        self._loop = loop
        self._discarded = 0  # bytes
        self._taken_at = self._began = loop.time()
        self._timer = loop.call_later(LOOK_S, self._look)

    def data_received(self, data: bytes) -> None:
        self._discarded += len(data)
        full = self._discarded > MAX_DISCARDED
        if full or len(data) >= FULL_READ:
            self._transport.pause_reading()
        if not full and len(data) >= FULL_READ:
            self._loop.call_soon(self._read_on)

    def eof_received(self) -> bool:
        """See asyncio.Protocol. The transport closes after writing its buffer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._served.connection_lost(exc)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _look(self) -> None:
        now = self._loop.time()
        transport = self._transport
        if pending(transport):
            self._taken_at = now
        if now - self._began >= TAKES_S:
            transport.abort()
        elif now - self._taken_at >= LINGER_S:
            transport.close()
        self._timer = self._loop.call_later(LOOK_S, self._look)
