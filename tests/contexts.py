"""A worker's context for tests: what a test does not give does nothing."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

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

MAX_CLIENT_HITS = 64  # the default of --max-client-hits


def hit_timeouts(
    circuit: CircuitBreaker | None = None,
    timeout_s: float = inf,
    clock: Callable[[], float] = lambda: 0.0,
    later: Callable[[float, Callable[[], None]], object] = lambda _delay_s, _function: None,
) -> HitTimeouts:
    """Return the hit timeout of a process whose clock stands still, unless another is given."""
    made = HitTimeouts(circuit or CircuitBreaker(), clock, later)
    made.timeout_s = timeout_s
    return made


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
        timeouts=timeouts or hit_timeouts(),
        budget=budget or Budget(MAX_CLIENT_HITS),
        stats=stats or Counters(),
        report_request=lambda _name, _args: bulks(b"EVAL", b"return ''", b"0"),
    )
