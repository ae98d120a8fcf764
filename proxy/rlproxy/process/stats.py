"""The replies to RL.STATS, RL.TOP and RL.POLICIES, and the requests by which Redis sends them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from rlproxy.observability.counters import TIMES_S
from rlproxy.observability.hot_keys import HotKey
from rlproxy.observability.metrics import (
    ERRORS,
    PREFIX_HITS,
    classes_of,
    merged,
    total,
)
from rlproxy.observability.policy_counters import HitsByPolicy
from rlproxy.observability.snapshots import Snapshot
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Policy
from rlproxy.ratelimit.outcomes import (
    CALLS,
    OUTCOMES,
    REFUSED,
    REFUSED_LOCALLY,
    SHADOW_REFUSED,
)
from rlproxy.ratelimit.policies import mode
from rlproxy.resp import encoding
from rlproxy.version import VERSION, compiled

# Returns rows of n elements: a key, two integers, and of refusals the rule.
_TOP: Final = (
    b"local n,r=%d,{} for i=1,#ARGV,n do "
    b"r[#r+1]={ARGV[i],tonumber(ARGV[i+1]),tonumber(ARGV[i+2]),n==4 and ARGV[i+3] or nil} end "
    b"return r"
)


def stats_text(several: Sequence[Snapshot], now: float) -> bytes:
    """Return the text of RL.STATS: the sum of all workers, in the format of INFO.

    several: the samples of each worker, those of the worker that replies first.
    now: time.time().
    """
    # No line has the hits by prefix, which are up to 20,000 values of each worker.
    samples = merged(
        {name: values for name, values in each.samples.items() if name != PREFIX_HITS}
        for each in several
    )

    def number(name: str, *labels: str) -> int:
        return int(total(samples, name, *labels))

    first, upstream = several[0], several[0].upstream
    hits = {outcome: number("rlproxy_hits_total", outcome) for outcome in OUTCOMES}
    nodes = samples.get("rlproxy_upstream_node_up", {})
    nodes_up = ",".join(f"{labels[-1]}={value:g}" for labels, value in nodes.items())
    sections: dict[str, dict[str, object]] = {
        "Server": {
            "version": VERSION,
            "compiled": int(compiled()),
            "uptime_in_seconds": max(0, int(now - total(samples, "rlproxy_start_time_seconds"))),
            "workers": number("rlproxy_workers_wanted"),
            "process_id": first.pid,
            "mode": first.mode,
            "on_upstream_failure": first.on_upstream_failure,
        },
        "Hits": {
            "hits": sum(hits.values()),
            **hits,
            "waiting": number("rlproxy_waiting"),
            "denials": number("rlproxy_denials"),
            "top_seconds": round(max(each.top.seconds for each in several), 1),
            **{
                f"hits_{name}": ",".join(
                    f"{of}={number('rlproxy_hits_total', name, of)}" for of in OUTCOMES
                )
                for name in (each.decode().lower() for each in ALGORITHMS)
            },
        },
        "Calls": {name: number("rlproxy_calls_total", name) for name in CALLS},
        "Traffic": {
            "commands": number("rlproxy_commands_total"),
            "bytes_in": number("rlproxy_bytes_total", "client", "in"),
            "bytes_out": number("rlproxy_bytes_total", "client", "out"),
            "clients": number("rlproxy_clients"),
            "clients_accepted": number("rlproxy_clients_accepted_total"),
        },
        "Upstream": {
            "upstream": upstream.where,
            "upstream_server": upstream.server,
            "upstream_up": number("rlproxy_upstream_up"),
            "upstream_why": upstream.why,
            **({"upstream_nodes": nodes_up} if nodes else {}),
            "scripts_loaded": number("rlproxy_scripts_loaded"),
            "lanes": number("rlproxy_upstream_connections", "lane"),
            "shared_connections": number("rlproxy_upstream_connections", "share"),
            "private_connections": number("rlproxy_upstream_connections", "private"),
            "round_trips_us": _classes(classes_of(samples, "rlproxy_lane_round_trip_seconds")),
            "timeouts": number("rlproxy_upstream_timeouts_total"),
            "connects_failed": number("rlproxy_upstream_connects_failed_total"),
            "noscript_repairs": number("rlproxy_noscript_repairs_total"),
        },
        "Errors": {
            "errors": number("rlproxy_errors_total"),
            **{f"errors_{kind}": number("rlproxy_errors_total", kind) for kind in ERRORS},
        },
    }
    parts = [
        f"# {title}\r\n" + "".join(f"{name}:{value}\r\n" for name, value in lines.items())
        for title, lines in sections.items()
    ]
    return "\r\n".join(parts).encode("utf-8", "replace")


def _classes(classes: Iterable[float]) -> str:
    """Format a histogram: the upper bound of each class, in microseconds, with its count."""
    bounds = [*(f"{bound * 1_000_000:.0f}" for bound in TIMES_S), "inf"]
    return ",".join(f"{bound}={n:.0f}" for bound, n in zip(bounds, classes, strict=True))


def stats_request(several: Sequence[Snapshot], now: float) -> bytes:
    """Return a request to which Redis replies with stats_text()."""
    return encoding.bulks(b"EVAL", b"return ARGV[1]", b"0", stats_text(several, now))


def top_request(rows: Sequence[HotKey], refused: bool) -> bytes:
    """Return a request to which Redis replies with `rows`; without rules unless `refused`."""
    width = 4 if refused else 3
    words: list[bytes] = []
    for key, count, error, rule in rows:
        words += (key, b"%d" % count, b"%d" % error, rule)[:width]
    return encoding.bulks(b"EVAL", _TOP % width, b"0", *words)


def policies_request(policies: Iterable[Policy], hits: HitsByPolicy) -> bytes:
    """Return a request to which Redis replies with the result of RL.POLICIES.

    policies: those in force, in the order of the reply.
    hits: those of all workers, of each of these policies at least.
    """
    rows = []
    for policy in policies:
        name = policy.name.decode()
        counts = hits[name].counts
        refused = counts[REFUSED] + counts[REFUSED_LOCALLY] + counts[SHADOW_REFUSED]
        rows.append((name, policy.text.decode(), mode(policy.shadow), sum(counts), refused))
    # One argument: Redis takes few of a client that is not authenticated.
    text = json.dumps(rows, separators=(",", ":")).encode()
    return encoding.bulks(b"EVAL", b"return cjson.decode(ARGV[1])", b"0", text)
