"""The command line of `python -m bench model`: measures all runs and writes their JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from .. import load, machine, parts, redis_benchmark, result
from ..errors import BenchError
from ..options import Parser, Plan
from ..parts import Part
from ..processes import PROC
from ..progress import Progress
from ..result import Head
from . import footprint, laws, runs
from .footprint import Footprint
from .result import Result
from .runs import Run

MASTERS: Final = (1, 3, 6)
WORKERS: Final = (1, 2)
CELLS: Final = tuple((masters, workers) for masters in MASTERS for workers in WORKERS)
QUICK_CELLS: Final = ((1, 1), (3, 2), (6, 1))
REPEATS: Final = 3
CLIENTS: Final = 1_000  # of a footprint, of each kind
QUICK_CLIENTS: Final = 20
FOOTPRINT_KEYS: Final = 60_000
QUICK_KEYS: Final = 600

Key = tuple[int, int, str, int, int]  # the first five fields of a run

EPILOG: Final = """\
examples:
  python -m bench model                                    about 13 minutes
  python -m bench model --quick --output /tmp/model.json   does it run? (the figures mean nothing)
  python -m bench.model.page bench/results/model.json docs/scale.md

Clusters of 1, 3 and 6 masters are measured behind a proxy of 1 and 2 workers. The laws are fitted
to 1 and 3 masters, and checked against 6.
"""


def parse(argv: Sequence[str]) -> Plan:
    """Parse the arguments behind `model`. Raises as options.parse()."""
    parser = Parser(
        "python -m bench model",
        "Measure what hits on a Redis Cluster cost, and fit a model to it.",
        EPILOG,
        REPEATS,
        "model.json",
    )
    return parser.plan(parser.parse_args(argv))


def run(argv: Sequence[str]) -> None:
    """Measure, write the JSON, and print the laws. Raises BenchError, UsageError and OSError."""
    plan = parse(argv)
    if not PROC.exists():
        raise BenchError("there is no /proc, where CPU times are read")
    found = _measured(plan)
    result.write(found.to_json(), plan.output)
    print("\n".join(_summary(found)), flush=True)
    print(f"bench: every sample is in {plan.output}", file=sys.stderr)


def _measured(plan: Plan) -> Result:
    facts, date = machine.machine(), datetime.now(UTC).isoformat(timespec="seconds")
    found: dict[Key, Run] = {}
    looks: list[Footprint] = []
    versions: dict[str, str] = {}
    cells = QUICK_CELLS if plan.quick else CELLS
    progress = Progress(plan.repeats * len(cells))
    for repeat in range(1, plan.repeats + 1):
        for masters in sorted({masters for masters, _ in cells}):
            with parts.server(plan.executable, masters) as upstream:
                versions = versions or machine.versions(upstream, {})
                for workers in (workers for count, workers in cells if count == masters):
                    progress.row()
                    name = f"{masters} masters, {workers} workers"
                    progress.begin(name, repeat, plan.repeats)
                    with parts.proxy(upstream, parts.PROXY, "--workers", str(workers)) as proxy:
                        if repeat == 1:  # footprints hardly differ between repeats
                            looks += _looks(plan, upstream, proxy, workers)
                        costs = dict(_loads(plan, upstream, proxy, workers, found))
                    progress.finish(name, costs, "µs of the proxy for a hit")
    return Result(Head(date, facts, versions, _method(plan)), list(found.values()), looks)


def _looks(plan: Plan, upstream: Part, proxy: Part, workers: int) -> list[Footprint]:
    clients = parts.clients_at_most(QUICK_CLIENTS if plan.quick else CLIENTS)
    keys = QUICK_KEYS if plan.quick else FOOTPRINT_KEYS
    settle_s = footprint.QUICK_SETTLE_S if plan.quick else footprint.SETTLE_S
    return footprint.measure(upstream, proxy, workers, clients, keys, settle_s)


def _loads(
    plan: Plan, upstream: Part, proxy: Part, workers: int, found: dict[Key, Run]
) -> Iterator[tuple[str, float]]:
    """Run all loads, add their samples to `found`, and yield the proxy's time by load."""
    masters, times = len(upstream.ports), runs.QUICK_TIMES if plan.quick else runs.TIMES
    for one in runs.QUICK_LOADS if plan.quick else runs.LOADS:
        name = f"{one.work} {one.clients}/{one.pipeline}"
        try:
            values = runs.measure(one, times, upstream, proxy, workers)
        except BenchError as error:
            raise BenchError(f"{name}, {masters} masters, {workers} workers: {error}") from None
        key: Key = (masters, workers, one.work, one.clients, one.pipeline)
        kept = found.setdefault(key, Run(*key))
        for what, value in values.items():
            kept.samples.setdefault(what, []).append(value)
        yield name, values[runs.PROXY_US]


def _method(plan: Plan) -> list[str]:
    generator = redis_benchmark.NAME if redis_benchmark.installed() else load.NAME
    turns = "one turn" if plan.repeats == 1 else f"{plan.repeats} turns"
    masters, workers = ", ".join(map(str, MASTERS)), " and of ".join(map(str, WORKERS))
    sentences = [
        f"{turns} of clusters of {masters} masters, behind a proxy of {workers} workers; medians",
        f"all on one machine over loopback, no replicas, no TLS; load by {generator}",
        "hits by LOG, with keys spread over all slots or on one key",
        f"a window of {runs.TIMES.window_s:g} s in each load, between two pauses of the clients",
    ]
    return [*sentences, "a quick run: these figures mean nothing"] if plan.quick else sentences


def _summary(found: Result) -> Iterator[str]:
    made = found.laws()
    for name, values in (("proxy", made.proxy), ("redis", made.redis), ("refused", made.refused)):
        yield f"{name}, µs: " + ", ".join(f"{part} {value:.2f}" for part, value in values.items())
    yield f"turn: {made.scale:.2f} * under way ** {made.power:.2f}"
    for what, one in laws.checks(made, found.runs, found.looks).items():
        yield f"{what}: {one.text()}"
