"""banner: the upstream's state in words, and the lines at the start."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.urls import Address, parse_upstream
from rlproxy.observability import logs
from rlproxy.observability.metrics import FULL, SCRIPTS, UNREACHABLE
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.banner import describe_upstream, log_end, print_banner
from rlproxy.process.wiring import Wiring

URL = "redis://:secret@h"


def described(url: str, server: str = "Redis 7", **state: object) -> str:
    """The description, with `state` as attributes of all objects that it comes from."""
    made = SimpleNamespace(kind="", problem="", reached=True, settled=True)
    made.master = ""
    vars(made).update(state)
    made.state = lambda: made
    made.now = lambda: made.master
    wiring = SimpleNamespace(server=server, upstream=made)
    return describe_upstream(parse_upstream(url), cast("Wiring", wiring))


NO_ANSWER = "it accepts connections, but does not answer as Redis does"
AWAY = "h:6379: refused; retrying"


@pytest.mark.parametrize(
    ("url", "state", "text"),
    [
        (URL, {}, "Redis 7 at h:6379"),
        (URL, {"server": ""}, "a server at h:6379"),
        ("rediss://h", {}, "Redis 7 at h:6379 (TLS)"),
        (
            "redis+sentinel://s/m",
            {"master": "now a:1"},
            "Redis 7 at sentinel s:26379/m (now a:1)",
        ),
        (URL, {"kind": SCRIPTS, "problem": "no right"}, "Redis 7 at h:6379: no right"),
        ("embedded:", {}, "Redis 7, embedded (its data ends with this process)"),
        (
            "embedded:cluster",
            {},
            "Redis 7, embedded cluster of 3 masters (its data ends with this process)",
        ),
        ("embedded:", {"server": ""}, "Valkey, embedded (its data ends with this process)"),
        (
            "redis://h",
            {"settled": False},
            f"h:6379: {NO_ANSWER} (nothing within 2 s)",
        ),
        (
            "redis://h",
            {"settled": False, "reached": False},
            "h:6379: no connection within 2 s; retrying",
        ),
        (URL, {"kind": UNREACHABLE, "problem": "refused"}, AWAY),
        (URL, {"kind": FULL, "problem": "refused"}, AWAY),
    ],
)
def test_the_state_of_the_upstream(url: str, state: dict[str, object], text: str) -> None:
    assert described(url, **state) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "command"),
    [
        (Address("127.0.0.1", 1), "redis-cli -p 1 RL.HIT user:42 5 60"),
        (Address("127.0.0.1", 1, tls=True), "redis-cli --tls -p 1 RL.HIT user:42 5 60"),
        (Address(path="/s"), "redis-cli -s /s RL.HIT user:42 5 60"),
    ],
)
def test_the_banner(caplog: pytest.LogCaptureFixture, address: Address, command: str) -> None:
    caplog.set_level(logging.INFO)
    admin = cast("AdminProcess", SimpleNamespace(url="http://a/"))
    print_banner([address, Address("b", 2)], "Redis 7 at h", 2, admin)
    (record,) = caplog.records
    plain = record.msg[logs.PLAIN]  # type: ignore[index]
    assert plain[1:] == [
        f"  listening on  {address}, b:2",
        "  in front of   Redis 7 at h",
        "  served by     2 workers",
        "  admin         http://a/",
        f"  try           {command}",
    ]
    assert record.msg["listen"] == [str(address), "b:2"]  # type: ignore[index]


def test_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_end(None)
    assert caplog.messages == ["stopped; it served for 0.0 s"]
