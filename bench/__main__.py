"""python -m bench: arguments to rows, rows to figures, figures to a page and JSON."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from . import costs, fresh, latency, load, machine, page, parts, rate, rows, tasks, values
from .errors import BenchError, reported
from .figures import Figure
from .model import cli as model
from .options import Plan, parse
from .result import Result, write
from .rows import CLIENTS, Row

# What measures the rows of each kind.
MEASURES: Final[dict[str, Callable[[Row, Plan], list[Figure]]]] = {
    rows.RATE: rate.measure,
    rows.VALUES: values.measure,
    rows.TASKS: tasks.measure,
    rows.WORKERS: rate.measure,
    rows.CLUSTER: rate.measure,
    rows.LATENCY: latency.measure,
    rows.IDLE: fresh.idle,
    rows.START: fresh.start,
    rows.COST: costs.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    # SIGTERM is handled like Ctrl-C, so that all started programs end as well.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return reported(lambda: _run(parse(sys.argv[1:] if argv is None else argv)))
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(plan: Plan) -> None:
    """Measure and report. Raises BenchError if a row was not measured."""
    if sys.platform != "linux":
        raise BenchError("memory and CPU times are read from Linux' /proc")
    if not plan.rows:
        return model.run(plan)
    parties = parts.installed([party for row in plan.rows for party in row.parties])
    head = machine.head(plan.executable, _method(plan, parties), parties)
    figures: list[Figure] = []
    failed: list[str] = []
    for number, row in enumerate(plan.rows, 1):
        print(f"[{number}/{len(plan.rows)}] {row.name}", file=sys.stderr)
        try:
            figures += MEASURES[row.kind](row, plan)
        except (BenchError, OSError) as error:
            failed.append(f"not measured: {row.name}: {error}")
    head = replace(head, sentences=[*head.sentences, *failed])
    found = Result(head, figures, plan.only)
    write(found.to_json(), plan.output)
    print(page.page(found)[0], end="", flush=True)
    print(f"bench: every sample is in {plan.output}", file=sys.stderr)
    if failed:
        raise BenchError("\nbench: ".join(failed))
    return None


def _method(plan: Plan, parties: Sequence[str]) -> list[str]:
    """Return the method of the run as sentences."""
    turns = "one turn" if plan.repeats == 1 else f"{plan.repeats} turns"
    own = "the own generator (one Python process)"
    generator = f"load by redis-benchmark; rows of several commands: {own}"
    if not load.has_redis_benchmark():
        generator = f"no redis-benchmark here: all load by {own}"
    found = [
        f"{turns} of {', '.join(parties)}; medians and their ratios; spread: range / median",
        f"{CLIENTS} clients on loopback, random keys; {generator}",
    ]
    if any(row.kind == rows.TASKS for row in plan.rows):
        program = f"{CLIENTS} asyncio tasks of one Python process, whose CPU is the limit"
        found.append(f"one Python program: {program}, on uvloop")
    return [*found, "a quick run: these figures mean nothing"] if plan.quick else found


if __name__ == "__main__":
    sys.exit(main())
