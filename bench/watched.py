"""python -m bench.watched: the costs of the live page and of scraping metrics.

The same hits go through two proxies on one server: one without --admin, and one whose live page and
metrics are read once a second each. It prints the medians of commands per second, the median of
their ratio, and the CPU time per command, the admin process' included.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Final

from . import cpu, parts, redis_benchmark
from .errors import BenchError, UsageError
from .parts import ALONE, WATCHED, Part
from .rows import Command

EVERY_S: Final = 1.0  # seconds between two requests of each path
PATHS: Final = ("live.json", "metrics")
LIMIT_S: Final = 300.0  # seconds of one run of the load generator, at most

# Name, pipeline, the hit, and the factor of --requests.
ROWS: Final[tuple[tuple[str, int, Command, int], ...]] = (
    ("admitted, P1", 1, (b"RL.HIT", b"key:__rand_int__", b"1000", b"60"), 1),
    ("admitted, P16", 16, (b"RL.HIT", b"key:__rand_int__", b"1000", b"60"), 2),
    ("refused, P1", 1, (b"RL.HIT", b"refused", b"1", b"3600"), 1),
    ("refused, P16", 16, (b"RL.HIT", b"refused", b"1", b"3600"), 4),
)


@contextlib.contextmanager
def watching(part: Part) -> Iterator[None]:
    """Request the live page's data and the metrics periodically, until the context ends.

    Raises BenchError if a request failed.
    """
    found = re.search(r"admin +(http://\S+/)", part.process.log())
    if found is None:
        raise BenchError(f"{part.name} logged no admin address")
    over = threading.Event()
    failed: list[Exception] = []

    def look() -> None:
        while not over.wait(EVERY_S):
            for path in PATHS:
                try:
                    with urllib.request.urlopen(found[1] + path, timeout=10) as answer:
                        answer.read()
                except OSError as error:
                    failed.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise BenchError(f"{len(failed)} looks at {found[1]} failed: {failed[0]}")


def measure(executable: str, requests: int, turns: int, clients: int) -> list[str]:
    """Measure, and return the lines of the table. Raises BenchError."""
    if redis_benchmark.executable() is None:
        raise UsageError("redis-benchmark is not installed (Debian: redis-tools)")
    lines = [f"{'':14}{'/s alone':>10}{'watched':>10}{'ratio':>7}{'us alone':>10}{'watched':>9}"]
    with parts.running(executable, (ALONE, WATCHED)) as running, watching(running[WATCHED]):
        for name, pipeline, command, times in ROWS:
            rates: dict[str, list[float]] = {ALONE: [], WATCHED: []}
            spent: dict[str, list[float]] = {ALONE: [], WATCHED: []}
            number = requests * times
            for turn in range(turns):
                for party in (ALONE, WATCHED) if turn % 2 == 0 else (WATCHED, ALONE):
                    part = running[party]
                    before = cpu.seconds(part.process.pid) or 0.0
                    rates[party].append(
                        redis_benchmark.rate(
                            part.port, command, pipeline, 100_000, number, clients, LIMIT_S
                        )
                    )
                    after = cpu.seconds(part.process.pid) or 0.0
                    spent[party].append((after - before) / number * 1e6)
            alone, watched = (statistics.median(rates[party]) for party in (ALONE, WATCHED))
            us, us_watched = (statistics.median(spent[party]) for party in (ALONE, WATCHED))
            ratio = statistics.median(
                one / other for one, other in zip(rates[WATCHED], rates[ALONE], strict=True)
            )
            lines.append(
                f"{name:14}{alone:10,.0f}{watched:10,.0f}{ratio:7.2f}{us:10.2f}{us_watched:9.2f}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code: 0 done, 1 failed, 2 wrong usage."""
    return parts.run_turns("bench.watched", __doc__, 5, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
