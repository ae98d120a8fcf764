"""scheduler: turns in the order of the calls, bounded per tick."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.fairness.budget import TICK_WORK, Budget, Scheduler

Turn = Callable[[], None]


class Loop:
    """An event loop whose ticks the test runs.

    had: names of the clients that had a turn, in order.
    """

    def __init__(self) -> None:
        self.budget = Budget(64)
        self.soon: list[Turn] = []
        self.had: list[str] = []
        self.scheduler = Scheduler(self.budget, self.soon.append)

    def client(self, name: str, *, work: int = 0) -> Turn:
        """Return the turn of a client that spends `work` units."""

        def turn() -> None:
            self.had.append(name)
            self.budget.work += work

        return turn

    def tick(self) -> list[str]:
        """Run one tick. Returns the clients that had a turn in it."""
        (turn,) = self.soon
        self.soon.clear()
        before = len(self.had)
        turn()
        return self.had[before:]


# -- the queue for the next tick -------------------------------------------------------------------


def test_clients_have_their_turns_in_the_order_of_the_calls() -> None:
    loop = Loop()
    for name in "abc":
        loop.scheduler.queue(loop.client(name))
    assert loop.had == []
    assert loop.scheduler.serving
    assert loop.tick() == ["a", "b", "c"]
    assert not loop.scheduler.serving
    assert loop.soon == []


def test_a_tick_ends_when_its_work_is_spent() -> None:
    loop = Loop()
    for name in "abcde":
        loop.scheduler.queue(loop.client(name, work=TICK_WORK // 2))
    assert loop.tick() == ["a", "b"]
    assert loop.scheduler.serving
    assert loop.tick() == ["c", "d"]
    assert loop.tick() == ["e"]
    assert not loop.scheduler.serving


def test_a_client_has_one_turn_per_tick() -> None:
    loop = Loop()

    def again() -> None:
        loop.had.append("a")
        if len(loop.had) < 4:
            loop.scheduler.queue(again)

    loop.scheduler.queue(again)
    loop.scheduler.queue(loop.client("b"))
    assert loop.tick() == ["a", "b"]
    assert loop.tick() == ["a"]
    assert loop.tick() == ["a"]
    assert not loop.scheduler.serving


def test_a_client_that_queues_again_waits_behind_the_others() -> None:
    loop = Loop()

    def greedy() -> None:
        loop.had.append("greedy")
        loop.budget.work += TICK_WORK
        loop.scheduler.queue(greedy)

    loop.scheduler.queue(greedy)
    loop.scheduler.queue(loop.client("b"))
    assert loop.tick() == ["greedy"]
    assert loop.tick() == ["b", "greedy"]


def test_a_turn_that_fails_takes_no_other_clients_turn() -> None:
    loop = Loop()

    def broken() -> None:
        raise ZeroDivisionError

    for turn in (broken, loop.client("b"), broken):
        loop.scheduler.queue(turn)
    with pytest.raises(ZeroDivisionError):
        loop.tick()
    with pytest.raises(ZeroDivisionError):
        loop.tick()
    assert loop.had == ["b"]
    loop.scheduler.queue(loop.client("c"))
    assert loop.tick() == ["c"]


@pytest.mark.parametrize("count", [1, 5, 100])
def test_one_tick_is_scheduled_for_any_number_of_clients(count: int) -> None:
    loop = Loop()
    for number in range(count):
        loop.scheduler.queue(loop.client(str(number)))
    assert len(loop.soon) == 1
