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
from rlproxy.downstream.lingering_close import LINGER_S, linger, pending, unacknowledged
from rlproxy.fairness.concurrency_limit import ConcurrencyLimit
from rlproxy.fairness.fan_out_reader import PIECE, STAYS_S, FanOutReader
from rlproxy.net.peers import NOBODY, Peer, peer_of
from rlproxy.net.tls_stream import last_words
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.session.context import LITTLE_TURN_WORK, MAX_TURN_WORK, SLOW_HITS, WorkerContext
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

# (POLLRDHUP is Linux'; elsewhere only a connection that is gone in both directions is noticed)
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
MAX_TURN: Final = (
    250_000  # bytes of one connection in one turn of the loop; then others have theirs
)
WORK_OF_READ: Final = MAX_TURN >> WORK_OF_BYTES
# (Linux' and macOS'; Python 3.11 has no name for it)
NOTSENT_LOWAT: Final = {"linux": 25, "darwin": 0x201}.get(sys.platform, 0)
UNSENT: Final = 65536  # bytes that the kernel holds for a client, beyond what that takes
PACE_S: Final = 0.001  # how often SLOW_HITS go on
SWEPT: Final = 500  # clients that each sweep looks at; of more,
ROUND: Final = 8  # one in so many
_ALL: Final = -(1 << 40)  # (what the kernel tells of unix sockets is more than bytes)
MAX_TURNED_AWAY: Final = 64  # connections that linger behind the error for one client too many


def keep_alive(sock: socket.socket, silent_s: int) -> None:
    """Have the kernel find out about a peer that vanished without a word: silent for so long, and
    again for as long while it is asked.
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
    """What all clients of one process share. `told` is how often things are logged that any client
    can cause.
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
        self.addresses: dict[str, int] = {}  # how many of `clients` come from each
        self.fan_out = FanOutReader(loop)
        self.clients: set[ClientConnection] = set()
        self.round: list[ClientConnection] = []  # whom the next sweeps look at
        self.line: deque[ClientConnection] = (
            deque()
        )  # who has work left, each once: the next turn's
        self.serving = False  # which is asked for
        self.slow: deque[ClientConnection] = deque()  # whose hits go on slowly
        self.pacing = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.turned_away: set[ClientConnection] = set()  # whose connections linger
        self.unread: set[ClientConnection] = set()  # who waits, and is not read from meanwhile
        self.draining = False
        self.on_leave: Callable[[], None] | None = None  # a client is gone
        self._configure_settings(config)

    def reconfigure(self, config: Config) -> None:
        """Judge by `config` from now on, of which only what may change at run time is looked at."""
        self.admission.configure(config)
        self._configure_settings(config)
        for client in self.clients:
            client.restrict()

    def _configure_settings(self, config: Config) -> None:
        self.settings.reconfigure(config.on_upstream_failure, config.hit_timeout_ms)

    def enter(self, client: ClientConnection, peer: Peer) -> Refusal | None:
        """A new client. Why it is turned away; None if it comes in."""
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
        """`client` is gone."""
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
        """`client` has work left, for which others must not wait."""
        self.line.append(client)
        if not self.serving:
            self.serving = True
            self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        """A turn for who has waited longest, one after the other, until enough is done."""
        line = self.line
        settings = self.settings
        settings.work = 0
        count = len(line)
        others = self._others()
        settings.turn_work = LITTLE_TURN_WORK if others else MAX_TURN_WORK
        while count > 0 and settings.work < settings.turn_work:
            count -= 1
            line.popleft().turn()
        self.serving = bool(line)
        if line:
            self.loop.call_soon(self._serve)

    def _others(self) -> bool:
        """Whether there are others than who waits in line."""
        line, window = self.line, self.settings.concurrency_limit
        if len(line) == 1 and line[0].is_latest(window):
            return False
        return window.others(self.loop.time())

    def pace(self, client: ClientConnection) -> None:
        """`client` leaves its replies unread: its hits go on slowly, as all such clients' do."""
        self.slow.append(client)
        if not self.pacing:
            self.pacing = True
            self.loop.call_later(PACE_S, self._pace)

    def _pace(self) -> None:
        slow = self.slow
        settings = self.settings
        settings.slow_room = SLOW_HITS
        count = len(slow)
        while count > 0 and settings.slow_room > 0:
            count -= 1
            slow.popleft().step()
        self.pacing = bool(slow)
        if slow:
            self.loop.call_later(PACE_S, self._pace)

    def sweep(self) -> None:
        """Close who is silent, or reads nothing, for too long. To be called about once a second:
        of many clients it looks at some each time.
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
        """Clients that are not read from make no event when they go: look. One that waits would
        keep its place, and others out.
        """
        for client in list(self.unread):
            client.notice_hangup()


class ClientConnection(asyncio.Protocol):
    """One client; `peer` is who it is where its socket does not tell."""

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
        self._resting = False  # it has had its turn
        self._in_line = False  # for the next one
        self._paced = False
        self._upstream_full = False
        self._upstream_reading = True
        self._upstream_resting = False  # Redis has had its turn
        self._crowded_until: float = 0.0  # so long it is one of a crowd,
        self._upstream_apart = False  # and waits until that gives it a turn
        self._upstream_descriptor: int = -1
        self._little_unsent = False  # see _leave_little_unsent()
        self._eof_sent = False
        self._ended = False  # the client sends no more, and all of it was read
        self._closing = False  # all that the client gets is written
        self._heard: float = 0.0  # when the client sent something
        self._written: int = 0  # bytes, ever
        self._taken: int = _ALL  # of these by the client, as of the latest sweep
        self._taken_at: float = 0.0  # when it took some
        self._link: _Upstream | None = None  # of the private connection

    # -- the client's socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # (uvloop's transports are no asyncio.Transport, they only behave like one)
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
        """What the client may send is as it is for its like now."""
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
        """Whether a connection that has sent so many bytes has had its turn."""
        settings = self._shared.settings
        settings.work += size >> WORK_OF_BYTES
        # (a full read: uvloop would go on, 32 times in a row, before anybody else is read)
        return size >= MAX_TURN or settings.work >= settings.turn_work

    def _queue(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._shared.queue(self)

    def is_latest(self, window: ConcurrencyLimit) -> bool:
        """Whether nobody else who has little in hand has sent anything later."""
        return window.latest is self._session

    def turn(self) -> None:
        """It is this client's turn."""
        self._in_line = False
        if self._resting or self._upstream_resting:
            self._shared.settings.work += WORK_OF_READ
            self._resting = self._upstream_resting = False
            self._read_upstream()
        if self._session.wait == WAIT_ROOM:
            self._go_on()
        self.flush()

    def step(self) -> None:
        """Some of its hits may go on."""
        self._paced = False
        if self._session.wait == WAIT_PACE:
            self._go_on()
        self.flush()

    def _go_on(self) -> None:
        if not self._upstream_full:
            self._session.now = self._clock()
            self._session.go_on()

    def eof_received(self) -> bool:
        """See asyncio.Protocol: what the client is owed still goes out."""
        self._ended = True
        self._leaves()
        return True

    def _leaves(self) -> None:
        self._session.now = self._clock()
        self._session.receive_eof()
        self.flush()

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client does not read; nor do we, of what is for it."""
        self._session.leaves_unread()
        self._read_upstream()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._session.client_slow = False
        self._read_upstream()
        self.flush()

    def _read_upstream(self) -> None:
        """Read what Redis sends while the client reads, too, or while all that comes is the answer
        to a question of our own.
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
        """Move what the session has for either side, and follow its state."""
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
            want = False  # (who is slow: what it asks is answered here, and it reads nothing of it)
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
        """Find out whether the client is gone, though its bytes are not read."""
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or self._closing:
            return
        poll = select.poll()
        poll.register(sock.fileno(), HUNG_UP)
        if poll.poll(0):
            self._leaves()

    def _close(self) -> None:
        """Close the client's connection behind what was written, and the private one."""
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
        """Whether the client has not been sent, or its system has not taken, all that it gets."""
        transport = self._transport
        return not self._closing or (transport is not None and pending(transport))

    def cut(self) -> None:
        """End the client's connection, whatever it is owed."""
        if self._transport is not None:
            self._transport.abort()

    # -- the private connection -------------------------------------------------------------------

    def cut_upstream(self) -> None:
        """End the private connection, as if Redis had closed it."""
        if self._upstream is not None:
            self._upstream.abort()

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
        """A private connection is there, or is there no more."""
        self._stats.private += 1 if open_now else -1

    def upstream_received(self, data: bytes) -> None:
        """Bytes of the private connection."""
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
        """Redis has sent so many bytes that were not asked for: whether to many at once, who then
        are read by turns.
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
        except (OSError, ValueError):  # it ends, or has no descriptor any more
            return False
        self._upstream_apart = True
        self._read_upstream()
        return True

    def _its_turn(self, crowded: bool) -> None:
        """There is something to read, and it is its turn to be read."""
        self._upstream_apart = False
        if crowded:
            self._crowded_until = self._clock() + STAYS_S
        self._read_upstream()

    def _leave_little_unsent(self) -> None:
        """Have the kernel hold little for this client if it does not read, and tell so early: it
        would take megabytes for each such client, and others' time to copy them.
        """
        self._little_unsent = True
        transport = self._transport
        if not NOTSENT_LOWAT or transport is None or transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # (it may have ended by itself)
                sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)

    def _end_crowding(self) -> None:
        if self._upstream_apart:
            self._upstream_apart = False
            self._shared.fan_out.forget(self._upstream_descriptor, self._its_turn)

    def upstream_full(self, full: bool) -> None:
        """Redis takes no more for now, or again."""
        self._upstream_full = full
        self.flush()

    def upstream_lost(self, link: _Upstream) -> None:
        """The private connection ended."""
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
    """All of `parts`, which is empty afterwards: a write may call back and come here again."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    return data
