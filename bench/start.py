"""The row of kind START: how long a program takes to its first reply, and its memory then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from . import parts
from .client import Client
from .figures import Figure, interleave
from .options import Plan
from .parts import HAPROXY, INTERPRETED, PROXY, SPLICE, Part
from .rows import Row

MEMORY: Final = "memory"
MS_PER_S: Final = 1000
MEGA: Final = 1 << 20


def measure(row: Row, plan: Plan, _running: Mapping[str, Part]) -> list[Figure]:
    """Measure milliseconds until the first reply (to 10 ms), and the resident memory in MB.

    Each sample starts new processes: a server, and then the party. Raises BenchError.
    """

    def once(column: str, _turn: int) -> dict[str, float]:
        with parts.running(plan.executable, [column]) as running:
            part = running[column]
            with Client(part.port) as client:
                client.ask(b"PING")
                took_s = time.perf_counter() - part.processes[0].began
            return {row.name: took_s * MS_PER_S, MEMORY: part.resident_bytes() / MEGA}

    figures = {
        row.name: Figure(row.name, row.kind, row.unit, row.help),
        MEMORY: Figure(f"{row.name} {MEMORY}", row.kind, "MB", "resident memory then"),
    }
    columns = parts.installed((PROXY, INTERPRETED, SPLICE, HAPROXY))
    return interleave(figures, columns, once, plan)
