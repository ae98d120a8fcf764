"""The balancer between workers: an accepted client goes to the worker with the fewest clients.

    accept ──> least loaded? ──this one──> serve
                             └──another──> its inbox (the socket travels in a message) ──> serve

A worker's load is what it serves and what lies in its inbox. Inboxes outlive a worker: what was on
its way to one that died is served by its successor. Knows nothing of what a client says.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import mmap
import os
import socket
import sys
import termios
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

log = logging.getLogger("rlproxy")

CANNOT_ACCEPT: Final = (
    "cannot accept: %s; new clients wait. Raise the limit of open files (ulimit -n), or lower "
    "--max-clients"
)
AWAY: Final = -1  # instead of a number of clients: hand nobody over to this one
TICK_S: Final = 0.001  # the shortest time that the loop can wait
GONE_PER_TURN: Final = 8  # of those who have said nothing and gone, who cost little
NOBODY: Final = 0  # no client waits
SOMEBODY: Final = 1  # one was taken in
GONE: Final = 2  # one had gone already
_PLAIN: Final = b"\0"
_TLS: Final = b"\1"
FULL_S: Final = 1.0  # without a free descriptor: when to look again


def least_loaded(
    clients: Sequence[int], in_flight: Callable[[int], int], own: int | None = None
) -> int | None:
    """Which worker serves the next client: `own` unless another one has fewer; None if all are
    away. `clients` is what each one serves, or AWAY; `in_flight(worker)` is what lies in its inbox.
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
    """How many clients each worker serves, and the ways between them. Made before the fork, shared
    by all. Each number has one writer: its worker, or who looks after a worker that is gone.
    """

    def __init__(self, workers: int) -> None:
        self._shared = memoryview(mmap.mmap(-1, 8 * workers))
        self.clients = self._shared.cast("q")  # (8 aligned bytes are written at once)
        pairs = [socket.socketpair() for _ in range(workers)]
        self.inboxes = [pair[0] for pair in pairs]
        self._outboxes = [pair[1] for pair in pairs]
        for pair in pairs:
            for sock in pair:
                sock.setblocking(False)

    def in_flight(self, worker: int) -> int:
        """How many clients lie in its inbox: each is a message of one byte."""
        waiting = fcntl.ioctl(self.inboxes[worker], termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder)

    def least(self, own: int | None = None) -> int | None:
        """See least_loaded()."""
        return least_loaded(self.clients, self.in_flight, own)

    def give(self, worker: int, client: socket.socket, tls: bool = False) -> bool:
        """Hand `client` over, and whether TLS is spoken where it came; False if the inbox takes no
        more, and the client stays here.
        """
        try:
            socket.send_fds(self._outboxes[worker], [_TLS if tls else _PLAIN], [client.fileno()])
        except OSError:
            return False
        client.close()
        return True

    def take(self, worker: int) -> tuple[socket.socket, bool] | None:
        """The next client of an inbox, as it was given, None if it is empty. Raises OSError if
        there is no room.
        """
        # A descriptor that finds no room is lost, and its client with it: look for room before.
        os.close(os.dup(self.inboxes[worker].fileno()))
        try:
            said, found, _, _ = socket.recv_fds(self.inboxes[worker], 1, 1)
        except BlockingIOError:
            return None
        return (socket.socket(fileno=found[0]), said == _TLS) if found else None

    def close(self) -> None:
        """Close the ways; who is still in an inbox is cut when all have closed it."""
        for sock in self.inboxes + self._outboxes:
            sock.close()


class Intake:
    """A worker's own clients, accepted or handed over: each gets a protocol of `client`, and is
    counted until it is reported by `left()`. `client` is told whether TLS is spoken at the address
    that it came to, and whether it is TCP's. One is taken in a turn of the loop, and while the
    process is `busy` not more than `rate` in a second.
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
        self.rate = 0  # so many in a second while `busy`; 0: as many as come
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
        """Take clients from now on."""
        self._open = True
        self._publish()
        self._watch()

    def close(self) -> None:
        """Take no more: what is queued, or handed over too late, is for others."""
        if self._open:
            self._open = False
            self._balance.clients[self._worker] = AWAY
            self._unwatch()

    def left(self) -> None:
        """A client is gone."""
        self._count -= 1
        self._publish()

    def _publish(self) -> None:
        if self._open:
            self._balance.clients[self._worker] = self._count

    def _watch(self) -> None:
        if self._open:
            inbox = self._balance.inboxes[self._worker]
            self._loop.add_reader(inbox, self._readable, self._take)
            for sock, tls in self._listening:
                self._loop.add_reader(sock, self._readable, partial(self._accept, sock, tls))

    def _unwatch(self) -> None:
        for sock in (self._balance.inboxes[self._worker], *(one for one, _ in self._listening)):
            self._loop.remove_reader(sock)

    def _readable(self, take: Callable[[], int]) -> None:
        try:
            for _ in range(GONE_PER_TURN):
                found = take()
                if found == NOBODY:
                    break
                if found == SOMEBODY:
                    if self.rate > 0 and self._busy():
                        self._pause()
                    break
        except OSError as error:
            if not self._full:
                self._full = True
                log.error(CANNOT_ACCEPT, error.strerror or error)
            self._unwatch()
            self._loop.call_later(FULL_S, self._watch)
        else:
            self._full = False

    def _pause(self) -> None:
        """Take nobody until it is time, after one that was taken."""
        now = self._loop.time()
        self._next_at = max(now, self._next_at) + 1 / self.rate
        pause_s = self._next_at - now
        if pause_s >= TICK_S:
            self._unwatch()
            self._loop.call_later(pause_s, self._watch)

    def _accept(self, listening: socket.socket, tls: bool) -> int:
        sock = accepted(listening)
        if sock is None:
            return NOBODY
        if is_gone(sock):
            sock.close()
            return GONE
        best = self._balance.least(self._worker)
        if best is None or best == self._worker or not self._balance.give(best, sock, tls):
            self._begin(sock, tls)
        return SOMEBODY

    def _take(self) -> int:
        found = self._balance.take(self._worker)
        if found is None:
            return NOBODY
        self._begin(*found)
        return SOMEBODY

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
        except OSError:  # it is gone already
            sock.close()
            self.left()


def is_gone(sock: socket.socket) -> bool:
    """Whether a client that was just accepted has said nothing and gone, or was reset: nobody will
    hear an answer.
    """
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def accepted(listening: socket.socket) -> socket.socket | None:
    """The next client of a listening socket, None if there is none. Raises OSError if there is no
    room for one more.
    """
    while True:
        try:
            return listening.accept()[0]
        except BlockingIOError:
            return None
        except ConnectionAbortedError:  # it is gone already
            continue
