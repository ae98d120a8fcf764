"""What the scripts of hits cost in Redis, without a proxy: times, commands, memory.

The row of kind COST compares a plain hit with the least script of a log.

python -m bench.costs FILE: the costs of a hit of each ALGO, as the table of docs/algorithms.md. A
real server counts the commands that a hit calls (MONITOR), its time (INFO commandstats) and the
memory of its key (MEMORY USAGE). The table replaces the text between the markers in FILE.
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rlproxy import docs as document
from rlproxy.ratelimit.algorithms import ALGORITHMS

from . import calls, load, machine, parts
from .calls import ScriptCall
from .client import Client
from .errors import BenchError, UsageError, reported
from .figures import Figure, interleave, number
from .options import REPEATS, REQUESTS, Plan
from .parts import BARE
from .rows import CLIENTS, COST, DEEP, KEYS, RANDOM, Command, Row
from .tables import markdown

EVALSHA: Final = "evalsha"
PART: Final = 3  # divisor of a rate's requests: Redis' own count needs fewer of them
LEAST: Final = 2000  # requests of a load: redis-benchmark measures no rate within a millisecond
REFUSED: Final = "refused"
# max of the rule, and the number of keys
CASES: Final = {"admitted": (b"1000", KEYS), REFUSED: (b"1", 100)}
ENGINE: Final = "valkey-9.1"  # the server of `--upstream embedded:`
HITS: Final = (1, 10, 100, 1000)  # live hits of a key whose memory is measured
FILLS: Final = 7  # measurements of memory: an allocator's rounding differs between them

_SPENT: Final = re.compile(r"^cmdstat_evalsha:calls=([1-9]\d*),usec=(\d+)", re.MULTILINE)
_CALLED: Final = re.compile(r'\[\d+ lua\] "(\w+)"')
_LAST: Final = "that-was-all"
_KEY: Final = b"key:%012d" % 0


def _hit(key: bytes, most: bytes, algorithm: bytes) -> Command:
    return (calls.HIT, key, most, b"3600", b"ALGO", algorithm)


def measure(row: Row, plan: Plan) -> list[Figure]:
    """Measure the microseconds of a hit by LOG, admitted and refused, beside the bare log.

    Raises BenchError.
    """
    found: list[Figure] = []
    plan = replace(plan, requests=max(plan.requests // PART, LEAST))
    with parts.server(plan.executable) as server:
        for case, (most, _) in CASES.items():
            hit = _hit(b"key:" + RANDOM, most, b"LOG")
            ways = {EVALSHA: calls.of(hit), BARE: calls.bare(hit)}
            found.append(timed(f"{row.name} LOG {case}", ways, case, plan, server.port))
    return found


def timed(name: str, ways: Mapping[str, ScriptCall], case: str, plan: Plan, server: int) -> Figure:
    """Measure a figure with a column for each of `ways`: the microseconds of its EVALSHA.

    server: its port; its data is deleted.
    Raises BenchError.
    """
    keys = CASES[case][1]

    def once(column: str, _turn: int) -> dict[str, float]:
        call = ways[column]
        with Client(server) as client:
            _load(client, call)
            if case == REFUSED:  # each key gets its one hit, so that all further ones are refused
                client.ask_all(load.filled(call.evalsha, number) for number in range(keys))
            client.ask(b"CONFIG", b"RESETSTAT")
            load.rate(server, [call.evalsha], DEEP, keys, plan.requests, CLIENTS)
            found = _SPENT.search(client.text(b"INFO", b"commandstats"))
        if found is None:
            raise BenchError("INFO commandstats has no EVALSHA")
        return {name: int(found[2]) / int(found[1])}

    return interleave({name: Figure(name, COST, "µs")}, list(ways), once, plan)[0]


def _load(client: Client, call: ScriptCall) -> None:
    """Empty the server and load a script."""
    client.ask(b"FLUSHALL")
    client.ask(b"SCRIPT", b"LOAD", call.source)


def called(server: int, algorithm: bytes, most: bytes) -> list[str]:
    """Return the commands that a hit calls, in order, on a key with one live hit.

    server: its port; its data is deleted.
    most: max of the rule.
    Raises BenchError.
    """
    hit = calls.of(_hit(_KEY, most, algorithm))
    with Client(server) as client, Client(server) as monitor:
        _load(client, hit)
        client.ask(*hit.evalsha)
        monitor.ask(b"MONITOR")
        client.ask(*hit.evalsha)
        client.ask(b"ECHO", _LAST.encode())
        seen = ""
        while _LAST not in seen:
            seen += str(monitor.receive())
    return [name.upper() for name in _CALLED.findall(seen)]


def held(server: int, algorithm: bytes) -> list[int]:
    """Return the bytes of a key with each of HITS live hits, the medians of FILLS measurements.

    The server's data is deleted. Raises BenchError.
    """
    hit = calls.of(_hit(_KEY, b"%d" % max(HITS), algorithm))
    found: dict[int, list[int]] = {hits: [] for hits in HITS}
    with Client(server) as client:
        for _ in range(FILLS):
            _load(client, hit)
            for before, hits in itertools.pairwise((0, *HITS)):
                client.ask_all(hit.evalsha for _ in range(hits - before))
                usage = client.ask(b"MEMORY", b"USAGE", _KEY, b"SAMPLES", b"0")
                found[hits].append(int(str(usage)))
    return [round(statistics.median(sizes)) for sizes in found.values()]


def table(server: int, plan: Plan) -> str:
    """Measure all, and return the table in Markdown. The server's data is deleted.

    Raises BenchError.
    """
    lines = {name: [name.decode()] for name in ALGORITHMS}
    for case, (most, _) in CASES.items():
        ways = {name.decode(): calls.of(_hit(b"key:" + RANDOM, most, name)) for name in ALGORITHMS}
        medians = timed(case, ways, case, plan, server).medians
        for name, line in lines.items():
            words = called(server, name, most)
            line += [f"{len(words)}: {' '.join(words)}", number(medians[name.decode()])]
    for name, line in lines.items():
        line += [f"{size:,}" for size in held(server, name)]
    head = "ALGO | an admitted hit calls | µs | a refused hit calls | µs"
    sizes = [f"bytes, {hits:,} hit{'s' if hits > 1 else ''}" for hits in HITS]
    return markdown(" | ".join([head, *sizes]), list(lines.values()), (0, 1, 3))


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
    day = datetime.now(UTC).date().isoformat()
    where = f"{facts['processor']}, {facts['cores']} cores (load before: {facts['load_before']})"
    note = (
        f"Measured {day} with {machine.server(plan.executable)} on {where}. "
        f"Times: Redis' own account, the median of {REPEATS} runs of {REQUESTS:,} hits each. "
        f"Bytes: `MEMORY USAGE` of a key of 16 bytes, the median of {FILLS}; "
        "an allocator's rounding moves it by up to 16 bytes, "
        "the skip list of a large sorted set by some percent."
    )
    return f"{found}\n\n{note}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
