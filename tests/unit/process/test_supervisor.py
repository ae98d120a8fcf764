"""Which worker gets the next client, and when one that ended is started again."""

from __future__ import annotations

import pytest
from rlproxy.config.config import Config
from rlproxy.observability import shared_memory
from rlproxy.observability.shared_memory import Reloaded, SharedMemory
from rlproxy.process.balancer import AWAY, least_loaded
from rlproxy.process.restart_policy import (
    LASTS_S,
    MAX_FAILURES,
    PAUSE_MOST_S,
    RestartPolicy,
    ending,
)
from rlproxy.process.supervisor import Supervisor


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("clients", "in_flight", "own", "chosen"),
    [
        ([0, 0], [0, 0], 1, 1),  # equals: nobody is bothered
        ([3, 2], [0, 0], 0, 1),
        ([2, 3], [0, 0], 0, 0),
        ([3, 2], [0, 1], 0, 0),  # what lies in an inbox counts
        ([3, 3], [1, 0], 0, 1),  # one's own, too
        ([5, 4, 2, 3], [0, 0, 3, 0], 0, 3),
        ([1, AWAY], [0, 0], 0, 0),
        ([1, AWAY, 0], [0, 0, 0], 0, 2),
        ([AWAY, 7], [0, 0], 0, 1),  # not to oneself, when one is away
        ([AWAY, AWAY], [0, 0], 0, None),
        ([2, 1, 1], [0, 0, 0], None, 1),  # nobody's own: the first of the least
        ([AWAY, AWAY], [0, 0], None, None),
    ],
)
def test_who_serves_the_next_client(
    clients: list[int], in_flight: list[int], own: int | None, chosen: int | None
) -> None:
    assert least_loaded(clients, in_flight.__getitem__, own) == chosen


def test_inboxes_are_looked_at_only_where_it_matters() -> None:
    looked: list[int] = []

    def in_flight(worker: int) -> int:
        looked.append(worker)
        return 0

    assert least_loaded([1, 9, AWAY, 1, 5], in_flight, 0) == 0
    assert looked == [0]


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_clients_that_come_anywhere_are_spread_evenly(workers: int) -> None:
    clients = [0] * workers
    for number in range(100):
        own = number * number % workers  # where the kernel put it
        chosen = least_loaded(clients, lambda _: 0, own)
        assert chosen is not None
        clients[chosen] += 1
        assert max(clients) - min(clients) <= 1


def test_at_once_the_first_time_and_later_and_later() -> None:
    clock = Clock()
    restarts = RestartPolicy(clock)
    pauses = []
    for _ in range(10):
        restarts.started()
        clock.now += LASTS_S / 2
        pauses.append(restarts.ended())
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_MOST_S, PAUSE_MOST_S, PAUSE_MOST_S]


def test_who_ran_for_a_while_begins_anew() -> None:
    clock = Clock()
    restarts = RestartPolicy(clock)
    for _ in range(MAX_FAILURES):
        restarts.started()
        restarts.ended()
    assert restarts.hopeless()
    clock.now += 10 * LASTS_S  # not running meanwhile: that counts for nothing
    assert restarts.hopeless()
    restarts.started()
    assert restarts.hopeless()
    clock.now += LASTS_S
    assert not restarts.hopeless()
    assert restarts.ended() == 0
    assert not restarts.hopeless()


def test_who_cannot_even_be_started_is_tried_later_and_later() -> None:
    clock = Clock()
    restarts = RestartPolicy(clock)
    restarts.started()
    clock.now += LASTS_S
    assert [restarts.ended() for _ in range(3)] == [0, 0.1, 0.2]
    clock.now += LASTS_S
    assert restarts.ended() == 0.4


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with exit code 0"),
        (1, "ended with exit code 1"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_how_it_ended(code: int, text: str) -> None:
    assert ending(code) == text


def test_settings_that_the_workers_can_not_get_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(workers=2)
    supervisor = Supervisor(config, lambda *_: None, lambda: Config(workers=2, max_clients=7))
    supervisor._memory, supervisor._accepted = SharedMemory(2), SharedMemory(1)
    monkeypatch.setattr(shared_memory, "HALF", 300)
    supervisor.reload()
    assert supervisor._config is config
    outcome: Reloaded = supervisor._memory.latest(supervisor._memory.parent)
    assert outcome.mistakes == ["the settings take more than 16 MB"]
