"""Rows of kind COST and SPACE: time and memory that each script takes in Redis, without a proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from . import calls, load
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .parts import BARE
from .plan import Plan
from .rows import CLIENTS, DEEP, KEYS, RANDOM, Row

EVALSHA: Final = "evalsha"
EVAL: Final = "eval"
PART: Final = 3  # divisor of a rate's requests: Redis' own count needs fewer of them
FEW_KEYS: Final = 100  # keys of refused hits
HITS: Final = (1, 10, 100, 1000)  # live hits of a key whose memory is measured
SERVER: Final = "the server's own count"
_KEY: Final = b"key:" + RANDOM
_SPENT: Final = re.compile(r"^cmdstat_(\w+):calls=(\d+),usec=(\d+)", re.MULTILINE)


def measure(
    row: Row, plan: Plan, server: int, ways: Sequence[str] = (EVALSHA, EVAL, BARE)
) -> list[Figure]:
    """Measure the microseconds of each algorithm's hit, admitted and refused.

    server: its port.
    ways: the columns: the commands that call the script, and the least script of a log, for LOG.
    Raises BenchError.
    """
    found: list[Figure] = []
    for case, most, keys in (("admitted", b"1000", KEYS), ("refused", b"1", FEW_KEYS)):
        rule = (calls.HIT, _KEY, most, b"3600")
        for algorithm in calls.algorithms():
            call = calls.of((*rule, b"ALGO", algorithm))
            made = {EVALSHA: (call, call.evalsha), EVAL: (call, call.eval)}
            if algorithm == b"LOG":
                bare = calls.bare(rule)
                made[BARE] = (bare, bare.evalsha)
            name = f"{row.name} {algorithm.decode()} {case}"
            figure = Figure(name, row.kind, row.unit, SERVER)
            of_ways = {way: made[way] for way in ways if way in made}
            found.append(_cost(figure, of_ways, keys, plan, server))
    return found


def space(row: Row, plan: Plan, server: int) -> list[Figure]:
    """Measure the bytes of one key of each algorithm with HITS live hits. Raises BenchError."""
    found: list[Figure] = []
    with Client(server) as client:
        for algorithm in calls.algorithms():
            hit = (calls.HIT, b"key:%012d" % 0, b"%d" % max(HITS), b"3600", b"ALGO", algorithm)
            call = calls.of(hit)
            client.ask(b"FLUSHALL")
            client.ask(b"SCRIPT", b"LOAD", call.source)
            figure = Figure(f"{row.name} {algorithm.decode()}", row.kind, row.unit, SERVER)
            done = 0
            for hits in HITS:
                client.ask_all(call.evalsha for _ in range(hits - done))
                done = hits
                used = client.ask(b"MEMORY", b"USAGE", hit[1], b"SAMPLES", b"0")
                if not isinstance(used, int):
                    raise BenchError(f"MEMORY USAGE answered {used!r}")
                figure.samples[f"{hits} hit{'s' if hits > 1 else ''}"] = [float(used)]
            plan.progress.finish(figure.name, figure.medians(), figure.unit)
            found.append(figure)
    return found


def _cost(
    figure: Figure,
    ways: Mapping[str, tuple[calls.ScriptCall, tuple[bytes, ...]]],
    keys: int,
    plan: Plan,
    server: int,
) -> Figure:
    """Fill `figure` with a column for each of `ways`: a script, and the request that calls it."""
    count = max(1, plan.requests // DEEP)
    prepared = {
        way: load.batches([request], DEEP, keys, count) for way, (_, request) in ways.items()
    }

    def once(column: str) -> float:
        call, request = ways[column]
        with Client(server) as client:
            client.ask(b"FLUSHALL")
            client.ask(b"SCRIPT", b"LOAD", call.source)
            if keys == FEW_KEYS:  # each key gets its one hit, so that all further ones are refused
                client.ask_all(
                    [word.replace(RANDOM, b"%012d" % number) for word in call.evalsha]
                    for number in range(keys)
                )
            client.ask(b"CONFIG", b"RESETSTAT")
            load.rate(server, prepared[column], DEEP, plan.requests, CLIENTS, plan.limit_s)
            name = request[0].decode().lower()
            return microseconds(client.text(b"INFO", b"commandstats"), name)

    return interleave(figure, list(ways), once, plan.repeats, plan.progress)


def microseconds(info: str, command: str) -> float:
    """Return the microseconds per call of `command` from INFO commandstats. Raises BenchError."""
    for name, count, usec in _SPENT.findall(info.replace("\r", "")):
        if name == command and int(count):
            return int(usec) / int(count)
    raise BenchError(f"INFO commandstats has no {command}")
