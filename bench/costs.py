"""python -m bench.costs FILE: the costs of a hit of each ALGO, as the table of docs/algorithms.md.

A real server counts the commands that a hit calls (MONITOR), its time (INFO commandstats) and the
memory of its key (MEMORY USAGE). The table replaces the text between the markers in FILE.
"""

from __future__ import annotations

import re
import socket
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rlproxy import docs as document
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.resp.encoding import bulks

from . import calls, machine, parts, script_cost
from .client import TIMEOUT_S, Client
from .errors import BenchError, UsageError, reported
from .figures import Figure
from .options import REPEATS, REQUESTS, Plan
from .progress import number
from .rows import COST

ENGINE: Final = "valkey-9.1"  # the server of `--upstream embedded:`
CASES: Final = {case: most for case, (most, _) in script_cost.CASES.items()}  # max of the rule
HITS: Final = (1, 10, 100, 1000)  # live hits of a key whose memory is measured
FILLS: Final = 7  # measurements of memory: an allocator's rounding differs between them

_CALLED: Final = re.compile(rb'\[\d+ lua\] "(\w+)"')
_LAST: Final = b"that-was-all"


@dataclass(frozen=True)
class Costs:
    """The costs of one ALGO: commands and microseconds by case, bytes by number of live hits."""

    called: Mapping[str, Sequence[str]]
    took_us: Mapping[str, float]
    held: Mapping[int, int]


def called(server: int, algorithm: bytes, most: bytes) -> list[str]:
    """Return the commands that a hit calls, in order, on a key with one live hit.

    server: its port; its data is deleted.
    most: max of the rule.
    Raises BenchError.
    """
    hit = calls.of((calls.HIT, b"key:%012d" % 0, most, b"3600", b"ALGO", algorithm))
    with Client(server) as client, socket.create_connection(("127.0.0.1", server)) as monitor:
        client.ask(b"FLUSHALL")
        client.ask(b"SCRIPT", b"LOAD", hit.source)
        client.ask(*hit.evalsha)
        monitor.settimeout(TIMEOUT_S)
        monitor.sendall(bulks(b"MONITOR"))
        seen = monitor.recv(1)  # the first byte of +OK: MONITOR is active
        client.ask(*hit.evalsha)
        client.ask(b"ECHO", _LAST)
        while _LAST not in seen:
            data = monitor.recv(1 << 16)
            if not data:
                raise BenchError("MONITOR was closed")
            seen += data
    return [name.decode().upper() for name in _CALLED.findall(seen)]


def held(server: int) -> dict[str, dict[int, int]]:
    """Return the bytes of a key by ALGO and number of live hits, the median of FILLS.

    The server's data is deleted. Raises BenchError.
    """
    with Client(server) as client:
        return {
            algorithm.decode(): {
                hits: round(statistics.median(found))
                for hits, *found in zip(
                    HITS, *(_filled(client, algorithm) for _ in range(FILLS)), strict=True
                )
            }
            for algorithm in ALGORITHMS
        }


def _filled(client: Client, algorithm: bytes) -> list[int]:
    """Return the bytes of a key with each of HITS live hits."""
    hit = (calls.HIT, b"key:%012d" % 0, b"%d" % max(HITS), b"3600", b"ALGO", algorithm)
    call = calls.of(hit)
    client.ask(b"FLUSHALL")
    client.ask(b"SCRIPT", b"LOAD", call.source)
    found, done = [], 0
    for hits in HITS:
        client.ask_all(call.evalsha for _ in range(hits - done))
        done = hits
        used = client.ask(b"MEMORY", b"USAGE", hit[1], b"SAMPLES", b"0")
        if not isinstance(used, int):
            raise BenchError(f"MEMORY USAGE answered {used!r}")
        found.append(used)
    return found


def took(server: int, plan: Plan) -> dict[tuple[str, str], float]:
    """Return the microseconds of a hit by (ALGO, case).

    The server's data is deleted. Raises BenchError.
    """
    found: dict[tuple[str, str], float] = {}
    for algorithm in ALGORITHMS:
        for case in CASES:
            name = algorithm.decode()
            ways = {script_cost.EVALSHA: calls.of(script_cost.hit_of(case, algorithm))}
            (figure,) = script_cost.timed(
                Figure(f"{name} {case}", COST, "µs"), ways, case, plan, plan.requests, server
            )
            found[name, case] = figure.medians[script_cost.EVALSHA]
    return found


def costs(server: int, plan: Plan) -> dict[str, Costs]:
    """Measure all costs, by ALGO. The server's data is deleted. Raises BenchError."""
    bytes_held, us = held(server), took(server, plan)
    return {
        name: Costs(
            {case: called(server, name.encode(), most) for case, most in CASES.items()},
            {case: us[name, case] for case in CASES},
            bytes_held[name],
        )
        for name in (algorithm.decode() for algorithm in ALGORITHMS)
    }


def table(found: Mapping[str, Costs]) -> str:
    """Return the table in Markdown."""
    rows = [
        "| ALGO | an admitted hit calls | µs | a refused hit calls | µs |"
        + "".join(f" bytes, {hits:,} hit{'s' if hits > 1 else ''} |" for hits in HITS),
        "|---|---|--:|---|--:|" + "--:|" * len(HITS),
    ]
    for name, costs in found.items():
        cells = [name]
        for case in CASES:
            words = costs.called[case]
            cells += [f"{len(words)}: {' '.join(words)}", number(costs.took_us[case])]
        cells += [f"{costs.held[hits]:,}" for hits in HITS]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def filled(text: str, block: str) -> str:
    """Return `text` with `block` between the markers. Raises UsageError if there are none."""
    found = document.replaced(text, "costs", block)
    if found is None:
        raise UsageError("no <!-- costs: ... --> and <!-- /costs -->")
    return found


def main(argv: Sequence[str]) -> int:
    """Measure, and write the table into a file. Returns the exit code of reported()."""

    def write() -> None:
        if len(argv) != 1:
            raise UsageError("usage: python -m bench.costs FILE")
        path = Path(argv[0])
        text = path.read_text()
        filled(text, "")
        path.write_text(filled(text, _measured(path)))

    return reported(write)


def _measured(path: Path) -> str:
    plan = Plan(parts.engine(ENGINE), REPEATS, quick=False, output=path)
    facts = machine.machine()  # before the measurements add load
    with parts.server(plan.executable) as server:
        found = costs(server.port, plan)
        version = machine.server_version(server)
    day = datetime.now(UTC).date().isoformat()
    note = (
        f"Measured {day} with {version} on {facts['processor']}, {facts['cores']} cores (load "
        f"before: {facts['load_before']}). Times: Redis' own account, the median of {REPEATS} runs "
        f"of {REQUESTS:,} hits each. Bytes: `MEMORY USAGE` of a key of 16 bytes, the median of "
        f"{FILLS}; an allocator's rounding moves it by up to 16 bytes, the skip list of a large "
        "sorted set by some percent."
    )
    return f"{table(found)}\n\n{note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
