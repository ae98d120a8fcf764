"""The row of kind VALUES: values of 1 MB, read over several connections at once."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rlproxy.resp.encoding import bulks

from . import parts
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import DIRECT
from .rows import LIMIT_S, Row

CONNECTIONS: Final = 8  # one thread each
VALUE_BYTES: Final = 1_000_000
PART: Final = 100  # divisor of a rate's requests
READ_BYTES: Final = 1 << 18
HEAD: Final = b"$%d\r\n" % VALUE_BYTES
MEGA: Final = 1e6


def measure(row: Row, plan: Plan) -> list[Figure]:
    """Run `row` through its parties in turn. Raises BenchError."""
    each = max(1, plan.requests // PART // CONNECTIONS)
    count = each * CONNECTIONS
    columns = parts.installed(row.parties)
    note = f"{count:,} times GET of {VALUE_BYTES:,} bytes, one at a time on each connection"
    with parts.running(plan.executable, columns) as running:
        with Client(running[DIRECT].port) as client:
            for number in range(CONNECTIONS):
                client.ask(b"SET", b"value:%d" % number, bytes(VALUE_BYTES))

        def once(column: str, _turn: int) -> dict[str, float]:
            port = running[column].port
            with ThreadPoolExecutor(CONNECTIONS) as threads:
                began = time.perf_counter()
                list(threads.map(lambda number: _read(port, number, each), range(CONNECTIONS)))
                return {row.name: count * VALUE_BYTES / MEGA / (time.perf_counter() - began)}

        return interleave({row.name: Figure.of(row, note)}, columns, once, plan)


def _read(port: int, number: int, count: int) -> None:
    """Read a value `count` times over one connection. Raises BenchError."""
    request, buffer = bulks(b"GET", b"value:%d" % number), bytearray(READ_BYTES)
    try:
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as sock:
            for _ in range(count):
                sock.sendall(request)
                head = sock.recv(len(HEAD), socket.MSG_WAITALL)
                if head != HEAD:
                    raise BenchError(f"GET of a large value got {head!r}")
                left = VALUE_BYTES + 2
                while left:
                    got = sock.recv_into(buffer, min(left, READ_BYTES))
                    if not got:
                        raise BenchError("GET of a large value: the connection was closed")
                    left -= got
    except OSError as error:
        raise BenchError(f"GET of large values failed: {error}") from None
