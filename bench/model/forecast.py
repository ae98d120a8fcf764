"""Predictions by the laws: processes, machines, connections, memory, bytes. No I/O.

None of these figures was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from .laws import CONTROLS, Laws, reach

RATES: Final = (1e6, 10e6, 100e6)  # hits per second
USE: Final = 0.6  # share of a core that a worker or master uses; the rest is for peaks
MACHINE_CORES: Final = 16
CLIENT_RATE: Final = 200.0  # hits per second of one client connection
IDENTITIES: Final = 1  # users of Redis
MAX_NODES: Final = 1_000  # nodes of one cluster, by the Redis Cluster specification
MAX_CONNECTIONS: Final = 10_000  # default `maxclients` of Redis
_MICROSECONDS: Final = 1e6


@dataclass(frozen=True)
class Case:
    """How clients send: `pipeline` hits in one write; a worker has `under_way` unanswered ones."""

    name: str
    pipeline: int
    under_way: int


SINGLE: Final = Case("one hit in a write", 1, 50)
PIPED: Final = Case("16 hits in a write", 16, 800)
CASES: Final = (SINGLE, PIPED)


@dataclass(frozen=True)
class Forecast:
    """A prediction for `rate` admitted hits per second on even keys; no master has a replica.

    connections: of one master, of lanes and control connections.
    proxy_bytes: of all proxies.
    client_bytes_s, node_bytes_s: payload in both directions per second.
    """

    rate: float
    case: Case
    masters: int
    batch: float
    proxy_us: float
    redis_us: float
    workers: int
    clients: int
    connections: int
    proxy_bytes: float
    client_bytes_s: float
    node_bytes_s: float

    def connections_with(self, case: Case) -> float:
        """Return the connections of one master, with those of clients that began as `case` does."""
        return self.connections + self.clients * self.share_reached(case)

    def share_reached(self, case: Case) -> float:
        """Return the share of the masters that a client's first write connects it to."""
        return reach(case.pipeline, self.masters) / self.masters


def predict(laws: Laws, rate: float, case: Case) -> Forecast:
    """Return the prediction for `rate` hits per second."""
    masters = 1
    while (needed := cores(rate, redis_us(laws, masters, case))) > masters:
        masters = needed  # more masters get smaller batches, so the next round may need some more
    batch = laws.batch(case.under_way, masters)
    proxy_us = laws.proxy.us(case.pipeline, batch)
    workers, clients = cores(rate, proxy_us), math.ceil(rate / CLIENT_RATE)
    of_a_worker = CONTROLS + IDENTITIES  # connections to each master
    proxies, each = machines(workers), min(workers, MACHINE_CORES)
    private = clients / proxies * reach(case.pipeline, masters)
    links = each * masters * of_a_worker + private
    return Forecast(
        rate,
        case,
        masters,
        batch,
        proxy_us,
        redis_us(laws, masters, case),
        workers,
        clients,
        workers * of_a_worker,
        proxies * laws.proxy_memory(each, clients / proxies, links),
        rate * laws.client_bytes,
        rate * laws.node_bytes,
    )


def redis_us(laws: Laws, masters: int, case: Case) -> float:
    """Return the CPU time of Redis for a hit on one of `masters`."""
    return laws.redis.us(case.pipeline, laws.batch(case.under_way, masters))


def machines(processes: int) -> int:
    """Return the machines for a number of workers or masters, one on each core."""
    return math.ceil(processes / MACHINE_CORES)


def cores(rate: float, spent_us: float) -> int:
    """Return how many processes of one core serve `rate`, each using USE of it."""
    return max(1, math.ceil(rate * spent_us / _MICROSECONDS / USE))


def rate_of(laws: Laws, masters: int, case: Case) -> float:
    """Return the hits per second for which `masters` suffice."""
    return masters * USE * _MICROSECONDS / redis_us(laws, masters, case)


def rate_of_full_masters(laws: Laws, case: Case) -> float:
    """Return the lowest rate, to 1 %, at which workers use up the connections of a master."""
    low, high = 3.0, 10.0  # powers of ten
    while high - low > math.log10(1.01):
        middle = (low + high) / 2
        if predict(laws, 10**middle, case).connections >= MAX_CONNECTIONS:
            high = middle
        else:
            low = middle
    return 10**high


def slowest(one: Forecast) -> float:
    """Return the hits per second of a client below which clients use up all connections."""
    return one.rate * one.share_reached(one.case) / (MAX_CONNECTIONS - one.connections)
