"""The row of kind LATENCY: the latency of a hit at fixed offered rates (open loop).

The proxy's peak rate is measured first and is the 100 %. So all parties are offered the same rates,
and the proxy can sustain each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from . import calls, load, openloop, rate
from .client import Client
from .figures import Figure, interleave
from .openloop import Timing, percentile
from .options import Plan
from .parts import DIRECT, HAPROXY, PROXY, SPLICE, Part
from .rows import CLIENTS, LIMIT_S, Row

# Parties and their names on the page. Without twemproxy, which supports scripts poorly.
PARTIES: Final = {DIRECT: "direct", PROXY: "proxy", SPLICE: "splice", HAPROXY: "HAProxy"}
LOADS: Final = (25, 50, 75)  # percent of the proxy's peak
PEAK_REPEATS: Final = 3  # repeats of the peak's measurement, at most
SECONDS: Final = 5.0  # length of one run, unless --requests allows fewer hits
WARM_UP: Final = 0.1  # part of a run that does not count

UNIT: Final = "µs"
NS_PER_UNIT: Final = 1000
P99: Final = "p99"  # the value of a load's figure without a further name
SHARES: Final = {"p50": 0.5, P99: 0.99, "p99.9": 0.999, "max": 1.0}
PEAK: Final = "peak"
RATE: Final = "rate"  # replies per second, to compare with the offered rate
LAG: Final = "lag"  # p99 from due to written: the generator's own part of a latency
CPU: Final = "load-cpu"  # the generator's share of a core, in percent


def measure(row: Row, plan: Plan, running: Mapping[str, Part]) -> list[Figure]:
    """Measure the peak, then p50 to max at LOADS percent of it, and the generator's own values.

    Raises BenchError.
    """
    columns = [name for name in PARTIES if name in running]
    peak, *_ = rate.measure(
        replace(row, name=name_of(row.name, PEAK), unit="/s", help="RL.HIT, closed loop"),
        replace(plan, repeats=min(plan.repeats, PEAK_REPEATS)),
        {name: running[name] for name in columns},
    )
    found = [peak]
    for percent in LOADS:
        offered = peak.medians[PROXY] * percent / 100
        once = partial(_run, row, plan, running, offered)
        found += interleave(_figures(row, percent, offered), columns, once, plan)
    return found


def values(timing: Timing) -> dict[str, float]:
    """Return the results of one run by name: SHARES in UNIT, then the generator's values."""
    latency = sorted(timing.latency_ns)
    found = {name: percentile(latency, share) / NS_PER_UNIT for name, share in SHARES.items()}
    found[RATE] = timing.rate
    found[LAG] = percentile(sorted(timing.lag_ns), SHARES[P99]) / NS_PER_UNIT
    found[CPU] = 100 * timing.cpu_share
    return found


def name_of(row: str, what: str, percent: int | None = None) -> str:
    """Return a figure's name: `latency-50` for the p99 at half the peak, else `latency-50 max`."""
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
        name: Figure(name_of(row.name, name, percent), row.kind, units.get(name, UNIT), note)
        for name, note in notes.items()
    }


def _run(
    row: Row, plan: Plan, running: Mapping[str, Part], offered: float, column: str, turn: int
) -> dict[str, float]:
    """Run one party once; in one turn all parties have the same schedule."""
    (hit,) = row.commands
    with Client(running[DIRECT].port) as client:
        client.ask(b"FLUSHALL")
        client.ask(b"SCRIPT", b"LOAD", calls.of(hit).source)
    command = hit if column == PROXY else calls.of(hit).evalsha
    seconds = min(SECONDS, plan.requests / offered)
    due_ns = openloop.schedule(offered, seconds, turn)
    prepared = load.batches([command], 1, row.keys, len(due_ns), turn)
    warm_up_s = seconds * WARM_UP
    port = running[column].port
    return values(openloop.run(port, prepared, due_ns, CLIENTS, warm_up_s, LIMIT_S))
