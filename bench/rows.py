"""The table of rows: names, commands and sizes of all measurements. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .errors import UsageError

Command = tuple[bytes, ...]

RANDOM: Final = b"__rand_int__"  # replaced by twelve digits below the row's number of keys
CLIENTS: Final = 50
KEYS: Final = 100_000
DEEP: Final = 16  # commands of the larger pipeline
DEEP_FACTOR: Final = 5  # factor of requests for pipelined rows, so that they take as long
DEEP_SCRIPT_FACTOR: Final = 3  # the same for rows that call scripts
# The same for clusters: there redis-benchmark ends at the next quarter of a second.
CLUSTER_FACTOR: Final = 8
ALONE_PART: Final = 4  # divisor of requests for rows of one client, which take as much longer

RATE: Final = "rate"
IDLE: Final = "idle"
START: Final = "start"
COST: Final = "cost"
# kinds of figures only, not of rows: CPU time in rows of kind RATE, TASKS, WORKERS and CLUSTER
CPU: Final = "cpu"
TASKS_CPU: Final = "tasks-cpu"
WORKERS_CPU: Final = "workers-cpu"
CLUSTER_CPU: Final = "cluster-cpu"
VALUES: Final = "values"
TASKS: Final = "tasks"
WORKERS: Final = "workers"
CLUSTER: Final = "cluster"
LATENCY: Final = "latency"

_KEY: Final = b"key:" + RANDOM
_VALUE: Final = b"val:" + RANDOM
_HIT: Final = (b"RL.HIT", _KEY, b"1000000", b"60")  # never refused: max exceeds all requests
_REFUSED: Final = (b"RL.HIT", _KEY, b"1", b"3600")
_GET: Final = (b"GET", _KEY)
_SET: Final = (b"SET", _KEY, b"xxx")


@dataclass(frozen=True)
class Row:
    """One measurement.

    Rows of kind RATE send `commands` in turn over `clients` connections.
    pipeline: commands sent at once.
    keys: number of keys; RANDOM is below it.
    fill: the command that is sent once for every key before each run.
    """

    name: str
    kind: str
    unit: str
    help: str
    commands: tuple[Command, ...] = ()
    pipeline: int = 1
    keys: int = KEYS
    fill: Command | None = None
    clients: int = CLIENTS

    @property
    def scripted(self) -> bool:
        """Whether the row calls scripts, which not every peer supports."""
        return any(command[0] == b"RL.HIT" for command in self.commands)

    @property
    def refuses(self) -> bool:
        """Whether the row's hits are refused: `fill` has used the one hit of each key."""
        return self.fill in self.commands and self.scripted

    def requests(self, wanted: int) -> int:
        """Return the commands of one run, given `wanted` for a run without pipelining."""
        if self.clients == 1:
            return max(1, wanted // ALONE_PART)
        if self.kind == CLUSTER:
            wanted *= CLUSTER_FACTOR
        if self.pipeline != DEEP:
            return wanted
        return wanted * (DEEP_SCRIPT_FACTOR if self.scripted else DEEP_FACTOR)


def _rates(
    name: str, what: str, command: Command, keys: int = KEYS, fill: Command | None = None
) -> tuple[Row, Row]:
    shallow, deep = (
        Row(f"{name}-{size}", RATE, "/s", f"{what}, pipeline {size}", (command,), size, keys, fill)
        for size in (1, DEEP)
    )
    return shallow, deep


ROWS: Final = (
    *_rates(
        "hit",
        "RL.HIT admitted by LOG (direct: EVALSHA of its script)",
        _HIT,
    ),
    *_rates("refused", "RL.HIT refused by LOG (likewise)", _REFUSED, 1000, _REFUSED),
    *_rates("get", "GET of 3 bytes", _GET, fill=_SET),
    *_rates("set", "SET of 3 bytes", _SET),
    *(
        Row(
            f"mixed-{size}",
            RATE,
            "/s",
            f"hit and GET in turn in pipelines of {size}: hits go as EVALSHA in their place",
            (_HIT, (b"GET", _VALUE)),
            size,
            fill=(b"SET", _VALUE, b"xxx"),
        )
        for size in (2, DEEP)
    ),
    Row(
        "alone-hit",
        RATE,
        "/s",
        "RL.HIT admitted, one client alone",
        (_HIT,),
        clients=1,
    ),
    Row("alone-get", RATE, "/s", "GET likewise", (_GET,), fill=_SET, clients=1),
    Row("values", VALUES, "MB/s", "GET of values of 1 MB over several connections"),
    Row(
        "tasks-admitted",
        TASKS,
        "/s",
        "one Python program's hits by redis-py through the proxy, and by limits without it",
        (_HIT,),
        keys=5000,
    ),
    Row(
        "tasks-refused",
        TASKS,
        "/s",
        "the same, refused",
        (_REFUSED,),
        keys=1000,
        fill=_REFUSED,
    ),
    Row("workers", WORKERS, "/s", "RL.HIT through one and two proxy processes", (_HIT,)),
    *(
        Row(
            f"cluster-{name}-{size}",
            CLUSTER,
            "/s",
            f"{name.upper()} on {what}three masters, pipeline {size} (direct: a cluster client)",
            (command,),
            size,
        )
        for name, what, command in (("get", "absent keys of ", _GET), ("set", "", _SET))
        for size in (1, DEEP)
    ),
    Row("start", START, "ms", "from the start of a program to its first reply through it"),
    Row("idle", IDLE, "kB", "resident memory for each idle client that has sent PING"),
    Row("latency", LATENCY, "µs", "how long RL.HIT takes at fixed rates, open loop", (_HIT,)),
    Row("cost", COST, "µs", "time of LOG's script in Redis (INFO commandstats)"),
)


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
