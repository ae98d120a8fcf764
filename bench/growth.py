"""Rows of kind GROWTH: how throughput and CPU change with clients, keys and live hits.

Load runs as long as it takes; within it a window of seconds is looked at, by the server's own count
and clock. So neither connecting nor warming up is in a figure, and every point takes as long.
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
QUICK_POINTS: Final = 2  # of each, from the least
REPEATS: Final = 3  # at most
SECONDS: Final = 2.0  # looked at
QUICK_SECONDS: Final = 0.2
WARM_UP_HITS: Final = 4  # of each client, before that
LOOK_S: Final = 0.02  # between two looks while it warms up
ENOUGH: Final = 10_000_000  # requests: the load never ends by itself
HELD: Final = 20_000  # live hits of GROWTH_HITS in all: over so many keys,
FEW_KEYS: Final = 1  # but at least
MANY_KEYS: Final = 1_000  # and at most
COUNTED: Final = 20  # keys asked how many they hold
FILLED_AT_ONCE: Final = 10_000
HOUR_MS: Final = 3_600_000
MICROSECONDS: Final = 1e6

SPENT_UNIT: Final = "µs"
RATE: Final = ""  # the figure without further name
REDIS: Final = cpu.REDIS  # ends the names of figures: whose CPU time a hit takes
PARTY: Final = cpu.PARTY
LIVE: Final = "live"  # ends the name of the figure: how many live hits a key held

_SCRIPT_CALLS: Final = re.compile(r"^cmdstat_eval(?:sha)?:calls=(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Look:
    """What has been spent up to a time: script calls, seconds of CPU (None: nobody can tell)."""

    at_s: float
    hits: int
    redis_s: float | None = None
    party_s: float | None = None


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """All points of `row`, directly and through the proxy. Raises BenchError."""
    clients_at_most(max(POINTS[GROWTH_CLIENTS]))  # (raises the limit that the load inherits)
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
    """The name of a figure: `growth-keys 1000` is its rate, `growth-keys 1000 redis` Redis' CPU."""
    return f"{row} {point} {what}".rstrip()


def between(before: Look, after: Look) -> dict[str, float]:
    """What a hit took, by the end of the figure's name: rate (/s), then SPENT_UNIT of CPU.

    Raises BenchError if there was none.
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
    """Rate and CPU under the load of `clients`, once each had WARM_UP_HITS and `warm_up_s` is over;
    and how many live hits the `counted` keys hold meanwhile.
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
        after = _look(client, parts, column)
        held = [cast("int", client.ask(b"LLEN", key)) for key in counted]
        check(end_s)
    live = {LIVE: statistics.mean(held)} if held else {}
    return between(before, after) | live


def _run_full(
    plan: Plan, parts: Mapping[str, Part], column: str, hit: Command, live: int
) -> dict[str, float]:
    """The same where each key holds about `live` hits: the window is as long as it takes to make
    so many, so each hit that comes finds one that has just left.
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
    """By Redis' own count, clock and all."""
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
    """Load until the end, closed loop; the function given raises BenchError if it has ended, or
    if a time of time.monotonic() has passed.
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


# -- what the server holds before ------------------------------------------------------------------


def _keys(hit: Command, count: int) -> Iterator[bytes]:
    for number in range(count):
        yield hit[1].replace(RANDOM, b"%012d" % number)


def _empty(hit: Command, server: int) -> None:
    with Client(server) as client:
        client.ask(b"FLUSHALL")
        client.ask(b"SCRIPT", b"LOAD", calls.of(hit).source)


def _fill(hit: Command, keys: int, server: int) -> None:
    """Make `keys` keys with one live hit each: the first by a hit, the others as its copies."""
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
