"""Connections and memory of proxy and masters, by masters, workers and clients."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ..client import Client
from ..parts import Part
from ..rows import Command
from .runs import Sizes

PIPELINE: Final = 16  # hits of the first write of a pipelining client
OPENERS: Final = 4  # clients of each worker that open its lanes
OPENER_HITS: Final = 64  # hits of each of them, on as many keys


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

    @property
    def of_a_master(self) -> tuple[float, float]:
        """The connections and keys of one master."""
        return self.connections / self.masters, self.keys / self.masters


def measure(upstream: Part, proxy: Part, workers: int, sizes: Sizes) -> list[Footprint]:
    """Look at a proxy without clients, with lanes only, with clients of two kinds, and with keys.

    The proxy must be new. Raises BenchError.
    """
    upstream.ask_all(b"FLUSHALL")
    found: list[Footprint] = []
    with ExitStack() as stack:

        def connect(count: int, pipeline: int) -> list[Client]:
            """Open connections that stay, each with the hits of its first write answered."""
            made: list[Client] = []
            for number in range(count):
                made.append(stack.enter_context(Client(proxy.port)))
                made[-1].ask_all(_hits(number, pipeline))
            return made

        def look(plain: int, piped: int) -> None:
            time.sleep(sizes.settle_s)
            with Client(proxy.port) as client:
                lanes = int(client.fields(b"RL.STATS")["lanes"])
            connections, used, keys = 0, [], 0
            for port in upstream.ports:
                with Client(port) as client:
                    info = client.fields(b"INFO", b"all")
                    keys += int(str(client.ask(b"DBSIZE")))
                connections += int(info["connected_clients"]) - 1  # without that of this look
                used.append(int(info["used_memory"]))
            held = plain, piped, lanes, connections, proxy.resident_bytes()
            found.append(Footprint(len(used), workers, *held, statistics.mean(used), keys))

        look(0, 0)
        openers = connect(workers * OPENERS, 1)
        for number, client in enumerate(openers):
            # Lanes open beside hits that are still private.
            client.ask_all(_hits(number, OPENER_HITS))
        look(0, len(openers))
        connect(sizes.clients, 1)
        look(sizes.clients, len(openers))
        connect(sizes.clients, PIPELINE)
        look(sizes.clients, len(openers) + sizes.clients)
        with Client(proxy.port) as client:
            client.ask_all(_hits(0, sizes.keys))
        look(sizes.clients, len(openers) + sizes.clients)
    return found


def _hits(number: int, count: int) -> Iterable[Command]:
    """Return `count` hits, on keys from `number` * `count` on."""
    return (
        (b"RL.HIT", b"key:%012d" % (number * count + other), b"1000000", b"3600")
        for other in range(count)
    )
