"""Connections and memory of proxy and masters, by masters, workers and clients."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final

from rlproxy.resp.encoding import bulks

from ..client import Client
from ..errors import BenchError
from .nodes import Cluster, Proxy

TIMEOUT_S: Final = 20.0
SETTLE_S: Final = 3.0  # pause until Redis has taken back the buffers of clients, which takes 2 s
QUICK_SETTLE_S: Final = 0.05
READ_BYTES: Final = 1 << 16
PIPELINE: Final = 16  # hits of the first write of a pipelining client
OPENERS: Final = 4  # clients of each worker that open its lanes
OPENER_HITS: Final = 64  # hits of each of them, on as many keys
_REPLY: Final = b"*5\r\n"  # the beginning of a reply to a hit


@dataclass(frozen=True)
class Footprint:
    """The state of proxy and masters at one time.

    plain, piped: clients whose first write was one hit, and many hits on different keys.
    lanes: of all workers, by RL.STATS.
    connections: of all masters from the proxy, private ones of clients and lanes included.
    proxy_bytes: resident memory of all processes of the proxy.
    node_bytes: used_memory of a master, the mean.
    keys: of all masters, with one live hit each.
    """

    masters: int
    workers: int
    plain: int
    piped: int
    lanes: int
    connections: int
    proxy_bytes: int
    node_bytes: float
    keys: int

    def to_json(self) -> dict[str, float]:
        """Return the values by name."""
        return asdict(self)


def measure(
    upstream: Cluster, proxy: Proxy, clients: int, keys: int, settle_s: float = SETTLE_S
) -> list[Footprint]:
    """Look at a proxy without clients, with lanes only, with `clients` twice, and with `keys` keys.

    The proxy must be new. Raises BenchError.
    """
    upstream.ask_all(b"FLUSHALL")
    found: list[Footprint] = []

    def look(plain: int, piped: int) -> None:
        time.sleep(settle_s)
        found.append(_look(upstream, proxy, plain, piped))

    look(0, 0)
    with ExitStack() as stack:
        openers = proxy.workers * OPENERS
        group = _connect(proxy.port, openers, 1, stack)
        for number, sock in enumerate(group):  # lanes open beside hits that are still private
            _send(sock, number, OPENER_HITS)
        look(0, openers)
        _connect(proxy.port, clients, 1, stack)
        look(clients, openers)
        _connect(proxy.port, clients, PIPELINE, stack)
        look(clients, openers + clients)
        with Client(proxy.port) as client:
            client.ask_all(_hit(number) for number in range(keys))
        look(clients, openers + clients)
    return found


def _look(upstream: Cluster, proxy: Proxy, plain: int, piped: int) -> Footprint:
    stats = proxy.stats()
    infos = [node.fields("all") for node in upstream.nodes]
    seen = sum(int(info["connected_clients"]) - 1 for info in infos)  # without that of this look
    keys = 0
    for node in upstream.nodes:
        with Client(node.port) as client:
            size = client.ask(b"DBSIZE")
        keys += size if isinstance(size, int) else 0
    return Footprint(
        len(upstream.nodes),
        proxy.workers,
        plain,
        piped,
        int(stats["lanes"]),
        seen,
        proxy.resident_bytes(),
        statistics.mean(int(info["used_memory"]) for info in infos),
        keys,
    )


def _hit(number: int) -> Sequence[bytes]:
    return (b"RL.HIT", b"key:%012d" % number, b"1000000", b"3600")


def _connect(port: int, count: int, pipeline: int, stack: ExitStack) -> list[socket.socket]:
    """Open `count` connections that stay until `stack` ends, each with its hits answered."""
    made: list[socket.socket] = []
    try:
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            made.append(stack.enter_context(sock))
            _send(sock, number, pipeline)
    except OSError as error:
        raise BenchError(f"a client could not connect: {error}") from None
    return made


def _send(sock: socket.socket, number: int, hits: int) -> None:
    """Send `hits` hits on keys from `number` * `hits` on in one write, and await the replies."""
    sock.sendall(b"".join(bulks(*_hit(number * hits + other)) for other in range(hits)))
    replies = b""
    while replies.count(_REPLY) < hits:
        data = sock.recv(READ_BYTES)
        if not data or replies.startswith(b"-"):
            raise BenchError(f"a hit was answered {replies + data!r}")
        replies += data
