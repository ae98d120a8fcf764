"""The rules of /healthz and /readyz: when the proxy counts as alive, ready or degraded. Alive:
every worker's event loop runs. Ready: at least one worker can serve new clients. Degraded: ready,
with a named problem. No HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlproxy.observability.metrics import CLUSTER, FULL, UNREACHABLE

HEARD_S: Final = 2.0  # seconds without a publication after which a worker counts as silent
UPSTREAM: Final = "upstream"
EXCLUDABLE: Final = (UPSTREAM,)  # parts that /readyz?exclude=PART may leave out
ERROR: Final = "error"  # the value of --on-upstream-failure
UNUSABLE: Final = (UNREACHABLE, CLUSTER)  # kinds of problem with which the proxy is never ready
WITHOUT: Final = {"allow": "admitted", "deny": "refused"}


def fresh(age_s: float) -> bool:
    """Whether a worker that published `age_s` seconds ago counts as running."""
    return abs(age_s) <= HEARD_S  # a negative age: the clock was set back since


@dataclass(frozen=True)
class Seen:
    """One worker, counted from 0: its facts (see `telemetry`) and their age in seconds.

    The age is None if it has never published.
    """

    worker: int
    age_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def fresh(self) -> bool:
        """Whether the worker has published within HEARD_S."""
        return self.age_s is not None and fresh(self.age_s)


def not_alive(seen: Sequence[Seen]) -> list[str]:
    """Return a reason for each worker that is not alive; empty if all are."""
    return [_silence(one) for one in seen if not one.fresh()]


def not_ready(seen: Sequence[Seen], leave_out: Collection[str] = ()) -> list[str]:
    """Return the reasons why no worker is ready; empty if at least one is.

    leave_out: parts of EXCLUDABLE that do not count.
    """
    found: dict[str, None] = {}
    for one in seen:
        reasons = _reasons(one, leave_out) if one.fresh() else [_silence(one)]
        if not reasons:
            return []
        found.update(dict.fromkeys(reasons))
    return list(found)


def without_redis(seen: Sequence[Seen]) -> str:
    """Return how hits are answered while Redis is away: "admitted", "refused", or "" for errors.

    Empty also if Redis is up for all workers.
    """
    for one in seen:
        if one.fresh() and not _upstream(one).get("up", True):
            return WITHOUT.get(one.facts.get("on_upstream_failure", ERROR), "")
    return ""


def degraded(seen: Sequence[Seen]) -> str:
    """Return the problem of the control connection while clients are served; empty if none."""
    for one in seen:
        upstream = _upstream(one)
        if one.fresh() and upstream.get("up", True) and upstream.get("problem"):
            return _problem(upstream)
    return ""


def _problem(upstream: Mapping[str, Any]) -> str:
    return f"Redis at {upstream.get('where', '')}: {upstream['problem']}"


def _is_unusable(kind: str, one: Seen) -> bool:
    """Whether no new client is served well. A Redis without room is as one that is away: hits get
    the answer of --on-upstream-failure.
    """
    fails = one.facts.get("on_upstream_failure", ERROR) == ERROR
    return kind in UNUSABLE or (kind == FULL and fails)


def _silence(one: Seen) -> str:
    if one.age_s is None:
        return f"worker {one.worker + 1} has not reported yet"
    return f"worker {one.worker + 1} last reported {abs(one.age_s):.1f} s ago"


def _upstream(one: Seen) -> Mapping[str, Any]:
    found: Mapping[str, Any] = one.facts.get("upstream", {})
    return found


def _reasons(one: Seen, leave_out: Collection[str]) -> list[str]:
    found = []
    if one.facts.get("draining"):
        found.append("the proxy is ending: it takes no new clients")
    upstream = _upstream(one)
    if UPSTREAM in leave_out:
        return found
    if not upstream.get("up", True):
        if one.facts.get("on_upstream_failure", ERROR) == ERROR:
            why = f" ({upstream['why']})" if upstream.get("why") else ""
            found.append(f"Redis at {upstream.get('where', '')} does not answer{why}")
    elif _is_unusable(upstream.get("kind", ""), one):
        found.append(_problem(upstream))
    elif not one.facts.get("scripts", True) and not upstream.get("problem"):
        # If the control connection may not load scripts (a problem), clients' hits carry them.
        found.append("the scripts are not loaded yet")
    return found
