"""`python -m bench model`: measures all runs and writes their JSON."""

from __future__ import annotations

import itertools
import sys
from typing import Final

from .. import load, machine, parts, result
from ..errors import BenchError
from ..figures import show
from ..options import Plan
from . import footprint, page, runs
from .footprint import Footprint
from .laws import Result
from .runs import Load, Run

PROXIES: Final = {1: parts.ONE_WORKER, 2: parts.TWO_WORKERS}  # by their workers


def run(plan: Plan) -> None:
    """Measure, write the JSON, and print the page. Raises BenchError and OSError."""
    if not load.has_redis_benchmark():
        raise BenchError(f"there is no {load.REDIS_BENCHMARK}, which makes the load")
    found = measured(plan, runs.QUICK if plan.quick else runs.FULL)
    result.write(found.to_json(), plan.output)
    print(page.page(found)[0], end="", flush=True)
    print(f"bench: every sample is in {plan.output}", file=sys.stderr)


def measured(plan: Plan, sizes: runs.Sizes) -> Result:
    """Run all loads and look at all footprints. Raises BenchError."""
    head = machine.head(plan.executable, _method(plan))
    found: dict[tuple[int, int, Load], Run] = {}
    looks: list[Footprint] = []
    for repeat, (masters, workers) in itertools.product(range(plan.repeats), sizes.cells):
        cell, costs = f"{masters} masters, {workers} workers", {}
        with parts.running(plan.executable, [PROXIES[workers]], masters) as running:
            pair = running[parts.DIRECT], running[PROXIES[workers]]
            if repeat == 0:  # footprints hardly differ between repeats
                looks += footprint.measure(*pair, workers, sizes)
            for one in runs.LOADS:
                kept = Run(masters, workers, one.work, one.clients, one.pipeline)
                kept = found.setdefault((masters, workers, one), kept)
                try:
                    values = runs.measure(one, sizes, *pair, workers)
                except BenchError as error:
                    raise BenchError(f"{one.work} {kept.load}, {cell}: {error}") from None
                kept.add(values)
                costs[f"{one.work} {kept.load}"] = values.proxy_us
        show(cell, "µs of the proxy for a hit", costs)
    return Result(head, list(found.values()), looks)


def _method(plan: Plan) -> list[str]:
    turns = "one turn" if plan.repeats == 1 else f"{plan.repeats} turns"
    sentences = [
        f"{turns} of clusters of 1, 3, 6 masters, behind a proxy of 1 and of 2 workers; medians",
        "all on one machine over loopback, no replicas, no TLS; load by redis-benchmark",
        "hits by LOG, with keys spread over all slots or on one key",
        f"a window of {runs.FULL.window_s:g} s in each load, between two pauses of the clients",
    ]
    return [*sentences, "a quick run: these figures mean nothing"] if plan.quick else sentences
