"""One client's socket and its private connection: bytes between them and the session, flow
control, timeouts. It makes no decision about commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from rlproxy.config.config import Config
from rlproxy.downstream.admission import Admission, Refusal
from rlproxy.downstream.lingering_close import FULL_READ, LINGER_S, linger, pending, unacknowledged
from rlproxy.fairness.budget import SLOW_HITS
from rlproxy.fairness.fan_out_reader import PIECE, STAYS_S, FanOutReader
from rlproxy.net.peers import NOBODY, Peer, peer_of
from rlproxy.net.tls_stream import last_words
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.session.context import WorkerContext
from rlproxy.session.session import (
    LARGE,
    UPSTREAM_NONE,
    UPSTREAM_OPENING,
    WAIT_PACE,
    WAIT_ROOM,
    WAIT_TURN,
    WORK_OF_BYTES,
    Session,
)
from rlproxy.upstream.connector import Target, lacks, reason

# Poll events of a client that is gone. Systems other than Linux have no POLLRDHUP: there, only a
# connection that is closed in both directions is noticed.
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
WORK_OF_READ: Final = FULL_READ >> WORK_OF_BYTES  # work units
# The number of TCP_NOTSENT_LOWAT on Linux and macOS, for which Python 3.11 has no name; else 0.
NOTSENT_LOWAT: Final = {"linux": 25, "darwin": 0x201}.get(sys.platform, 0)
UNSENT: Final = 65536  # unsent bytes that the kernel holds for a client that does not read
PACE_S: Final = 0.001  # seconds between two grants of SLOW_HITS hits
SWEPT: Final = 500  # clients that each sweep checks at least
ROUND: Final = 8  # sweeps that together check all clients, if there are over 4,000
# Initial value of ClientConnection._taken, below any real one. Real ones can be negative: for unix
# sockets, the kernel counts more than the bytes of data.
_ALL: Final = -(1 << 40)
MAX_TURNED_AWAY: Final = 64  # refused clients whose connections linger behind the error


def keep_alive(sock: socket.socket, silent_s: int) -> None:
    """Turn on TCP keepalive, to detect a peer that vanished without closing.

    silent_s: seconds of silence before the first probe. Three probes follow within the same time
    again, then the kernel ends the connection.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", silent_s),
        ("TCP_KEEPINTVL", max(1, silent_s // 3)),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Shared:
    """The state that all clients of one process share.

    told: the log throttle for events that any client can cause.
    """

    __slots__ = (
        "addresses",
        "clients",
        "fan_out",
        "admission",
        "draining",
        "keepalive_s",
        "line",
        "loop",
        "max_unread",
        "on_leave",
        "pacing",
        "round",
        "serving",
        "settings",
        "slow",
        "target",
        "tasks",
        "told",
        "turned_away",
        "unread",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: WorkerContext,
        target: Target,
        admission: Admission,
        config: Config,
        told: LogThrottle,
    ) -> None:
        self.loop = loop
        self.settings = settings
        self.target = target
        self.admission = admission
        self.told = told
        self.max_unread = config.max_unread
        self.keepalive_s = config.tcp_keepalive_s
        self.addresses: dict[str, int] = {}  # number of clients by IP address
        self.fan_out = FanOutReader(loop)
        self.clients: set[ClientConnection] = set()
        self.round: list[ClientConnection] = []  # clients that the next sweeps check
        self.line: deque[ClientConnection] = deque()  # clients with work left, each once
        self.serving = False  # whether _serve() is scheduled for the next tick
        self.slow: deque[ClientConnection] = deque()  # clients whose hits are paced
        self.pacing = False  # whether _pace() is scheduled
        self.tasks: set[asyncio.Task[None]] = set()
        self.turned_away: set[ClientConnection] = set()  # refused clients, connections lingering
        self.unread: set[ClientConnection] = set()  # clients with a held hit that are not read
        self.draining = False
        self.on_leave: Callable[[], None] | None = None  # called after a connection has ended
        self._configure_settings(config)

    def reconfigure(self, config: Config) -> None:
        """Apply those options of `config` that can change at run time."""
        self.admission.configure(config)
        self._configure_settings(config)
        for client in self.clients:
            client.restrict()

    def _configure_settings(self, config: Config) -> None:
        self.settings.reconfigure(config.on_upstream_failure, config.hit_timeout_ms)

    def enter(self, client: ClientConnection, peer: Peer) -> Refusal | None:
        """Add a new client if it is admitted. Returns the refusal, or None."""
        count = self.addresses.get(peer.host, 0)
        refusal = self.admission.refusal(peer, len(self.clients), count)
        if refusal is not None:
            self.told.happened(refusal.line, str(peer))
            self.settings.stats.error("turned_away")
            return refusal
        self.clients.add(client)
        if peer.host:
            self.addresses[peer.host] = count + 1
        return None

    def leave(self, client: ClientConnection) -> None:
        """Remove `client`, which is gone."""
        if client in self.clients:
            self.clients.discard(client)
            host = client.peer.host if client.peer is not None else ""
            count = self.addresses.get(host, 0) - 1
            if count > 0:
                self.addresses[host] = count
            else:
                self.addresses.pop(host, None)
        self.turned_away.discard(client)
        self.unread.discard(client)
        if self.on_leave is not None:
            self.on_leave()

    def queue(self, client: ClientConnection) -> None:
        """Put `client` in line for a turn, because it has work left."""
        self.line.append(client)
        if not self.serving:
            self.serving = True
            self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Give one turn each to the clients in line, until the tick's work budget is spent."""
        line = self.line
        budget = self.settings.budget
        budget.work = 0
        count = len(line)
        while count > 0 and not budget.spent():
            count -= 1
            line.popleft().turn()
        self.serving = bool(line)
        if line:
            self.loop.call_soon(self._serve)

    def pace(self, client: ClientConnection) -> None:
        """Queue `client`, which leaves its replies unread.

        All such clients together may send SLOW_HITS hits every PACE_S.
        """
        self.slow.append(client)
        if not self.pacing:
            self.pacing = True
            self.loop.call_later(PACE_S, self._pace)

    def _pace(self) -> None:
        slow = self.slow
        budget = self.settings.budget
        budget.slow_hits = SLOW_HITS
        count = len(slow)
        while count > 0 and budget.slow_hits > 0:
            count -= 1
            slow.popleft().step()
        self.pacing = bool(slow)
        if slow:
            self.loop.call_later(PACE_S, self._pace)

    def sweep(self) -> None:
        """Close clients that are silent, or read nothing, for too long.

        To be called about once a second. Each call checks at least 500 clients (SWEPT), and at
        least one in eight (ROUND).
        """
        now = self.loop.time()
        if not self.round:
            self.round = list(self.clients)
        rest = max(0, len(self.round) - max(SWEPT, len(self.clients) // ROUND))
        for client in self.round[rest:]:
            client.sweep(now)
        del self.round[rest:]
        self.told.sweep()

    def notice_hangups(self) -> None:
        """Check whether clients with a held hit have disconnected.

        The event loop reports no end of a socket that is not read. Without the check, the held hit
        would keep its place in the wait queue and delay those behind it.
        """
        for client in list(self.unread):
            client.notice_hangup()


class ClientConnection(asyncio.Protocol):
    """The connection of one client.

    peer: the client's address from a PROXY header; None for the address of the socket.
    """

    def __init__(self, shared: Shared, peer: Peer | None = None) -> None:
        self._shared = shared
        self.peer = peer
        self._session = Session(shared.settings)
        self._stats = shared.settings.stats
        self._clock: Callable[[], float] = shared.loop.time
        self._transport: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self._opening = False
        self._reading = True
        self._resting = False  # whether the client is not read until its next turn
        self._in_line = False  # whether it is in Shared.line
        self._paced = False  # whether it is in Shared.slow
        self._upstream_full = False  # whether Redis takes no more bytes for now
        self._upstream_reading = True
        self._upstream_resting = False  # whether Redis is not read until the next turn
        self._crowded_until: float = 0.0  # loop time until which the fan-out reader schedules it
        self._upstream_apart = False  # whether reading waits for the fan-out reader
        self._upstream_descriptor: int = -1
        self._little_unsent = False  # whether _leave_little_unsent() was called
        self._eof_sent = False
        self._ended = False  # whether the client's end of file was read
        self._closing = False  # whether the connection closes: nothing more is written
        self._heard: float = 0.0  # loop time of the client's latest bytes
        self._written: int = 0  # bytes written to the client in total
        self._taken: int = _ALL  # bytes of these that the client took, as of the latest sweep
        self._taken_at: float = 0.0  # loop time of the latest sweep that saw it take some
        self._link: _Upstream | None = None  # protocol of the private connection

    # -- the client's socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # uvloop's transports have the interface of asyncio.Transport, but are no subclass.
        client = cast("asyncio.Transport", transport)
        self._transport = client
        if self.peer is None:
            self.peer = peer_of(client.get_extra_info("peername"))
        shared = self._shared
        refusal = shared.enter(self, self.peer)
        if refusal is not None:
            self._turn_away(client, refusal.reply)
            return
        self._heard = self._clock()
        client.set_write_buffer_limits(shared.max_unread)
        sock = client.get_extra_info("socket")
        if shared.keepalive_s and sock is not None and sock.family != socket.AF_UNIX:
            keep_alive(sock, shared.keepalive_s)
        shared.settings.stats.accepted += 1
        self._session.flush = self.flush
        self.restrict()
        if shared.draining:
            client.close()

    def _turn_away(self, client: asyncio.Transport, reply: bytes) -> None:
        self._closing = True
        self._session.abandon()
        client.write(reply)
        shared = self._shared
        if len(shared.turned_away) < MAX_TURNED_AWAY:
            shared.turned_away.add(self)
            linger(client, shared.loop)
        else:
            client.close()

    def restrict(self) -> None:
        """Apply the present command policy to the client."""
        self._session.use(self._shared.admission.table_of(self.peer or NOBODY))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        session = self._session
        self._heard = session.now = self._clock()
        session.receive(data)
        if len(data) > LARGE and self._rests(len(data)):
            self._resting = True
            self._queue()
        self.flush()

    def _rests(self, size: int) -> bool:
        """Count `size` bytes as work. Returns whether the connection waits for its next turn."""
        budget = self._shared.settings.budget
        budget.work += size >> WORK_OF_BYTES
        # After a full read, uvloop would read up to 32 times in a row before other connections.
        return size >= FULL_READ or budget.spent()

    def _queue(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._shared.queue(self)

    def turn(self) -> None:
        """Take this client's turn: go on reading both sides, and routing its requests."""
        self._in_line = False
        if self._resting or self._upstream_resting:
            self._shared.settings.budget.work += WORK_OF_READ
            self._resting = self._upstream_resting = False
            self._read_upstream()
        if self._session.wait == WAIT_ROOM:
            self._go_on()
        self.flush()

    def step(self) -> None:
        """Let paced hits of this client go on."""
        self._paced = False
        if self._session.wait == WAIT_PACE:
            self._go_on()
        self.flush()

    def _go_on(self) -> None:
        if not self._upstream_full:
            self._session.now = self._clock()
            self._session.go_on()

    def eof_received(self) -> bool:
        """See asyncio.Protocol. Outstanding replies are still sent."""
        self._ended = True
        self._leaves()
        return True

    def _leaves(self) -> None:
        self._session.now = self._clock()
        self._session.receive_eof()
        self.flush()

    def pause_writing(self) -> None:
        """See asyncio.Protocol. While the client does not read, its replies are not read either."""
        self._session.leaves_unread()
        self._read_upstream()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.client_slow = False
        self._read_upstream()
        self.flush()

    def _read_upstream(self) -> None:
        """Read the private connection, or pause that, as the state requires.

        It is read while the client reads its replies. It is also read while a hit is held: then it
        only carries replies to the proxy's own calls.
        """
        want = not self._session.client_slow or self._session.wait == WAIT_TURN
        if self._upstream_resting or self._upstream_apart:
            want = False
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
        self._session.let_go()
        self._shared.leave(self)
        if self._upstream is not None:
            self._upstream.abort()

    # -- between the two --------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the session's output to both sides, and apply its state to the sockets."""
        transport = self._transport
        if transport is None or self._closing:
            return
        session = self._session
        upstream = self._upstream
        if session.to_upstream:
            data = _taken(session.to_upstream)
            if upstream is not None:
                self._stats.upstream_out += len(data)
                upstream.write(data)
        if session.to_client:
            data = _taken(session.to_client)
            if not transport.is_closing():
                self._written += len(data)
                self._stats.client_out += len(data)
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
        want = not session.full() and not self._upstream_full and not self._shared.draining
        if self._resting or (session.client_slow and session.answers_alone()):
            want = False  # a slow client does not read the replies that the proxy would add here
        if want != self._reading:
            self._reading = want
            if want:
                transport.resume_reading()
            else:
                transport.pause_reading()
        if session.client_slow:
            self._read_upstream()
        wait = session.wait
        if wait == WAIT_ROOM and not self._upstream_full:
            self._queue()
        elif wait == WAIT_PACE and not self._upstream_full and not self._paced:
            self._paced = True
            self._shared.pace(self)
        if wait == WAIT_TURN and not self._reading:
            self._shared.unread.add(self)
        elif self._shared.unread:
            self._shared.unread.discard(self)

    def sweep(self, now: float) -> None:
        """Close the client if it has been silent, or has read nothing, for too long."""
        transport = self._transport
        if transport is None:
            return
        admission = self._shared.admission
        waits = transport.get_write_buffer_size()
        if waits:
            taken = self._written - waits - unacknowledged(transport)
            if taken != self._taken:
                self._taken = taken
                self._taken_at = now
            elif 0 < admission.write_timeout_s <= now - self._taken_at:
                line = f"cut {{}} client(s) that read nothing for {admission.write_timeout_s:g} s"
                self._shared.told.happened(line, str(self.peer))
                self._stats.error("cut")
                self.cut()
            return
        self._taken = _ALL
        if 0 < admission.idle_timeout_s <= now - self._heard and self._session.idle():
            self._stats.error("idle")
            self._close()

    def notice_hangup(self) -> None:
        """Poll whether the client is gone, and handle it as end of file."""
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or self._closing:
            return
        poll = select.poll()
        poll.register(sock.fileno(), HUNG_UP)
        if poll.poll(0):
            self._leaves()

    def _close(self) -> None:
        """Close the client's connection behind the last reply, and the private connection."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._closing = True
        self._session.abandon()
        silent = self._reading and self._clock() - self._heard >= LINGER_S
        at_once = self._ended or (silent and not pending(transport))
        linger(transport, self._shared.loop, at_once)
        if self._upstream is not None:
            self._upstream.close()

    def owed(self) -> bool:
        """Return whether replies are not yet written, or not yet taken by the client's system."""
        transport = self._transport
        return not self._closing or (transport is not None and pending(transport))

    def cut(self) -> None:
        """Abort the client's connection. Outstanding replies are lost."""
        if self._transport is not None:
            self._transport.abort()

    # -- the private connection -------------------------------------------------------------------

    def cut_upstream(self) -> None:
        """Abort the private connection. The effect is as if Redis had closed it."""
        if self._upstream is not None:
            self._upstream.abort()

    def _open(self) -> None:
        self._opening = True
        self._link = link = _Upstream(self)
        task = self._shared.loop.create_task(self._connect(link))
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    def _leave_upstream(self) -> None:
        """Abort the private connection, which the session has given up."""
        upstream = self._upstream
        self._link = self._upstream = None
        self._upstream_full = False
        self._upstream_reading = True
        self._upstream_resting = False
        self._end_crowding()
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
            self.flush()
            return
        self._opening = False
        if self._transport is None or self._closing or self._link is not link:
            upstream.abort()
            self.flush()
            return
        self._upstream = upstream
        self._read_upstream()
        session.now = self._clock()
        session.upstream_opened()
        self.flush()

    def upstream_is_open(self, open_now: bool) -> None:
        """Count a private connection that has opened or ended."""
        self._stats.private += 1 if open_now else -1

    def upstream_received(self, data: bytes) -> None:
        """Pass bytes of the private connection to the session."""
        session = self._session
        session.now = self._clock()
        session.upstream_received(data)
        if len(data) > PIECE:
            if not self._little_unsent:
                self._leave_little_unsent()
            apart = self._session.gets_unasked() and self._stands_apart(len(data))
            if not apart and len(data) > LARGE and self._rests(len(data)):
                self._upstream_resting = True
                self._read_upstream()
                self._queue()
        self.flush()

    def _stands_apart(self, size: int) -> bool:
        """Hand the private connection to the fan-out reader if many are readable together.

        The fan-out reader keeps a connection for STAYS_S after that.

        size: the number of bytes just read, which the client did not request (pub/sub).
        Returns whether the connection is now read only when the fan-out reader gives it a turn.
        """
        fan_out = self._shared.fan_out
        now = self._session.now
        if fan_out.many(size):
            self._crowded_until = now + STAYS_S
        elif now >= self._crowded_until:
            return False
        upstream = self._upstream
        sock = upstream.get_extra_info("socket") if upstream is not None else None
        if sock is None:
            return False
        self._upstream_descriptor = sock.fileno()
        try:
            fan_out.watch(self._upstream_descriptor, self._its_turn)
        except (OSError, ValueError):  # the connection is ending, or has no descriptor any more
            return False
        self._upstream_apart = True
        self._read_upstream()
        return True

    def _its_turn(self, crowded: bool) -> None:
        """Read the private connection: it is readable, and the fan-out reader gives it a turn."""
        self._upstream_apart = False
        if crowded:
            self._crowded_until = self._clock() + STAYS_S
        self._read_upstream()

    def _leave_little_unsent(self) -> None:
        """Limit the unsent bytes that the kernel holds for this client to UNSENT.

        A client that does not read is then noticed early. Otherwise the kernel would take megabytes
        for each such client, and copying them would delay other clients.
        """
        self._little_unsent = True
        transport = self._transport
        if not NOTSENT_LOWAT or transport is None or transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # the connection may have ended already
                sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)

    def _end_crowding(self) -> None:
        if self._upstream_apart:
            self._upstream_apart = False
            self._shared.fan_out.forget(self._upstream_descriptor, self._its_turn)

    def upstream_full(self, full: bool) -> None:
        """Record whether the private connection's write buffer is full."""
        self._upstream_full = full
        self.flush()

    def upstream_lost(self, link: _Upstream) -> None:
        """Handle the end of the private connection of `link`."""
        if self._link is not link:
            return
        self._link = self._upstream = None
        self._end_crowding()
        session = self._session
        session.now = self._clock()
        session.upstream_lost()
        self.flush()


class _Upstream(asyncio.Protocol):
    """The protocol of a private connection."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport
        self._client.upstream_is_open(True)

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
        self._client.upstream_is_open(False)
        self._client.upstream_lost(self)


def _taken(parts: list[bytes]) -> bytes:
    """Join and empty `parts`. It is emptied first, because a write may call flush() again."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    return data
