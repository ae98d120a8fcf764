"""The row of kind IDLE: the memory of a connected client that sends nothing."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from . import parts
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .parts import BARE, DIRECT, INTERPRETED, SHARE, STUB, TWEMPROXY, Part
from .plan import Plan
from .processes import resident_bytes
from .rows import Row

GENERATOR: Final = "blocking sockets"
TIMEOUT_S: Final = 20.0
SETTLE_S: Final = 0.2
PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"
_CLIENTS: Final = re.compile(r"^connected_clients:(\d+)", re.MULTILINE)
AT_ONCE: Final = 100  # connections opened before their replies are awaited


def measure(row: Row, plan: Plan, _parts: Mapping[str, Part]) -> list[Figure]:
    """Measure the growth of resident memory per client, of the process that clients connect to.

    Each client's own connection to Redis is open. Every sample starts new processes, because used
    memory is not returned. Raises BenchError.
    """
    count = plan.idle_clients
    # twemproxy replies to PING without a connection to Redis.
    without = (TWEMPROXY, SHARE, INTERPRETED, BARE, STUB)
    columns = [party for party in plan.parties if party not in without]

    def once(column: str) -> float:
        with parts.running(plan.executable, [column]) as running, ExitStack() as stack:
            part = running[column]
            _connect(part.port, 1, stack)
            time.sleep(SETTLE_S)
            before = resident_bytes(part.process.pid)
            _connect(part.port, count, stack)
            time.sleep(SETTLE_S)
            _check(running[DIRECT].port, count)
            return (resident_bytes(part.process.pid) - before) / count / 1024

    figure = Figure(row.name, row.kind, row.unit, GENERATOR, f"{row.help}; {count:,} clients")
    return [interleave(figure, columns, once, plan.repeats, plan.progress)]


def _check(server: int, count: int) -> None:
    """Check that each client's own connection to Redis is open. Raises BenchError."""
    with Client(server) as client:
        match = _CLIENTS.search(client.text(b"INFO", b"clients"))
    if match is None or int(match[1]) < count:
        raise BenchError(f"Redis has {match[1] if match else 'no'} clients, expected {count:,}")


def _connect(port: int, count: int, stack: ExitStack) -> None:
    """Open `count` connections that stay until `stack` ends, each with its PING answered."""
    try:
        for first in range(0, count, AT_ONCE):
            group = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
                for _ in range(first, min(first + AT_ONCE, count))
            ]
            for sock in group:
                sock.sendall(PING)
            for sock in group:
                if (reply := sock.recv(64)) != PONG:
                    raise BenchError(f"PING got {reply!r}")
    except OSError as error:
        raise BenchError(f"an idle client could not connect: {error}") from None
