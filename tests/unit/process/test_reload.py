"""The reload: what is put in force, logged, and published."""

from __future__ import annotations

import time

import pytest
from rlproxy.config.config import Config, ConfigError
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Reloaded
from rlproxy.process.reload import MAX_MISTAKES, Apply, reload

OLD = Config(max_clients=1)
NEW = Config(max_clients=2, workers=2)
MADE = Config(max_clients=2)  # the number of workers takes a restart


class Reading:
    """A process with settings, and what it publishes and logs at a reload."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self._caplog = caplog
        self.memory = SharedMemory(1)
        self.applied: list[Config] = []

    def reload(self, new: Config | list[str], apply: Apply | None = None) -> Config:
        """Reload; `new` are settings, or mistakes in the file."""

        def read() -> Config:
            if isinstance(new, list):
                raise ConfigError(new)
            return new

        self._caplog.clear()
        return reload(OLD, apply or self._apply, read, self.memory)

    def _apply(self, config: Config) -> None:
        self.applied.append(config)

    def outcome(self) -> Reloaded:
        return self.memory.latest(self.memory.parent) or Reloaded()

    def log(self) -> list[str]:
        return self._caplog.messages


def test_doubtful_settings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(caplog)
    reading.reload(Config(max_clients=1, deny_command=("nothing",)))
    assert reading.log()[-1].startswith("check the settings: --deny-command nothing: ")


def test_settings_are_applied_published_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(caplog)
    before = time.monotonic()
    assert reading.outcome().began < before
    assert reading.reload(NEW) == MADE
    assert reading.applied == [MADE]
    assert (reading.outcome().mistakes, reading.outcome().later) == ([], ["--workers"])
    assert before <= reading.outcome().began <= time.monotonic()
    text = "SIGHUP: settings and certificates were read again; options changed: --max-clients"
    assert reading.log() == [text, "SIGHUP: --workers has changed; that takes a restart"]


def test_mistakes_leave_the_settings_and_are_published(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(caplog)
    assert reading.reload(["one", "two"]) is OLD
    assert reading.applied == []
    assert reading.outcome().mistakes == ["one", "two"]
    assert reading.log() == [f"SIGHUP: {each}; all stays as it was" for each in ("one", "two")]
    many = [f"mistake {number}" for number in range(MAX_MISTAKES + 2)]
    reading.reload(many)
    assert reading.outcome().mistakes == [*many[:MAX_MISTAKES], "2 more: see the log"]
    assert len(reading.log()) == len(many)
    reading.reload(NEW)
    assert reading.outcome().mistakes == []


def test_settings_that_can_not_be_applied_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(caplog)

    def apply(config: Config) -> None:
        raise ConfigError(["too much"])

    assert reading.reload(NEW, apply) is OLD
    assert reading.outcome().mistakes == ["too much"]
    assert reading.log() == ["SIGHUP: too much; all stays as it was"]
