"""banner: the upstream's state in words, and the lines at the start."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.urls import Address, parse_upstream
from rlproxy.observability import logs
from rlproxy.observability.metrics import FULL, SCRIPTS, UNREACHABLE
from rlproxy.process.admin_process import AdminProcess
from rlproxy.process.banner import describe_upstream, print_banner
from rlproxy.process.upstreams import State

URL = "redis://:secret@h"


STATE = State(loaded=True, kind="", problem="", reached=True, settled=True)
NO_ANSWER = "it accepts connections, but does not answer as Redis does"
AWAY = "h:6379: refused; retrying"


@pytest.mark.parametrize(
    ("url", "server", "now", "state", "text"),
    [
        (URL, "Redis 7", "", {}, "Redis 7 at h:6379"),
        (URL, "", "", {}, "a server at h:6379"),
        ("rediss://h", "Redis 7", "", {}, "Redis 7 at h:6379 (TLS)"),
        (
            *("redis+sentinel://s/m", "Redis 7", "now a:1", {}),
            "Redis 7 at sentinel s:26379/m (now a:1)",
        ),
        (
            *(URL, "Redis 7", "", {"kind": SCRIPTS, "problem": "no right"}),
            "Redis 7 at h:6379: no right",
        ),
        (
            *("embedded:", "Redis 7", "", {}),
            "Redis 7, embedded (its data ends with this process)",
        ),
        (
            *("embedded:cluster", "Redis 7", "", {}),
            "Redis 7, embedded cluster of 3 masters (its data ends with this process)",
        ),
        (
            *("embedded:", "", "", {}),
            "Valkey, embedded (its data ends with this process)",
        ),
        (
            *("embedded:", "", "", {"settled": False}),
            "Valkey, embedded (its data ends with this process)",
        ),
        (
            *("redis://h", "", "", {"settled": False}),
            f"h:6379: {NO_ANSWER} (nothing within 2 s)",
        ),
        (
            *("redis://h", "", "", {"settled": False, "reached": False}),
            "h:6379: no connection within 2 s; retrying",
        ),
        (URL, "", "", {"kind": UNREACHABLE, "problem": "refused"}, AWAY),
        (
            *(URL, "", "", {"kind": FULL, "problem": "refused"}),
            AWAY,
        ),
    ],
)
def test_the_state_of_the_upstream(
    url: str, server: str, now: str, state: dict[str, Any], text: str
) -> None:
    found = STATE._replace(now=now, **state)
    upstream = parse_upstream(url)
    assert describe_upstream(upstream, server, found) == text


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
    plain = record.msg.fields[logs.PLAIN]  # type: ignore[union-attr]
    assert plain[1:] == [
        f"  listening on  {address}, b:2",
        "  in front of   Redis 7 at h",
        "  served by     2 workers",
        "  admin         http://a/",
        f"  try           {command}",
    ]
    assert record.msg.fields["listen"] == [str(address), "b:2"]  # type: ignore[union-attr]
