"""A client's socket and its private connection: moves bytes between them and their session, and
pauses whichever side is faster. Decides nothing about commands.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final, cast

from .calls import Settings
from .peers import Peer, peer_of
from .session import (
    MAX_HELD,
    UPSTREAM_NONE,
    UPSTREAM_OPENING,
    WAIT_ROOM,
    WAIT_TURN,
    Session,
)
from .upstream import Target, lacks, last_words, reason

# (POLLRDHUP is Linux'; elsewhere only a connection that is gone in both directions is noticed)
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
KEEPALIVE_S: Final = 300  # Redis' own default: a client that vanished is noticed after that long
LINGER_S: Final = 60.0  # a client that must go may read what it is still owed for so long


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel find out about a peer that vanished without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S // 3),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Shared:
    """What all clients of one process share."""

    __slots__ = (
        "clients",
        "draining",
        "loop",
        "on_leave",
        "settings",
        "target",
        "tasks",
        "unread",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings, target: Target) -> None:
        self.loop = loop
        self.settings = settings
        self.target = target
        self.clients: set[Downstream] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.unread: set[Downstream] = set()  # who waits, and is not read from meanwhile
        self.draining = False
        self.on_leave: Callable[[], None] | None = None  # a client is gone

    def leave(self, client: Downstream) -> None:
        """`client` is gone."""
        self.clients.discard(client)
        self.unread.discard(client)
        if self.on_leave is not None:
            self.on_leave()

    def notice_hangups(self) -> None:
        """Clients that are not read from make no event when they go: look. One that waits would
        keep its place, and others out.
        """
        for client in list(self.unread):
            client.notice_hangup()


class Downstream(asyncio.Protocol):
    """One client; `peer` is who it is where its socket does not tell."""

    def __init__(self, shared: Shared, peer: Peer | None = None) -> None:
        self._shared = shared
        self.peer = peer
        self._session = Session(shared.settings)
        self._clock: Callable[[], float] = shared.loop.time
        self._transport: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self._opening = False
        self._reading = True
        self._upstream_full = False
        self._upstream_reading = True
        self._eof_sent = False
        self._link: _Upstream | None = None  # of the private connection

    # -- the client's socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # (uvloop's transports are no asyncio.Transport, they only behave like one)
        client = cast("asyncio.Transport", transport)
        self._transport = client
        if self.peer is None:
            self.peer = peer_of(client.get_extra_info("peername"))
        sock = client.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            keep_alive(sock)
        self._session.pump = self.pump
        self._shared.clients.add(self)
        if self._shared.draining:
            client.close()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        session = self._session
        session.now = self._clock()
        session.receive(data)
        self.pump()

    def eof_received(self) -> bool:
        """See asyncio.Protocol: what the client is owed still goes out."""
        self._session.now = self._clock()
        self._session.receive_eof()
        self.pump()
        return True

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client does not read; nor do we, of what is for it."""
        self._session.client_slow = True
        self._read_upstream()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.client_slow = False
        self._read_upstream()
        self.pump()

    def _read_upstream(self) -> None:
        """Read what Redis sends while the client reads, too, or while all that comes is the answer
        to a question of our own.
        """
        want = not self._session.client_slow or self._session.wait == WAIT_TURN
        upstream = self._upstream
        if upstream is not None and want != self._upstream_reading:
            self._upstream_reading = want
            if want:
                upstream.resume_reading()
            else:
                upstream.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._session.abandon()
        self._shared.leave(self)
        if self._upstream is not None:
            self._upstream.abort()

    # -- between the two --------------------------------------------------------------------------

    def pump(self) -> None:
        """Move what the session has for either side, and follow its state."""
        transport = self._transport
        if transport is None:
            return
        session = self._session
        upstream = self._upstream
        while session.to_upstream:
            data = _taken(session.to_upstream)
            if upstream is not None:
                upstream.write(data)
            if session.wait == WAIT_ROOM and not self._upstream_full:
                session.go_on()
        if session.to_client:
            data = _taken(session.to_client)
            if not transport.is_closing():
                transport.write(data)
        if session.upstream == UPSTREAM_OPENING and not self._opening and upstream is None:
            self._open()
        elif session.upstream == UPSTREAM_NONE and self._link is not None:
            self._leave_upstream()
            upstream = None
        if session.wants_eof and not self._eof_sent and upstream is not None:
            self._eof_sent = True
            if upstream.can_write_eof():
                upstream.write_eof()
        if session.closed or (self._shared.draining and not session.outstanding()):
            self._close()
            return
        want = session.held() <= MAX_HELD and not self._upstream_full and not self._shared.draining
        if session.client_slow and session.answers_alone():
            want = False  # what it asks is answered here, and it reads nothing of it
        if want != self._reading:
            self._reading = want
            if want:
                transport.resume_reading()
            else:
                transport.pause_reading()
        if session.client_slow:
            self._read_upstream()
        if session.wait == WAIT_TURN and not self._reading:
            self._shared.unread.add(self)
        elif self._shared.unread:
            self._shared.unread.discard(self)

    def notice_hangup(self) -> None:
        """Find out whether the client is gone, though its bytes are not read."""
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None:
            return
        poll = select.poll()
        poll.register(sock.fileno(), HUNG_UP)
        if poll.poll(0):
            self.eof_received()

    def _close(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.close()
            if transport.get_write_buffer_size():
                self._shared.loop.call_later(LINGER_S, self.cut)
        if self._upstream is not None:
            self._upstream.close()

    def cut(self) -> None:
        """End the client's connection, whatever it is owed."""
        if self._transport is not None:
            self._transport.abort()

    # -- the private connection -------------------------------------------------------------------

    def _open(self) -> None:
        self._opening = True
        self._link = link = _Upstream(self)
        task = self._shared.loop.create_task(self._connect(link))
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    def _leave_upstream(self) -> None:
        """The private connection is the session's no more: whatever becomes of it is nobody's."""
        upstream = self._upstream
        self._link = self._upstream = None
        self._upstream_full = False
        self._upstream_reading = True
        if upstream is not None:
            upstream.abort()

    async def _connect(self, link: _Upstream) -> None:
        session = self._session
        try:
            upstream = await self._shared.target.connect(lambda: link)
        except OSError as error:
            self._opening = False
            self._link = None
            session.now = self._clock()
            why = reason(error)
            self._shared.settings.circuit.connect_failed(session.now, why, lacks(error))
            session.upstream_failed(why)
            self.pump()
            return
        self._opening = False
        if self._transport is None or self._link is not link:
            upstream.abort()
            self.pump()
            return
        self._upstream = upstream
        self._read_upstream()
        session.now = self._clock()
        session.upstream_opened()
        self.pump()

    def upstream_received(self, data: bytes) -> None:
        """Bytes of the private connection."""
        session = self._session
        session.now = self._clock()
        session.upstream_received(data)
        self.pump()

    def upstream_full(self, full: bool) -> None:
        """Redis takes no more for now, or again."""
        self._upstream_full = full
        if not full:
            self._session.now = self._clock()
            self._session.go_on()
        self.pump()

    def upstream_lost(self, link: _Upstream) -> None:
        """The private connection ended."""
        if self._link is not link:
            return
        self._link = self._upstream = None
        session = self._session
        session.now = self._clock()
        session.upstream_lost()
        self.pump()


class _Upstream(asyncio.Protocol):
    """The protocol of a private connection."""

    def __init__(self, client: Downstream) -> None:
        self._client = client
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._client.upstream_received(data)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._client.upstream_full(True)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._client.upstream_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if exc is not None:
            left = last_words(self._transport)
            if left:
                self._client.upstream_received(left)
        self._transport = None
        self._client.upstream_lost(self)


def _taken(parts: list[bytes]) -> bytes:
    """All of `parts`, which is empty afterwards: a write may call back and come here again."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    return data
