"""Liveness and readiness of the proxy, by its workers' snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rlproxy.admin.probes import not_alive, not_ready, ready_text
from rlproxy.observability.snapshots import SILENT_S, Snapshot, UpstreamState

UP = UpstreamState("redis:6379")
AWAY = UpstreamState("redis:6379", up=False, why="connection refused", problem="refused")
GOOD = Snapshot(0, pid=42, on_upstream_failure="error", upstream=UP)


def seen(worker: int = 0, age_s: float = 0.1, **facts: Any) -> Snapshot:
    return replace(GOOD, worker=worker, age_s=age_s, **facts)


def test_worker_with_a_recent_snapshot_is_alive() -> None:
    assert not_alive([seen(0), seen(1, SILENT_S)]) == []


def test_silent_worker_is_named() -> None:
    assert not_alive([seen(0), seen(1, 3.21), Snapshot(2)]) == [
        "worker 2 (process 42) last reported 3.2 s ago",
        "worker 3 has not reported yet",
    ]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"draining": True}, "the proxy is ending: it takes no new clients"),
        ({"upstream": AWAY}, "Redis at redis:6379 does not answer (connection refused)"),
    ],
)
def test_reason_why_a_worker_is_not_ready(facts: dict[str, Any], reason: str) -> None:
    assert not_ready([seen(0, **facts)]) == [reason]
    assert not_ready([seen(0, **facts), seen(1, **facts)]) == [reason]
    assert not_ready([seen(0, **facts), seen(1)]) == []  # one ready worker suffices


@pytest.mark.parametrize("kind", ["login", "scripts"])
def test_incomplete_control_connection_is_degraded(kind: str) -> None:
    facts: dict[str, Any] = {"upstream": replace(UP, kind=kind, problem="it lacks something")}
    assert not_ready([seen(0, **facts)]) == []
    text = "degraded: Redis at redis:6379: it lacks something"
    assert ready_text([seen(0), seen(1, **facts)]) == text
    assert ready_text([seen(0), seen(1, 9.0, **facts)]) == "ok"


@pytest.mark.parametrize("kind", ["unreachable", "cluster", "sentinel"])
def test_unusable_server_is_not_ready(kind: str) -> None:
    facts: dict[str, Any] = {"upstream": replace(UP, kind=kind, problem="it is of no use")}
    assert not_ready([seen(0, **facts)]) == ["Redis at redis:6379: it is of no use"]
    assert not_ready([seen(0, **facts)], ignore_redis=True) == []


@pytest.mark.parametrize("failure", ["error", "allow", "deny"])
def test_server_at_its_client_limit_counts_as_unreachable(failure: str) -> None:
    full = replace(UP, kind="full", problem="max number of clients reached")
    facts: dict[str, Any] = {"upstream": full, "on_upstream_failure": failure}
    why = "Redis at redis:6379: max number of clients reached"
    assert not_ready([seen(0, **facts)]) == ([why] if failure == "error" else [])
    assert ready_text([seen(0, **facts)]) == f"degraded: {why}"


def test_reply_to_hits_without_redis_is_reported() -> None:
    text = "ok, but Redis does not answer: hits are"
    for age_s, failure, expected in (
        (0.1, "error", "ok"),
        (0.1, "allow", f"{text} admitted"),
        (0.1, "deny", f"{text} refused"),
        (9.0, "deny", "ok"),
    ):
        away = seen(1, age_s, upstream=AWAY, on_upstream_failure=failure)
        assert ready_text([seen(0), away]) == expected
