"""Loads of hits on clusters: the CPU time, bytes and batches of each, by masters and workers.

A window in the middle of a load is measured, between two pauses of the clients. So connecting is in
no figure. In a cluster a client's refusals come from Redis for the first second, because its first
write takes a private connection: its window begins later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .. import cpu
from ..client import Client
from ..cpu import MILLION
from ..errors import BenchError
from ..processes import Process
from ..rows import KEYS, RANDOM, Command
from . import generator
from .nodes import Cluster, Proxy

ADMITTED: Final = "admitted"
REFUSED: Final = "refused"  # by the proxy, which remembers the refusal
HOT: Final = "hot"  # admitted, all on one key
HOT_REFUSED: Final = "hot-refused"

# values of a run
RATE: Final = "rate"  # hits per second on this machine
PROXY_US: Final = "proxy_us"  # CPU time of the proxy for a hit, all workers
PROXY_SYSTEM_US: Final = "proxy_system_us"  # its part in kernel mode
REDIS_US: Final = "redis_us"  # CPU time of all masters for a hit
REDIS_SYSTEM_US: Final = "redis_system_us"
TOP_US: Final = "top_us"  # CPU time of the busiest master for a hit
CALLS: Final = "calls"  # script calls for a hit
CALLS_S: Final = "calls_s"  # script calls per second
BATCH: Final = "batch"  # script calls in one read of a master
HITS: Final = "hits"  # hits in the window
CLIENT_IN: Final = "client_in"  # bytes of a hit from clients
CLIENT_OUT: Final = "client_out"
NODE_IN: Final = "node_in"  # bytes of a hit to masters
NODE_OUT: Final = "node_out"

REFUSED_KEYS: Final = 100
_LASTING: Final = b"1000000"
_ONE: Final = b"1"


@dataclass(frozen=True)
class Load:
    """One kind of load: `clients` connections, `pipeline` hits in each write, on `keys` keys."""

    work: str
    clients: int
    pipeline: int
    keys: int = KEYS

    @property
    def refuses(self) -> bool:
        """Whether the hits are refused."""
        return self.work in (REFUSED, HOT_REFUSED)

    @property
    def command(self) -> Command:
        """The hit."""
        # Refused and admitted hits have different keys: `RL.HIT` stays with one rule for a key.
        name, most, window_s = (
            (b"no:", _ONE, b"3600") if self.refuses else (b"key:", _LASTING, b"60")
        )
        return (b"RL.HIT", name + RANDOM, most, window_s)


LOADS: Final = (
    Load(ADMITTED, 1, 1),
    Load(ADMITTED, 10, 1),
    Load(ADMITTED, 50, 1),
    Load(ADMITTED, 200, 1),
    Load(ADMITTED, 50, 4),
    Load(ADMITTED, 50, 16),
    Load(REFUSED, 50, 1, REFUSED_KEYS),
    Load(REFUSED, 50, 16, REFUSED_KEYS),
    Load(HOT, 50, 1, 1),
    Load(HOT, 50, 16, 1),
    Load(HOT_REFUSED, 50, 1, 1),
    Load(HOT_REFUSED, 50, 16, 1),
)
QUICK_LOADS: Final = tuple(
    one
    for one in LOADS
    if one.clients in (10, 50)
    and one.pipeline != 4
    and (one.work, one.pipeline) not in ((HOT, 1), (HOT_REFUSED, 1))
)


@dataclass(frozen=True)
class Run:
    """What was measured of one load in front of `masters` by `workers`: samples by value."""

    masters: int
    workers: int
    work: str
    clients: int
    pipeline: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """Return the median of a value."""
        return statistics.median(self.samples[name])

    def spread(self, name: str) -> float:
        """Return (greatest - least) / median of the samples of a value."""
        found = self.samples[name]
        return (max(found) - min(found)) / self.value(name) if self.value(name) else 0.0

    @property
    def load(self) -> str:
        """Its clients and pipeline: `50/16`."""
        return f"{self.clients}/{self.pipeline}"


@dataclass(frozen=True)
class _Spent:
    """CPU seconds, and the part of them in kernel mode (to 10 ms)."""

    all_s: float
    system_s: float

    def __sub__(self, other: _Spent) -> _Spent:
        return _Spent(self.all_s - other.all_s, self.system_s - other.system_s)


@dataclass(frozen=True)
class _Look:
    """The counts of proxy and masters while the clients are paused."""

    proxy: _Spent
    masters: Sequence[_Spent]
    calls: int
    reads: int
    node_in: int
    node_out: int
    hits: int
    client_in: int
    client_out: int


@dataclass(frozen=True)
class Times:
    """Seconds of a window, and of the load before it, without and with refusals to remember."""

    window_s: float
    warm_up_s: float
    refused_warm_up_s: float


TIMES: Final = Times(1.2, 0.3, 1.4)
MAX_WINDOWS: Final = 50  # windows until one has a hit
QUICK_TIMES: Final = Times(0.03, 0.05, 0.05)


def measure(one: Load, times: Times, upstream: Cluster, proxy: Proxy) -> dict[str, float]:
    """Run a load and return the values of its window. Raises BenchError."""
    _prepare(one, upstream, proxy)
    with generator.running(proxy.port, one.command, one.clients, one.pipeline, one.keys) as clients:
        time.sleep(times.refused_warm_up_s if one.refuses else times.warm_up_s)
        clients.pause()
        before = _look(upstream, proxy)
        began = time.perf_counter()
        calls = counted = 0
        for _ in range(MAX_WINDOWS):
            clients.resume()
            time.sleep(times.window_s)
            clients.pause()
            seconds = time.perf_counter() - began
            after = _look(upstream, proxy)
            calls, counted = after.calls - before.calls, after.hits - before.hits
            if calls > 0 and counted > 0:  # one window is enough, but on a machine that stalls
                break
    # Each admitted hit is one call. Redis counts it at once, and a worker publishes it later.
    hits = counted if one.refuses else calls
    if hits <= 0 or counted <= 0:
        raise BenchError("no hit was answered while it was measured")
    masters = [then - first for first, then in zip(before.masters, after.masters, strict=True)]
    spent, a_hit = after.proxy - before.proxy, MILLION / hits
    return {
        RATE: hits / seconds,
        HITS: hits,
        PROXY_US: spent.all_s * a_hit,
        PROXY_SYSTEM_US: spent.system_s * a_hit,
        REDIS_US: sum(each.all_s for each in masters) * a_hit,
        REDIS_SYSTEM_US: sum(each.system_s for each in masters) * a_hit,
        TOP_US: max(each.all_s for each in masters) * a_hit,
        CALLS: calls / hits,
        CALLS_S: calls / seconds,
        BATCH: calls / max(1, after.reads - before.reads),
        CLIENT_IN: (after.client_in - before.client_in) / counted,
        CLIENT_OUT: (after.client_out - before.client_out) / counted,
        NODE_IN: (after.node_in - before.node_in) / hits,
        NODE_OUT: (after.node_out - before.node_out) / hits,
    }


def _prepare(one: Load, upstream: Cluster, proxy: Proxy) -> None:
    """Empty the cluster; use up the hits of keys that are to be refused; check the reply."""
    upstream.ask_all(b"FLUSHALL")
    keys = [_key(one.command, number) for number in range(one.keys if one.refuses else 1)]
    with Client(proxy.port) as client:
        client.ask_all(keys)
        reply = client.ask(*keys[0])
    if not isinstance(reply, list) or reply[0] != int(one.refuses):
        raise BenchError(f"a hit to be {one.work} got {reply!r}")


def _key(command: Command, number: int) -> Command:
    return tuple(word.replace(RANDOM, b"%012d" % number) for word in command)


def _look(upstream: Cluster, proxy: Proxy) -> _Look:
    counted = proxy.settled()
    stats = [node.fields("stats") for node in upstream.nodes]
    return _Look(
        _spent(proxy.process),
        [_spent(node.process) for node in upstream.nodes],
        sum(node.script_calls() for node in upstream.nodes),
        *(
            sum(int(each[name]) for each in stats)
            for name in ("total_reads_processed", "total_net_input_bytes", "total_net_output_bytes")
        ),
        *(int(counted[name]) for name in ("hits", "bytes_in", "bytes_out")),
    )


def _spent(process: Process) -> _Spent:
    exact_s, times = cpu.scheduled_s(process.pid), cpu.times(process.pid)
    if exact_s is None or times is None:
        raise BenchError("there is no /proc, where CPU times are read")
    return _Spent(exact_s, times.system)
