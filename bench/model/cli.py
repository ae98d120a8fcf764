"""`python -m bench model`: measures all runs and writes their JSON."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from .. import load, machine, parts, result
from ..errors import BenchError
from ..figures import show
from ..options import Plan
from ..parts import Part
from ..processes import PROC
from ..result import Head
from . import footprint, page, runs
from .footprint import Footprint
from .result import Result
from .runs import Run

PROXIES: Final = {1: parts.ONE_WORKER, 2: parts.TWO_WORKERS}  # by their workers


def run(plan: Plan) -> None:
    """Measure, write the JSON, and print the page. Raises BenchError and OSError."""
    if not PROC.exists():
        raise BenchError("there is no /proc, where CPU times are read")
    if not load.has_redis_benchmark():
        raise BenchError(f"there is no {load.REDIS_BENCHMARK}, which makes the load")
    found = measured(plan, runs.QUICK if plan.quick else runs.FULL)
    result.write(found.to_json(), plan.output)
    print(page.page(found)[0], end="", flush=True)
    print(f"bench: every sample is in {plan.output}", file=sys.stderr)


def measured(plan: Plan, sizes: runs.Sizes) -> Result:
    """Run all loads and look at all footprints. Raises BenchError."""
    facts, date = machine.machine(), datetime.now(UTC).isoformat(timespec="seconds")
    found: dict[str, Run] = {}
    looks: list[Footprint] = []
    for repeat, (masters, workers) in itertools.product(range(plan.repeats), sizes.cells):
        party = PROXIES[workers]
        with parts.running(plan.executable, [party], masters) as running:
            upstream, proxy = running[parts.DIRECT], running[party]
            if repeat == 0:  # footprints hardly differ between repeats
                looks += footprint.measure(upstream, proxy, workers, sizes)
            costs = dict(_loads(sizes, upstream, proxy, workers, found))
        show(f"{masters} masters, {workers} workers", "µs of the proxy for a hit", costs)
    return Result(
        Head(date, facts, machine.versions(plan.executable), _method(plan)),
        list(found.values()),
        looks,
    )


def _loads(
    sizes: runs.Sizes, upstream: Part, proxy: Part, workers: int, found: dict[str, Run]
) -> Iterator[tuple[str, float]]:
    """Run all loads, add their samples to `found`, and yield the proxy's time by load."""
    masters = len(upstream.ports)
    for one in runs.LOADS:
        kind = f"{one.work} {one.clients}/{one.pipeline}"
        name = f"{kind}, {masters} masters, {workers} workers"
        try:
            values = runs.measure(one, sizes, upstream, proxy, workers)
        except BenchError as error:
            raise BenchError(f"{name}: {error}") from None
        kept = found.setdefault(name, Run(masters, workers, one.work, one.clients, one.pipeline))
        for what, value in values.items():
            kept.samples.setdefault(what, []).append(value)
        yield kind, values[runs.PROXY_US]


def _method(plan: Plan) -> list[str]:
    turns = "one turn" if plan.repeats == 1 else f"{plan.repeats} turns"
    sentences = [
        f"{turns} of clusters of 1, 3, 6 masters, behind a proxy of 1 and of 2 workers; medians",
        "all on one machine over loopback, no replicas, no TLS; load by redis-benchmark",
        "hits by LOG, with keys spread over all slots or on one key",
        f"a window of {runs.FULL.window_s:g} s in each load, between two pauses of the clients",
    ]
    return [*sentences, "a quick run: these figures mean nothing"] if plan.quick else sentences
