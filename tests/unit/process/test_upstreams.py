"""upstreams: the upstream's state in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rlproxy.config.urls import parse_upstream
from rlproxy.observability.metrics import FULL, SCRIPTS, UNREACHABLE
from rlproxy.observability.snapshots import UpstreamState
from rlproxy.process.upstreams import describe_upstream

URL = "redis://:secret@h"


STATE = UpstreamState(loaded=True, reached=True, settled=True)
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
        (*("embedded:", "Redis 7", "", {}), "Redis 7, embedded (its data ends with this process)"),
        (
            *("embedded:cluster", "Redis 7", "", {}),
            "Redis 7, embedded cluster of 3 masters (its data ends with this process)",
        ),
        (*("embedded:", "", "", {}), "Valkey, embedded (its data ends with this process)"),
        (
            *("embedded:", "", "", {"settled": False}),
            "Valkey, embedded (its data ends with this process)",
        ),
        (*("redis://h", "", "", {"settled": False}), f"h:6379: {NO_ANSWER} (nothing within 2 s)"),
        (
            *("redis://h", "", "", {"settled": False, "reached": False}),
            "h:6379: no connection within 2 s; retrying",
        ),
        (URL, "", "", {"kind": UNREACHABLE, "problem": "refused"}, AWAY),
        (*(URL, "", "", {"kind": FULL, "problem": "refused"}), AWAY),
    ],
)
def test_the_state_of_the_upstream(
    url: str, server: str, now: str, state: dict[str, Any], text: str
) -> None:
    found = replace(STATE, server=server, now=now, **state)
    upstream = parse_upstream(url)
    assert describe_upstream(upstream, found) == text
