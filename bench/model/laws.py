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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import linear_regression, median
from typing import Any, Final

import numpy as np  # comes with matplotlib

from ..errors import BenchError
from ..result import Head
from . import runs
from .footprint import PIPELINE, Footprint
from .runs import Run

FITTED: Final = (1, 3)  # masters of the runs that the laws are fitted to; the others check them
LEAST_UNDER_WAY: Final = 2  # a lone hit wakes every process: no law of busy ones describes it
CONTROLS: Final = 1  # connections of each worker to a master besides lanes
_STEPS: Final = 60  # halvings of the search for a turn


@dataclass(frozen=True)
class Result:
    """All that `python -m bench model` has measured."""

    head: Head
    runs: Sequence[Run]
    looks: Sequence[Footprint]

    def to_json(self) -> dict[str, object]:
        """Return the JSON value."""
        of = asdict(self)
        return {**of.pop("head"), **of}


def parse(data: Any) -> Result:
    """Return the result of a JSON value. Raises KeyError or TypeError if it is none."""
    return Result(
        Head(**{field.name: data[field.name] for field in fields(Head)}),
        [Run(**run) for run in data["runs"]],
        [Footprint(**look) for look in data["looks"]],
    )


@dataclass(frozen=True)
class Times:
    """The parameters of a law of CPU time, in µs."""

    hit: float
    write: float = 0.0
    batch: float = 0.0

    def us(self, pipeline: float, batch: float) -> float:
        """Return the CPU time for a hit, with `pipeline` of them in a write."""
        return self.hit + self.write / pipeline + self.batch / batch


@dataclass(frozen=True)
class Laws:
    """All parameters; refused: the proxy's for a refusal that it remembers.

    client_bytes, node_bytes: bytes of a hit in both directions, from clients and to masters.
    worker, supervisor, client, link: bytes of a proxy's memory, for each of them; a link is a
        connection to a master.
    node, node_link, node_key: bytes of a master's memory, for itself, a connection and a key.
    """

    scale: float
    power: float
    proxy: Times
    redis: Times
    refused: Times
    client_bytes: float
    node_bytes: float
    worker: float
    supervisor: float
    client: float
    link: float
    node: float
    node_link: float
    node_key: float

    def turn(self, under_way: float) -> float:
        """Return the hits of one turn of a worker that has `under_way` unanswered ones."""
        return max(1.0, min(under_way, self.scale * math.pow(under_way, self.power)))

    def batch(self, under_way: float, masters: float) -> float:
        """Return the hits of one batch to one of `masters`."""
        return mean_part(self.turn(under_way), masters)

    def batch_of(self, run: Run) -> float:
        """Return the batch of a run from its load: clients, pipeline, workers and masters."""
        return self.batch(under_way(run), 1 if run.work == runs.HOT else run.masters)

    def proxy_us_of(self, run: Run) -> float:
        """Return the CPU time of the proxy for an admitted hit of a run, from its load."""
        return self.proxy.us(run.pipeline, self.batch_of(run))

    def redis_us_of(self, run: Run) -> float:
        """Return the CPU time of Redis for an admitted hit of a run, from its load."""
        return self.redis.us(run.pipeline, self.batch_of(run))

    def proxy_memory(self, workers: float, clients: float, links: float) -> float:
        """Return the resident memory of one proxy, all its processes."""
        processes = self.worker * workers + self.supervisor * (workers > 1)
        return processes + self.client * clients + self.link * links

    def node_memory(self, links: float, keys: float) -> float:
        """Return used_memory of one master."""
        return self.node + self.node_link * links + self.node_key * keys


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


def parts(result: Result, fitted: bool) -> tuple[list[Run], list[Run], list[Footprint]]:
    """Return the admitted and the refused runs, and the footprints, of FITTED or other masters."""
    found = [run for run in result.runs if (run.masters in FITTED) == fitted]
    looks = [look for look in result.looks if (look.masters in FITTED) == fitted]
    return busy(found, runs.ADMITTED), busy(found, runs.REFUSED), looks


def fit(result: Result) -> Laws:
    """Fit all laws to the runs and footprints of FITTED masters. Raises BenchError."""
    admitted, refused, seen = parts(result, fitted=True)
    got = [run.median for run in admitted]
    refused_us = [run.median.proxy_us for run in refused]
    each = [(1, 1 / run.pipeline, 1 / run.median.batch) for run in admitted]
    redis_hit, redis_batch = _fit([(1, batch) for _, _, batch in each], [of.redis_us for of in got])
    return Laws(
        *_turns(admitted),
        Times(*_fit(each, [of.proxy_us for of in got])),
        Times(redis_hit, batch=redis_batch),
        Times(*_fit([(1, 1 / run.pipeline) for run in refused], refused_us)),
        median(of.client_in for of in got) + median(of.client_out for of in got),
        median(of.node_in for of in got) + median(of.node_out for of in got),
        *_fit(
            [(of.workers, of.workers > 1, of.plain + of.piped, of.connections) for of in seen],
            [of.proxy_bytes for of in seen],
        ),
        *_fit([(1, *of.of_a_master) for of in seen], [of.node_bytes for of in seen]),
    )


def _turns(admitted: Sequence[Run]) -> tuple[float, float]:
    """Return scale and power of the law of turns: a straight line through logarithms."""
    points = [
        (math.log(under_way(run)), math.log(turn_of(run.median.batch, run.masters)))
        for run in admitted
    ]
    if len({x for x, _ in points}) < 2:
        raise BenchError("the runs are too much alike to fit the model to them")
    power, shift = linear_regression(*zip(*points, strict=True))
    return math.exp(shift), power


def _fit(factors: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Return the parameters, none below 0, whose sum with their factors is nearest to `measured`.

    factors: those of all parameters, for each of `measured`.

    Least squares of (predicted - measured) / measured, so that small values count as much as large
    ones. A parameter that would be negative is 0, and the others are fitted again.
    Raises BenchError if the factors don't determine the parameters.
    """
    pairs = [pair for pair in zip(factors, measured, strict=True) if pair[1] > 0]
    if not pairs:
        raise BenchError("there is no run to fit the model to")
    rows = np.array([[factor / value for factor in row] for row, value in pairs])
    found, kept = np.zeros(rows.shape[1]), list(range(rows.shape[1]))
    while kept:
        solved, _, rank, _ = np.linalg.lstsq(rows[:, kept], np.ones(len(rows)), rcond=None)
        if rank < len(kept):
            raise BenchError("the runs are too much alike to fit the model to them")
        if min(solved) >= 0:
            found[kept] = solved
            return list(map(float, found))
        del kept[int(solved.argmin())]
    raise BenchError("no parameter of the model is above 0")


# -- the check -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """How far predictions are from what was measured, as shares of the measured values."""

    median: float
    worst: float
    count: int


def checks(laws: Laws, result: Result) -> dict[str, Errors]:
    """Return the errors of the laws by what they predict. Raises BenchError if there is no run.

    Held-out runs are those of other numbers of masters than FITTED, and all with one hot key.
    "from the load": of clients, pipeline, workers and masters, without a measured batch.
    """
    old, *_ = parts(result, fitted=True)
    new, refused, looks = parts(result, fitted=False)
    hot = busy(result.runs, runs.HOT)

    def proxy(run: Run) -> tuple[float, float]:
        return laws.proxy.us(run.pipeline, run.median.batch), run.median.proxy_us

    def redis(run: Run) -> tuple[float, float]:
        return laws.redis.us(run.pipeline, run.median.batch), run.median.redis_us

    def proxy_of_load(run: Run) -> tuple[float, float]:
        return laws.proxy_us_of(run), run.median.proxy_us

    def redis_of_load(run: Run) -> tuple[float, float]:
        return laws.redis_us_of(run), run.median.redis_us

    pairs: dict[str, list[tuple[float, float]]] = {
        "proxy, fitted runs": list(map(proxy, old)),
        "proxy, held out": list(map(proxy, new)),
        "proxy, held out, from the load": list(map(proxy_of_load, new)),
        "proxy, one hot key, from the load": list(map(proxy_of_load, hot)),
        "proxy, remembered refusals, held out": [
            (laws.refused.us(run.pipeline, 1), run.median.proxy_us) for run in refused
        ],
        "Redis, fitted runs": list(map(redis, old)),
        "Redis, held out": list(map(redis, new)),
        "Redis, held out, from the load": list(map(redis_of_load, new)),
        "Redis, one hot key, from the load": list(map(redis_of_load, hot)),
        "batch, held out, from the load": [(laws.batch_of(run), run.median.batch) for run in new],
        "connections of a master, held out": [
            (connections(look), look.of_a_master[0]) for look in looks
        ],
        "memory of the proxy, held out": [
            (laws.proxy_memory(of.workers, of.plain + of.piped, of.connections), of.proxy_bytes)
            for of in looks
        ],
        "memory of a master, held out": [
            (laws.node_memory(*of.of_a_master), of.node_bytes) for of in looks
        ],
    }
    return {what: _errors(of) for what, of in pairs.items()}


def _errors(pairs: Sequence[tuple[float, float]]) -> Errors:
    """Return the errors of pairs of (predicted, measured). Raises BenchError if there is none."""
    found = [abs(predicted - measured) / measured for predicted, measured in pairs if measured]
    if not found:
        raise BenchError("there is no run to check the model with")
    return Errors(median(found), max(found), len(found))
