"""Rows of kind RATE: commands per second through each party, and the CPU time that each used.

Rows of kind WORKERS and CLUSTER start their own programs, and are measured in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import calls, cpu, load, parts
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import BARE, DIRECT, INTERPRETED, LANE, PROXIES, SHARE, STUB, TWEMPROXY, Part
from .processes import run
from .rows import CLIENTS, CLUSTER, LIMIT_S, RANDOM, Command, Row

WARM_UP_PART: Final = 10  # divisor of the requests for the warm-up run, which is not counted
MASTERS: Final = 3  # of a row of kind CLUSTER
TAGGED: Final = b"{tag}:" + RANDOM  # redis-benchmark puts a tag of the node's slots there


def cluster(row: Row, plan: Plan, _running: Mapping[str, Part]) -> list[Figure]:
    """Run `row` on three masters, by a cluster client and through proxies.

    redis-benchmark --cluster gives each connection a node, and each pipeline keys of one slot.
    Through a proxy the keys of a pipeline are on all nodes, as those of an application are.
    Returns no figures without redis-benchmark: it is the cluster client. Raises BenchError.
    """
    if not load.has_redis_benchmark():
        return []
    proxies = parts.installed(parts.OF_CLUSTERS)
    with parts.running(plan.executable, proxies, MASTERS) as running:
        return measure(row, plan, running)


def workers(row: Row, plan: Plan, _running: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through one and two proxy processes, the only ones in front of their server.

    CPU time is that of all processes of the proxy, supervisor included. Raises BenchError.
    """
    with parts.running(plan.executable, (parts.ONE_WORKER, parts.TWO_WORKERS)) as pair:
        return measure(row, plan, pair)


def measure(row: Row, plan: Plan, running: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all parties in turn: its figure, then those of its CPU time.

    Raises BenchError.
    """
    # redis-benchmark repeats one command; a row of several commands needs load.py.
    by_redis = load.has_redis_benchmark() and len(row.commands) == 1
    columns = [name for name in running if name not in _without(row)]
    requests = row.requests(plan.requests)
    prepared: dict[str, list[bytes]] = {}

    def measured(column: str, count: int) -> float:
        port, commands = running[column].port, _sent(row, column)
        if by_redis:
            sizes = row.pipeline, row.keys, count, row.clients
            more = ["--cluster"] if row.kind == CLUSTER and column == DIRECT else []
            argv = load.redis_benchmark(port, commands[0], *sizes, "--csv", *more)
            return load.parse(run(argv, LIMIT_S))
        if column not in prepared:
            batches = requests // row.pipeline
            prepared[column] = load.batches(commands, row.pipeline, row.keys, batches)
        return load.rate(port, prepared[column], row.pipeline, count, row.clients)

    def once(column: str, _turn: int) -> dict[str, float]:
        _prepare(row, column, running[DIRECT])
        _check(row, column, running[column].port)
        clocks = {cpu.REDIS: running[DIRECT].spent}
        if column not in (DIRECT, BARE):
            clocks[cpu.PARTY] = running[column].spent
        with cpu.spending(clocks, requests) as spent:
            rate = measured(column, requests)
        return {row.name: rate, **spent}

    for column in columns if not plan.quick else ():
        _prepare(row, column, running[DIRECT])
        measured(column, max(row.clients * row.pipeline, requests // WARM_UP_PART))
    figures = {row.name: Figure.of(row), **cpu.figures(row)}
    return interleave(figures, columns, once, plan)


def _without(row: Row) -> set[str]:
    """Return the parties that `row` leaves out."""
    hits_alone = not row.refuses and {command[0] for command in row.commands} == {calls.HIT}
    few_clients = row.clients != CLIENTS
    left_out = {
        TWEMPROXY: row.scripted,  # it forwards only commands that it can shard
        BARE: not row.scripted,
        SHARE: row.scripted or few_clients,  # hits use lanes anyway
        STUB: not row.refuses,
        LANE: not hits_alone and (row.kind != CLUSTER or row.pipeline > 1),
        INTERPRETED: row.pipeline > 1 or few_clients,
    }
    return {party for party, left in left_out.items() if left}


def _sent(row: Row, column: str) -> tuple[Command, ...]:
    """Return what the clients of a party send for the commands of `row`."""
    if row.kind == CLUSTER and column == DIRECT:  # redis-benchmark sends no hits there
        return tuple(
            tuple(word.replace(RANDOM, TAGGED) for word in command) for command in row.commands
        )
    return tuple(_as_sent(command, column) for command in row.commands)


def _as_sent(command: Command, column: str) -> Command:
    if command[0] != calls.HIT or column in PROXIES:
        return command
    return (calls.bare if column in (BARE, LANE) else calls.of)(command).evalsha


def _prepare(row: Row, column: str, server: Part) -> None:
    """Reset the server, so that every run starts from the same data."""
    server.ask_all(b"FLUSHALL")
    with Client(server.port) as client:
        for command in row.commands:
            if command[0] == calls.HIT:
                for call in (calls.of(command), calls.bare(command)):
                    client.ask(b"SCRIPT", b"LOAD", call.source)
        if row.fill is not None:
            words = _as_sent(row.fill, DIRECT if column in PROXIES else column)
            client.ask_all(load.filled(words, number) for number in range(row.keys))


def _check(row: Row, column: str, port: int) -> None:
    """Check that hits are admitted or refused as the row requires. Raises BenchError."""
    with Client(port) as client:
        for sent, command in zip(_sent(row, column), row.commands, strict=True):
            if command[0] == calls.HIT:
                reply = client.ask(*load.filled(sent, 0))
                if not isinstance(reply, list) or reply[0] != int(row.refuses):
                    expected = "refused" if row.refuses else "admitted"
                    raise BenchError(f"a hit to be {expected} got {reply!r}")
