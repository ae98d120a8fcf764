"""Rows of kind RATE: commands per second through each party."""

from __future__ import annotations

from collections.abc import Mapping

from . import calls, load, redis_benchmark
from .client import Client
from .figures import Figure, interleave
from .parts import DIRECT, PROXY, TWEMPROXY, Part
from .plan import Plan
from .rows import CLIENTS, RANDOM, Command, Row

WARM_UP_PART = 10  # the run before the first repeat, not counted, is a tenth


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all parts in turn. Raises BenchError."""
    # redis-benchmark sends one command over and over; a row of several needs the own generator.
    by_redis = plan.redis_benchmark and len(row.commands) == 1
    generator = redis_benchmark.NAME if by_redis else load.NAME
    # twemproxy carries commands that it knows how to spread; a script call is not worth the detour
    columns = [name for name in parts if not (row.scripted and name == TWEMPROXY)]
    requests = row.requests(plan.requests)
    prepared: dict[str, list[bytes]] = {}

    def run(column: str, count: int) -> float:
        port = parts[column].port
        _prepare(row, parts[DIRECT].port)
        if by_redis:
            command = _sent(row, column)[0]
            return redis_benchmark.rate(
                port, command, row.pipeline, row.keys, count, CLIENTS, plan.limit_s
            )
        if column not in prepared:
            batches = max(1, requests // row.pipeline)
            prepared[column] = load.batches(_sent(row, column), row.pipeline, row.keys, batches)
        return load.rate(port, prepared[column], row.pipeline, count, CLIENTS, plan.limit_s)

    if plan.warm_up:
        for column in columns:
            plan.progress.begin(f"{row.name} {column}, warming up", 0, plan.repeats)
            run(column, max(CLIENTS * row.pipeline, requests // WARM_UP_PART))
    figure = Figure(row.name, row.kind, row.unit, generator, row.help)
    return [
        interleave(figure, columns, lambda name: run(name, requests), plan.repeats, plan.progress)
    ]


def _sent(row: Row, column: str) -> tuple[Command, ...]:
    if column == PROXY:
        return row.commands
    return tuple(calls.direct(command) for command in row.commands)


def _prepare(row: Row, server: int) -> None:
    """Every run starts from the same data, whoever ran before."""
    with Client(server) as client:
        client.ask(b"FLUSHALL")
        for command in row.commands:
            if command[0] == calls.HIT:
                client.ask(b"SCRIPT", b"LOAD", calls.of(command).source)
        if row.fill is not None:
            words = calls.direct(row.fill)
            client.ask_all(
                [word.replace(RANDOM, b"%012d" % number) for word in words]
                for number in range(row.keys)
            )
