"""Rows of kind RATE: commands per second through each party, and the CPU time that each used."""

from __future__ import annotations

from collections.abc import Mapping

from . import calls, load, redis_benchmark
from .client import Client
from .cpu import PARTY, REDIS, Meter, clock
from .errors import BenchError
from .figures import Figure, interleave
from .parts import BARE, DIRECT, INTERPRETED, PROXIES, SHARE, STUB, TWEMPROXY, Part
from .plan import Plan
from .rows import CLIENTS, RANDOM, Command, Row

WARM_UP_PART = 10  # divisor of the requests for the warm-up run, which is not counted


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all parts in turn: its figure, then those of its CPU time.

    Raises BenchError.
    """
    # redis-benchmark repeats one command; a row of several commands needs load.py.
    by_redis = plan.redis_benchmark and len(row.commands) == 1
    generator = redis_benchmark.NAME if by_redis else load.NAME
    # twemproxy forwards only commands that it can shard; rows that call scripts leave it out.
    # --share makes no difference for hits: they use lanes anyway.
    without = {TWEMPROXY, SHARE} if row.scripted else {BARE}
    if not row.refuses:
        without.add(STUB)
    if row.pipeline > 1 or row.clients != CLIENTS:
        without.add(INTERPRETED)
    if row.clients != CLIENTS:
        without.add(SHARE)
    columns = [name for name in parts if name not in without]
    requests = row.requests(plan.requests)
    prepared: dict[str, list[bytes]] = {}
    meter = Meter(row, generator)

    def run(column: str, count: int) -> float:
        port = parts[column].port
        if by_redis:
            command = _sent(row, column)[0]
            return redis_benchmark.rate(
                port, command, row.pipeline, row.keys, count, row.clients, plan.limit_s
            )
        if column not in prepared:
            batches = max(1, requests // row.pipeline)
            prepared[column] = load.batches(_sent(row, column), row.pipeline, row.keys, batches)
        return load.rate(port, prepared[column], row.pipeline, count, row.clients, plan.limit_s)

    def once(column: str) -> float:
        _prepare(row, column, parts[DIRECT].port)
        _check(row, column, parts[column].port)
        clocks = {REDIS: clock(parts[DIRECT].process.pid)}
        if column not in (DIRECT, BARE):
            clocks[PARTY] = clock(parts[column].process.pid)
        return meter.run(column, requests, clocks, lambda: run(column, requests))

    if plan.warm_up:
        for column in columns:
            plan.progress.begin(f"{row.name} {column}, warming up", 0, plan.repeats)
            _prepare(row, column, parts[DIRECT].port)
            run(column, max(row.clients * row.pipeline, requests // WARM_UP_PART))
    figure = Figure(row.name, row.kind, row.unit, generator, row.help)
    return [interleave(figure, columns, once, plan.repeats, plan.progress), *meter.figures()]


def _sent(row: Row, column: str) -> tuple[Command, ...]:
    if column in PROXIES:
        return row.commands
    return tuple(_direct(command, column) for command in row.commands)


def _direct(command: Command, column: str) -> Command:
    if column == BARE and command[0] == calls.HIT:
        return calls.bare(command).evalsha
    return calls.direct(command)


def _prepare(row: Row, column: str, server: int) -> None:
    """Reset the server, so that every run starts from the same data."""
    with Client(server) as client:
        client.ask(b"FLUSHALL")
        for command in row.commands:
            if command[0] == calls.HIT:
                for call in (calls.of(command), calls.bare(command)):
                    client.ask(b"SCRIPT", b"LOAD", call.source)
        if row.fill is not None:
            words = _direct(row.fill, column)
            client.ask_all(
                [word.replace(RANDOM, b"%012d" % number) for word in words]
                for number in range(row.keys)
            )


def _check(row: Row, column: str, port: int) -> None:
    """Check that hits are admitted or refused as the row requires. Raises BenchError."""
    with Client(port) as client:
        for sent, command in zip(_sent(row, column), row.commands, strict=True):
            if command[0] == calls.HIT:
                reply = client.ask(*(word.replace(RANDOM, b"%012d" % 0) for word in sent))
                if not isinstance(reply, list) or reply[0] != int(row.refuses):
                    expected = "refused" if row.refuses else "admitted"
                    raise BenchError(f"a hit to be {expected} got {reply!r}")
