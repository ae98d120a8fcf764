"""The row of kind LATENCY: the latency of a hit at fixed offered rates.

The proxy's peak rate is measured first and is the 100 %. So all parties are offered the same rates,
and the proxy can sustain each of them.

The generator is an open loop: requests leave when they are due, whether replies have come or not.
Latency counts from the time a request was due, not from when it could be written. So the wait that
a stall causes for later requests is counted (no coordinated omission). It is one thread with one
selector. It also measures how late requests left, and its share of a core.
"""

from __future__ import annotations

import bisect
import gc
import math
import random
import select
import selectors
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from . import load, parts, rate
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import DIRECT, PROXY, Part
from .rows import CLIENTS, LIMIT_S, Row

LOADS: Final = (25, 50, 75)  # percent of the proxy's peak
SECONDS: Final = 5.0  # length of one run, unless --requests allows fewer hits
WARM_UP: Final = 0.1  # part of a run that does not count

NS_PER_US: Final = 1000
P99: Final = "p99"  # the value of a load's figure without a further name
SHARES: Final = {"p50": 0.5, P99: 0.99, "p99.9": 0.999, "max": 1.0}
PEAK: Final = "peak"
RATE: Final = "rate"  # replies per second, to compare with the offered rate
LAG: Final = "lag"  # p99 from due to written: the generator's own part of a latency
CPU: Final = "load-cpu"  # the generator's share of a core
UNITS: Final = {RATE: "/s", CPU: "%"}  # of all others µs

SENT_AT_ONCE: Final = 8  # requests sent before replies are read again
LEAD_NS: Final = 20_000_000  # nanoseconds from the last preparation to the schedule's beginning
NS: Final = 1_000_000_000
# Nanoseconds by which Linux may delay the end of a wait, else 50,000.
SLACK: Final = Path("/proc/self/timerslack_ns")


def measure(row: Row, plan: Plan) -> list[Figure]:
    """Measure the peak, then p50 to max at LOADS percent of it, and the generator's own values.

    Raises BenchError.
    """
    columns = parts.installed(row.parties)
    with parts.running(plan.executable, columns) as running:
        peak, *_ = rate.through(
            replace(row, name=name_of(row.name, PEAK), unit="/s", help="RL.HIT, closed loop"),
            plan,
            running,
        )
        found = [peak]
        for percent in LOADS:
            offered = peak.medians[PROXY] * percent / 100
            once = partial(_run, row, plan, running, offered)
            found += interleave(_figures(row, percent), columns, once, plan)
    return found


def values(timing: Timing) -> dict[str, float]:
    """Return the results of one run by name: SHARES in µs, then the generator's values."""
    latency = sorted(timing.latency_ns)
    found = {name: percentile(latency, share) / NS_PER_US for name, share in SHARES.items()}
    found[RATE] = timing.rate
    found[LAG] = percentile(sorted(timing.lag_ns), SHARES[P99]) / NS_PER_US
    found[CPU] = 100 * timing.cpu_share
    return found


def name_of(row: str, what: str, percent: int | None = None) -> str:
    """Return a figure's name: `latency-50` for the p99 at half the peak, else `latency-50 max`."""
    name = row if percent is None else f"{row}-{percent}"
    return name if what == P99 else f"{name} {what}"


def _figures(row: Row, percent: int) -> dict[str, Figure]:
    return {
        name: Figure(name_of(row.name, name, percent), row.kind, UNITS.get(name, "µs"))
        for name in (*SHARES, RATE, LAG, CPU)
    }


def _run(
    row: Row, plan: Plan, running: Mapping[str, Part], offered: float, column: str, turn: int
) -> dict[str, float]:
    """Run one party once; in one turn all parties have the same schedule."""
    rate.prepare(row, column, running[DIRECT])
    seconds = min(SECONDS, plan.requests / offered)
    due_ns = schedule(offered, seconds, turn)
    prepared = load.batches(rate.sent(row, column), 1, row.keys, len(due_ns), turn)
    warm_up_s = seconds * WARM_UP
    port = running[column].port
    return values(run(port, prepared, due_ns, CLIENTS, warm_up_s, LIMIT_S))


# -- the generator ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """The timing of one run: nanoseconds of each request that counts, in order of the schedule."""

    latency_ns: Sequence[int]  # from due to answered
    lag_ns: Sequence[int]  # from due to written
    rate: float  # replies per second
    cpu_share: float  # of a core, 0 to 1, that the generator used; warm-up included


def schedule(rate: float, seconds: float, seed: int = 1) -> list[int]:
    """Return the times at which requests are due, in nanoseconds from the beginning.

    They are a Poisson process of `rate` per second, like the requests of many independent clients.
    The same seed gives the same times.
    """
    dice = random.Random(seed)
    end = seconds * NS
    found: list[int] = []
    at = 0.0
    while (at := at + dice.expovariate(rate) * NS) < end:
        found.append(int(at))
    return found


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the least of the ascending values that a share (0 to 1) of them does not exceed.

    Raises BenchError if there is none.
    """
    if not ordered:
        raise BenchError("no request was counted: the run was too short")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def run(
    port: int,
    prepared: Sequence[bytes],
    due_ns: Sequence[int],
    clients: int,
    warm_up_s: float,
    limit_s: float,
) -> Timing:
    """Send one of `prepared` at each of `due_ns`, over `clients` connections in turn.

    Requests due in the first `warm_up_s` seconds don't count.
    Raises BenchError on an error reply, a closed connection or after `limit_s` seconds.
    """
    latency_ns, lag_ns = [0] * len(due_ns), [0] * len(due_ns)
    sent = answered = 0
    with ExitStack() as stack:
        _set_slack("1")
        stack.callback(_set_slack, "0")  # the default
        made = [stack.enter_context(Client(port)) for _ in range(clients)]
        # Request number n goes to connection n % clients, so a reply's number is known.
        numbers = list(range(clients))  # number of each connection's next reply
        selector = stack.enter_context(selectors.DefaultSelector())
        for connection, client in enumerate(made):
            selector.register(client.sock, selectors.EVENT_READ, connection)
        stack.callback(gc.enable)
        gc.collect()
        gc.disable()  # a collection would delay all requests
        cpu_s = time.process_time()
        begin_ns = time.monotonic_ns() + LEAD_NS
        try:
            while answered < len(due_ns):
                for number in range(sent, min(sent + SENT_AT_ONCE, len(due_ns))):
                    late_ns = time.monotonic_ns() - begin_ns - due_ns[number]
                    if late_ns < 0:
                        break
                    lag_ns[number] = late_ns
                    # Some hundred bytes, which the kernel takes at once.
                    made[number % clients].sock.sendall(prepared[number % len(prepared)])
                    sent += 1
                now_ns = time.monotonic_ns() - begin_ns
                if now_ns > limit_s * NS:
                    raise BenchError(f"a run took more than {limit_s:g} s")
                next_ns = due_ns[sent] if sent < len(due_ns) else now_ns + NS
                # The selector itself would round the timeout up to a millisecond.
                ready = select.select([selector], [], [], max(0, next_ns - now_ns) / NS)[0]
                for key, _ in selector.select(0) if ready else ():
                    replies = len(made[key.data].receive())
                    now_ns = time.monotonic_ns() - begin_ns
                    for request in range(numbers[key.data], len(due_ns), clients)[:replies]:
                        latency_ns[request] = now_ns - due_ns[request]
                    numbers[key.data] += replies * clients
                    answered += replies
        except OSError as error:
            raise BenchError(f"a connection was lost: {error}") from None
        whole_ns = time.monotonic_ns() - begin_ns
        cpu_s = time.process_time() - cpu_s
    first = bisect.bisect_left(due_ns, warm_up_s * NS)
    counted = len(due_ns) - first
    counted_ns = max(1, whole_ns - (due_ns[first] if counted else 0))
    share = cpu_s * NS / whole_ns
    return Timing(latency_ns[first:], lag_ns[first:], counted * NS / counted_ns, share)


def _set_slack(ns: str) -> None:
    with suppress(OSError):  # not on other systems
        SLACK.write_text(ns)
