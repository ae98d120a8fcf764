"""The row of kind VALUES: values of 1 MB, read over several connections at once."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping
from typing import Final

from rlproxy.resp.encoding import bulks

from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .parts import DIRECT, HAPROXY, PROXY, Part
from .plan import Plan
from .rows import Row

CONNECTIONS: Final = 8
VALUE_BYTES: Final = 1_000_000
PART: Final = 100  # divisor of a rate's requests
READ_BYTES: Final = 1 << 18
HEAD: Final = b"$%d\r\n" % VALUE_BYTES
MEGA: Final = 1e6
GENERATOR: Final = f"{CONNECTIONS} sockets around one selector, nothing copied"


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all parts in turn. Raises BenchError."""
    # twemproxy buffers a whole value before it forwards it, the splice even several.
    columns = [name for name in parts if name in (DIRECT, PROXY, HAPROXY)]
    count = max(CONNECTIONS, plan.requests // PART)
    with Client(parts[DIRECT].port) as client:
        client.ask(b"FLUSHALL")
        for number in range(CONNECTIONS):
            client.ask(b"SET", _key(number), bytes(VALUE_BYTES))

    def once(column: str) -> float:
        seconds = _read(parts[column].port, count, plan.limit_s)
        return count * VALUE_BYTES / MEGA / seconds

    note = f"{count:,} times GET of {VALUE_BYTES:,} bytes, one at a time on each connection"
    figure = Figure(row.name, row.kind, row.unit, GENERATOR, note)
    return [interleave(figure, columns, once, plan.repeats, plan.progress)]


def _key(number: int) -> bytes:
    return b"value:%d" % number


class Reader:
    """One connection, and its position in the reply that it reads."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self._request = bulks(b"GET", _key(number))
        self._head = b""
        self._left = 0

    def ask(self) -> None:
        """Send the request."""
        self._head = b""
        self._left = len(HEAD) + VALUE_BYTES + 2
        self.sock.sendall(self._request)

    def read(self, buffer: bytearray) -> bool:
        """Read available bytes; returns whether the reply has ended. Raises BenchError."""
        count = self.sock.recv_into(buffer)
        if not count:
            raise BenchError("GET of a large value: the connection was closed")
        if len(self._head) < len(HEAD):
            self._head += buffer[: min(count, len(HEAD) - len(self._head))]
            if not HEAD.startswith(self._head):
                reply = self._head.decode("utf-8", "replace")
                raise BenchError(f"GET of a large value got {reply!r}")
        self._left -= count
        return self._left <= 0


def _read(port: int, count: int, limit_s: float) -> float:
    """Return the seconds for `count` values, with one request at a time on each connection."""
    buffer = bytearray(READ_BYTES)
    end = time.monotonic() + limit_s
    readers: list[Reader] = []
    try:
        with selectors.DefaultSelector() as selector:
            for number in range(CONNECTIONS):
                sock = socket.create_connection(("127.0.0.1", port), limit_s)
                readers.append(Reader(sock, number))
                selector.register(sock, selectors.EVENT_READ, readers[-1])
            began = time.perf_counter()
            for reader in readers:
                reader.ask()
            asked, answered = len(readers), 0
            while answered < count:
                ready = selector.select(limit_s)
                if not ready or time.monotonic() > end:
                    raise BenchError(f"GET of large values took more than {limit_s:g} s")
                for key, _ in ready:
                    reader = key.data
                    if not reader.read(buffer):
                        continue
                    answered += 1
                    if asked < count:
                        asked += 1
                        reader.ask()
            return time.perf_counter() - began
    except OSError as error:
        raise BenchError(f"GET of large values failed: {error}") from None
    finally:
        for reader in readers:
            reader.sock.close()
