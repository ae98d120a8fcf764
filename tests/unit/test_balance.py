"""balance: how a process takes its clients in, with a loop that only notes what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from proxy.balance import FULL_S, PACE_S, Balance, Intake


class Loop:
    """Whom it watches, and what it is to do later."""

    def __init__(self) -> None:
        self.watched: dict[object, Callable[[], None]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []

    def add_reader(self, sock: object, callback: Callable[..., None], *args: object) -> None:
        self.watched[sock] = lambda: callback(*args)

    def remove_reader(self, sock: object) -> None:
        self.watched.pop(sock, None)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append((delay_s, callback))

    def tick(self) -> float:
        """The next timer; after how long it came."""
        delay_s, callback = self.later.pop(0)
        callback()
        return delay_s


class Bench:
    def __init__(self, loop: Loop, balance: Balance) -> None:
        self.loop = loop
        self.busy = False
        self.waiting = 0  # clients that may be taken
        self.intake = Intake(0, balance, [], self.never, lambda: self.busy)
        self.intake.open()

    def never(self, _tls: bool, _tcp: bool) -> asyncio.Protocol:
        raise AssertionError

    def take(self) -> bool:
        if self.waiting == 0:
            return False
        if self.waiting < 0:
            raise OSError(24, "Too many open files")
        self.waiting -= 1
        return True

    def readable(self) -> None:
        self.intake._readable(self.take)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    loop, balance = Loop(), Balance(1)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    yield Bench(loop, balance)
    balance.close()


def test_one_in_a_turn(bench: Bench) -> None:
    bench.waiting = 3
    bench.readable()
    assert bench.waiting == 2
    assert bench.loop.watched
    assert not bench.loop.later


def test_while_others_are_served_there_is_a_pause_behind_each(bench: Bench) -> None:
    bench.busy, bench.waiting = True, 3
    for left in (2, 1, 0):
        bench.readable()
        assert bench.waiting == left
        assert not bench.loop.watched
        assert bench.loop.tick() == PACE_S
        assert bench.loop.watched
    bench.readable()  # nobody came
    assert bench.loop.watched
    assert not bench.loop.later


def test_nobody_is_taken_after_a_pause_in_which_it_was_closed(bench: Bench) -> None:
    bench.busy, bench.waiting = True, 1
    bench.readable()
    bench.intake.close()
    bench.loop.tick()
    assert not bench.loop.watched


def test_without_room_it_looks_again_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.waiting = -1
    for _ in range(2):
        bench.readable()
        assert not bench.loop.watched
        assert bench.loop.tick() == FULL_S
    assert [line.getMessage().partition(":")[0] for line in caplog.records] == ["cannot accept"]
