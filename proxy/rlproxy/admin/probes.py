"""The rules of /healthz and /readyz: when the proxy counts as alive, ready or degraded. Alive:
every worker's event loop runs. Ready: at least one worker can serve new clients. Degraded: ready,
with a named problem. No HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Final

from rlproxy.observability.metrics import FULL, MISFITS, REPLICA, UNABLE, UNREACHABLE
from rlproxy.observability.snapshots import Snapshot, UpstreamState

ERROR: Final = "error"  # the value of --on-upstream-failure
UNUSABLE: Final = (UNREACHABLE, *MISFITS)  # kinds of problem with which the proxy is never ready
# Kinds with which hits get the answer of --on-upstream-failure.
NO_HITS: Final = (FULL, REPLICA, UNABLE)
WITHOUT: Final = {"allow": "admitted", "deny": "refused"}


def not_alive(workers: Sequence[Snapshot]) -> list[str]:
    """Return a reason for each worker that is not alive; empty if all are."""
    return [_silence(one) for one in workers if not one.fresh]


def not_ready(workers: Sequence[Snapshot], ignore_redis: bool = False) -> list[str]:
    """Return the reasons why no worker is ready; empty if at least one is.

    ignore_redis: the state of Redis does not count.
    """
    found: dict[str, None] = {}
    for one in workers:
        reasons = _reasons(one, ignore_redis) if one.fresh else [_silence(one)]
        if not reasons:
            return []
        found.update(dict.fromkeys(reasons))
    return list(found)


def ready_text(workers: Sequence[Snapshot]) -> str:
    """Return the text of /readyz while the proxy is ready; it names a problem with Redis."""
    fresh = [one for one in workers if one.fresh]
    for one in fresh:
        if not one.upstream.up and one.on_upstream_failure in WITHOUT:
            answer = WITHOUT[one.on_upstream_failure]
            return f"ok, but Redis does not answer: hits are {answer}"
    for one in fresh:
        if one.upstream.up and one.upstream.problem:
            return f"degraded: {_problem(one.upstream)}"
    return "ok"


def _problem(upstream: UpstreamState) -> str:
    return f"Redis at {upstream.where}: {upstream.problem}"


def _silence(one: Snapshot) -> str:
    if isinf(one.age_s):
        return f"worker {one.worker + 1} has not reported yet"
    return f"worker {one.worker + 1} (process {one.pid}) last reported {abs(one.age_s):.1f} s ago"


def _reasons(one: Snapshot, ignore_redis: bool) -> list[str]:
    found = []
    if one.draining:
        found.append("the proxy is ending: it takes no new clients")
    if ignore_redis:
        return found
    upstream, errors = one.upstream, one.on_upstream_failure == ERROR
    if upstream.up:
        if upstream.kind in UNUSABLE or (errors and upstream.kind in NO_HITS):
            found.append(_problem(upstream))
    elif errors:
        why = f" ({upstream.why})" if upstream.why else ""
        found.append(f"Redis at {upstream.where} does not answer{why}")
    return found
