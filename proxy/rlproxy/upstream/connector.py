"""The connector: opens connections to Redis, and describes why one could not be opened."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import Final, cast

from rlproxy.config.urls import Address, Upstream
from rlproxy.net.keepalive import keep_alive
from rlproxy.net.tls_contexts import NO_TLS, ClientSide, TlsFailure
from rlproxy.net.tls_stream import TlsStream
from rlproxy.upstream.lookup import addresses

_HAS_NONE: Final = "; if that port has no TLS, write redis:// instead of rediss:// in --upstream"
# Errors of a machine without file descriptors, buffers, memory or free local ports.
_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class Target:
    """Opens connections to one address.

    address: of the server; where: the same as errors and logs name it.
    tls: the TLS settings of new connections, or None. It may be replaced at any time; open
    connections keep theirs.
    keepalive_s: see keep_alive().
    """

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        tls: ClientSide | None = None,
        keepalive_s: int = 0,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._keepalive_s = keepalive_s
        self.tls = tls
        self.where = str(address)

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Open a connection.

        protocol: makes the protocol of the new connection.
        Returns the connected transport, after the TLS handshake where there is one.
        Raises OSError; its text, as returned by reason(), is fit for the log.
        """
        awaited, hint = "connection", ""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self.tls is None:
                    return await self._plain(protocol)
                stream, done = self._stream(self.tls, protocol)
                transport = await self._plain(lambda: stream)
                awaited, hint = "TLS handshake", _HAS_NONE
                try:
                    error = await done
                except asyncio.CancelledError:
                    transport.abort()
                    raise
                if error is not None:  # the stream is closing already
                    raise TlsFailure(f"{NO_TLS}{_HAS_NONE}") if str(error) == NO_TLS else error
                return cast("asyncio.Transport", stream)
        except TimeoutError:
            raise OSError(f"no {awaited} within {self._timeout_s:g} s{hint}") from None
        except UnicodeError:  # of a name that a cluster or a Sentinel gives
            raise OSError("the host is not valid") from None

    async def _plain(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        loop, address = asyncio.get_running_loop(), self.address
        if address.path:
            return (await loop.create_unix_connection(protocol, address.path))[0]
        *others, last = await addresses(address.host)
        for host in others:
            with contextlib.suppress(OSError):
                transport, _ = await loop.create_connection(protocol, host, address.port)
                break
        else:
            transport, _ = await loop.create_connection(protocol, last, address.port)
        sock = transport.get_extra_info("socket")
        if sock is not None:  # else it has ended already
            with contextlib.suppress(OSError, ValueError):  # it has ended: uvloop raises ValueError
                keep_alive(sock, self._keepalive_s)
        return transport

    def _stream(
        self, tls: ClientSide, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[TlsStream, asyncio.Future[OSError | None]]:
        """Return the TLS layer of a new connection, and why its handshake fails, or None."""
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def settled(error: OSError | None) -> asyncio.Protocol | None:
            if not done.done():
                done.set_result(error)
            return protocol() if error is None else None

        host = self.address.host
        try:
            return TlsStream(tls.context, settled, tls.name or host), done
        except ValueError:
            raise TlsFailure(f"{host} can be no name in a certificate") from None


def reason(error: OSError) -> str:
    """Describe a failed connection in a few words, for logs and errors."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    return error.strerror or str(error) or type(error).__name__


def lacks(error: OSError) -> bool:
    """Return whether a connection failed because this machine lacks a resource.

    Such a failure is no sign that the server is down.
    """
    return error.errno in _LACKS


def hello(
    name: bytes, user: bytes | None, password: bytes | None, protocol: int = 3
) -> list[bytes]:
    """Return the first command of a lane or control connection, as words: HELLO with SETNAME.

    name: the connection's name in CLIENT LIST.
    password: None leaves out AUTH.
    """
    auth = [b"AUTH", user or b"default", password] if password is not None else []
    return [b"HELLO", b"%d" % protocol, *auth, b"SETNAME", name]


def control_hello(upstream: Upstream) -> list[bytes]:
    """Return the first command of a control connection, as words: hello() with the URL's login."""
    user, password = upstream.user, upstream.password
    return hello(
        b"rlproxy-control",
        user.encode() if user is not None else None,
        password.encode() if password is not None else None,
    )
