"""The row of kind COST: the time that the script of a plain hit takes in Redis, without a proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from . import calls, load
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .parts import BARE, DIRECT, Part
from .plan import Plan
from .rows import CLIENTS, DEEP, KEYS, RANDOM, Row

EVALSHA: Final = "evalsha"
PART: Final = 3  # divisor of a rate's requests: Redis' own count needs fewer of them
FEW_KEYS: Final = 100  # keys of refused hits
# max of the rule, and the number of keys
CASES: Final = {"admitted": (b"1000", KEYS), "refused": (b"1", FEW_KEYS)}
SERVER: Final = "the server's own count"
_SPENT: Final = re.compile(r"^cmdstat_(\w+):calls=(\d+),usec=(\d+)", re.MULTILINE)


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Measure the microseconds of a hit by LOG, admitted and refused, beside the bare log.

    Raises BenchError.
    """
    found: list[Figure] = []
    plan = replace(plan, requests=max(1, plan.requests // PART))
    for case in CASES:
        hit = hit_of(case, b"LOG")
        ways = {EVALSHA: calls.of(hit), BARE: calls.bare(hit)}
        figure = Figure(f"{row.name} LOG {case}", row.kind, row.unit, SERVER)
        found.append(timed(figure, ways, case, plan, parts[DIRECT].port))
    return found


def hit_of(case: str, algorithm: bytes) -> tuple[bytes, ...]:
    """Return the hit of one of CASES by `algorithm`."""
    return (calls.HIT, b"key:" + RANDOM, CASES[case][0], b"3600", b"ALGO", algorithm)


def timed(
    figure: Figure, ways: Mapping[str, calls.ScriptCall], case: str, plan: Plan, server: int
) -> Figure:
    """Fill `figure` with a column for each of `ways`: the microseconds of its call, by EVALSHA.

    server: its port.
    Raises BenchError.
    """
    count, keys = max(1, plan.requests // DEEP), CASES[case][1]
    prepared = {way: load.batches([call.evalsha], DEEP, keys, count) for way, call in ways.items()}

    def once(column: str) -> float:
        call = ways[column]
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
            return microseconds(client.text(b"INFO", b"commandstats"), EVALSHA)

    return interleave(figure, list(ways), once, plan.repeats, plan.progress)


def microseconds(info: str, command: str) -> float:
    """Return the microseconds per call of `command` from INFO commandstats. Raises BenchError."""
    for name, count, usec in _SPENT.findall(info.replace("\r", "")):
        if name == command and int(count):
            return int(usec) / int(count)
    raise BenchError(f"INFO commandstats has no {command}")
