"""Loads of hits on clusters: the CPU time, bytes and batches of each, by masters and workers.

A window in the middle of a load is measured, between two pauses of the clients. So connecting is in
no figure. In a cluster a client's refusals come from Redis for the first second, because its first
write takes a private connection: its window begins later.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from ..client import Client
from ..cpu import MILLION
from ..errors import BenchError
from ..figures import spread
from ..load import filled, redis_benchmark
from ..parts import Part
from ..processes import Process
from ..rows import KEYS, RANDOM, Command

ADMITTED: Final = "admitted"
REFUSED: Final = "refused"  # by the proxy, which remembers the refusal
HOT: Final = "hot"  # admitted, all on one key
HOT_REFUSED: Final = "hot-refused"

REFUSED_KEYS: Final = 100
ENDLESS: Final = 100_000_000  # hits: more than are sent before a load is stopped


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
        if self.refuses:
            return (b"RL.HIT", b"no:" + RANDOM, b"1", b"3600")
        return (b"RL.HIT", b"key:" + RANDOM, b"1000000", b"60")


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


@dataclass(frozen=True)
class Values:
    """What one window of a load gives. Times are CPU time for a hit, in µs.

    rate: hits per second on this machine.
    hits: hits in the window.
    proxy_us, proxy_system_us: of all workers; its part in kernel mode.
    redis_us, redis_system_us: of all masters; its part in kernel mode.
    top_us: of the busiest master.
    calls, calls_s: script calls for a hit, and per second.
    batch: script calls in one read of a master.
    client_in, client_out: bytes of a hit from and to clients.
    node_in, node_out: bytes of a hit to and from masters.
    """

    rate: float
    hits: float
    proxy_us: float
    proxy_system_us: float
    redis_us: float
    redis_system_us: float
    top_us: float
    calls: float
    calls_s: float
    batch: float
    client_in: float
    client_out: float
    node_in: float
    node_out: float


@dataclass(frozen=True)
class Run:
    """What was measured of one load in front of `masters` by `workers`.

    samples: those of each field of Values.
    """

    masters: int
    workers: int
    work: str
    clients: int
    pipeline: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: Values) -> None:
        """Add the samples of one window."""
        for name, value in asdict(values).items():
            self.samples.setdefault(name, []).append(value)

    @cached_property
    def median(self) -> Values:
        """The medians of all samples."""
        return Values(**{name: statistics.median(found) for name, found in self.samples.items()})

    @property
    def spread(self) -> float:
        """(greatest - least) / median of the proxy's time."""
        return spread(self.samples["proxy_us"])

    @property
    def load(self) -> str:
        """Its clients and pipeline: `50/16`."""
        return f"{self.clients}/{self.pipeline}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured: pairs of masters and workers, seconds of a load, and of a footprint."""

    cells: Sequence[tuple[int, int]] = ((1, 1), (1, 2), (3, 1), (3, 2), (6, 1), (6, 2))
    window_s: float = 1.2
    warm_up_s: float = 0.3
    refused_warm_up_s: float = 1.4  # where refusals are to be remembered
    clients: int = 1_000  # of each kind
    keys: int = 60_000
    settle_s: float = 3.0  # until Redis has taken back the buffers of clients, which takes 2 s


FULL: Final = Sizes()
QUICK: Final = Sizes(((1, 1), (3, 2), (6, 1)), 0.03, 0.05, 0.05, 20, 600, 0.05)
MAX_WINDOWS: Final = 50  # windows until one has a hit
ANSWERED_S: Final = 0.05  # pause until what was under way is answered
PUBLISHED_S: Final = 1.1  # the same, and until each worker has published its counters
# Counts of the proxy, by names of RL.STATS, and of the masters, by names of INFO.
_OF_PROXY: Final = ("hits", "bytes_in", "bytes_out")
_OF_MASTERS: Final = ("total_reads_processed", "total_net_input_bytes", "total_net_output_bytes")
_SERVED: Final = ("admitted", "refused", "refused_locally")
_SCRIPTS: Final = re.compile(r"^cmdstat_eval(?:sha)?:calls=(\d+)", re.MULTILINE)


def measure(one: Load, sizes: Sizes, upstream: Part, proxy: Part, workers: int) -> Values:
    """Run a load and return the values of its window. Raises BenchError."""
    _prepare(one, upstream, proxy)
    with _clients(one, proxy.port) as clients:
        time.sleep(sizes.refused_warm_up_s if one.refuses else sizes.warm_up_s)
        clients.pause()
        before = _look(upstream, proxy, workers)
        began = time.perf_counter()
        for _ in range(MAX_WINDOWS):
            clients.resume()
            time.sleep(sizes.window_s)
            clients.pause()
            seconds = time.perf_counter() - began
            after = _look(upstream, proxy, workers)
            seen = {name: value - before[name] for name, value in after.items()}
            # Each admitted hit is one call. Redis counts it at once, a worker publishes it later.
            hits = seen["hits" if one.refuses else "calls"]
            if seen["hits"] > 0 and seen["calls"] > 0:
                break  # one window is enough, but on a machine that stalls
    if hits <= 0 or seen["hits"] <= 0:
        raise BenchError("no hit was answered while it was measured")
    a_hit = MILLION / hits
    return Values(
        rate=hits / seconds,
        hits=hits,
        proxy_us=seen["proxy"] * a_hit,
        proxy_system_us=seen["proxy system"] * a_hit,
        redis_us=seen["redis"] * a_hit,
        redis_system_us=seen["redis system"] * a_hit,
        top_us=max(seen[f"master {port}"] for port in upstream.ports) * a_hit,
        calls=seen["calls"] / hits,
        calls_s=seen["calls"] / seconds,
        batch=seen["calls"] / max(1, seen["total_reads_processed"]),
        client_in=seen["bytes_in"] / seen["hits"],
        client_out=seen["bytes_out"] / seen["hits"],
        node_in=seen["total_net_input_bytes"] / hits,
        node_out=seen["total_net_output_bytes"] / hits,
    )


@contextmanager
def _clients(one: Load, port: int) -> Iterator[Process]:
    """Send the hits of a load until the context ends. The process can be paused.

    While it is paused nothing is under way, so that counts and CPU times belong to the same hits.
    """
    sizes = one.pipeline, one.keys, ENDLESS, one.clients
    argv = redis_benchmark(port, one.command, *sizes)
    with tempfile.TemporaryDirectory(prefix="rlproxy-bench-") as home:
        process = Process(argv, Path(home, "load.log"))
        try:
            yield process
        finally:
            process.resume()  # a paused process would not end
            process.close()


def _prepare(one: Load, upstream: Part, proxy: Part) -> None:
    """Empty the cluster; use up the hits of keys that are to be refused; check the reply."""
    upstream.ask_all(b"FLUSHALL")
    keys = [filled(one.command, number) for number in range(one.keys if one.refuses else 1)]
    with Client(proxy.port) as client:
        client.ask_all(keys)
        reply = client.ask(*keys[0])
    if not isinstance(reply, list) or reply[0] != int(one.refuses):
        raise BenchError(f"a hit to be {one.work} got {reply!r}")


def _look(upstream: Part, proxy: Part, workers: int) -> dict[str, float]:
    """Return the counts and CPU seconds so far, by name.

    It waits before: a worker sees others' counters late. Raises BenchError if hits have failed.
    """
    time.sleep(PUBLISHED_S if workers > 1 else ANSWERED_S)
    with Client(proxy.port) as client:
        stats = client.fields(b"RL.STATS")
    if (served := sum(int(stats[name]) for name in _SERVED)) != int(stats["hits"]):
        raise BenchError(f"of {stats['hits']} hits only {served} were admitted or refused")
    found: dict[str, float] = defaultdict(float, {name: int(stats[name]) for name in _OF_PROXY})
    found["proxy"], found["proxy system"] = proxy.spent()
    for port, process in zip(upstream.ports, upstream.processes, strict=True):
        with Client(port) as client:
            info = client.fields(b"INFO", b"stats")
            scripts = _SCRIPTS.findall(client.text(b"INFO", b"commandstats"))
        spent = process.spent()
        found[f"master {port}"] = spent.total
        found["redis"] += spent.total
        found["redis system"] += spent.system
        found["calls"] += sum(map(int, scripts))
        for name in _OF_MASTERS:
            found[name] += int(info[name])
    return found
