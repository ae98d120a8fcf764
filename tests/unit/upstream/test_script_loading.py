"""When lanes stop, when the control connection loads, and when all go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.script_loading import HOLD_S, REST, ScriptLoading


class World:
    """A Loading, its lanes, its control connection, and its timers."""

    def __init__(self, timeout_s: float = 0.0) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []
        timeouts = HitTimeouts(CircuitBreaker(), timeout_s)
        self.now = 0.0
        self.loading = ScriptLoading(
            timeouts, lambda limit_s, then: self.timers.append((limit_s, then)), lambda: self.now
        )
        self.busy = False  # a lane has a call under way
        self.wanted = 0
        self.over = 0
        self.loading.drained = lambda: not self.busy
        self.loading.on_wanted = self.on_wanted
        self.loading.on_over = self.on_over

    def on_wanted(self) -> None:
        self.wanted += 1

    def on_over(self) -> None:
        self.over += 1

    def load(self) -> None:
        """A lane that was answered NOSCRIPT."""
        self.loading.load()

    def seen(self) -> tuple[bool, int, int]:
        """Whether lanes have stopped, and how often the rest happened since."""
        seen = (self.loading.held, self.wanted, self.over)
        self.wanted = self.over = 0
        return seen


@pytest.fixture
def world() -> World:
    made = World()
    made.loading.connected()
    assert made.seen() == (True, 1, 0)
    made.loading.over(True)
    assert made.loading.settled and made.loading.loaded
    assert made.seen() == (False, 0, 1)
    return made


def test_the_scripts_are_loaded_once_nothing_is_under_way(world: World) -> None:
    world.busy = True
    world.load()
    world.load()
    assert world.seen() == (True, 0, 0)
    world.loading.look()
    assert world.seen() == (True, 0, 0)
    world.busy = False
    world.loading.look()
    world.loading.look()
    assert world.seen() == (True, 1, 0)
    world.loading.over(True)
    assert world.seen() == (False, 0, 1)
    assert world.loading.loaded


def test_where_none_can_be_loaded_lanes_stop_until_they_are_drained(world: World) -> None:
    world.loading.over(False, True)
    assert world.seen() == (False, 0, 1)
    world.busy = True
    world.load()
    assert world.seen() == (True, 0, 0)
    assert world.loading.refused
    world.busy = False
    world.loading.look()
    assert world.seen() == (False, 0, 1)
    assert not world.loading.refused and not world.loading.loaded


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(0.0, HOLD_S), (0.2, 0.1), (60.0, HOLD_S)])
def test_the_pause_has_a_limit(timeout_s: float, limit_s: float) -> None:
    world = World(timeout_s)
    world.loading.over(True)
    assert world.seen() == (False, 0, 1)
    world.loading.connected()
    world.load()
    ((delay_s, give_up),) = world.timers
    assert delay_s == limit_s
    assert world.seen() == (True, 1, 0)
    give_up()
    assert world.seen() == (False, 0, 1)
    assert not world.loading.loaded
    world.loading.over(True)  # late
    assert world.loading.loaded
    assert world.seen() == (False, 0, 1)
    world.load()
    give_up()  # of a pause that is over
    assert world.seen() == (True, 1, 0)


def test_a_lane_that_is_not_drained_delays_the_others_no_longer_than_that(world: World) -> None:
    world.busy = True
    world.load()
    _, give_up = world.timers[-1]
    give_up()
    # Between two calls under way no script may appear: nothing is loaded until the next pause.
    assert world.seen() == (False, 0, 1)
    give_up()
    assert world.seen() == (False, 0, 0)
    delay_s, try_again = world.timers[-1]
    assert delay_s == REST * HOLD_S
    try_again()
    assert world.seen() == (True, 0, 0)
    world.busy = False
    world.loading.look()
    assert world.seen() == (True, 1, 0)


def test_no_pause_begins_again_while_the_control_connection_is_lost(world: World) -> None:
    world.busy = True
    world.load()
    world.timers[-1][1]()
    _, try_again = world.timers[-1]
    world.loading.lost()
    world.seen()
    try_again()
    assert world.seen() == (False, 0, 0)


def test_a_control_connection_that_is_away_is_waited_for(world: World) -> None:
    world.loading.lost()
    assert not world.loading.settled
    world.load()
    assert world.seen() == (True, 1, 0)
    world.loading.connected()
    assert world.seen() == (True, 1, 0)
    world.loading.over(True)
    assert world.seen() == (False, 0, 1)


def test_and_that_can_not_come_back_is_not(world: World) -> None:
    world.loading.lost()
    world.load()
    world.loading.over(False)  # an attempt to connect failed
    assert world.seen() == (False, 1, 1)
    world.load()
    assert world.seen() == (False, 0, 1)


def test_lanes_that_go_on_may_begin_anew(world: World) -> None:
    again = [world.load]
    world.loading.on_over = lambda: again.pop()() if again else world.on_over()
    world.load()
    world.loading.over(True)
    assert world.seen() == (True, 2, 0)
    world.loading.over(True)
    assert world.seen() == (False, 0, 1)


def test_a_control_connection_that_is_lost_has_loaded_nothing(world: World) -> None:
    world.loading.lost()
    assert not world.loading.loaded
    world.loading.over(False, True)
    world.loading.lost()  # the next server may allow it
    assert not world.loading.refused


# -- a SCRIPT LOAD that takes long ----------------------------------------------------------------


class SlowLoads(World):
    """A server on which SCRIPT LOAD takes 0.8 s, and whose scripts are flushed every 10 ms.

    A lane notices each flush within the step of 10 ms.
    """

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.ends: list[float] = []  # of the SCRIPT LOAD under way
        self.held_s = 0.0

    def on_wanted(self) -> None:
        if not self.ends:
            self.ends.append(self.now + self.takes_s)

    def run(self, seconds: float) -> None:
        step_s = 0.01
        timers: list[tuple[float, Callable[[], None]]] = []
        while self.now < seconds:
            self.loading.load()
            timers += [(self.now + delay_s, then) for delay_s, then in self.timers]
            self.timers.clear()
            self.held_s += step_s if self.loading.held else 0.0
            self.now += step_s
            for at, then in [each for each in timers if each[0] <= self.now]:
                timers.remove((at, then))
                then()
            if self.ends and self.ends[0] <= self.now:
                self.ends.clear()
                self.loading.over(True)


@pytest.mark.parametrize("takes_s", [0.05, 0.4, 0.8, 3.0])
def test_lanes_wait_for_slow_loads_at_most_a_tenth_of_the_time(takes_s: float) -> None:
    world = SlowLoads(takes_s)
    world.loading.connected()
    world.run(100.0)
    assert 5.0 < world.held_s <= 10.0 + HOLD_S


def test_calls_bring_their_scripts_while_lanes_do_not_wait(world: World) -> None:
    world.load()
    world.now = 0.3
    world.loading.over(True)
    assert world.seen() == (False, 1, 1)
    world.busy = True
    world.now = 0.3 + REST * 0.3 - 0.001
    world.load()
    assert world.seen() == (True, 0, 0)  # calls under way are waited for all the same
    world.busy = False
    world.loading.look()
    assert world.seen() == (False, 1, 1)
    assert not world.loading.loaded
    world.loading.over(True)
    assert world.loading.loaded
    world.seen()
    world.now = 0.3 + REST * 0.3
    world.load()
    assert world.seen() == (True, 1, 0)
