"""python -m bench: arguments to rows, rows to figures, figures to tables and JSON."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Final

from . import (
    bounds,
    clusters,
    idle,
    latency,
    load,
    machine,
    parts,
    rate,
    redis_benchmark,
    report,
    script_cost,
    start,
    tables,
    tasks,
    values,
    workers,
)
from .errors import BenchError, UsageError
from .figures import Figure
from .model import cli as model
from .options import Options, parse
from .plan import Plan
from .progress import Progress
from .result import Result
from .rows import (
    CLIENTS,
    CLUSTER,
    COST,
    IDLE,
    LATENCY,
    RATE,
    ROWS,
    START,
    TASKS,
    VALUES,
    WORKERS,
)

LIMIT_S: Final = 600.0  # seconds of one run, at most
QUICK_LIMIT_S: Final = 20.0  # the same with --quick
# The module that measures the rows of each kind.
MEASURES: Final[Mapping[str, ModuleType]] = {
    RATE: rate,
    VALUES: values,
    TASKS: tasks,
    WORKERS: workers,
    CLUSTER: clusters,
    LATENCY: latency,
    IDLE: idle,
    START: start,
    COST: script_cost,
}
MODEL: Final = "model"  # the word for the cost model instead of rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == [MODEL]:
            with _terminated():
                model.run(words[1:])
            return 0
        options = parse(words)
        if options.list:
            for row in ROWS:
                print(f"{row.name:10}  {row.unit:5}  {row.help}")
            return 0
        with _terminated():
            return 0 if _measure_all(options) else 1
    except UsageError as error:
        return _failed(2, str(error))
    except (BenchError, OSError) as error:
        return _failed(1, str(error))
    except KeyboardInterrupt:
        return _failed(130, "interrupted, nothing was written")
    return 0


def _failed(code: int, why: str) -> int:
    before = "\n" if sys.stderr.isatty() and code != 2 else ""  # ends the progress line
    print(f"{before}bench: {why}", file=sys.stderr)
    return code


def _measure_all(options: Options) -> bool:
    """Measure and report. Returns whether every row was measured."""
    plan = _plan(options)
    measured, failed = _run(options, plan)
    found = measured.to_json()
    report.write(found, options.output)
    print(tables.text(Result(found)), flush=True)
    for why in failed:
        print(f"bench: not measured: {why}", file=sys.stderr)
    print(f"bench: every sample is in {options.output}", file=sys.stderr)
    return not failed


def _plan(options: Options) -> Plan:
    engine, executable = parts.engine(options.engine)
    return Plan(
        engine=engine,
        executable=executable,
        parties=parts.installed(),
        redis_benchmark=redis_benchmark.executable() is not None,
        repeats=options.repeats,
        requests=options.requests,
        idle_clients=parts.clients_at_most(options.idle_clients),
        limit_s=QUICK_LIMIT_S if options.quick else LIMIT_S,
        warm_up=not options.quick,
        progress=Progress(len(options.rows)),
    )


def _run(options: Options, plan: Plan) -> tuple[report.Report, list[str]]:
    """Measure the rows. Returns the report, and the name and error of each row that failed."""
    facts = machine.machine()  # before the benchmark adds load
    date = datetime.now(UTC).isoformat(timespec="seconds")
    figures: list[Figure] = []
    failed: list[str] = []
    with parts.running(plan.executable, plan.parties) as running:
        versions = machine.versions(running)
        for row in options.rows:
            plan.progress.row()
            try:
                found: list[Figure] = MEASURES[row.kind].measure(row, plan, running)
                figures += found
            except BenchError as error:
                failed.append(f"{row.name}: {error}")
    sentences = [*_sentences(options, plan), *(f"not measured: {why}" for why in failed)]
    verdicts = bounds.judge(figures, [row.name for row in options.rows])
    method = _method(options, plan)
    return report.Report(date, facts, versions, sentences, method, figures, verdicts), failed


def _sentences(options: Options, plan: Plan) -> list[str]:
    """Return the method of the run as sentences."""
    turns = "one turn" if plan.repeats == 1 else f"{plan.repeats} turns"
    generator = (
        f"load by {redis_benchmark.NAME}; rows of several commands and scripts' cost: {load.NAME}"
        if plan.redis_benchmark
        else f"no {redis_benchmark.NAME} here: all load by {load.NAME}, and no rows of clusters"
    )
    found = [
        f"{turns} of {', '.join(plan.parties)}; medians and their ratios; spread: range / median",
        f"{CLIENTS} clients on loopback, random keys; {generator}",
    ]
    if any(row.kind == TASKS for row in options.rows):
        found.append(
            f"one Python program: {tasks.NAME}, whose CPU is the limit, on "
            f"{'uvloop' if load.has_uvloop() else 'asyncio'}"
        )
    if options.quick:
        found.append("a quick run: these figures mean nothing")
    return found


def _method(options: Options, plan: Plan) -> dict[str, object]:
    """Return the method of the run as values for the JSON file."""
    rates = [row for row in options.rows if row.kind == RATE]
    return {
        "engine": plan.engine,
        "parties": list(plan.parties),
        "repeats": plan.repeats,
        "clients": CLIENTS,
        "requests": {row.name: row.requests(plan.requests) for row in rates},
        "keys": {row.name: row.keys for row in rates},
        "idle_clients": plan.idle_clients,
        "redis_benchmark": plan.redis_benchmark,
        "warm_up": plan.warm_up,
        "quick": options.quick,
    }


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that all started programs end as well."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
