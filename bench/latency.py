"""The row of kind LATENCY: how long a hit takes at a rate that is offered, not taken.

What the proxy answers at most, measured first, is the 100 %: so all are offered the same rates, and
each of them is one that the proxy can bear.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from . import calls, load, openloop, rate
from .client import Client
from .figures import Figure, interleave_all
from .openloop import Timing, percentile
from .parts import DIRECT, HAPROXY, PROXY, Part
from .plan import Plan
from .rows import CLIENTS, Row

PARTIES: Final = (DIRECT, PROXY, HAPROXY)  # twemproxy carries no scripts worth the name
LOADS: Final = (25, 50, 75)  # percent of the proxy's peak
PEAK_REPEATS: Final = 3
SECONDS: Final = 5.0  # of one run, unless the user wants fewer requests
WARM_UP: Final = 0.1  # the part of a run that does not count

UNIT: Final = "µs"
NS_PER_UNIT: Final = 1000
P99: Final = "p99"  # the one that a load's figure without further name tells
SHARES: Final = {"p50": 0.5, P99: 0.99, "p99.9": 0.999, "max": 1.0}
PEAK: Final = "peak"
RATE: Final = "rate"  # of replies: is it the one offered?
LAG: Final = "lag"  # p99 from due to written: how much of a latency is the generator's own
CPU: Final = "load-cpu"  # the generator's share of a core


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """The peak, then p50 to max at LOADS percent of it, and what the generator says of itself.

    Nothing where the generator does not run. Raises BenchError.
    """
    if not openloop.AVAILABLE:
        print(f"bench: {row.name} is left out: {openloop.NAME} needs Linux", file=sys.stderr)
        return []
    columns = [name for name in PARTIES if name in parts]
    peak, *_ = rate.measure(
        replace(row, name=name_of(row.name, PEAK), unit="/s", help="RL.HIT, closed loop"),
        replace(plan, repeats=min(plan.repeats, PEAK_REPEATS)),
        {name: parts[name] for name in columns},
    )
    found = [peak]
    for percent in LOADS:
        offered = peak.medians()[PROXY] * percent / 100
        found += interleave_all(
            _figures(row, percent, offered),
            P99,
            columns,
            partial(_run, row, plan, parts, offered),
            plan.repeats,
            plan.progress,
        )
    return found


def told(timing: Timing) -> dict[str, float]:
    """What is told of one run, by name: of SHARES in UNIT, then of the generator."""
    latency = sorted(timing.latency_ns)
    found = {name: percentile(latency, share) / NS_PER_UNIT for name, share in SHARES.items()}
    found[RATE] = timing.rate()
    found[LAG] = percentile(sorted(timing.lag_ns), SHARES[P99]) / NS_PER_UNIT
    found[CPU] = 100 * timing.cpu_share()
    return found


def name_of(row: str, what: str, percent: int | None = None) -> str:
    """The name of a figure: `latency-50` is the p99 at half the peak, `latency-50 max` its max."""
    name = row if percent is None else f"{row}-{percent}"
    return name if what == P99 else f"{name} {what}"


def _figures(row: Row, percent: int, offered: float) -> dict[str, Figure]:
    at = f"at {offered:,.0f} hits/s, {percent} % of the proxy's peak"
    notes = {name: f"{name} of RL.HIT {at}, from when it was due" for name in SHARES}
    notes[RATE] = f"replies {at}"
    notes[LAG] = f"{P99} of the generator's own delay {at}: from due to written"
    notes[CPU] = f"the generator's share of a core {at}"
    units = {RATE: "/s", CPU: "%"}
    return {
        name: Figure(
            name_of(row.name, name, percent), row.kind, units.get(name, UNIT), openloop.NAME, note
        )
        for name, note in notes.items()
    }


def _run(
    row: Row, plan: Plan, parts: Mapping[str, Part], offered: float, column: str, turn: int
) -> dict[str, float]:
    """One run; the schedules of all columns are the same in a turn."""
    (hit,) = row.commands
    with Client(parts[DIRECT].port) as client:
        client.ask(b"FLUSHALL")
        client.ask(b"SCRIPT", b"LOAD", calls.of(hit).source)
    command = hit if column == PROXY else calls.direct(hit)
    seconds = min(SECONDS, plan.requests / offered)
    due_ns = openloop.schedule(offered, seconds, turn)
    prepared = load.batches([command], 1, row.keys, len(due_ns), turn)
    warm_up_s = seconds * WARM_UP
    port = parts[column].port
    return told(openloop.run(port, prepared, due_ns, CLIENTS, warm_up_s, plan.limit_s))
