"""The row of kind COST: the time that the script of a plain hit takes in Redis, without a proxy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from . import calls, load
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import BARE, DIRECT, Part
from .rows import CLIENTS, DEEP, KEYS, RANDOM, Row

EVALSHA: Final = "evalsha"
PART: Final = 3  # divisor of a rate's requests: Redis' own count needs fewer of them
FEW_KEYS: Final = 100  # keys of refused hits
# max of the rule, and the number of keys
CASES: Final = {"admitted": (b"1000", KEYS), "refused": (b"1", FEW_KEYS)}
_SPENT: Final = re.compile(r"^cmdstat_evalsha:calls=([1-9]\d*),usec=(\d+)", re.MULTILINE)


def measure(row: Row, plan: Plan, running: Mapping[str, Part]) -> list[Figure]:
    """Measure the microseconds of a hit by LOG, admitted and refused, beside the bare log.

    Raises BenchError.
    """
    found: list[Figure] = []
    for case in CASES:
        hit = hit_of(case, b"LOG")
        ways = {EVALSHA: calls.of(hit), BARE: calls.bare(hit)}
        figure = Figure(f"{row.name} LOG {case}", row.kind, row.unit)
        found += timed(figure, ways, case, plan, plan.requests // PART, running[DIRECT].port)
    return found


def hit_of(case: str, algorithm: bytes) -> tuple[bytes, ...]:
    """Return the hit of one of CASES by `algorithm`."""
    return (calls.HIT, b"key:" + RANDOM, CASES[case][0], b"3600", b"ALGO", algorithm)


def timed(
    figure: Figure,
    ways: Mapping[str, calls.ScriptCall],
    case: str,
    plan: Plan,
    requests: int,
    server: int,
) -> list[Figure]:
    """Fill `figure` with a column for each of `ways`: the microseconds of its call, by EVALSHA.

    requests: calls of one run.
    server: its port.
    Raises BenchError.
    """
    keys = CASES[case][1]
    prepared = {
        way: load.batches([call.evalsha], DEEP, keys, requests // DEEP)
        for way, call in ways.items()
    }

    def once(column: str, _turn: int) -> dict[str, float]:
        call = ways[column]
        with Client(server) as client:
            client.ask(b"FLUSHALL")
            client.ask(b"SCRIPT", b"LOAD", call.source)
            if keys == FEW_KEYS:  # each key gets its one hit, so that all further ones are refused
                client.ask_all(load.filled(call.evalsha, number) for number in range(keys))
            client.ask(b"CONFIG", b"RESETSTAT")
            load.rate(server, prepared[column], DEEP, requests, CLIENTS)
            found = _SPENT.search(client.text(b"INFO", b"commandstats"))
        if found is None:
            raise BenchError("INFO commandstats has no EVALSHA")
        return {figure.name: int(found[2]) / int(found[1])}

    return interleave({figure.name: figure}, list(ways), once, plan)
