"""stats: the text of RL.STATS from the samples of several workers, and the requests for Redis."""

from __future__ import annotations

from dataclasses import replace

from rlproxy.observability.counters import TIMES_S
from rlproxy.observability.hot_keys import NO_TOP
from rlproxy.observability.metrics import ERRORS, Samples
from rlproxy.observability.policy_counters import PolicyHits
from rlproxy.observability.snapshots import Snapshot, UpstreamState
from rlproxy.process.stats import policies_request, stats_request, stats_text, top_request
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Policy
from rlproxy.ratelimit.outcomes import OUTCOMES
from rlproxy.version import VERSION, compiled

from tests.unit.observability.histograms import times

FACTS = Snapshot(
    0,
    pid=7,
    mode="share",
    on_upstream_failure="deny",
    upstream=UpstreamState(where="h:1", server="Redis 7", why="late"),
)


def published(factor: int) -> Snapshot:
    names = [name.decode().lower() for name in ALGORITHMS]
    samples: Samples = {
        "rlproxy_hits_total": {
            (name, of): float(factor * (10 * row + column))
            for row, name in enumerate(names)
            for column, of in enumerate(OUTCOMES)
        },
        "rlproxy_bytes_total": {("client", "in"): 3.0 * factor, ("upstream", "in"): 90.0},
        "rlproxy_upstream_connections": {("lane",): 1.0 * factor, ("private",): 5.0},
        "rlproxy_workers_wanted": {(): 2.0},
        "rlproxy_start_time_seconds": {(): 100.0 * factor},
        "rlproxy_errors_total": {(next(iter(ERRORS)),): 2.0 * factor},
        "rlproxy_lane_round_trip_seconds": times((factor, *[0] * (len(TIMES_S) - 1), 1), 0.5),
    }
    top = NO_TOP._replace(seconds=15.02 * factor)
    return replace(FACTS, samples=samples, top=top)


def test_the_text_is_the_sum_of_all_workers() -> None:
    text = stats_text([published(1), published(2)], 160.7).decode()
    sections = text.split("\r\n\r\n")
    titles = [section.partition("\r\n")[0] for section in sections]
    assert titles == ["# Server", "# Hits", "# Calls", "# Traffic", "# Upstream", "# Errors"]
    lines = dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
    algorithms, outcomes = len(ALGORITHMS), len(OUTCOMES)
    tens = 10 * sum(range(algorithms)) * outcomes
    expected = {
        "version": VERSION,
        "compiled": str(int(compiled())),
        "workers": "2",
        "uptime_in_seconds": "60",
        "mode": "share",
        "hits": str(3 * (tens + sum(range(outcomes)) * algorithms)),
        OUTCOMES[1]: str(3 * (10 * sum(range(algorithms)) + algorithms)),
        f"hits_{list(ALGORITHMS)[1].decode().lower()}": ",".join(
            f"{of}={3 * (10 + column)}" for column, of in enumerate(OUTCOMES)
        ),
        "top_seconds": "30.0",
        "bytes_in": "9",
        "bytes_out": "0",
        "upstream": "h:1",
        "upstream_server": "Redis 7",
        "upstream_why": "late",
        "lanes": "3",
        "private_connections": "10",
        "errors": "6",
        f"errors_{next(iter(ERRORS))}": "6",
    }
    assert {name: lines[name] for name in expected} == expected
    first, *_, last = lines["round_trips_us"].split(",")
    assert (first, last) == (f"{TIMES_S[0] * 1_000_000:.0f}=3", "inf=2")


def test_the_requests() -> None:
    text = stats_text([published(1)], 0.0)
    assert stats_request([published(1)], 0.0).endswith(b"$%d\r\n%b\r\n" % (len(text), text))
    row = (b"k\r\n", 5, 1, b"login")
    request = top_request([row], False)
    assert request.startswith(b"*6\r\n$4\r\nEVAL\r\n")
    assert request.endswith(b"$1\r\n0\r\n$3\r\nk\r\n\r\n$1\r\n5\r\n$1\r\n1\r\n")
    request = top_request([row], True)
    assert request.startswith(b"*7\r\n$4\r\nEVAL\r\n")
    assert request.endswith(b"$1\r\n1\r\n$5\r\nlogin\r\n")


def test_policies_have_their_hits_and_refusals() -> None:
    policies = [Policy(b"a", b"5 60 GAP 1", False), Policy(b"b", b"1 1", True)]
    a, b = dict.fromkeys(OUTCOMES, 0), dict.fromkeys(OUTCOMES, 0)
    a |= {"admitted": 4, "refused": 1, "refused_locally": 5, "failed_closed": 1}
    b |= {"admitted": 1, "shadow_refused": 2}
    hits = {"a": PolicyHits(False, list(a.values())), "b": PolicyHits(True, list(b.values()))}
    policies = [*policies, Policy(b"c", b"1 1", False)]
    hits["c"] = PolicyHits(False, [0] * len(OUTCOMES))
    request = policies_request(policies, {**hits, "gone": hits["a"]})
    rows = (
        b'[["a","5 60 GAP 1","enforced",11,6],["b","1 1","shadow",3,2],["c","1 1","enforced",0,0]]'
    )
    assert request.startswith(b"*4\r\n$4\r\nEVAL\r\n")
    assert request.endswith(b"$1\r\n0\r\n$%d\r\n%b\r\n" % (len(rows), rows))
    assert policies_request([], hits).endswith(b"$1\r\n0\r\n$2\r\n[]\r\n")
