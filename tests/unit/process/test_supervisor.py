"""When a process that ended is started again, and settings that workers can not get."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address
from rlproxy.observability import shared_memory
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Reloaded
from rlproxy.process.resources import Resources
from rlproxy.process.restart_policy import LASTS_S, MAX_FAILURES, PAUSES_S, RestartPolicy, ending
from rlproxy.process.supervisor import Supervisor


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_at_once_the_first_time_and_later_and_later() -> None:
    clock = Clock()
    restarts = RestartPolicy(clock)
    pauses = []
    for _ in range(10):
        restarts.started()
        clock.now += LASTS_S / 2
        pauses.append(restarts.ended())
    assert pauses == [*PAUSES_S, 5, 5]


def test_who_ran_for_a_while_begins_anew() -> None:
    clock = Clock()
    restarts = RestartPolicy(clock)
    for _ in range(MAX_FAILURES):
        restarts.started()
        restarts.ended()
    assert restarts.hopeless()
    clock.now += 10 * LASTS_S  # no worker ran in this time, so it does not count
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
    config = Config((Address("127.0.0.1", 0),), workers=2)
    read = partial(replace, config, max_clients=7)
    resources = Resources(config, read)
    supervisor = Supervisor(config, resources)
    memory = resources.memory
    supervisor._accepted = SharedMemory(1)
    monkeypatch.setattr(shared_memory, "HALF", 300)
    supervisor.reload()
    resources.close()
    assert supervisor._config is config
    outcome: Reloaded = memory.latest(memory.parent)
    assert outcome.mistakes == ["the settings take more than 16 MB"]
