"""Rows of kind GROWTH: throughput and CPU by number of clients, keys and live hits.

A window of SECONDS within a longer load is measured, by the server's own count and clock. So
connecting and warming up are in no figure, and every point is measured for the same time.
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, cast

from . import calls, cpu, load, redis_benchmark
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave_all
from .parts import DIRECT, PROXY, Part, clients_at_most
from .plan import Plan
from .processes import Process
from .rows import CLIENTS, GROWTH_CLIENTS, GROWTH_HITS, GROWTH_KEYS, RANDOM, Command, Row

POINTS: Final = {
    GROWTH_CLIENTS: (1, 10, 50, 200, 1000, 5000),
    GROWTH_KEYS: (10, 1_000, 100_000, 1_000_000),
    GROWTH_HITS: (10, 100, 1_000, 10_000, 100_000),
}
QUICK_POINTS: Final = 1  # points of each row with --quick, the least ones
REPEATS: Final = 3  # repeats, at most
SECONDS: Final = 2.0  # length of the measured window
QUICK_SECONDS: Final = 0.2  # the same with --quick
WARM_UP_HITS: Final = 4  # hits of each client before the window
LOOK_S: Final = 0.02  # seconds between two looks during the warm-up
ENOUGH: Final = 10_000_000  # requests of the load: more than it sends before it is stopped
HELD: Final = 20_000  # live hits of all keys of GROWTH_HITS; from it follows the number of keys,
FEW_KEYS: Final = 1  # at least
MANY_KEYS: Final = 1_000  # and at most
COUNTED: Final = 20  # keys whose live hits are counted
FILLED_AT_ONCE: Final = 10_000  # keys restored in one pipeline
HOUR_MS: Final = 3_600_000
MICROSECONDS: Final = 1e6

SPENT_UNIT: Final = "µs"
# ends of figures' names
RATE: Final = ""  # hits per second
REDIS: Final = cpu.REDIS  # CPU time of a hit in Redis
PARTY: Final = cpu.PARTY  # CPU time of a hit in the proxy
LIVE: Final = "live"  # live hits of a key

_SCRIPT_CALLS: Final = re.compile(r"^cmdstat_eval(?:sha)?:calls=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Look:
    """The counts at one time: script calls, and seconds of CPU (None: unknown)."""

    at_s: float
    hits: int
    redis_s: float | None = None
    party_s: float | None = None


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Measure all points of `row`, directly and through the proxy. Raises BenchError."""
    clients_at_most(max(POINTS[GROWTH_CLIENTS]))  # raises the limit of files for the load as well
    points = POINTS[row.name] if plan.warm_up else POINTS[row.name][:QUICK_POINTS]
    if row.name == GROWTH_CLIENTS:
        points = tuple(dict.fromkeys(clients_at_most(point) for point in points))
    columns = [name for name in (DIRECT, PROXY) if name in parts]
    found: list[Figure] = []
    for point in points:
        found += _point(row, point, columns, plan, parts)
    return found


def _point(
    row: Row, point: int, columns: Sequence[str], plan: Plan, parts: Mapping[str, Part]
) -> list[Figure]:
    server, hit = parts[DIRECT].port, row.commands[0]
    if row.name == GROWTH_KEYS:
        plan.progress.begin(f"{row.name} {point:,}, filling", 0, REPEATS)
        _fill(hit, point, server)

    def once(column: str, _: int) -> dict[str, float]:
        if row.name == GROWTH_KEYS:
            return _run(plan, parts, column, hit, point, CLIENTS)
        _empty(hit, server)
        if row.name == GROWTH_CLIENTS:
            return _run(plan, parts, column, hit, row.keys, point)
        return _run_full(plan, parts, column, hit, point)

    generator = redis_benchmark.NAME if plan.redis_benchmark else load.NAME
    made = {
        what: Figure(name_of(row.name, point, what), row.kind, unit, generator, note)
        for what, unit, note in (
            (RATE, row.unit, row.help),
            (REDIS, SPENT_UNIT, "CPU time of Redis for a hit"),
            (PARTY, SPENT_UNIT, "CPU time of the proxy for a hit"),
            (LIVE, "hits", "live hits of a key at the end"),
        )
    }
    return interleave_all(made, RATE, columns, once, min(plan.repeats, REPEATS), plan.progress)


def name_of(row: str, point: int, what: str) -> str:
    """Return the name of a figure: `growth-keys 1000` (rate), `growth-keys 1000 redis` (CPU)."""
    return f"{row} {point} {what}".rstrip()


def between(before: Look, after: Look) -> dict[str, float]:
    """Return the hits per second and the CPU time of a hit, in SPENT_UNIT, between two looks.

    The keys are the ends of figures' names. Raises BenchError if there was no hit.
    """
    hits, seconds = after.hits - before.hits, after.at_s - before.at_s
    if hits <= 0 or seconds <= 0:
        raise BenchError("no hit was answered while it was measured")
    found = {RATE: hits / seconds}
    for what, first, last in (
        (REDIS, before.redis_s, after.redis_s),
        (PARTY, before.party_s, after.party_s),
    ):
        if first is not None and last is not None:
            found[what] = (last - first) / hits * MICROSECONDS
    return found


# -- runs ------------------------------------------------------------------------------------------


def _run(
    plan: Plan,
    parts: Mapping[str, Part],
    column: str,
    hit: Command,
    keys: int,
    clients: int,
    warm_up_s: float = 0.0,
    counted: Sequence[bytes] = (),
) -> dict[str, float]:
    """Measure rate and CPU under the load of `clients`, and the live hits of the `counted` keys.

    The window begins after WARM_UP_HITS * clients hits, and after `warm_up_s` seconds at least. It
    has one hit at least.
    """
    command = hit if column == PROXY else calls.direct(hit)
    seconds = SECONDS if plan.warm_up else QUICK_SECONDS
    with (
        Client(parts[DIRECT].port) as client,
        _loaded(parts[column].port, command, keys, clients, plan) as check,
    ):
        begin_s = time.monotonic()
        end_s = begin_s + warm_up_s + seconds + plan.limit_s
        warm = _look(client, parts, column).hits + WARM_UP_HITS * clients
        while True:
            before = _look(client, parts, column)
            if before.hits >= warm and time.monotonic() - begin_s >= warm_up_s:
                break
            check(end_s)
            time.sleep(LOOK_S)
        time.sleep(seconds)
        while (after := _look(client, parts, column)).hits == before.hits:
            check(end_s)  # no hit yet, on a machine that stalls
            time.sleep(LOOK_S)
        held = [cast("int", client.ask(b"LLEN", key)) for key in counted]
        check(end_s)
    live = {LIVE: statistics.mean(held)} if held else {}
    return between(before, after) | live


def _run_full(
    plan: Plan, parts: Mapping[str, Part], column: str, hit: Command, live: int
) -> dict[str, float]:
    """Measure as _run(), with about `live` hits on each key.

    The rule's window is the time that `live` hits per key take: for each new hit one expires.
    """
    keys = max(FEW_KEYS, min(MANY_KEYS, HELD // live))
    rate = _run(plan, parts, column, _within(hit, 1), keys, CLIENTS)[RATE]
    _empty(hit, parts[DIRECT].port)
    window_ms = max(1, round(1000 * live * keys / rate))
    warm_up_s = window_ms / 1000
    counted = list(_keys(hit, min(keys, COUNTED)))
    return _run(plan, parts, column, _within(hit, window_ms), keys, CLIENTS, warm_up_s, counted)


def _within(hit: Command, window_ms: int) -> Command:
    return (*hit[:3], b"%d" % window_ms, b"MS")


def _look(client: Client, parts: Mapping[str, Part], column: str) -> Look:
    """Read the counts, by Redis' own statistics and clock."""
    asked = ([b"MULTI"], [b"INFO", b"commandstats"], [b"TIME"], [b"EXEC"])
    stats, (seconds, micros) = cast("tuple[bytes, list[bytes]]", client.ask_all(asked)[-1])
    calls_so_far = _SCRIPT_CALLS.findall(stats.decode().replace("\r", ""))
    pid = parts[column].process.pid
    return Look(
        int(seconds) + int(micros) / MICROSECONDS,
        sum(int(count) for count in calls_so_far),
        cpu.seconds(parts[DIRECT].process.pid),
        None if column == DIRECT else cpu.seconds(pid),
    )


@contextmanager
def _loaded(
    port: int, command: Command, keys: int, clients: int, plan: Plan
) -> Iterator[Callable[[float], None]]:
    """Generate closed-loop load until the context ends.

    Yields a function that takes a time of time.monotonic(). It raises BenchError if that time has
    passed or the load has ended.
    """
    with tempfile.TemporaryDirectory(prefix="rlproxy-bench-") as home:
        if plan.redis_benchmark:
            name = shutil.which(redis_benchmark.NAME) or redis_benchmark.NAME
            argv = [name, "-p", str(port), "-c", str(clients), "-n", str(ENOUGH)]
            argv += ["-r", str(keys), "-q", *(word.decode() for word in command)]
            process = Process(argv, Path(home, "load.log"))
            try:
                yield process.check
            finally:
                process.close()
            return
        prepared = load.batches([command], 1, keys, load.MAX_BATCHES)
        child = multiprocessing.get_context("fork").Process(
            target=load.rate,
            args=(port, prepared, 1, ENOUGH, clients, plan.limit_s),
            daemon=True,
        )
        child.start()

        def check(end_s: float) -> None:
            if not child.is_alive() or time.monotonic() > end_s:
                raise BenchError("the load ended before it was measured")

        try:
            yield check
        finally:
            child.terminate()
            child.join()


# -- preparation of the server ---------------------------------------------------------------------


def _keys(hit: Command, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield hit[1].replace(RANDOM, b"%012d" % number)


def _empty(hit: Command, server: int) -> None:
    with Client(server) as client:
        client.ask(b"FLUSHALL")
        client.ask(b"SCRIPT", b"LOAD", calls.of(hit).source)


def _fill(hit: Command, keys: int, server: int) -> None:
    """Create `keys` keys with one live hit each: the first by a hit, the others as copies."""
    _empty(hit, server)
    names = _keys(hit, keys)
    first = next(names)
    with Client(server) as client:
        client.ask(*(first if RANDOM in word else word for word in calls.direct(hit)))
        state = client.ask(b"DUMP", first)
        if not isinstance(state, bytes):
            raise BenchError(f"DUMP answered {state!r}")
        while some := list(islice(names, FILLED_AT_ONCE)):
            client.ask_all((b"RESTORE", key, b"%d" % HOUR_MS, state) for key in some)
