"""Loads of hits on clusters: the CPU time, bytes and batches of each, by masters and workers.

A run is measured whole, from before its clients connect to after its last reply.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .. import cpu, load, redis_benchmark
from ..client import Client
from ..cpu import MILLION
from ..errors import BenchError
from ..processes import Process
from ..rows import KEYS, RANDOM, Command
from .nodes import Cluster, Node, Proxy

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
CLIENT_IN: Final = "client_in"  # bytes of a hit from clients
CLIENT_OUT: Final = "client_out"
NODE_IN: Final = "node_in"  # bytes of a hit to masters
NODE_OUT: Final = "node_out"

REFUSED_KEYS: Final = 100
LEAST_BATCHES: Final = 2  # writes of each client in a run, at least
_LASTING: Final = b"1000000"
_ONE: Final = b"1"


@dataclass(frozen=True)
class Load:
    """One kind of load: `clients` connections, `pipeline` hits in each write, on `keys` keys.

    factor: hits of a run, as a multiple of those of the plan.
    """

    work: str
    clients: int
    pipeline: int
    keys: int = KEYS
    factor: float = 1.0

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
    Load(ADMITTED, 1, 1, factor=0.3),
    Load(ADMITTED, 10, 1, factor=0.6),
    Load(ADMITTED, 50, 1),
    Load(ADMITTED, 200, 1),
    Load(ADMITTED, 50, 4, factor=1.5),
    Load(ADMITTED, 50, 16, factor=2.5),
    Load(REFUSED, 50, 1, REFUSED_KEYS, 2),
    Load(REFUSED, 50, 16, REFUSED_KEYS, 8),
    Load(HOT, 50, 1, 1),
    Load(HOT, 50, 16, 1, 2.5),
    Load(HOT_REFUSED, 50, 16, 1, 8),
)

QUICK_LOADS: Final = tuple(
    one
    for one in LOADS
    if one.clients in (10, 50) and one.pipeline != 4 and (one.work, one.pipeline) != (HOT, 1)
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
    """The counts of the masters at one time."""

    spent: Sequence[_Spent]
    calls: int
    reads: int
    bytes_in: int
    bytes_out: int


def measure(
    one: Load, hits: int, upstream: Cluster, proxy: Proxy, limit_s: float
) -> dict[str, float]:
    """Run a load of about `hits` times its factor, and return its values. Raises BenchError."""
    _prepare(one, upstream, proxy)
    stats = proxy.settled()
    batches = max(LEAST_BATCHES * one.clients, round(hits * one.factor / one.pipeline))
    count = batches * one.pipeline  # a part of a batch would be sent whole
    spent, before = _spent(proxy.process), _look(upstream)
    rate = _generate(one, proxy.port, count, limit_s)
    ended, after = _spent(proxy.process), _look(upstream)
    proxy.hits += count
    now = proxy.settled()
    calls = after.calls - before.calls
    if not one.refuses and calls < count:
        raise BenchError(f"{count} hits made {calls} calls: some were not admitted")
    masters = [then - first for first, then in zip(before.spent, after.spent, strict=True)]
    a_hit = MILLION / count
    return {
        RATE: rate,
        PROXY_US: (ended.all_s - spent.all_s) * a_hit,
        PROXY_SYSTEM_US: (ended.system_s - spent.system_s) * a_hit,
        REDIS_US: sum(each.all_s for each in masters) * a_hit,
        REDIS_SYSTEM_US: sum(each.system_s for each in masters) * a_hit,
        TOP_US: max(each.all_s for each in masters) * a_hit,
        CALLS: calls / count,
        CALLS_S: calls * rate / count,
        BATCH: calls / max(1, after.reads - before.reads),
        CLIENT_IN: (int(now["bytes_in"]) - int(stats["bytes_in"])) / count,
        CLIENT_OUT: (int(now["bytes_out"]) - int(stats["bytes_out"])) / count,
        NODE_IN: (after.bytes_in - before.bytes_in) / count,
        NODE_OUT: (after.bytes_out - before.bytes_out) / count,
    }


def _prepare(one: Load, upstream: Cluster, proxy: Proxy) -> None:
    """Empty the cluster; use up the hits of keys that are to be refused; check the reply."""
    upstream.ask_all(b"FLUSHALL")
    keys = [_key(one.command, number) for number in range(one.keys if one.refuses else 1)]
    with Client(proxy.port) as client:
        client.ask_all(keys)
        reply = client.ask(*keys[0])
    proxy.hits += len(keys) + 1
    if not isinstance(reply, list) or reply[0] != int(one.refuses):
        raise BenchError(f"a hit to be {one.work} got {reply!r}")


def _key(command: Command, number: int) -> Command:
    return tuple(word.replace(RANDOM, b"%012d" % number) for word in command)


def _generate(one: Load, port: int, count: int, limit_s: float) -> float:
    if redis_benchmark.executable() is not None:
        return redis_benchmark.rate(
            port, one.command, one.pipeline, one.keys, count, one.clients, limit_s
        )
    prepared = load.batches([one.command], one.pipeline, one.keys, count // one.pipeline)
    return load.rate(port, prepared, one.pipeline, count, one.clients, limit_s)


def _look(upstream: Cluster) -> _Look:
    stats = _stats(upstream.nodes)
    return _Look(
        [_spent(node.process) for node in upstream.nodes],
        sum(node.script_calls() for node in upstream.nodes),
        *(
            sum(int(each[name]) for each in stats)
            for name in ("total_reads_processed", "total_net_input_bytes", "total_net_output_bytes")
        ),
    )


def _spent(process: Process) -> _Spent:
    exact_s, times = cpu.scheduled_s(process.pid), cpu.times(process.pid)
    if exact_s is None or times is None:
        raise BenchError("there is no /proc, where CPU times are read")
    return _Spent(exact_s, times.system)


def _stats(nodes: Sequence[Node]) -> Sequence[Mapping[str, str]]:
    return [node.fields("stats") for node in nodes]
