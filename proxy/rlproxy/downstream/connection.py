"""The connections of the clients of one worker. They make no decision about commands.

    the client's socket <──> ClientConnection <──> Session <──> PrivateConnection <──> Redis

A client's two connections pause each other: see ClientConnection._control_flow() and
PrivateConnection.read(). `Clients` has what the clients share.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable
from typing import Final, cast

from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.downstream.admission import TURNED_AWAY, Admission, Refusal
from rlproxy.downstream.lingering_close import FULL_READ, LINGER_S, linger, pending, unacknowledged
from rlproxy.fairness.budget import LARGE, WORK_BYTES_SHIFT, Scheduler
from rlproxy.net.tls_stream import last_words
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.session import waits
from rlproxy.session.context import WorkerContext
from rlproxy.session.private_stream import PRIVATE_OPENING
from rlproxy.session.session import Session
from rlproxy.upstream.connector import Target, lacks, reason

# Poll events of a client that is gone. Systems other than Linux have no POLLRDHUP: there, only a
# connection that is closed in both directions is noticed.
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
WORK_OF_READ: Final = FULL_READ >> WORK_BYTES_SHIFT  # work units
MAX_TURNED_AWAY: Final = 64  # refused clients whose connections linger behind the error
SWEPT: Final = 500  # clients that each sweep checks at least
ROUND: Final = 8  # sweeps that together check all clients, if there are over 4,000


class ClientConnection(asyncio.Protocol):
    """The connection of one client.

    peer: the client's address.
    resting: it is not read until its next turn, and neither is its private connection.
    """

    # Its base is not compiled: without slots each connection would have a dict.
    __slots__ = (
        "_closing",
        "_ended",
        "_eof_sent",
        "_peer",
        "_private",
        "_queued",
        "_reading",
        "_silent_since",
        "_taken",
        "_taken_at",
        "_transport",
        "_written",
        "clients",
        "resting",
        "session",
        "stats",
    )

    def __init__(self, clients: Clients, peer: Address) -> None:
        self.clients = clients
        self._peer = peer
        self.session = Session(clients.context)
        self.stats = clients.context.stats
        self._transport: asyncio.Transport | None = None
        self._private: PrivateConnection | None = None
        self._reading = True
        self.resting = False
        self._queued = False  # whether turn() is queued
        self._eof_sent = False
        self._ended = False  # whether the client's end of file was read
        self._closing = False  # whether the connection closes: nothing more is written
        # Loop time of the accept, or of the first sweep behind its latest bytes; 0 before that.
        self._silent_since: float = 0.0
        self._written: int = 0  # bytes written to the client in total
        # Bytes of these that the client took, as of the latest sweep; None if none wait. For unix
        # sockets it may be negative: the kernel counts more than the bytes of data.
        self._taken: int | None = None
        self._taken_at: float = 0.0  # loop time of the latest sweep that saw it take some

    # -- the client's socket ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport, but are no subclass.
        client = cast("asyncio.Transport", transport)
        self._transport = client
        clients = self.clients
        refusal = clients.enter(self, self._peer)
        if refusal is not None:
            self._turn_away(client, refusal.reply)
            return
        self._silent_since = clients.loop.time()
        client.set_write_buffer_limits(clients.max_unread)
        self.stats.accepted += 1
        self.session.flush = self.flush
        self.restrict()
        if clients.draining:
            client.close()

    def reached_at(self) -> Address | None:
        """Return the address by which the client reached the proxy; None for a unix socket."""
        transport = self._transport
        name = transport.get_extra_info("sockname") if transport is not None else None
        return Address(name[0], name[1]) if isinstance(name, tuple) else None

    def _turn_away(self, client: asyncio.Transport, reply: bytes) -> None:
        self._closing = True
        self.session.abandon()
        client.write(reply)
        clients = self.clients
        if len(clients.turned_away) < MAX_TURNED_AWAY:
            clients.turned_away.add(self)
            linger(client, clients.loop)
        else:
            client.close()

    def restrict(self) -> None:
        """Apply the present command policy to the client."""
        self.session.requests.commands = self.clients.admission.table_of(self._peer)

    def data_received(self, data: bytes) -> None:
        session = self.session
        self._silent_since = 0.0
        session.receive(data)
        if len(data) > LARGE:
            self.has_read(len(data))
        self.flush()

    def has_read(self, size: int) -> None:
        """Count `size` bytes of either side as work, and rest if they were much."""
        budget = self.clients.context.budget
        budget.work += size >> WORK_BYTES_SHIFT
        # After a full read, uvloop would read up to 32 times in a row before other connections.
        if size >= FULL_READ or budget.spent():
            self.resting = True
            self._queue()

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self.clients.scheduler.queue(self.turn)

    def turn(self) -> None:
        """Take this client's turn: go on reading both sides, and routing its requests."""
        self._queued = False
        private = self._private
        if self.resting:
            self.clients.context.budget.work += WORK_OF_READ
            self.resting = False
            if private is not None:
                private.read()
        if private is None or not private.full:
            self.session.take_turn()
        self.flush()

    def eof_received(self) -> bool:
        """See asyncio.Protocol. Outstanding replies are still sent."""
        self._ended = True
        self._receive_eof()
        return True

    def _receive_eof(self) -> None:
        self.session.receive_eof()
        self.flush()

    def pause_writing(self) -> None:
        """See asyncio.Protocol. While the client does not read, its replies are not read either."""
        self.session.stops_reading()
        if self._private is not None:
            self._private.read()

    def resume_writing(self) -> None:
        if self._private is not None:
            self._private.read()
        self.session.reads_on()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.session.abandon()
        self.session.let_go()
        self.clients.leave(self)
        if self._private is not None:
            self._private.abort()

    # -- the session's output ---------------------------------------------------------------------

    def flush(self) -> None:
        """Write the session's output to both sides, and apply its state to the sockets."""
        transport = self._transport
        if transport is None or self._closing:
            return
        session = self.session
        stream = session.private
        if self.clients.draining and stream.slots.uncounted() and not session.requests.eof:
            session.receive_eof()  # Redis sends the replies, and closes
        private = self._private
        if stream.to_redis:
            data = _joined(stream.to_redis)
            if private is not None:
                private.write(data)
        if session.to_client:
            data = _joined(session.to_client)
            self._written += len(data)
            self.stats.client_out += len(data)
            transport.write(data)
        if private is None:
            if stream.status == PRIVATE_OPENING:
                self._open()
        elif session.wants_eof and not self._eof_sent:
            self._eof_sent = True
            private.write_eof()
        if session.closed or (self.clients.draining and not session.outstanding()):
            self._close()
            return
        self._control_flow(transport)

    def _control_flow(self, transport: asyncio.Transport) -> None:
        """Read the client as long as the session can take more, and queue it for its turn."""
        session, clients, private = self.session, self.clients, self._private
        full = private is not None and private.full
        want = not (session.full() or full or self.resting or clients.draining)
        if session.slow:
            # A slow client does not read the replies that the proxy would add here.
            want = want and not session.private.slots.can_insert()
        if private is not None and (session.slow or self.resting or not private.reading):
            private.read()
        if want != self._reading:
            self._reading = want
            if want:
                transport.resume_reading()
            else:
                transport.pause_reading()
        if session.wait == waits.TICK and not full:
            self._queue()

    # -- the end ----------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Close the client if it is gone, has been silent, or has read nothing, for too long."""
        if self.session.wait == waits.HELD and not self._reading:
            # The event loop reports no end of a socket that is not read. The held hit of a client
            # that is gone would keep its place in the queue.
            self.notice_hangup()
        transport = self._transport
        if transport is None:
            return
        admission = self.clients.admission
        unwritten = transport.get_write_buffer_size()
        if unwritten:
            taken = self._written - unwritten - unacknowledged(transport)
            if taken != self._taken:
                self._taken = taken
                self._taken_at = now
            elif 0 < admission.write_timeout_s <= now - self._taken_at:
                self.clients.throttle.happened(
                    "clients_stalled",
                    "clients cut: {count:,}; they read nothing for {write_timeout_s:g} s",
                    client=str(self._peer),
                    write_timeout_s=admission.write_timeout_s,
                )
                self.stats.error("cut")
                self.cut()
            return
        self._taken = None
        self._silent_since = self._silent_since or now
        silent_s = now - self._silent_since
        if 0 < admission.idle_timeout_s <= silent_s and not self.session.outstanding():
            self.stats.error("idle")
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
            self._receive_eof()

    def _close(self) -> None:
        """Close the client's connection behind the last reply, and the private connection."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._closing = True
        self.session.abandon()
        silent = self._reading and 0 < self._silent_since <= self.clients.loop.time() - LINGER_S
        at_once = self._ended or (silent and not pending(transport))
        linger(transport, self.clients.loop, at_once)
        if self._private is not None:
            self._private.close()

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
        if self._private is not None:
            self._private.abort()

    def _open(self) -> None:
        self._private = private = PrivateConnection(self)
        tasks = self.clients.tasks
        task = self.clients.loop.create_task(self._connect(private))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _connect(self, private: PrivateConnection) -> None:
        session, clients = self.session, self.clients
        try:
            transport = await clients.target.connect(lambda: private)
        except OSError as error:
            self._private = None
            why = reason(error)
            clients.context.circuit.connect_failed(clients.loop.time(), why, lacks(error))
            session.upstream_failed(why)
            self.flush()
            return
        if self._transport is None or self._closing or self._private is not private:
            transport.abort()
            self.flush()
            return
        private.read()
        session.upstream_opened()
        self.flush()

    def upstream_lost(self, private: asyncio.Protocol) -> None:
        """Handle the end of `private`."""
        if self._private is not private:
            return
        self._private = None
        self.session.upstream_lost()
        self.flush()


class PrivateConnection(asyncio.Protocol):
    """The protocol of one private connection, of `client`.

    full: Redis takes no more bytes for now.
    reading: it is read; see read().
    """

    # Its base is not compiled: without slots each connection would have a dict.
    __slots__ = (
        "_client",
        "_transport",
        "full",
        "reading",
    )

    def __init__(self, client: ClientConnection) -> None:
        self.full = False
        self.reading = True
        self._client = client
        self._transport: asyncio.Transport | None = None

    def reached_at(self) -> Address | None:
        """Return the address by which its client reached the proxy; None for a unix socket."""
        return self._client.reached_at()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport, but are no subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._client.stats.private += 1

    def data_received(self, data: bytes) -> None:
        client = self._client
        client.session.upstream_received(data)
        if client.session.private.slots.awaits_lane():
            self.read()
        if len(data) > LARGE:
            client.has_read(len(data))
            self.read()
        client.flush()

    def pause_writing(self) -> None:
        self.full = True
        self._client.flush()

    def resume_writing(self) -> None:
        self.full = False
        self._client.flush()

    def connection_lost(self, exc: Exception | None) -> None:
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
        if self._transport is not None:
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
        want = not session.slow or session.wait == waits.HELD
        if self._client.resting or session.private.slots.awaits_lane():
            want = False
        if self._transport is not None and want != self.reading:
            self.reading = want
            if want:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


class Clients:
    """The clients of one worker, and what they share.

    throttle: the log throttle for events that any client can cause.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: WorkerContext,
        target: Target,
        admission: Admission,
        config: Config,
        throttle: LogThrottle,
    ) -> None:
        self.loop = loop
        self.context = context
        self.target = target
        self.admission = admission
        self.throttle = throttle
        self.max_unread = config.max_unread
        self.addresses: dict[str, int] = {}  # number of clients by IP address
        self.clients: dict[ClientConnection, str] = {}  # with their IP addresses; "": unix socket
        self.round: list[ClientConnection] = []  # clients that the next sweeps check
        self.scheduler = Scheduler(context.budget, loop.call_soon)
        self.tasks: set[asyncio.Task[None]] = set()
        self.turned_away: set[ClientConnection] = set()  # refused clients, connections lingering
        self.draining = False
        self.on_leave: Callable[[], None] = lambda: None  # called after a connection has ended

    def reconfigure(self, config: Config) -> None:
        """Apply those options of `config` that can change at run time."""
        self.admission.configure(config)
        for client in self.clients:
            client.restrict()

    def enter(self, client: ClientConnection, peer: Address) -> Refusal | None:
        """Add a new client if it is admitted. Returns the refusal, or None."""
        count = self.addresses.get(peer.host, 0)
        refusal = self.admission.refusal(peer, len(self.clients), count)
        if refusal is not None:
            self.throttle.happened(
                "clients_turned_away", TURNED_AWAY, client=str(peer), reason=refusal.reason
            )
            self.context.stats.error("turned_away")
            return refusal
        self.clients[client] = host = sys.intern(peer.host)  # one text for all its clients
        if host:
            self.addresses[host] = count + 1
        return None

    def leave(self, client: ClientConnection) -> None:
        """Remove `client`, which is gone."""
        host = self.clients.pop(client, "")
        if host:
            self.addresses[host] -= 1
            if self.addresses[host] == 0:
                del self.addresses[host]
        self.turned_away.discard(client)
        self.on_leave()

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
        self.throttle.sweep()


def _joined(parts: list[bytes]) -> bytes:
    """Join and empty `parts`. It is emptied first, because a write may call flush() again."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    return data
