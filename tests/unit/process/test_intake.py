"""How a worker accepts its clients, with a loop that records calls."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.process.intake import AWAY, FULL_S, SHORTEST_S, STUCK_S, ClientCounts, Intake

from tests.harness import DEADLINE_S


class Task:
    def add_done_callback(self, _callback: Callable[[object], None]) -> None:
        pass


class Loop:
    """The sockets that it watches, and its timers."""

    def __init__(self) -> None:
        self.watched: dict[object, Callable[[], None]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.now = 100.0

    def add_reader(self, sock: object, callback: Callable[..., None], *args: object) -> None:
        self.watched[sock] = lambda: callback(*args)

    def remove_reader(self, sock: object) -> None:
        self.watched.pop(sock, None)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append((delay_s, callback))

    def tick(self) -> float:
        """The next timer; after how long it came."""
        delay_s, callback = self.later.pop(0)
        self.now += delay_s
        callback()
        return delay_s

    def time(self) -> float:
        return self.now

    def create_task(self, connecting: Coroutine[Any, Any, None]) -> Task:
        connecting.close()
        return Task()


class Queue:
    """A listening socket."""

    def __init__(self) -> None:
        self.waiting = 0  # clients that may be taken
        self.gone = 0  # clients in front of them that have left
        self.full = False
        self.taken: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, None]:
        if self.full:
            raise OSError(24, "Too many open files")
        if self.gone == 0 and self.waiting == 0:
            raise BlockingIOError
        ours, theirs = socket.socketpair()
        if self.gone > 0:
            self.gone -= 1
            theirs.close()
        else:
            self.waiting -= 1
            self.taken += (ours, theirs)
        return ours, None


class Bench(Queue):
    """A worker with one listening socket."""

    def __init__(self, loop: Loop, counts: ClientCounts) -> None:
        super().__init__()
        self.loop = loop
        self.counts = counts.clients
        self.accepted = counts.accepted
        self.busy = False
        listening = [(cast("socket.socket", self), False)]
        self.intake = Intake(0, counts, listening, self.never, lambda: self.busy)
        self.intake.rate = 1000
        self.intake.open()

    def never(self, _tls: bool, _peer: Address) -> asyncio.Protocol:
        raise AssertionError

    def readable(self) -> None:
        self.loop.watched[self]()

    def serve_all(self) -> float:
        """Take all waiting clients. Returns the seconds that it took."""
        began = self.loop.now
        while self.waiting:
            while self.loop.watched and self.waiting:
                self.readable()
            if self.waiting:
                self.loop.tick()
        return self.loop.now - began


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    made = Bench(loop, ClientCounts(3))
    made.counts[1] = made.counts[2] = AWAY
    yield made
    for sock in made.taken:
        sock.close()


def test_one_in_a_turn(bench: Bench) -> None:
    bench.waiting = 3
    bench.readable()
    assert bench.waiting == 2
    assert bench.loop.watched
    assert not bench.loop.later


@pytest.mark.parametrize("rate", [50, 1000, 5000])
def test_while_others_are_served_so_many_are_taken_in_a_second(bench: Bench, rate: int) -> None:
    bench.busy, bench.waiting, bench.intake.rate = True, rate, rate
    assert bench.serve_all() == pytest.approx(1, abs=0.03)
    bench.intake.rate, bench.waiting = 0, 1000
    while bench.loop.later:
        bench.loop.tick()
    while bench.waiting:
        bench.readable()
        assert bench.loop.watched


def test_clients_that_are_gone_take_no_part_of_the_rate(bench: Bench) -> None:
    """Otherwise clients that give up and connect again would keep each other out."""
    bench.busy, bench.intake.rate, bench.gone, bench.waiting = True, 10, 50, 2
    assert bench.serve_all() == pytest.approx(0.1)
    assert bench.counts[0] == bench.accepted[0] == 2


def test_a_client_is_left_to_a_worker_with_fewer(bench: Bench) -> None:
    bench.waiting = 2
    bench.readable()
    bench.counts[1] = 0
    bench.counts[2] = 5
    bench.readable()
    assert (bench.waiting, bench.counts[0]) == (1, 1)
    assert bench.loop.tick() == SHORTEST_S
    bench.readable()
    assert bench.waiting == 1
    bench.counts[1] = 1  # it has taken another one
    bench.loop.tick()
    bench.readable()
    assert (bench.waiting, bench.counts[0]) == (0, 2)


def test_a_worker_that_is_stuck_delays_one_client_only(bench: Bench) -> None:
    bench.waiting = 6
    for _ in range(3):
        bench.readable()
    bench.counts[1], bench.counts[2] = 1, AWAY
    began = bench.loop.now
    for other in (AWAY, 0, AWAY):  # in between, another worker has the fewest
        bench.counts[2] = other
        left = bench.waiting
        while bench.waiting == left and bench.loop.now - began < 3 * STUCK_S:
            while bench.loop.later:
                bench.loop.tick()
            bench.readable()
            if bench.counts[2] == 0:
                bench.accepted[2] += 1  # it accepts this one
                bench.waiting -= 1
    assert bench.loop.now - began == pytest.approx(STUCK_S, abs=0.02)


def test_without_room_it_looks_again_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.full = True
    for _ in range(2):
        bench.readable()
        assert not bench.loop.watched
        assert bench.counts[0] == AWAY
        assert bench.loop.tick() == FULL_S
    bench.full, bench.gone = False, 1
    bench.readable()
    assert bench.counts[0] == 0  # there is room again, even if this client is gone
    bench.waiting = 1
    bench.readable()
    assert bench.counts[0] == 1
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == ["cannot accept"]


class Resetting(socket.socket):
    """A listening socket each of whose clients is reset once it is accepted."""

    client: socket.socket

    def accept(self) -> tuple[socket.socket, object]:
        accepted = super().accept()
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()
        return accepted


async def test_a_client_that_is_reset_at_once_keeps_its_address() -> None:
    """Its socket has no address any more, as that of a unix socket's client, which is trusted."""
    peers: asyncio.Queue[Address] = asyncio.Queue()

    def client(_tls: bool, peer: Address) -> asyncio.Protocol:
        peers.put_nowait(peer)
        return asyncio.Protocol()

    with Resetting() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        listening.client = socket.create_connection(listening.getsockname())
        address = Address(*listening.client.getsockname())
        listening.client.sendall(b"PING\r\n")
        intake = Intake(0, ClientCounts(1), [(listening, False)], client, lambda: False)
        intake.open()
        assert await asyncio.wait_for(peers.get(), DEADLINE_S) == address
        intake.close()
