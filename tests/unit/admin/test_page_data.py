"""The data shown by the live page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rlproxy.admin.history import ROUND_TRIP, History
from rlproxy.admin.page_data import PREFIXES, label, view
from rlproxy.observability.hot_keys import Summary, Top
from rlproxy.observability.key_prefixes import HITS, REFUSED
from rlproxy.observability.metrics import Samples
from rlproxy.observability.policy_counters import PolicyHits
from rlproxy.observability.snapshots import Snapshot, UpstreamState
from rlproxy.ratelimit.outcomes import OUTCOMES

from tests.unit.observability.histograms import times

LANE = ("default", 0, "hits")
KEY = b"$7\r\nuser:42\r\n"
FACTS = Snapshot(
    0,
    age_s=0.1,
    top=Top(Summary({KEY: 5}), Summary({KEY: 2}, rules={KEY: b"login"}), 60.0),
    pid=7,
    listen=["127.0.0.1:6380"],
    on_upstream_failure="allow",
    upstream=UpstreamState("redis:6379", "Redis 8", changed=1995.0),
    lanes={LANE: [1, 1, 3]},
    addresses=[("10.0.0.1", 3), ("10.0.0.2", 2)],
)
SAMPLES: Samples = {
    "rlproxy_hits_total": {("gcra", "admitted"): 5.0, ("gcra", "refused"): 2.0},
    "rlproxy_clients": {(): 4.0},
    "rlproxy_start_time_seconds": {(): 1000.0},
    "rlproxy_process_cpu_seconds_total": {("1",): 1.5},
}


def with_policies() -> History:
    """Moments three seconds apart, between which two policies were hit."""
    recent, none = History(), [0] * len(OUTCOMES)
    recent.add(0.0, {}, {})
    login, new = list(none), list(none)
    login[OUTCOMES.index("admitted")], login[OUTCOMES.index("refused")] = 4, 3
    new[OUTCOMES.index("admitted")], new[OUTCOMES.index("shadow_refused")] = 1, 2
    policies = {"new": PolicyHits(True, new), "login": PolicyHits(False, login)}
    recent.add(3.0, {}, policies)
    return recent


def made(seen: list[Snapshot], samples: Samples = SAMPLES, recent: History | None = None) -> Any:
    found = view(2000.0, seen, samples, recent or with_policies(), ["a\n"])
    return json.loads(json.dumps(found, allow_nan=False))


def test_prefixes_are_those_with_most_hits() -> None:
    assert made([FACTS])["prefixes"] == []
    samples: Samples = {"rlproxy_prefix_hits_total": {("p19", REFUSED): 4.0}}
    for number in range(20):
        samples["rlproxy_prefix_hits_total"][f"p{number:02}", HITS] = float(number)
    found = made([FACTS], samples)["prefixes"]
    assert len(found) == PREFIXES
    assert found[:2] == [["p19", 19, 4], ["p18", 18, 0]]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"user:42", "user:42"),
        ("größe:Ω 漢字".encode(), "größe:Ω 漢字"),
        (b"a\r\nb\x00\x1b[31m", "a\\x0d\\x0ab\\x00\\x1b[31m"),
        (b"\xff\xfe", "\\xff\\xfe"),
    ],
)
def test_names_become_lines_of_bounded_length(text: bytes, line: str) -> None:
    assert label(text) == line


def test_data_of_one_worker() -> None:
    found = made([FACTS])
    assert found["hits"] == [5.0, 2.0, *[0.0] * (len(OUTCOMES) - 2)]
    assert found["clients"] == 4.0
    assert found["waiting"] is None
    assert found["busiest"] == [["user:42", 5, 0]]
    assert found["policies"] == [["login", "enforced", 2.33, 1, 0], ["new", "shadow", 1, 0, 0.67]]
    assert found["refused"] == [["user:42", 2, 0, "login"]]
    assert found["lanes"] == [["default", 0, "hits", 1, 1, 3]]
    assert found["started"] == 1000.0
    assert (found["not_ready"], found["rejected"]) == ([], [r"a\x0a"])
    (worker,) = found["workers"]
    assert worker == {
        "number": 1,
        "pid": 7,
        "age": 0.1,
        "fresh": True,
        "draining": False,
        "cpu": 1.5,
        "memory": None,
        "files": None,
    }


def test_several_workers_are_merged() -> None:
    away = UpstreamState("redis:6379", up=False, changed=1998.0, why="refused")
    other = replace(FACTS, upstream=away, lanes={LANE: [2, 1, 3]})
    found = made([FACTS, replace(other, worker=1), Snapshot(2)])
    assert found["upstream"]["up"] is False
    assert found["upstream"]["why"] == "refused"
    assert (found["upstream"]["seen_by"], found["upstream"]["workers"]) == (1, 2)
    assert found["addresses"] == [["10.0.0.1", 6], ["10.0.0.2", 4]]
    assert found["lanes"] == [["default", 0, "hits", 3, 2, 6]]
    assert [worker["fresh"] for worker in found["workers"]] == [True, True, False]


def test_first_worker_without_redis_determines_the_outages_start() -> None:
    seen = []
    for number, changed in enumerate((1998.0, 1939.5, 1970.0)):
        away = UpstreamState("redis:6379", up=False, changed=changed, why=f"why {number}")
        seen.append(replace(FACTS, worker=number, upstream=away))
    found = made(seen)["upstream"]
    assert (found["up"], found["seen_by"], found["workers"]) == (False, 0, 3)
    assert (found["changed"], found["why"]) == (1940, "why 1")
    never = replace(FACTS, upstream=UpstreamState("redis:6379"))
    assert made([never])["upstream"]["changed"] is None


def test_round_trips_are_omitted_during_an_outage() -> None:
    recent = History()
    recent.add(1999.0, {}, {})
    took: Samples = {ROUND_TRIP: times((9,), 0.001)}
    recent.add(2000.0, took, {})
    here = FACTS
    away = replace(FACTS, worker=1, upstream=replace(FACTS.upstream, up=False))
    assert None not in made([here], took, recent)["times"]["round_trip"]
    assert None not in made([here, away], took, recent)["times"]["round_trip"]
    assert made([away], took, recent)["times"]["round_trip"] == [None, None]
