"""A worker's context for tests: what a test does not give does nothing."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.fairness.budget import Budget
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.ratelimit.wait_queue import WaitQueues
from rlproxy.resp.encoding import bulks
from rlproxy.session.call import Lane, nothing
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts, WorkerContext
from rlproxy.session.identity import Identity
from rlproxy.session.timeouts import HitTimeouts


def worker_context(
    *,
    grammar: Grammar,
    server: ServerFacts,
    lane_of: Callable[[Identity, int, int], Lane | None] = lambda *_: None,
    shares: bool = False,
    waiting: WaitQueues | None = None,
    timeouts: HitTimeouts | None = None,
    budget: Budget | None = None,
    stats: Counters | None = None,
) -> WorkerContext:
    """Return a context without lanes, whose clocks stand still, unless others are given."""
    return WorkerContext(
        grammar=grammar,
        server=server,
        lane_of=lane_of,
        shares=shares,
        waiting=waiting or WaitQueues(lambda: 0.0, lambda _at, _function: nothing),
        timeouts=timeouts or HitTimeouts(CircuitBreaker()),
        budget=budget or Budget(),
        stats=stats or Counters(),
        report_request=lambda _name, _args: bulks(b"EVAL", b"return ''", b"0"),
    )
