"""python -m bench.costs FILE: the costs of a hit of each ALGO, as the table of docs/algorithms.md.

A real server counts the commands that a hit calls (MONITOR), its time (INFO commandstats) and the
memory of its key (MEMORY USAGE). The table replaces the text between the markers in FILE.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rlproxy import docs as document
from rlproxy.ratelimit.algorithms import ALGORITHMS

from . import calls, machine, parts, script_cost
from .calls import ScriptCall
from .client import Client
from .errors import BenchError, UsageError, reported
from .figures import Figure
from .options import REPEATS, REQUESTS, Plan
from .progress import number
from .rows import COST
from .tables import markdown

ENGINE: Final = "valkey-9.1"  # the server of `--upstream embedded:`
CASES: Final = {case: most for case, (most, _) in script_cost.CASES.items()}  # max of the rule
HITS: Final = (1, 10, 100, 1000)  # live hits of a key whose memory is measured
FILLS: Final = 7  # measurements of memory: an allocator's rounding differs between them

_CALLED: Final = re.compile(r'\[\d+ lua\] "(\w+)"')
_LAST: Final = "that-was-all"
_KEY: Final = b"key:%012d" % 0


def called(server: int, algorithm: bytes, most: bytes) -> list[str]:
    """Return the commands that a hit calls, in order, on a key with one live hit.

    server: its port; its data is deleted.
    most: max of the rule.
    Raises BenchError.
    """
    with Client(server) as client, Client(server) as monitor:
        hit = _prepared(client, algorithm, most)
        client.ask(*hit.evalsha)
        monitor.ask(b"MONITOR")
        client.ask(*hit.evalsha)
        client.ask(b"ECHO", _LAST.encode())
        seen = ""
        while _LAST not in seen:
            seen += str(monitor.receive())
    return [name.upper() for name in _CALLED.findall(seen)]


def took_us(server: int, algorithm: bytes, case: str, plan: Plan) -> float:
    """Return the microseconds of a hit. The server's data is deleted. Raises BenchError."""
    ways = {script_cost.EVALSHA: calls.of(script_cost.hit_of(case, algorithm))}
    figure = Figure(f"{algorithm.decode()} {case}", COST, "µs")
    script_cost.timed(figure, ways, case, plan, plan.requests, server)
    return figure.medians[script_cost.EVALSHA]


def held(server: int, algorithm: bytes) -> list[int]:
    """Return the bytes of a key with each of HITS live hits, the medians of FILLS measurements.

    The server's data is deleted. Raises BenchError.
    """
    with Client(server) as client:
        fills = [list(_filled(client, algorithm)) for _ in range(FILLS)]
    return [round(statistics.median(found)) for found in zip(*fills, strict=True)]


def _filled(client: Client, algorithm: bytes) -> Iterator[int]:
    hit, done = _prepared(client, algorithm, b"%d" % max(HITS)), 0
    for hits in HITS:
        client.ask_all(hit.evalsha for _ in range(hits - done))
        done = hits
        used = client.ask(b"MEMORY", b"USAGE", _KEY, b"SAMPLES", b"0")
        if not isinstance(used, int):
            raise BenchError(f"MEMORY USAGE answered {used!r}")
        yield used


def _prepared(client: Client, algorithm: bytes, most: bytes) -> ScriptCall:
    """Empty the server and load the script. Returns the call of a hit on _KEY."""
    hit = calls.of((calls.HIT, _KEY, most, b"3600", b"ALGO", algorithm))
    client.ask(b"FLUSHALL")
    client.ask(b"SCRIPT", b"LOAD", hit.source)
    return hit


def table(server: int, plan: Plan) -> str:
    """Measure all, and return the table in Markdown. The server's data is deleted.

    Raises BenchError.
    """
    head = "ALGO | an admitted hit calls | µs | a refused hit calls | µs"
    sizes = [f"bytes, {hits:,} hit{'s' if hits > 1 else ''}" for hits in HITS]
    lines = []
    for algorithm in ALGORITHMS:
        lines.append([algorithm.decode()])
        for case, most in CASES.items():
            words = called(server, algorithm, most)
            us = took_us(server, algorithm, case, plan)
            lines[-1] += [f"{len(words)}: {' '.join(words)}", number(us)]
        lines[-1] += [f"{size:,}" for size in held(server, algorithm)]
    return markdown(" | ".join([head, *sizes]), lines, (0, 1, 3))


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
        found = table(server.port, plan)
        version = machine.server_version(server)
    day = datetime.now(UTC).date().isoformat()
    note = (
        f"Measured {day} with {version} on {facts['processor']}, {facts['cores']} cores (load "
        f"before: {facts['load_before']}). Times: Redis' own account, the median of {REPEATS} runs "
        f"of {REQUESTS:,} hits each. Bytes: `MEMORY USAGE` of a key of 16 bytes, the median of "
        f"{FILLS}; an allocator's rounding moves it by up to 16 bytes, the skip list of a large "
        "sorted set by some percent."
    )
    return f"{found}\n\n{note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
