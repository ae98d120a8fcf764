"""One TLS connection over a plain transport: a protocol toward the event loop, a transport toward
the proxy. It can close one direction alone, as Redis' clients do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any, Final, cast

from rlproxy.net.tls_contexts import TlsFailure, why

PIECE: Final = 16384  # bytes encrypted or decrypted at a time: OpenSSL keeps buffers of that size
# Bytes of input without content after which the decryption goes on in the next tick: headers, and a
# part of a record. A tick so decrypts two pieces of such input: 1,424 records of one byte, in 2 ms,
# or 1,213 key updates, in 16 ms. A read may have 11,397 of the one, or 9,709 of the other.
MAX_OVERHEAD: Final = 20480
_CLOSED: Final = "the connection was closed during the handshake"
_EXPIRED: Final = "certificate verify failed: certificate has expired"
MAX_LAST_WORDS: Final = 262144  # bytes after which last_words() stops reading


class TlsStream(asyncio.Protocol):
    """TLS between a plain transport and the application protocol above it.

    context: decides whether this is the server's or the client's side.
    settled: called once. The argument is None after the handshake; the result is the application
    protocol then. Otherwise it is the reason of the failure; the connection is closing by then.
    name: the server name that a client requests and verifies.
    Raises ValueError for a name that cannot be in a certificate.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        settled: Callable[[OSError | None], asyncio.Protocol | None],
        name: str | None = None,
    ) -> None:
        self._settled: Callable[[OSError | None], asyncio.Protocol | None] | None = settled
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server, name)
        self._app: asyncio.Protocol | None = None  # None until the handshake is done
        self._transport: asyncio.Transport | None = None
        self._error: OSError | None = None  # reason why the connection failed
        self.received = False  # whether the other side has sent anything
        self._later = b""  # input for the next tick; the transport is not read meanwhile
        self._going_on = False  # whether _go_on() is scheduled
        self._paused = False  # whether the protocol above reads nothing
        self._finished = False  # whether the input has ended, or is broken
        self._shut = False  # whether our close_notify was sent
        self._closing = False
        self.last_words = b""  # input from before a failed write; see the function of this name

    # -- as the plain transport's protocol --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._handshake()

    def data_received(self, data: bytes) -> None:
        self.received = True
        if self._closing or self._finished:
            return
        at = 0
        while self._app is None and at < len(data) and not self._closing:
            self._incoming.write(data[at : at + PIECE])  # more has to wait for its tick
            at += PIECE
            self._handshake()
        if self._app is not None:
            self._read(data[at:])

    def eof_received(self) -> bool:
        """See asyncio.Protocol. Treat an end without close_notify like one with it.

        Many clients leave that way. Their requests are framed, so a truncated one is recognized.
        """
        if self._app is None:
            self._fail(TlsFailure(_CLOSED))
            return False
        if self._finished:  # by a close_notify
            return not self._closing
        self._finished = True
        return self._ended()

    def pause_writing(self) -> None:
        if self._app is not None:
            self._app.pause_writing()

    def resume_writing(self) -> None:
        if self._app is not None:
            self._app.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        app = self._app
        if app is None:
            self._settle(self._error or TlsFailure(_CLOSED if exc is None else why(exc)))
        else:
            if exc is not None and not self._finished:
                unread = self._later + _unread(self._transport)
                self.last_words = self._decrypted(unread, sys.maxsize)
            app.connection_lost(self._error or exc)
        self._app = None
        self._closing = True
        self._transport = None

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ValueError) as error:
            self._fail(TlsFailure(why(error)))
            return
        if self._tls.session_reused and _has_expired(self._tls):
            self._fail(TlsFailure(_EXPIRED))
            return
        self._flush()
        self._app = app = self._settle(None)
        assert app is not None
        app.connection_made(cast("asyncio.BaseTransport", self))

    def _settle(self, error: OSError | None) -> asyncio.Protocol | None:
        settled, self._settled = self._settled, None
        return settled(error) if settled is not None else None

    def _read(self, data: bytes) -> None:
        if self._closing:
            return  # the protocol closed the connection within its connection_made()
        data = self._decrypted(self._later + data if self._later else data, MAX_OVERHEAD)
        if self._outgoing.pending:
            self._flush()
        if self._later and self._transport is not None:
            self._transport.pause_reading()
            self._schedule()
        app = self._app
        if data and app is not None:
            app.data_received(data)
        if self._closing:
            return
        if self._error is not None:
            self._fail(self._error)
        elif self._finished:
            self._ended()

    def _schedule(self) -> None:
        if not self._going_on:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Decrypt more of the input that is left, unless the protocol above reads nothing."""
        self._going_on = False
        if self._paused or self._closing:
            return
        self._read(b"")
        if not (self._later or self._paused or self._closing) and self._transport is not None:
            self._transport.resume_reading()

    def _decrypted(self, data: bytes, most: int) -> bytes:
        """Decrypt what was received, `data` as the last part, up to `most` bytes without content.

        Sets `_later` if input is left, `_finished` and `_error` if the TLS data ends.
        """
        parts: list[bytes] = []
        incoming, connection = self._incoming, self._tls
        at = content = 0
        self._later = b""
        while True:
            while incoming.pending or connection.pending():
                try:
                    part = connection.read(PIECE)
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    part = b""
                except ssl.SSLError as error:
                    self._error = TlsFailure(why(error))
                    part = b""
                if not part:
                    self._finished = True
                    return b"".join(parts)
                parts.append(part)
                content += len(part)
            if at >= len(data) or at - content > most:
                self._later = data[at:]
                return parts[0] if len(parts) == 1 else b"".join(parts)
            incoming.write(data if len(data) <= PIECE else memoryview(data)[at : at + PIECE])
            at += PIECE

    def _ended(self) -> bool:
        """Pass the other side's end on. Returns whether the protocol goes on writing."""
        app = self._app
        if app is not None and not self._closing and app.eof_received():
            return True
        self.close()
        return False

    def _fail(self, error: OSError) -> None:
        """Close the connection after an error, behind the TLS alert that reports it."""
        self._error = error
        self._closing = True
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # the other side does not read: closing would wait for it
        elif transport is not None:
            self._flush()
            transport.close()
        if self._app is None:
            self._settle(error)

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)

    # -- as our protocol's transport --------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._closing or self._shut or not data:
            return
        view = memoryview(data)
        try:
            while len(view) > 0:
                # mypyc evaluates a call within a slice expression twice.
                written = self._tls.write(view[:PIECE])
                view = view[written:]
                self._flush()
        except ssl.SSLError as error:
            self._fail(TlsFailure(why(error)))

    def write_eof(self) -> None:
        """See asyncio.WriteTransport."""
        if not self._closing and not self._shut:
            self._send_close_notify()
            if self._transport is not None:
                self._transport.write_eof()

    def _send_close_notify(self) -> None:
        if self._shut:
            return
        self._shut = True
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer has sent none
            self._tls.unwrap()
        self._flush()

    def close(self) -> None:
        """See asyncio.BaseTransport. Sends written data and then close_notify.

        It does not wait for the close_notify of the other side.
        """
        if not self._closing:
            self.end().close()

    def end(self) -> asyncio.Transport:
        """Send close_notify behind the written data, and stop decrypting.

        Returns the plain transport, which the caller must close.
        """
        self._send_close_notify()
        self._closing = True
        assert self._transport is not None
        return self._transport

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        """See asyncio.Transport."""
        if self._app is not None:
            self._app = protocol

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._paused = False
        if self._later:
            self._schedule()
        elif self._transport is not None:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        """See asyncio.WriteTransport."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)


def _has_expired(tls: ssl.SSLObject) -> bool:
    """Return whether the certificate of the other side has expired.

    OpenSSL verifies it in a full handshake only. With TLS 1.2, a client can resume its session.
    """
    found = tls.getpeercert()
    until = found.get("notAfter") if found else None
    return isinstance(until, str) and ssl.cert_time_to_seconds(until) <= time.time()


def last_words(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the unread input of a connection to a server after a write to it failed.

    A failed write ends a transport at once. The kernel may still hold data that the server sent
    before it closed: an error with the reason, or replies to hits that were counted.

    To be called from connection_lost(), while the socket is still open. Reading stops once
    MAX_LAST_WORDS bytes were read, so the result is shorter than twice that.
    """
    if isinstance(transport, TlsStream):
        return transport.last_words
    return _unread(transport)


def _unread(transport: asyncio.BaseTransport | None) -> bytes:
    sock = transport.get_extra_info("socket") if transport is not None else None
    parts: list[bytes] = []
    length = 0
    try:
        while sock is not None and length < MAX_LAST_WORDS:
            part = os.read(sock.fileno(), MAX_LAST_WORDS)
            if not part:
                break
            parts.append(part)
            length += len(part)
    except OSError:
        pass  # nothing more
    return b"".join(parts)
