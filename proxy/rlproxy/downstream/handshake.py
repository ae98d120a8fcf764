"""The accept phase of a client: PROXY protocol header, then TLS handshake, both within
--handshake-timeout.

    plain address ────────────────────────────────────────────> serve
    with --proxy-protocol ──> header ──┬──────────────────────> serve, with the header's address
    tls: address ──────────────────────┴──> TLS handshake ────> serve
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from rlproxy.config.urls import UNIX_CLIENT, Address
from rlproxy.downstream.admission import TURNED_AWAY
from rlproxy.downstream.proxy_protocol import HeaderError, parse
from rlproxy.net.tls_stream import TlsStream
from rlproxy.observability.counters import Counters
from rlproxy.observability.log_throttle import LogThrottle

# Clients in their accept phase at a time. One more closes the oldest: a real one is done in an
# instant, and those that keep silent must not keep others out.
MAX_HANDSHAKES: Final = 10000
MIN_HANDSHAKES: Final = 16  # the same where clients use all file descriptors


class Handshakes:
    """The clients of one process that are in their accept phase.

    serve: makes the protocol of a client after its accept phase. The argument is the client's
    address, that of the PROXY header if there is one.
    header: whether TCP connections begin with a PROXY header.
    throttle: the log throttle for failures.

    The owner sets `context`, the TLS context of new connections, and may replace it at any time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        serve: Callable[[Address], asyncio.Protocol],
        header: bool,
        timeout_s: float,
        throttle: LogThrottle,
        stats: Counters,
    ) -> None:
        self.loop = loop
        self.stats = stats
        self.serve = serve
        self.header = header
        self.timeout_s = timeout_s
        self.context: ssl.SSLContext | None = None
        self.on_gone: Callable[[], None] = lambda: None  # called when one leaves without service
        # Returns the number of file descriptors that they may use.
        self.room: Callable[[], int] = lambda: MAX_HANDSHAKES
        self.throttle = throttle
        # Oldest first, each with its timeout.
        self.under_way: dict[Handshake, asyncio.TimerHandle] = {}

    def protocol(self, tls: bool, peer: Address) -> asyncio.Protocol:
        """Make the protocol of a new connection.

        tls: whether the listening address uses TLS.
        peer: the client's address.
        """
        header = self.header and peer != UNIX_CLIENT
        return Handshake(self, peer, header, tls) if header or tls else self.serve(peer)

    def close(self) -> None:
        """Abort all connections that are in their accept phase."""
        for handshake in list(self.under_way):
            handshake.cut()


class Handshake(asyncio.Protocol):
    """The protocol of one client in its accept phase. It passes the transport on at the end."""

    def __init__(self, handshakes: Handshakes, peer: Address, header: bool, tls: bool) -> None:
        self._handshakes = handshakes
        self._header = header  # whether the header is still outstanding
        self._tls = tls
        self._transport: asyncio.Transport | None = None
        self._stream: TlsStream | None = None
        self._head = b""
        self._peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        handshakes = self._handshakes
        most = max(MIN_HANDSHAKES, min(handshakes.room(), MAX_HANDSHAKES))
        if len(handshakes.under_way) >= most:
            oldest = next(iter(handshakes.under_way))
            oldest._turn_away(f"{most} others are in their handshakes")
        handshakes.under_way[self] = handshakes.loop.call_later(handshakes.timeout_s, self._late)
        if not self._header:
            self._pass_on(b"")

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. Receives the PROXY header and the bytes read with it."""
        self._head += data
        try:
            found = parse(self._head)
        except HeaderError as error:
            self._turn_away(f"{error} (--proxy-protocol)")
            return
        if found is None:
            return
        length, peer = found
        rest, self._head = self._head[length:], b""
        self._header = False
        # A loopback address in the header means the load balancer's machine. It counts as local
        # only if the load balancer is on this machine, too. Else the socket's address applies.
        if peer is not None and (self._peer.local or not peer.local):
            self._peer = peer
        self._pass_on(rest)

    def eof_received(self) -> None:
        if self._head:
            self._turn_away("the connection was closed within its PROXY header")

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _pass_on(self, rest: bytes) -> None:
        """Let the TLS handshake begin, or the service; `rest` was read behind the header."""
        transport, context = self._transport, self._handshakes.context
        assert transport is not None
        following: asyncio.Protocol
        if self._tls:
            assert context is not None
            following = self._stream = TlsStream(context, self._settled)
        else:
            following = self._served()
        transport.set_protocol(following)
        following.connection_made(transport)
        if rest:
            following.data_received(rest)

    def _served(self) -> asyncio.Protocol:
        """End the accept phase. Returns the protocol of the client."""
        self._done()
        return self._handshakes.serve(self._peer)

    def _settled(self, error: OSError | None) -> asyncio.Protocol | None:
        """See TlsStream."""
        if error is None:
            return self._served()
        # Not logged: clients that sent no byte, such as health checks and port scans.
        if self._stream is not None and self._stream.received:
            self._log_failure(str(error))
        self._leave()
        return None

    def _late(self) -> None:
        what = "PROXY header" if self._header else "TLS handshake"
        self._turn_away(f"no {what} within {self._handshakes.timeout_s:g} s")

    def _log_failure(self, why: str) -> None:
        happened, client = self._handshakes.throttle.happened, str(self._peer)
        if self._header:
            happened("clients_turned_away", TURNED_AWAY, client=client, reason=why)
        else:
            text = "TLS handshakes failed: {count:,}; {reason}"
            happened("tls_handshakes_failed", text, client=client, reason=why)
        self._handshakes.stats.error("handshake")

    def _turn_away(self, why: str) -> None:
        self._log_failure(why)
        self.cut()

    def cut(self) -> None:
        """Abort the connection."""
        transport = self._transport
        self._leave()
        if transport is not None:
            transport.abort()

    def _done(self) -> None:
        """End the accept phase, because the transport was passed on or is closed."""
        self._transport = None
        self._stream = None
        timer = self._handshakes.under_way.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _leave(self) -> None:
        if self._transport is not None:
            self._done()
            self._handshakes.on_gone()
