"""The table of rows: names, parties, commands and sizes of measurements. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .errors import UsageError
from .parts import (
    BARE,
    CLUSTER_PROXY,
    DIRECT,
    HAPROXY,
    INTERPRETED,
    LANE,
    ONE_WORKER,
    PREDIXY,
    PROXY,
    SHARE,
    SPLICE,
    STUB,
    TWEMPROXY,
    TWO_WORKERS,
)

Command = tuple[bytes, ...]

RANDOM: Final = b"__rand_int__"  # replaced by twelve digits below the row's number of keys
CLIENTS: Final = 50
LIMIT_S: Final = 600.0  # seconds of one run, at most
KEYS: Final = 100_000
QUICK_KEYS: Final = 1_000
DEEP: Final = 16  # commands of the larger pipeline

# kinds of rows: what measures them, and the table in which they are shown
RATE: Final = "rate"
VALUES: Final = "values"
TASKS: Final = "tasks"
WORKERS: Final = "workers"  # measured as RATE
CLUSTER: Final = "cluster"  # measured as RATE
START: Final = "start"
IDLE: Final = "idle"
LATENCY: Final = "latency"
COST: Final = "cost"
CPU: Final = "cpu"  # the kind of a figure: CPU time in rows of kind RATE; of others `tasks-cpu` ...

_KEY: Final = b"key:" + RANDOM
_VALUE: Final = b"val:" + RANDOM
_HIT: Final = (b"RL.HIT", _KEY, b"1000000", b"60")  # never refused: max exceeds all requests
_REFUSED: Final = (b"RL.HIT", _KEY, b"1", b"3600")
_GET: Final = (b"GET", _KEY)
_SET: Final = (b"SET", _KEY, b"xxx")

# parties of rows of any command; twemproxy forwards only what it can shard, so no scripts
_ALL: Final = (DIRECT, PROXY, SPLICE, HAPROXY)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Rows that are measured as RATE send `commands` in turn over `clients` connections.
    parties: names from parts.PARTIES, in any order.
    pipeline: commands sent at once.
    part: factor of the requests of a run, so that all rows take about as long. In front of a
        cluster redis-benchmark ends at the next quarter of a second, so it is larger there.
    keys: number of keys; RANDOM is below it.
    fill: the command that is sent once for every key before each run.
    masters: of the cluster in front of which the row is run; 0 for a single server.
    """

    name: str
    kind: str
    unit: str
    help: str
    parties: tuple[str, ...]
    commands: tuple[Command, ...] = ()
    pipeline: int = 1
    part: float = 1.0
    keys: int = KEYS
    fill: Command | None = None
    clients: int = CLIENTS
    masters: int = 0

    @property
    def refuses(self) -> bool:
        """Whether the row's hits are refused: `fill` has used the one hit of each key."""
        return self.fill in self.commands


def _pair(row: Row, part: float, *alone: str) -> list[Row]:
    """Return a row without and with pipelining.

    part: of the row with pipelining, times that of `row`.
    alone: further parties of the row without pipelining.
    """
    lone = replace(row, parties=(*row.parties, *alone))
    deep = replace(row, pipeline=DEEP, part=row.part * part)
    return [
        replace(one, name=f"{one.name}-{one.pipeline}", help=f"{one.help}, pipeline {one.pipeline}")
        for one in (lone, deep)
    ]


_HIT_AND_GET: Final = (_HIT, (b"GET", _VALUE))
_SET_VALUE: Final = (b"SET", _VALUE, b"xxx")
_MIXED: Final = "hit and GET in turn: hits go as EVALSHA in their place"
_TASKS: Final = "one Python program's hits by redis-py through the proxy, and by limits without it"

# fmt: off
ROWS: Final = (
    *_pair(Row("hit", RATE, "/s", "RL.HIT admitted by LOG (direct: EVALSHA of its script)",
               (*_ALL, BARE, LANE), (_HIT,)), 3, INTERPRETED),
    *_pair(Row("refused", RATE, "/s", "RL.HIT refused by LOG (likewise)",
               (*_ALL, BARE, STUB), (_REFUSED,), keys=1000, fill=_REFUSED), 3, INTERPRETED),
    *_pair(Row("get", RATE, "/s", "GET of 3 bytes",
               (*_ALL, SHARE, TWEMPROXY), (_GET,), fill=_SET), 5, INTERPRETED),
    *_pair(Row("set", RATE, "/s", "SET of 3 bytes",
               (*_ALL, SHARE, TWEMPROXY), (_SET,)), 5, INTERPRETED),
    Row("mixed-2", RATE, "/s", f"{_MIXED}, pipeline 2", (*_ALL, BARE), _HIT_AND_GET, 2,
        fill=_SET_VALUE),
    Row("mixed-16", RATE, "/s", f"{_MIXED}, pipeline 16", (*_ALL, BARE), _HIT_AND_GET, DEEP, 3,
        fill=_SET_VALUE),
    Row("alone-hit", RATE, "/s", "RL.HIT admitted, one client alone", (*_ALL, BARE, LANE), (_HIT,),
        part=0.25, clients=1),
    Row("alone-get", RATE, "/s", "GET likewise", (*_ALL, TWEMPROXY), (_GET,),
        part=0.25, fill=_SET, clients=1),
    # twemproxy buffers a whole value before it forwards it, the splice even several
    Row("values", VALUES, "MB/s", "GET of values of 1 MB over several connections",
        (DIRECT, PROXY, HAPROXY)),
    Row("tasks-admitted", TASKS, "/s", _TASKS, (PROXY,), (_HIT,), keys=5000),
    Row("tasks-refused", TASKS, "/s", "the same, refused", (PROXY,), (_REFUSED,), keys=1000,
        fill=_REFUSED),
    Row("workers", WORKERS, "/s", "RL.HIT through one and two proxy processes",
        (DIRECT, ONE_WORKER, TWO_WORKERS), (_HIT,)),
    *_pair(Row("cluster-get", CLUSTER, "/s",
               "GET on absent keys of three masters (direct: a cluster client)",
               (DIRECT, PROXY, PREDIXY, CLUSTER_PROXY), (_GET,), part=8, masters=3), 5, LANE),
    *_pair(Row("cluster-set", CLUSTER, "/s", "SET on three masters (direct: a cluster client)",
               (DIRECT, PROXY, PREDIXY, CLUSTER_PROXY), (_SET,), part=8, masters=3), 5, LANE),
    Row("start", START, "ms", "from the start of a program to its first reply through it",
        (PROXY, INTERPRETED, SPLICE, HAPROXY)),
    # without twemproxy, which replies to PING without a connection to Redis
    Row("idle", IDLE, "kB", "resident memory for each idle client that has sent PING", _ALL),
    Row("latency", LATENCY, "µs", "how long RL.HIT takes at fixed rates, open loop", _ALL, (_HIT,)),
    Row("cost", COST, "µs", "time of LOG's script in Redis (INFO commandstats)", ()),
)
# fmt: on


def choose(names: Sequence[str]) -> tuple[Row, ...]:
    """Select rows by name, in the table's order.

    `hit` selects hit-1 and hit-16; no names select all rows.
    Raises UsageError with the first name that has no row.
    """
    for name in names:
        if not any(_called(row, name) for row in ROWS):
            known = ", ".join(row.name for row in ROWS)
            raise UsageError(f"--only {name}: there is no such row; there are {known}")
    return tuple(row for row in ROWS if not names or any(_called(row, name) for name in names))


def _called(row: Row, name: str) -> bool:
    return name in (row.name, row.name.partition("-")[0])
