"""The balancer between workers: an accepted client goes to the worker with the fewest clients.

    accept ──> least loaded? ──this one──> serve
                             └──another──> its inbox (the socket travels in a message) ──> serve

A worker's load is the number of clients that it serves or has in its inbox. Inboxes outlive a
worker: clients in the inbox of a worker that died are served by its successor, or by other workers
if that takes time. The balancer does not interpret a client's bytes.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rlproxy.observability.logs import log

AWAY: Final = -1  # in place of a number of clients: this worker gets none
TICK_S: Final = 0.001  # shortest timer of the event loop, in seconds
GONE_PER_TURN: Final = 8  # disconnected clients removed per tick; these cost little
_PLAIN: Final = b"\0"
_TLS: Final = b"\1"
_Client = tuple[socket.socket, bool]  # its socket, and whether its address is one for TLS
FULL_S: Final = 1.0  # seconds until the next attempt to accept when no file descriptor is free


def least_loaded(
    clients: Sequence[int], in_flight: Callable[[int], int], own: int | None = None
) -> int | None:
    """Select the worker that serves the next client.

    clients: for each worker the number of clients that it serves, or AWAY.
    in_flight: returns the number of clients in a worker's inbox.
    own: the worker that is preferred unless another one has fewer clients.
    Returns the worker's number; None if all are away.
    """
    best, least = None, sys.maxsize
    if own is not None and clients[own] != AWAY:
        best, least = own, clients[own] + in_flight(own)
    for worker, serves in enumerate(clients):
        if worker != own and serves != AWAY and serves < least:
            load = serves + in_flight(worker)
            if load < least:
                best, least = worker, load
    return best


class Balancer:
    """The number of clients of each worker, and the inboxes of the workers.

    It is made before the fork and shared by all processes. Each number has one writer: its worker,
    or the supervisor while there is no such worker.
    """

    def __init__(self, workers: int) -> None:
        self._shared = memoryview(mmap.mmap(-1, 8 * workers))
        self.clients = self._shared.cast("q")  # 8 aligned bytes are written in one step
        pairs = [socket.socketpair() for _ in range(workers)]
        self.inboxes = [pair[0] for pair in pairs]
        self._outboxes = [pair[1] for pair in pairs]
        for pair in pairs:
            for sock in pair:
                sock.setblocking(False)

    def in_flight(self, worker: int) -> int:
        """Return the number of clients in the worker's inbox: each is a message of one byte."""
        waiting = fcntl.ioctl(self.inboxes[worker], termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder)

    def least(self, own: int | None = None) -> int | None:
        """Select the worker that serves the next client; see least_loaded()."""
        return least_loaded(self.clients, self.in_flight, own)

    def give(self, worker: int, client: socket.socket, tls: bool = False) -> bool:
        """Hand `client` over to a worker's inbox, and close it here.

        tls: whether the address that accepted it is one for TLS.
        Returns False if the inbox is full; then the client stays with the caller.
        """
        try:
            socket.send_fds(self._outboxes[worker], [_TLS if tls else _PLAIN], [client.fileno()])
        except OSError:
            return False
        client.close()
        return True

    def take(self, worker: int) -> _Client | None:
        """Take the next client, as passed to give(), from a worker's inbox; None if it is empty.

        Raises OSError if no file descriptor is free.
        """
        # The kernel drops a received descriptor if none is free, so check for a free one first.
        os.close(os.dup(self.inboxes[worker].fileno()))
        try:
            said, found, _, _ = socket.recv_fds(self.inboxes[worker], 1, 1)
        except BlockingIOError:
            return None
        return (socket.socket(fileno=found[0]), said == _TLS) if found else None

    def relay(self, worker: int) -> bool:
        """Hand the clients in the inbox of a worker that is away to other workers.

        Returns False if clients are left there: no other worker takes them.
        Raises OSError if no file descriptor is free.
        """
        while self.in_flight(worker):
            best = self.least()
            client = self.take(worker) if best is not None else None
            if best is None or client is None:
                return False
            if not self.give(best, *client):
                self.give(worker, *client)
                return False
        return True

    def close(self) -> None:
        """Close all inboxes. Clients in an inbox are cut once every process has closed it."""
        for sock in self.inboxes + self._outboxes:
            sock.close()


class Intake:
    """The intake of a worker: it accepts clients, or takes them from the worker's inbox.

    Each client counts until `left()` is called for it. One client is taken per tick of the event
    loop and readable socket. While `busy()`, at most `rate` are taken in a second.

    worker: the worker's number, from 0.
    listening: the sockets that all workers accept from: list of (socket, whether it is for TLS).
    client: makes a client's protocol from two flags: address with TLS, address of TCP.
    busy: returns whether the worker serves clients that new ones might delay.
    """

    def __init__(
        self,
        worker: int,
        balance: Balancer,
        listening: Sequence[tuple[socket.socket, bool]],
        client: Callable[[bool, bool], asyncio.Protocol],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = busy
        self.rate = 0  # clients per second while `busy`; 0: no limit
        self._next_at = 0.0
        self._worker = worker
        self._balance = balance
        self._listening = listening
        self._client = client
        self._connecting: set[asyncio.Task[None]] = set()
        self._count = 0
        self._open = False
        self._full = False

    def open(self) -> None:
        """Begin to take clients."""
        self._open = True
        self._publish()
        self._watch()

    def close(self) -> None:
        """Take no more clients: those that wait, or still come to the inbox, are for others."""
        if self._open:
            self._open = False
            self._balance.clients[self._worker] = AWAY
            self._unwatch()
            self._loop.add_reader(self._balance.inboxes[self._worker], self._relay)

    def _relay(self) -> None:
        try:
            done = self._balance.relay(self._worker)
        except OSError:
            done = False
        if not done:  # the successor serves them
            self._loop.remove_reader(self._balance.inboxes[self._worker])

    def left(self) -> None:
        """Count one client less: it has disconnected."""
        self._count -= 1
        self._publish()

    def _publish(self) -> None:
        if self._open:
            self._balance.clients[self._worker] = self._count

    def _watch(self) -> None:
        if self._open:
            inbox = self._balance.inboxes[self._worker]
            self._loop.add_reader(inbox, self._readable, lambda: self._balance.take(self._worker))
            for sock, tls in self._listening:
                self._loop.add_reader(sock, self._readable, partial(accepted, sock, tls))

    def _unwatch(self) -> None:
        for sock in (self._balance.inboxes[self._worker], *(one for one, _ in self._listening)):
            self._loop.remove_reader(sock)

    def _readable(self, take: Callable[[], _Client | None]) -> None:
        """Take one client, and before it those that have already disconnected."""
        try:
            for _ in range(GONE_PER_TURN):
                client = take()
                if client is None:
                    break
                if not is_gone(client[0]):
                    self._place(*client)
                    if self.rate > 0 and self._busy():
                        self._pause()
                    break
                client[0].close()
        except OSError as error:
            if not self._full:
                self._full = True
                log.error(
                    "accept_failed",
                    "cannot accept: {reason}; new clients wait. Raise the limit of open files "
                    "(ulimit -n), or lower --max-clients",
                    reason=error.strerror or str(error),
                )
            self._unwatch()
            self._loop.call_later(FULL_S, self._watch)
        else:
            self._full = False

    def _pause(self) -> None:
        """Take no client until `rate` permits the next one; called after each that was taken."""
        now = self._loop.time()
        self._next_at = max(now, self._next_at) + 1 / self.rate
        pause_s = self._next_at - now
        if pause_s >= TICK_S:
            self._unwatch()
            self._loop.call_later(pause_s, self._watch)

    def _place(self, sock: socket.socket, tls: bool) -> None:
        best = self._balance.least(self._worker)
        if best is None or best == self._worker or not self._balance.give(best, sock, tls):
            self._begin(sock, tls)

    def _begin(self, sock: socket.socket, tls: bool) -> None:
        self._count += 1
        self._publish()
        sock.setblocking(False)
        task = self._loop.create_task(self._connect(sock, tls))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket, tls: bool) -> None:
        client = partial(self._client, tls, sock.family != socket.AF_UNIX)
        try:
            await self._loop.connect_accepted_socket(client, sock)
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


def accepted(listening: socket.socket, tls: bool) -> _Client | None:
    """Accept the next client of a listening socket; None if there is none.

    tls: whether its address is one for TLS.
    Raises OSError if no file descriptor is free.
    """
    while True:
        try:
            return listening.accept()[0], tls
        except BlockingIOError:
            return None
        except ConnectionAbortedError:  # the client has already disconnected
            continue
