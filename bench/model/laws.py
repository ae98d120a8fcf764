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

import numpy as np  # comes with matplotlib

from ..errors import BenchError
from . import runs
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

    def proxy_us_of(self, run: Run) -> float:
        """Return the CPU time of the proxy for an admitted hit of a run, from its load."""
        return self.proxy_us(run.pipeline, self.batch_of(run))

    def redis_us_of(self, run: Run) -> float:
        """Return the CPU time of Redis for an admitted hit of a run, from its load."""
        return self.redis_us(self.batch_of(run))

    def refused_us(self, pipeline: float) -> float:
        """Return the CPU time of the proxy for a refusal that it remembers."""
        return self.refused[HIT] + self.refused[WRITE] / pipeline

    def proxy_bytes(self, workers: float, clients: float, connections: float) -> float:
        """Return the resident memory of one proxy, all its processes."""
        of = self.proxy_memory
        processes = of["worker"] * workers + of["supervisor"] * (workers > 1)
        return processes + of["client"] * clients + of["connection"] * connections

    def node_bytes(self, connections: float, keys: float) -> float:
        """Return used_memory of one master."""
        of = self.node_memory
        return of["base"] + of["connection"] * connections + of["key"] * keys


def mean_part(turn: float, masters: float) -> float:
    """Return the mean size of the parts of a turn of hits on even keys, over `masters`."""
    return turn / reach(turn, masters)


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
    seen = [look for look in looks if look.masters in FITTED]
    names = (runs.CLIENT_IN, runs.CLIENT_OUT, runs.NODE_IN, runs.NODE_OUT)
    return Laws(
        *_turns(admitted),
        _times(admitted, runs.PROXY_US, (HIT, WRITE, BATCH)),
        _times(admitted, runs.REDIS_US, (HIT, BATCH)),
        _times(refused, runs.PROXY_US, (HIT, WRITE)),
        {name: statistics.median(run.value(name) for run in admitted) for name in names},
        _relative(
            {
                "worker": [look.workers for look in seen],
                "supervisor": [look.workers > 1 for look in seen],
                "client": [look.plain + look.piped for look in seen],
                "connection": [look.connections for look in seen],
            },
            [look.proxy_bytes for look in seen],
        ),
        _relative(
            {
                "base": [1 for look in seen],
                "connection": [look.connections / look.masters for look in seen],
                "key": [look.keys / look.masters for look in seen],
            },
            [look.node_bytes for look in seen],
        ),
    )


def _times(found: Sequence[Run], value: str, names: Sequence[str]) -> dict[str, float]:
    """Fit the parameters of a time to runs."""
    factors = {
        HIT: [1.0 for run in found],
        WRITE: [1 / run.pipeline for run in found],
        BATCH: [1 / run.value(runs.BATCH) for run in found],
    }
    return _relative({name: factors[name] for name in names}, [run.value(value) for run in found])


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


def _relative(
    factors: Mapping[str, Sequence[float]], measured: Sequence[float]
) -> dict[str, float]:
    """Return the parameters, none below 0, whose sum with their factors is nearest to `measured`.

    factors: those of each parameter, one for each of `measured`.

    Least squares of (predicted - measured) / measured, so that small values count as much as large
    ones. A parameter that would be negative is 0, and the others are fitted again.
    Raises BenchError if the factors don't determine the parameters.
    """
    values = np.array(measured, float)
    if not (values > 0).any():
        raise BenchError("there is no run to fit the model to")
    scaled = {name: np.array(of)[values > 0] / values[values > 0] for name, of in factors.items()}
    while scaled:
        rows = np.column_stack(list(scaled.values()))
        solved, _, rank, _ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
        if rank < len(scaled):
            raise BenchError("the runs are too much alike to fit the model to them")
        if min(solved) >= 0:
            return dict.fromkeys(factors, 0.0) | dict(zip(scaled, map(float, solved), strict=True))
        del scaled[list(scaled)[int(solved.argmin())]]
    raise BenchError("no parameter of the model is above 0")


# -- the check -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """How far predictions are from what was measured, as shares of the measured values."""

    median: float
    worst: float
    count: int


def checks(laws: Laws, found: Sequence[Run], looks: Sequence[Footprint]) -> dict[str, Errors]:
    """Return the errors of the laws by what they predict. Raises BenchError if there is no run.

    Held-out runs are those of other numbers of masters than FITTED, and all with one hot key.
    "from the load": of clients, pipeline, workers and masters, without a measured batch.
    """
    old = busy((run for run in found if run.masters in FITTED), runs.ADMITTED)
    new = busy((run for run in found if run.masters not in FITTED), runs.ADMITTED)
    refused = busy((run for run in found if run.masters not in FITTED), runs.REFUSED)
    hot = busy(found, runs.HOT)

    def proxy_us(run: Run) -> float:
        return laws.proxy_us(run.pipeline, run.value(runs.BATCH))

    def redis_us(run: Run) -> float:
        return laws.redis_us(run.value(runs.BATCH))

    def refused_us(run: Run) -> float:
        return laws.refused_us(run.pipeline)

    of_runs: dict[str, tuple[str, Callable[[Run], float], Sequence[Run]]] = {
        "proxy, fitted runs": (runs.PROXY_US, proxy_us, old),
        "proxy, held out": (runs.PROXY_US, proxy_us, new),
        "proxy, held out, from the load": (runs.PROXY_US, laws.proxy_us_of, new),
        "proxy, one hot key, from the load": (runs.PROXY_US, laws.proxy_us_of, hot),
        "proxy, remembered refusals, held out": (runs.PROXY_US, refused_us, refused),
        "Redis, fitted runs": (runs.REDIS_US, redis_us, old),
        "Redis, held out": (runs.REDIS_US, redis_us, new),
        "Redis, held out, from the load": (runs.REDIS_US, laws.redis_us_of, new),
        "Redis, one hot key, from the load": (runs.REDIS_US, laws.redis_us_of, hot),
        "batch, held out, from the load": (runs.BATCH, laws.batch_of, new),
    }
    pairs = {
        what: [(predict(run), run.value(value)) for run in of]
        for what, (value, predict, of) in of_runs.items()
    }
    for look in (look for look in looks if look.masters not in FITTED):
        held, keys = look.connections / look.masters, look.keys / look.masters
        proxy_bytes = laws.proxy_bytes(look.workers, look.plain + look.piped, look.connections)
        for what, predicted, measured in (
            ("connections of a master, held out", connections(look), held),
            ("memory of the proxy, held out", proxy_bytes, look.proxy_bytes),
            ("memory of a master, held out", laws.node_bytes(held, keys), look.node_bytes),
        ):
            pairs.setdefault(what, []).append((predicted, measured))
    return {what: _errors(of) for what, of in pairs.items()}


def _errors(pairs: Sequence[tuple[float, float]]) -> Errors:
    """Return the errors of pairs of (predicted, measured). Raises BenchError if there is none."""
    found = [abs(predicted - measured) / measured for predicted, measured in pairs if measured]
    if not found:
        raise BenchError("there is no run to check the model with")
    return Errors(statistics.median(found), max(found), len(found))
