"""Rows of kind LARGE: the throughput of one large value, read and written."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final

from rlproxy.resp.encoding import bulks

from .errors import BenchError
from .figures import Figure, interleave
from .parts import DIRECT, HAPROXY, PROXY, Part
from .plan import Plan
from .rows import Row

KEY: Final = b"large"
READ_BYTES: Final = 1 << 20
MEGA: Final = 1e6
GENERATOR: Final = "a blocking socket"


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all parts in turn. Raises BenchError."""
    size = plan.value_bytes
    value = bytes(size)
    write = row.name.endswith("set")
    # twemproxy buffers a whole value before it forwards it, the splice even several.
    columns = [name for name in parts if name in (DIRECT, PROXY, HAPROXY)]
    _transfer(parts[DIRECT].port, [b"SET", KEY, value], b"+OK\r\n", plan.limit_s)

    def once(column: str) -> float:
        port = parts[column].port
        if write:
            return size / MEGA / _transfer(port, [b"SET", KEY, value], b"+OK\r\n", plan.limit_s)
        head = b"$%d\r\n" % size
        return size / MEGA / _transfer(port, [b"GET", KEY], head, plan.limit_s, size + 2)

    note = f"{row.help.partition(' of ')[0]} of one value of {size:,} bytes"
    figure = Figure(row.name, row.kind, row.unit, GENERATOR, note)
    return [interleave(figure, columns, once, plan.repeats, plan.progress)]


def _transfer(port: int, words: list[bytes], head: bytes, limit_s: float, body: int = 0) -> float:
    """Return the seconds from the request's first byte to the reply's last.

    The reply must begin with `head`, and has `body` bytes more.
    """
    request = bulks(*words)
    buffer = bytearray(READ_BYTES)
    begin = b""
    left = len(head) + body
    end = time.monotonic() + limit_s
    try:
        with socket.create_connection(("127.0.0.1", port), limit_s) as sock:
            began = time.perf_counter()
            sock.sendall(request)
            while left > 0:
                count = sock.recv_into(buffer)
                if not count or time.monotonic() > end:
                    raise BenchError(f"{words[0].decode()} of a large value was not answered")
                if len(begin) < len(head):
                    begin += buffer[: min(count, len(head))]
                    if not begin.startswith(head[: len(begin)]):
                        reply = begin.decode("utf-8", "replace")
                        raise BenchError(f"{words[0].decode()} of a large value got {reply!r}")
                left -= count
            return time.perf_counter() - began
    except OSError as error:
        raise BenchError(f"{words[0].decode()} of a large value failed: {error}") from None
