"""outage_log: one line for an outage, by what notices it first, and one for its end."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.upstream.connector import Target
from rlproxy.upstream.outage_log import LOGGED_S, MAX_LOGGED, OutageLog

SILENT = "Redis at h:1 does not answer (down); hits are answered by --on-upstream-failure"
UNREACHABLE = "cannot reach Redis at h:1: down; retrying"
BACK = "Redis at h:1 is back"
WORKS = "Redis at h:1: the problem is over"
REPLACED = "Redis at h:1: the proxy's own connection was lost; a new one works"
LEFT = "Redis at h:1 is no master any more; hits answered without it: 0"
FULL = "Redis at h:1: full"


class Server:
    """A server, as its circuit and its control connection see it: one event a second."""

    def __init__(self) -> None:
        self.now = 100.0
        circuit = CircuitBreaker()
        target = cast(Target, SimpleNamespace(where="h:1"))
        log = OutageLog(target, circuit, lambda: self.now)
        circuit.on_open, circuit.on_close = log.circuit_opened, log.circuit_closed
        self.events: dict[str, Callable[[], None]] = {
            "opens": lambda: circuit.connect_failed(self.now, "down"),
            "closes": lambda: circuit.replied(self.now),
            "refused": lambda: log.control_failed("down", True),
            "fails": lambda: log.control_failed("down", False),
            "lost": log.control_lost,
            "works": lambda: log.control_works(""),
            "leaves": lambda: log.follow(False),
            "serves": lambda: log.follow(True),
            "full": lambda: log.control_works("full"),
        }

    def see(self, events: str) -> None:
        for event in events.split():
            self.now += 1.0
            self.events[event]()


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ("opens closes works", [SILENT, BACK]),
        ("refused works", []),
        ("fails fails works", [UNREACHABLE, WORKS]),
        ("fails opens closes fails", [UNREACHABLE, BACK, UNREACHABLE]),
        ("full full fails full works works", [FULL, UNREACHABLE, FULL, WORKS]),
        ("lost works works", [REPLACED]),
        ("opens lost closes works", [SILENT, BACK]),
        ("lost fails opens closes works", [UNREACHABLE, BACK]),
        ("opens leaves leaves closes works serves", [SILENT, LEFT]),
        ("fails leaves works full serves full works", [UNREACHABLE, LEFT, FULL, WORKS]),
        ("leaves opens lost serves closes works", [SILENT, BACK]),
        ("full leaves full lost works serves works", [FULL, LEFT]),
        ("opens closes lost fails works works", [SILENT, BACK, UNREACHABLE, WORKS]),
    ],
)
def test_each_is_logged_once(
    caplog: pytest.LogCaptureFixture, events: str, lines: list[str]
) -> None:
    Server().see(events)
    assert [line.partition(" after")[0] for line in caplog.messages] == lines


def test_a_few_outages_a_minute_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.see("opens closes " * (MAX_LOGGED + 3) + "fails lost works")
    assert len(caplog.messages) == 2 * MAX_LOGGED
    server.now += LOGGED_S
    server.see("fails works " + "lost works " * MAX_LOGGED)
    assert caplog.messages[2 * MAX_LOGGED :] == [UNREACHABLE, WORKS] + [REPLACED] * (MAX_LOGGED - 1)
