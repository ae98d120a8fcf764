"""python -m bench.policy: the cost of a hit that names a policy, beside the written-out rule.

Both kinds of hits go in turn through one proxy. It prints, for each, the medians of hits per second
and of the proxy's CPU time per hit, and the median of the ratios of CPU time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Final

from . import cpu, load, parts
from .client import Client
from .parts import DIRECT, NAMED
from .rows import RANDOM, Command

KEYS: Final = 100_000
FEW_KEYS: Final = 1000  # of refused hits
LIMIT_S: Final = 300.0  # seconds of one run, at most

_KEY: Final = b"key:" + RANDOM


def _hit(*words: bytes) -> Command:
    return (b"RL.HIT", _KEY, *words)


# Name, pipeline, keys, the written-out hit, and the one with a policy of parts.POLICIES.
ROWS: Final[tuple[tuple[str, int, int, Command, Command], ...]] = tuple(
    (f"{name}, P{pipeline}", pipeline, keys, _hit(most, window), _hit(b"POLICY", policy))
    for name, keys, most, window, policy in (
        ("admitted", KEYS, b"1000", b"60", b"admits"),
        ("refused", FEW_KEYS, b"1", b"3600", b"refuses"),
        ("shadow", FEW_KEYS, b"1", b"3600", b"trial"),
    )
    for pipeline in (1, 16)
)


def measure(executable: str, requests: int, turns: int, clients: int) -> list[str]:
    """Measure, and return the lines of the table. Raises BenchError."""
    lines = [f"{'':14}{'/s rule':>10}{'policy':>10}{'us rule':>10}{'policy':>9}{'ratio':>8}"]
    with parts.running(executable, (NAMED,)) as running:
        proxy = running[NAMED]
        for name, pipeline, keys, *hits in ROWS:
            number = requests * (4 if pipeline > 1 else 1)
            prepared = [
                load.batches([hit], pipeline, keys, max(1, number // pipeline)) for hit in hits
            ]
            rates: list[list[float]] = [[], []]
            spent: list[list[float]] = [[], []]
            with Client(running[DIRECT].port) as server:
                server.ask(b"FLUSHALL")
            for turn in range(turns + 1):
                for which in (0, 1) if turn % 2 == 0 else (1, 0):
                    before = cpu.seconds(proxy.process.pid) or 0.0
                    rate = load.rate(
                        proxy.port, prepared[which], pipeline, number, clients, LIMIT_S
                    )
                    after = cpu.seconds(proxy.process.pid) or 0.0
                    if turn > 0:  # the first turn warms up
                        rates[which].append(rate)
                        spent[which].append((after - before) / number * 1e6)
            ratio = statistics.median(
                policy / rule for rule, policy in zip(spent[0], spent[1], strict=True)
            )
            per_s, us = map(statistics.median, rates), map(statistics.median, spent)
            lines.append(
                f"{name:14}"
                + "".join(f"{each:10,.0f}" for each in per_s)
                + "{:10.2f}{:9.2f}".format(*us)
                + f"{ratio:8.3f}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code: 0 done, 1 failed, 2 wrong usage."""
    return parts.run_turns("bench.policy", __doc__, 9, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
