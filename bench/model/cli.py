"""The command line of `python -m bench model`: measures all runs and writes their JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from .. import load, machine, parts, redis_benchmark, report
from ..errors import BenchError
from ..options import Parser, output_file, whole_number
from ..processes import ROOT
from ..progress import Progress
from . import footprint, laws, nodes, runs
from .footprint import Footprint
from .result import Result
from .runs import Run

DEFAULT_OUTPUT: Final = ROOT / "bench" / "results" / "model.json"
MASTERS: Final = (1, 3, 6)
WORKERS: Final = (1, 2)
CELLS: Final = tuple((masters, workers) for masters in MASTERS for workers in WORKERS)
QUICK_CELLS: Final = ((1, 1), (3, 2), (6, 1))
REPEATS: Final = 3
CLIENTS: Final = 1_000  # of a footprint, of each kind
QUICK_CLIENTS: Final = 20
FOOTPRINT_KEYS: Final = 60_000
QUICK_KEYS: Final = 600
MAX_REPEATS: Final = 100

Key = tuple[int, int, str, int, int]  # the first five fields of a run

EPILOG: Final = """\
examples:
  python -m bench model                                    about 10 minutes
  python -m bench model --quick --output /tmp/model.json   does it run? (the figures mean nothing)
  python -m bench.model.page bench/results/model.json docs/scale.md

Clusters of 1, 3 and 6 masters are measured behind a proxy of 1 and 2 workers. The laws are fitted
to 1 and 3 masters, and checked against 6.
"""


@dataclass(frozen=True)
class Options:
    """The checked command line."""

    repeats: int
    quick: bool
    engine: str | None
    output: Path


def parse(argv: Sequence[str]) -> Options:
    """Parse the arguments behind `model`. Raises UsageError; --help raises SystemExit."""
    made = Parser(
        prog="python -m bench model",
        description="Measure what hits on a Redis Cluster cost, and fit a model to it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    words = f"runs of each load, of which the median counts (default {REPEATS})"
    made.add_argument("--repeats", metavar="N", type=whole_number(MAX_REPEATS), help=words)
    made.add_argument("--engine", metavar="NAME", help="the server, as for python -m bench")
    words = "the JSON (default bench/results/model.json)"
    made.add_argument("--output", metavar="FILE", help=words)
    words = "one repeat and small counts: only to see that it runs"
    made.add_argument("--quick", action="store_true", help=words)
    args = made.parse_args(argv)
    return Options(
        args.repeats or (1 if args.quick else REPEATS),
        args.quick,
        args.engine,
        output_file(args.output, DEFAULT_OUTPUT),
    )


def run(argv: Sequence[str]) -> None:
    """Measure, write the JSON, and print the laws. Raises BenchError, UsageError and OSError."""
    options = parse(argv)
    found = _measure(options)
    report.write(found.to_json(), options.output)
    print("\n".join(_summary(found)), flush=True)
    print(f"bench: every sample is in {options.output}", file=sys.stderr)


def _measure(options: Options) -> Result:
    _, executable = parts.engine(options.engine)
    facts, date = machine.machine(), datetime.now(UTC).isoformat(timespec="seconds")
    found: dict[Key, Run] = {}
    looks: list[Footprint] = []
    versions: dict[str, str] = {}
    cells = QUICK_CELLS if options.quick else CELLS
    progress = Progress(options.repeats * len(cells))
    for repeat in range(1, options.repeats + 1):
        for masters in sorted({masters for masters, _ in cells}):
            with nodes.cluster(executable, masters) as upstream:
                versions = versions or _versions(upstream)
                for workers in (workers for count, workers in cells if count == masters):
                    progress.row()
                    name = f"{masters} masters, {workers} workers"
                    progress.begin(name, repeat, options.repeats)
                    with nodes.proxy(upstream, workers) as proxy:
                        looks += _looks(options, upstream, proxy, repeat)
                        costs = dict(_loads(options, upstream, proxy, found))
                    progress.finish(name, costs, "µs of the proxy for a hit")
    return Result(date, facts, versions, _told(options), list(found.values()), looks)


def _looks(
    options: Options, upstream: nodes.Cluster, proxy: nodes.Proxy, repeat: int
) -> list[Footprint]:
    """Return the footprints, in the first repeat only: they hardly differ between repeats."""
    if repeat > 1:
        return []
    clients = parts.clients_at_most(QUICK_CLIENTS if options.quick else CLIENTS)
    keys = QUICK_KEYS if options.quick else FOOTPRINT_KEYS
    settle_s = footprint.QUICK_SETTLE_S if options.quick else footprint.SETTLE_S
    return footprint.measure(upstream, proxy, clients, keys, settle_s)


def _loads(
    options: Options,
    upstream: nodes.Cluster,
    proxy: nodes.Proxy,
    found: dict[Key, Run],
) -> Iterator[tuple[str, float]]:
    """Run all loads, add their samples to `found`, and yield the proxy's time by load."""
    times = runs.QUICK_TIMES if options.quick else runs.TIMES
    for one in runs.QUICK_LOADS if options.quick else runs.LOADS:
        name = f"{one.work} {one.clients}/{one.pipeline}"
        try:
            values = runs.measure(one, times, upstream, proxy)
        except BenchError as error:
            where = f"{len(upstream.nodes)} masters, {proxy.workers} workers"
            raise BenchError(f"{name}, {where}: {error}") from None
        key: Key = (len(upstream.nodes), proxy.workers, one.work, one.clients, one.pipeline)
        kept = found.setdefault(key, Run(*key))
        for what, value in values.items():
            kept.samples.setdefault(what, []).append(value)
        yield name, values[runs.PROXY_US]


def _versions(upstream: nodes.Cluster) -> dict[str, str]:
    node = upstream.nodes[0]
    part = parts.Part(parts.DIRECT, node.port, node.process, 0.0)
    return machine.versions({parts.DIRECT: part})


def _told(options: Options) -> list[str]:
    generator = redis_benchmark.NAME if redis_benchmark.executable() else load.NAME
    turns = "one turn" if options.repeats == 1 else f"{options.repeats} turns"
    masters, workers = ", ".join(map(str, MASTERS)), " and of ".join(map(str, WORKERS))
    sentences = [
        f"{turns} of clusters of {masters} masters, behind a proxy of {workers} workers; medians",
        f"all on one machine over loopback, no replicas, no TLS; load by {generator}",
        "hits by LOG, with keys spread over all slots or on one key",
        f"a window of {runs.TIMES.window_s:g} s in each load, between two pauses of the clients",
    ]
    return [*sentences, "a quick run: these figures mean nothing"] if options.quick else sentences


def _summary(found: Result) -> Iterator[str]:
    made = found.laws()
    for name, values in (("proxy", made.proxy), ("redis", made.redis), ("refused", made.refused)):
        yield f"{name}, µs: " + ", ".join(f"{part} {value:.2f}" for part, value in values.items())
    yield f"turn: {made.scale:.2f} * under way ** {made.power:.2f}"
    for what, one in laws.checks(made, found.runs, found.looks).items():
        yield f"{what}: {one.text()}"
