"""Rows of kind RATE, WORKERS and CLUSTER: commands per second through each party, and CPU time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import calls, cpu, load, parts
from .client import Client
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import DIRECT, EVALSHA, EVALSHA_BARE, PARTIES, RL_HIT, Part
from .rows import RANDOM, Command, Row

WARM_UP_PART: Final = 10  # divisor of the requests for the warm-up run, which is not counted
TAGGED: Final = b"{tag}:" + RANDOM  # redis-benchmark puts a tag of the node's slots there


def measure(row: Row, plan: Plan) -> list[Figure]:
    """Run `row` through its parties in turn: its figure, then those of its CPU time.

    Of a cluster, DIRECT is redis-benchmark --cluster: it gives each connection a node, and each
    pipeline keys of one slot. Through a proxy the keys of a pipeline are on all nodes, as those of
    an application are.
    Raises BenchError.
    """
    with parts.running(plan.executable, parts.installed(row.parties), row.masters) as running:
        return through(row, plan, running)


def through(row: Row, plan: Plan, running: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through the parties that are running. Raises BenchError."""
    columns = [name for name in running if name in row.parties]
    if row.masters and not load.has_redis_benchmark():
        columns.remove(DIRECT)
    requests = max(1, round(plan.requests * row.part))

    def measured(column: str, count: int) -> float:
        port, sizes = running[column].port, (row.pipeline, row.keys, count, row.clients)
        more = ["--cluster"] if row.masters and column == DIRECT else []
        return load.rate(port, sent(row, column), *sizes, *more)

    def once(column: str, _turn: int) -> dict[str, float]:
        prepare(row, column, running[DIRECT])
        _check(row, column, running[column].port)
        clocks = {cpu.REDIS: running[DIRECT].spent}
        if PARTIES[column].command:
            clocks[cpu.PARTY] = running[column].spent
        with cpu.spending(clocks, requests) as spent:
            rate = measured(column, requests)
        return {row.name: rate, **spent}

    for column in columns if not plan.quick else ():
        prepare(row, column, running[DIRECT])
        measured(column, max(row.clients * row.pipeline, requests // WARM_UP_PART))
    figures = {row.name: Figure.of(row), **cpu.figures(row)}
    return interleave(figures, columns, once, plan)


def sent(row: Row, column: str) -> list[Command]:
    """Return what the clients of a party send for the commands of `row`."""
    if row.masters and column == DIRECT:  # redis-benchmark sends no hits there
        return [tuple(word.replace(RANDOM, TAGGED) for word in one) for one in row.commands]
    return [_as_sent(command, PARTIES[column].sends) for command in row.commands]


def _as_sent(command: Command, sends: str) -> Command:
    if command[0] != calls.HIT or sends == RL_HIT:
        return command
    return (calls.bare if sends == EVALSHA_BARE else calls.of)(command).evalsha


def prepare(row: Row, column: str, server: Part) -> None:
    """Reset the server, so that every run starts from the same data."""
    server.ask_all(b"FLUSHALL")
    with Client(server.port) as client:
        for command in row.commands:
            if command[0] == calls.HIT:
                for call in (calls.of(command), calls.bare(command)):
                    client.ask(b"SCRIPT", b"LOAD", call.source)
        if row.fill is not None:
            sends = PARTIES[column].sends
            words = _as_sent(row.fill, EVALSHA if sends == RL_HIT else sends)
            client.ask_all(load.filled(words, number) for number in range(row.keys))


def _check(row: Row, column: str, port: int) -> None:
    """Check that hits are admitted or refused as the row requires. Raises BenchError."""
    with Client(port) as client:
        for words, command in zip(sent(row, column), row.commands, strict=True):
            if command[0] == calls.HIT:
                reply = client.ask(*load.filled(words, 0))
                if not isinstance(reply, list) or reply[0] != int(row.refuses):
                    expected = "refused" if row.refuses else "admitted"
                    raise BenchError(f"a hit to be {expected} got {reply!r}")
