"""How a worker accepts its clients, with a loop that records calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest
from rlproxy.process.balancer import (
    AWAY,
    FULL_S,
    GONE_PER_TURN,
    Balancer,
    Intake,
    is_gone,
)


class Loop:
    """Whom it watches, and what it is to do later."""

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


class Bench:
    def __init__(self, loop: Loop, balance: Balancer) -> None:
        self.loop = loop
        self.busy = False
        self.waiting = 0  # clients that may be taken,
        self.gone = 0  # behind so many that have gone
        self.begun: list[socket.socket] = []
        self.intake = Intake(0, balance, [], self.never, lambda: self.busy)
        self.intake.rate = 1000
        self.intake.open()

    def never(self, _tls: bool, _tcp: bool) -> asyncio.Protocol:
        raise AssertionError

    def take(self) -> tuple[socket.socket, bool] | None:
        if self.gone == 0 and self.waiting == 0:
            return None
        if self.waiting < 0:
            raise OSError(24, "Too many open files")
        ours, theirs = socket.socketpair()
        if self.gone > 0:
            self.gone -= 1
            theirs.close()
        else:
            self.waiting -= 1
            self.begun.append(theirs)
        return ours, False

    def begin(self, sock: socket.socket, _tls: bool) -> None:
        """Instead of a connection: the client leaves at once."""
        sock.close()
        self.begun.pop().close()

    def readable(self) -> None:
        self.intake._readable(self.take)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    loop, balance = Loop(), Balancer(1)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    made = Bench(loop, balance)
    monkeypatch.setattr(made.intake, "_begin", made.begin)
    yield made
    balance.close()


def test_one_in_a_turn(bench: Bench) -> None:
    bench.waiting = 3
    bench.readable()
    assert bench.waiting == 2
    assert bench.loop.watched
    assert not bench.loop.later


@pytest.mark.parametrize("rate", [50, 1000, 5000])
def test_while_others_are_served_so_many_are_taken_in_a_second(bench: Bench, rate: int) -> None:
    bench.busy, bench.waiting, bench.intake.rate = True, rate, rate
    began = bench.loop.now
    while bench.waiting:
        while bench.loop.watched and bench.waiting:
            bench.readable()
        if bench.waiting:
            bench.loop.tick()
    assert bench.loop.now - began == pytest.approx(1, abs=0.03)
    bench.intake.rate, bench.waiting = 0, 1000
    began = bench.loop.now
    while bench.loop.later:
        bench.loop.tick()
    while bench.waiting:
        bench.readable()
        assert bench.loop.watched


def test_nobody_waits_for_who_came_long_ago(bench: Bench) -> None:
    bench.busy, bench.waiting = True, 2
    bench.readable()
    assert bench.loop.tick() == pytest.approx(0.001)
    bench.loop.now += 5
    bench.readable()
    assert bench.loop.tick() == pytest.approx(0.001)


def test_who_has_gone_makes_nobody_wait(bench: Bench) -> None:
    bench.busy, bench.waiting, bench.gone = True, 1, 10
    bench.readable()
    assert bench.gone == 10 - GONE_PER_TURN
    assert bench.loop.watched
    bench.readable()
    assert (bench.gone, bench.waiting) == (0, 0)
    assert not bench.loop.watched


def test_who_has_said_nothing_and_gone() -> None:
    for said, shut, gone in (
        (b"", False, False),
        (b"", True, True),
        (b"x", False, False),
        (b"x", True, False),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.send(said)
            if shut:
                theirs.shutdown(socket.SHUT_WR)
            assert is_gone(ours) == gone
            if said:
                assert ours.recv(2) == said


def test_nobody_is_taken_after_a_pause_in_which_it_was_closed(bench: Bench) -> None:
    bench.busy, bench.waiting = True, 1
    bench.readable()
    bench.intake.close()
    bench.loop.tick()
    (relay,) = bench.loop.watched.values()  # of the inbox: what still comes is for others
    relay()
    assert bench.waiting == 0


@pytest.fixture
def two() -> Iterator[Balancer]:
    balance = Balancer(2)
    yield balance
    balance.close()


def arrive(balance: Balancer, worker: int, *tls: bool) -> None:
    """Put clients into a worker's inbox."""
    for each in tls:
        client, other = socket.socketpair()
        other.close()
        assert balance.give(worker, client, each)


def taken(balance: Balancer, worker: int) -> list[bool]:
    """Empty a worker's inbox."""
    found = []
    while (client := balance.take(worker)) is not None:
        client[0].close()
        found.append(client[1])
    return found


def test_clients_of_a_worker_that_is_away_go_to_others(two: Balancer) -> None:
    arrive(two, 0, True, False)
    two.clients[0] = AWAY
    assert two.relay(0)
    assert (taken(two, 0), taken(two, 1)) == ([], [True, False])


def test_clients_stay_where_no_worker_takes_them(two: Balancer) -> None:
    arrive(two, 0, True)
    two.clients[0] = two.clients[1] = AWAY
    assert not two.relay(0)
    two.clients[1] = 0
    arrive(two, 1, False)
    while two.give(1, full := socket.socket()):  # until its inbox has no room
        pass
    full.close()
    assert not two.relay(0)
    assert taken(two, 0) == [True]


def test_without_room_it_looks_again_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.waiting = -1
    for _ in range(2):
        bench.readable()
        assert not bench.loop.watched
        assert bench.loop.tick() == FULL_S
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == ["cannot accept"]
