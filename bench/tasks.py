"""Rows of kind TASKS: hits per second of one Python program, whose coroutines share connections.

The program is this process, and its CPU is the limit. So the rates show the costs of each library.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from . import load
from .client import Client
from .cpu import DRIVER, PARTY, REDIS, Clock, Meter, clock, own
from .errors import BenchError
from .figures import Figure, interleave
from .libraries import EXACT, LIBRARIES, Hit, Library, Rule
from .parts import DIRECT, PROXY, Part
from .plan import Plan
from .rows import CLIENTS, Row

NAME: Final = f"{CLIENTS} asyncio tasks of one Python process"
FASTEST: Final = "fastest exact"
PART: Final = 10  # divisor of a rate's requests: a Python client is about as much slower

T = TypeVar("T")


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` with each library that is installed, in turn. Raises BenchError."""
    installed = {one.column: one for one in LIBRARIES if one.installed}
    count = max(CLIENTS, plan.requests // PART)
    rule = Rule.of(row.commands[0])
    meter = Meter(row, NAME)
    keys = [f"key:{number:012}" for number in range(row.keys)]
    dice = random.Random(1)

    def once(column: str) -> float:
        party = PROXY if column == PROXY else DIRECT
        clocks: dict[str, Clock] = {DRIVER: own}
        for whose, name in ((REDIS, DIRECT), (PARTY, PROXY)):
            if whose == REDIS or column == PROXY:
                clocks[whose] = clock(parts[name].process.pid)
        with Client(parts[DIRECT].port) as client:
            client.ask(b"FLUSHALL")
        hits = dice.choices(keys, k=count)
        with _Program(installed[column], parts[party].port, rule, plan.limit_s) as program:
            program.run(keys, admitted=True)
            gc.collect()
            refused = row.refuses
            seconds = meter.run(
                column, count, clocks, lambda: program.run(hits, admitted=not refused)
            )
        return count / seconds

    note = f"{count:,} hits on {row.keys:,} keys, each of which has had one. " + "; ".join(
        f"{one.column}: {one.description}" for one in LIBRARIES
    )
    absent = tuple(one.column for one in LIBRARIES if not one.installed)
    figure = Figure(row.name, row.kind, row.unit, NAME, note, absent=absent, best={FASTEST: EXACT})
    return [
        interleave(figure, list(installed), once, plan.repeats, plan.progress),
        *meter.figures(),
    ]


class _Program:
    """A Python program with one library, connected to one port. Raises BenchError."""

    def __init__(self, library: Library, port: int, rule: Rule, limit_s: float) -> None:
        self._limit_s = limit_s
        self._runner = asyncio.Runner(loop_factory=load.new_loop)
        self._stack = AsyncExitStack()
        self._open = library.open(port, rule)
        self._hit: Hit | None = None

    def __enter__(self) -> _Program:
        try:
            self._hit = self._await(self._stack.enter_async_context(self._open))
        except BenchError:
            self._runner.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._await(self._stack.aclose())
        finally:
            self._runner.close()

    def run(self, keys: Sequence[str], admitted: bool) -> float:
        """Return the seconds for one hit on each of `keys`.

        Raises BenchError unless all are admitted, or all refused, as `admitted` requires.
        """
        found, seconds = self._await(self._all(keys))
        if found != (len(keys) if admitted else 0):
            expected = "admitted" if admitted else "refused"
            raise BenchError(f"{found:,} of {len(keys):,} admitted, all should be {expected}")
        return seconds

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(coroutine)
        except TimeoutError:
            raise BenchError(f"a run took more than {self._limit_s:g} s") from None
        except Exception as error:  # libraries raise errors of any type
            raise BenchError(f"{type(error).__name__}: {error}") from error

    async def _all(self, keys: Sequence[str]) -> tuple[int, float]:
        assert self._hit is not None
        hit, left, found = self._hit, iter(keys), 0

        async def task() -> None:
            nonlocal found
            for key in left:
                if await hit(key):
                    found += 1

        async with asyncio.timeout(self._limit_s):
            began = time.perf_counter()
            await asyncio.gather(*(task() for _ in range(CLIENTS)))
            return found, time.perf_counter() - began
