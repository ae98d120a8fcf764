"""The table of rows: names, commands and sizes of all measurements. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from .errors import UsageError

Command = tuple[bytes, ...]

RANDOM: Final = b"__rand_int__"  # replaced by twelve digits below the row's number of keys
CLIENTS: Final = 50
LIMIT_S: Final = 600.0  # seconds of one run, at most
KEYS: Final = 100_000
QUICK_KEYS: Final = 1_000
DEEP: Final = 16  # commands of the larger pipeline
DEEP_FACTOR: Final = 5  # factor of requests for pipelined rows, so that they take as long
DEEP_SCRIPT_FACTOR: Final = 3  # the same for rows that call scripts
# The same for clusters: there redis-benchmark ends at the next quarter of a second.
CLUSTER_FACTOR: Final = 8
ALONE_PART: Final = 4  # divisor of requests for rows of one client, which take as much longer

# kinds of rows
RATE: Final = "rate"
VALUES: Final = "values"
TASKS: Final = "tasks"
WORKERS: Final = "workers"
CLUSTER: Final = "cluster"
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
) -> list[Row]:
    return [
        Row(f"{name}-{size}", RATE, "/s", f"{what}, pipeline {size}", (command,), size, keys, fill)
        for size in (1, DEEP)
    ]


def _mixed(size: int) -> Row:
    what = f"hit and GET in turn in pipelines of {size}: hits go as EVALSHA in their place"
    commands, fill = (_HIT, (b"GET", _VALUE)), (b"SET", _VALUE, b"xxx")
    return Row(f"mixed-{size}", RATE, "/s", what, commands, size, fill=fill)


def _cluster(name: str, what: str, command: Command) -> list[Row]:
    direct = " (direct: a cluster client)"
    return [
        replace(row, name=f"cluster-{row.name}", kind=CLUSTER, help=row.help + direct)
        for row in _rates(name, what, command)
    ]


_LOG: Final = "RL.HIT admitted by LOG (direct: EVALSHA of its script)"
_TASKS: Final = "one Python program's hits by redis-py through the proxy, and by limits without it"

ROWS: Final = (
    *_rates("hit", _LOG, _HIT),
    *_rates("refused", "RL.HIT refused by LOG (likewise)", _REFUSED, 1000, _REFUSED),
    *_rates("get", "GET of 3 bytes", _GET, fill=_SET),
    *_rates("set", "SET of 3 bytes", _SET),
    _mixed(2),
    _mixed(DEEP),
    Row("alone-hit", RATE, "/s", "RL.HIT admitted, one client alone", (_HIT,), clients=1),
    Row("alone-get", RATE, "/s", "GET likewise", (_GET,), fill=_SET, clients=1),
    Row("values", VALUES, "MB/s", "GET of values of 1 MB over several connections"),
    Row("tasks-admitted", TASKS, "/s", _TASKS, (_HIT,), keys=5000),
    Row("tasks-refused", TASKS, "/s", "the same, refused", (_REFUSED,), keys=1000, fill=_REFUSED),
    Row("workers", WORKERS, "/s", "RL.HIT through one and two proxy processes", (_HIT,)),
    *_cluster("get", "GET on absent keys of three masters", _GET),
    *_cluster("set", "SET on three masters", _SET),
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
