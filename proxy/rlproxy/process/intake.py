"""The intake of a worker: it accepts clients, and leaves them to a worker that has fewer.

    a client waits ──> has another worker fewer clients? ──no──> accept
                          └──yes──> look again in a millisecond, until that worker is stuck

All workers accept from the same listening sockets. A client waits in the kernel until one of them
has accepted it, so no client is lost with a worker that ends before.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rlproxy.config.urls import Address, peer_of
from rlproxy.observability.logs import log

AWAY: Final = -1  # in place of a number of clients: this worker gets none
SHORTEST_S: Final = 0.001  # shortest timer of the event loop, in seconds
STUCK_S: Final = 1.0  # seconds in which a worker that new clients are left to must accept one
GONE_PER_TURN: Final = 8  # disconnected clients removed per tick; these cost little
FULL_S: Final = 1.0  # seconds until the next attempt to accept when no file descriptor is free


class ClientCounts:
    """Two numbers of each worker, shared by all processes that are forked later.

    Each has one writer: its worker, or the supervisor while there is no such worker.

    clients: number of present clients, or AWAY.
    accepted: number of clients accepted so far.
    """

    def __init__(self, workers: int) -> None:
        # 8 aligned bytes are written in one step
        shared = memoryview(mmap.mmap(-1, 16 * workers)).cast("q")
        self.clients, self.accepted = shared[:workers], shared[workers:]


class Intake:
    """The intake of one worker.

    Each client counts until `left()` is called for it. One client is accepted per tick of the event
    loop and listening socket. While `busy()`, at most `rate` are accepted in a second.

    worker: the worker's number, from 0.
    listening: the sockets that all workers accept from: list of (socket, whether it is for TLS).
    client: makes a client's protocol. The arguments are whether the address is for TLS, and the
        client's own address.
    busy: returns whether the worker serves clients that new ones might delay.
    """

    def __init__(
        self,
        worker: int,
        counts: ClientCounts,
        listening: Sequence[tuple[socket.socket, bool]],
        client: Callable[[bool, Address], asyncio.Protocol],
        busy: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = busy
        self.rate = 0  # clients per second while `busy`; 0: no limit
        self._next_at = 0.0
        self._worker = worker
        self._counts = counts
        self._listening = listening
        self._client = client
        self._connecting: set[asyncio.Task[None]] = set()
        self._count = 0
        self._open = False
        self._full = False  # no file descriptor was free at the latest attempt
        self._left_to = (-1, 0)  # worker that clients are left to, and how many it has accepted
        self._left_since = 0.0
        # Workers that accepted no client in time, and the number that each had accepted by then.
        self._stuck: dict[int, int] = {}

    def open(self) -> None:
        """Begin to accept clients."""
        self._open = True
        self._publish()
        self._watch()

    def close(self) -> None:
        """Accept no more clients."""
        if self._open:
            self._open = False
            self._counts.clients[self._worker] = AWAY
            self._unwatch()

    def left(self) -> None:
        """Count one client less: it has disconnected."""
        self._count -= 1
        self._publish()

    def _publish(self) -> None:
        if self._open:
            self._counts.clients[self._worker] = AWAY if self._full else self._count

    def _watch(self) -> None:
        if self._open:
            for sock, tls in self._listening:
                self._loop.add_reader(sock, self._readable, sock, tls)

    def _unwatch(self) -> None:
        for sock, _ in self._listening:
            self._loop.remove_reader(sock)

    def _rest(self, seconds: float) -> None:
        """Accept nothing for a while."""
        self._unwatch()
        self._loop.call_later(seconds, self._watch)

    def _readable(self, listening: socket.socket, tls: bool) -> None:
        """Accept one client, and before it those that have already disconnected."""
        if self._is_for_another():
            self._rest(SHORTEST_S)
            return
        try:
            for _ in range(GONE_PER_TURN):
                client, name = listening.accept()  # a socket that is reset later has no name
                self._full = False
                self._publish()
                if not is_gone(client):
                    self._begin(client, tls, peer_of(name))
                    break
                client.close()
        except (BlockingIOError, ConnectionAbortedError):
            pass  # another worker was faster, or the client has already disconnected
        except OSError as error:
            if not self._full:
                self._full = True
                log.error(
                    "accept_failed",
                    "cannot accept: {reason}; new clients wait. Raise the limit of open files "
                    "(ulimit -n), or lower --max-clients",
                    reason=error.strerror or str(error),
                )
            self._publish()
            self._rest(FULL_S)

    def _is_for_another(self) -> bool:
        """Whether the next client is left to another worker, which has fewer and is not stuck."""
        counts = self._counts
        fewer = [
            (n, worker)
            for worker, n in enumerate(counts.clients)
            if AWAY != n < self._count and self._stuck.get(worker) != counts.accepted[worker]
        ]
        if not fewer:
            return False
        _, worker = min(fewer)
        left_to = (worker, counts.accepted[worker])
        if left_to != self._left_to:
            self._left_to, self._left_since = left_to, self._loop.time()
        if self._loop.time() - self._left_since < STUCK_S:
            return True
        self._stuck[worker] = counts.accepted[worker]
        return False

    def _begin(self, client: socket.socket, tls: bool, peer: Address) -> None:
        self._count += 1
        self._counts.accepted[self._worker] += 1
        self._publish()
        client.setblocking(False)
        task = self._loop.create_task(self._connect(client, tls, peer))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        if self.rate > 0 and self._busy():
            self._pause()

    def _pause(self) -> None:
        """Accept no client until `rate` permits the next one; called after each one."""
        now = self._loop.time()
        self._next_at = max(now, self._next_at) + 1 / self.rate
        pause_s = self._next_at - now
        if pause_s >= SHORTEST_S:
            self._rest(pause_s)

    async def _connect(self, sock: socket.socket, tls: bool, peer: Address) -> None:
        try:
            await self._loop.connect_accepted_socket(partial(self._client, tls, peer), sock)
        except OSError:  # the client has already disconnected
            sock.close()
            self.left()


def is_gone(sock: socket.socket) -> bool:
    """Whether a new client closed its side before its first byte, or was reset."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
