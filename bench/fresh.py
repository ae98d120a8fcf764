"""Rows of kind START and IDLE, of which each sample starts new processes: times and memory."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from . import parts
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import DIRECT
from .rows import Row

CLIENTS: Final = 2_000
QUICK_CLIENTS: Final = 50
SETTLE_S: Final = 0.2
MEMORY: Final = "memory"
MS_PER_S: Final = 1000
KB: Final = 1 << 10
MB: Final = 1 << 20


def start(row: Row, plan: Plan) -> list[Figure]:
    """Measure milliseconds from a program's start to its first reply, and its memory then.

    Times are exact to 10 ms. Raises BenchError.
    """

    def once(column: str, _turn: int) -> dict[str, float]:
        with parts.running(plan.executable, [column]) as running:
            part = running[column]
            with Client(part.port) as client:
                client.ask(b"PING")
                took_s = time.perf_counter() - part.processes[0].began
            return {row.name: took_s * MS_PER_S, MEMORY: part.resident_bytes() / MB}

    memory = Figure(f"{row.name} {MEMORY}", row.kind, "MB", "resident memory then")
    columns = parts.installed(row.parties)
    return interleave({row.name: Figure.of(row), MEMORY: memory}, columns, once, plan)


def idle(row: Row, plan: Plan) -> list[Figure]:
    """Measure the growth of resident memory per client, of the process that clients connect to.

    Each client's own connection to Redis is open. Used memory is not returned, so the processes are
    new. Raises BenchError.
    """
    count = QUICK_CLIENTS if plan.quick else CLIENTS
    columns = parts.installed(row.parties)

    def once(column: str, _turn: int) -> dict[str, float]:
        with parts.running(plan.executable, [column]) as running, ExitStack() as stack:
            part = running[column]

            def grown(clients: int) -> int:
                for _ in range(clients):
                    stack.enter_context(Client(part.port)).ask(b"PING")
                time.sleep(SETTLE_S)
                return part.resident_bytes()

            before = grown(1)
            bytes_used = grown(count) - before
            with Client(running[DIRECT].port) as client:
                seen = int(client.fields(b"INFO", b"clients")["connected_clients"])
            if seen < count:  # a client without its connection to Redis
                raise BenchError(f"Redis has {seen:,} clients, expected {count:,}")
            return {row.name: bytes_used / count / KB}

    figure = Figure.of(row, f"{row.help}; {count:,} clients")
    return interleave({row.name: figure}, columns, once, plan)
