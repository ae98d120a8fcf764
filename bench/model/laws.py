"""The model: laws with a few named parameters, fitted to runs and checked against others. No I/O.

    turn       hits that a worker takes up in one turn of its loop = scale * under_way ** power
    batch      hits of a turn for one master = turn / (masters that at least one of them hits)
    proxy, µs  = hit + write / pipeline + batch / batch size
    Redis, µs  = hit + batch / batch size
    refused    = hit + write / pipeline, in the proxy; next to nothing in Redis
    proxy's memory  = per worker + per supervisor + per client + per connection to a master
    master's memory = base + per connection + per key
    connections of a master = 2 for each worker + reach / masters for each client

`under_way` are the unanswered hits of one worker. The keys are spread evenly, so a turn of n hits
reaches M * (1 - (1 - 1/M) ** n) of M masters on average: with more masters batches thin out to 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import BenchError
from . import runs
from .fit import Errors, errors, relative
from .footprint import PIPELINE, Footprint
from .runs import Run

FITTED: Final = (1, 3)  # masters of the runs that the laws are fitted to; the others check them
LEAST_UNDER_WAY: Final = 2  # a lone hit wakes every process: no law of busy ones describes it
HIT: Final = "hit"
WRITE: Final = "write"
BATCH: Final = "batch"
CONTROLS: Final = 1  # connections of each worker to a master besides lanes
_STEPS: Final = 60  # halvings of the search for a turn


@dataclass(frozen=True)
class Laws:
    """All parameters. Times in µs, memory in bytes.

    proxy, redis, refused: the parameters of the laws above, by name.
    bytes_of_hit: by the names of `runs`: CLIENT_IN, CLIENT_OUT, NODE_IN, NODE_OUT.
    """

    scale: float
    power: float
    proxy: Mapping[str, float]
    redis: Mapping[str, float]
    refused: Mapping[str, float]
    bytes_of_hit: Mapping[str, float]
    proxy_memory: Mapping[str, float]
    node_memory: Mapping[str, float]

    def turn(self, under_way: float) -> float:
        """Return the hits of one turn of a worker that has `under_way` unanswered ones."""
        return max(1.0, min(under_way, self.scale * math.pow(under_way, self.power)))

    def batch(self, under_way: float, masters: float) -> float:
        """Return the hits of one batch to one of `masters`."""
        return mean_part(self.turn(under_way), masters)

    def batch_of(self, run: Run) -> float:
        """Return the batch of a run from its load: clients, pipeline, workers and masters."""
        return self.batch(under_way(run), 1 if run.work == runs.HOT else run.masters)

    def proxy_us(self, pipeline: float, batch: float) -> float:
        """Return the CPU time of the proxy for an admitted hit."""
        return self.proxy[HIT] + self.proxy[WRITE] / pipeline + self.proxy[BATCH] / batch

    def redis_us(self, batch: float) -> float:
        """Return the CPU time of Redis for an admitted hit."""
        return self.redis[HIT] + self.redis[BATCH] / batch

    def refused_us(self, pipeline: float) -> float:
        """Return the CPU time of the proxy for a refusal that it remembers."""
        return self.refused[HIT] + self.refused[WRITE] / pipeline

    def proxy_bytes(self, workers: float, clients: float, connections: float) -> float:
        """Return the resident memory of one proxy, all its processes."""
        of = self.proxy_memory
        supervisor = of["supervisor"] if workers > 1 else 0.0
        return (
            of["worker"] * workers
            + supervisor
            + of["client"] * clients
            + (of["connection"] * connections)
        )

    def node_bytes(self, connections: float, keys: float) -> float:
        """Return used_memory of one master."""
        of = self.node_memory
        return of["base"] + of["connection"] * connections + of["key"] * keys


def mean_part(turn: float, masters: float) -> float:
    """Return the mean size of the parts of a turn of hits on even keys, over `masters`."""
    if turn <= 1 or masters <= 1:
        return max(1.0, turn / max(1.0, masters))
    return turn / (masters * -math.expm1(turn * math.log1p(-1 / masters)))


def turn_of(batch: float, masters: int) -> float:
    """Return the turn whose parts over `masters` have the mean size `batch`."""
    low, high = 1.0, max(1.0, batch) * masters
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_part(middle, masters) < batch else (low, middle)
    return high


def reach(hits: float, masters: float) -> float:
    """Return the masters that a client's first write of `hits` hits connects it to, on average.

    It travels on private connections to the masters of its keys. Only a command without a key takes
    a connection to the client's home.
    """
    return masters if masters <= 1 else masters * -math.expm1(hits * math.log1p(-1 / masters))


def connections(look: Footprint, identities: float = 1.0) -> float:
    """Return the connections of one master: control, lanes, and private ones of clients."""
    of_workers = look.workers * (CONTROLS + identities) if look.lanes else look.workers * CONTROLS
    plain, piped = (reach(hits, look.masters) / look.masters for hits in (1, PIPELINE))
    return of_workers + look.plain * plain + look.piped * piped


# -- the fit ---------------------------------------------------------------------------------------


def under_way(run: Run) -> float:
    """Return the unanswered hits of one worker while all its clients wait."""
    return run.clients * run.pipeline / run.workers


def busy(found: Iterable[Run], work: str) -> list[Run]:
    """Return the runs of `work` whose workers have several hits under way."""
    return [run for run in found if run.work == work and under_way(run) >= LEAST_UNDER_WAY]


def fit(found: Sequence[Run], looks: Sequence[Footprint]) -> Laws:
    """Fit all laws to the runs and footprints of FITTED masters. Raises BenchError."""
    fitted = [run for run in found if run.masters in FITTED]
    admitted, refused = busy(fitted, runs.ADMITTED), busy(fitted, runs.REFUSED)
    scale, power = _turns(admitted)
    batches = [run.value(runs.BATCH) for run in admitted]
    proxy = relative(
        [(1.0, 1 / run.pipeline, 1 / size) for run, size in zip(admitted, batches, strict=True)],
        [run.value(runs.PROXY_US) for run in admitted],
    )
    redis = relative(
        [(1.0, 1 / size) for size in batches], [run.value(runs.REDIS_US) for run in admitted]
    )
    denied = relative(
        [(1.0, 1 / run.pipeline) for run in refused],
        [run.value(runs.PROXY_US) for run in refused],
    )
    of_proxy, of_node = _memory([look for look in looks if look.masters in FITTED])
    names = (runs.CLIENT_IN, runs.CLIENT_OUT, runs.NODE_IN, runs.NODE_OUT)
    return Laws(
        scale,
        power,
        dict(zip((HIT, WRITE, BATCH), proxy, strict=True)),
        dict(zip((HIT, BATCH), redis, strict=True)),
        dict(zip((HIT, WRITE), denied, strict=True)),
        {name: statistics.median(run.value(name) for run in admitted) for name in names},
        of_proxy,
        of_node,
    )


def _turns(admitted: Sequence[Run]) -> tuple[float, float]:
    """Return scale and power of the law of turns: a straight line through logarithms."""
    points = [
        (math.log(under_way(run)), math.log(turn_of(run.value(runs.BATCH), run.masters)))
        for run in admitted
    ]
    if len({x for x, _ in points}) < 2:
        raise BenchError("the runs are too much alike to fit the model to them")
    power, shift = statistics.linear_regression(*zip(*points, strict=True))
    return math.exp(shift), power


def _memory(looks: Sequence[Footprint]) -> tuple[dict[str, float], dict[str, float]]:
    proxy = relative(
        [
            (look.workers, float(look.workers > 1), look.plain + look.piped, look.connections)
            for look in looks
        ],
        [look.proxy_bytes for look in looks],
    )
    node = relative(
        [(1.0, look.connections / look.masters, look.keys / look.masters) for look in looks],
        [look.node_bytes for look in looks],
    )
    names = ("worker", "supervisor", "client", "connection")
    return dict(zip(names, proxy, strict=True)), dict(
        zip(("base", "connection", "key"), node, strict=True)
    )


# -- the check -------------------------------------------------------------------------------------


def checks(laws: Laws, found: Sequence[Run], looks: Sequence[Footprint]) -> dict[str, Errors]:
    """Return the errors of the laws by what they predict.

    Held-out runs are those of other numbers of masters than FITTED, and all with one hot key.
    "from the load": of clients, pipeline, workers and masters, without a measured batch.
    """
    old = busy((run for run in found if run.masters in FITTED), runs.ADMITTED)
    new = busy((run for run in found if run.masters not in FITTED), runs.ADMITTED)
    refused = busy((run for run in found if run.masters not in FITTED), runs.REFUSED)
    hot, later = busy(found, runs.HOT), [look for look in looks if look.masters not in FITTED]

    def measured(run: Run) -> float:
        return run.value(runs.BATCH)

    def proxy(batch: Callable[[Run], float], of: Sequence[Run]) -> Errors:
        return check(runs.PROXY_US, lambda run: laws.proxy_us(run.pipeline, batch(run)), of)

    def redis(batch: Callable[[Run], float], of: Sequence[Run]) -> Errors:
        return check(runs.REDIS_US, lambda run: laws.redis_us(batch(run)), of)

    def check(name: str, predict: Callable[[Run], float], of: Sequence[Run]) -> Errors:
        return errors([predict(run) for run in of], [run.value(name) for run in of])

    def look_check(
        predict: Callable[[Footprint], float], value: Callable[[Footprint], float]
    ) -> Errors:
        return errors([predict(look) for look in later], [value(look) for look in later])

    return {
        "proxy, fitted runs": proxy(measured, old),
        "proxy, held out": proxy(measured, new),
        "proxy, held out, from the load": proxy(laws.batch_of, new),
        "proxy, one hot key, from the load": proxy(laws.batch_of, hot),
        "proxy, remembered refusals, held out": check(
            runs.PROXY_US, lambda run: laws.refused_us(run.pipeline), refused
        ),
        "Redis, fitted runs": redis(measured, old),
        "Redis, held out": redis(measured, new),
        "Redis, held out, from the load": redis(laws.batch_of, new),
        "Redis, one hot key, from the load": redis(laws.batch_of, hot),
        "batch, held out, from the load": check(runs.BATCH, laws.batch_of, new),
        "connections of a master, held out": look_check(
            connections, lambda look: look.connections / look.masters
        ),
        "memory of the proxy, held out": look_check(
            lambda look: laws.proxy_bytes(look.workers, look.plain + look.piped, look.connections),
            lambda look: look.proxy_bytes,
        ),
        "memory of a master, held out": look_check(
            lambda look: laws.node_bytes(look.connections / look.masters, look.keys / look.masters),
            lambda look: look.node_bytes,
        ),
    }
