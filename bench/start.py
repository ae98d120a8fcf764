"""The row of kind START: how long a program takes to its first reply, and its memory then."""

from __future__ import annotations

import time
from collections.abc import Mapping

from . import parts
from .client import Client
from .figures import Figure, interleave_all
from .parts import HAPROXY, INTERPRETED, PROXY, SPLICE, Part
from .plan import Plan
from .processes import resident_bytes
from .rows import Row

GENERATOR = "one client"
MEMORY = "memory"
MS_PER_S = 1000
MEGA = 1 << 20


def measure(row: Row, plan: Plan, _parts: Mapping[str, Part]) -> list[Figure]:
    """Measure milliseconds until the first reply (to 10 ms), and the resident memory in MB.

    Each sample starts new processes: a server, and then the party. Raises BenchError.
    """

    def once(column: str, _turn: int) -> dict[str, float]:
        with parts.running(plan.executable, [column]) as running:
            part = running[column]
            with Client(part.port) as client:
                client.ask(b"PING")
                took_s = time.perf_counter() - part.launched_at
            return {row.name: took_s * MS_PER_S, MEMORY: resident_bytes(part.process.pid) / MEGA}

    figures = {
        row.name: Figure(row.name, row.kind, row.unit, GENERATOR, row.help),
        MEMORY: Figure(f"{row.name} {MEMORY}", row.kind, "MB", GENERATOR, "resident memory then"),
    }
    kinds = (PROXY, INTERPRETED, SPLICE, HAPROXY)
    columns = [name for name in kinds if name in plan.parties]
    return interleave_all(figures, row.name, columns, once, plan.repeats, plan.progress)
