"""Rows of kind TASKS: hits per second of one Python program, whose coroutines share connections.

The program is this process, and its CPU is the limit. So the rates show the costs of each client.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from redis.asyncio import Redis

from . import calls, load
from .client import Client
from .cpu import DRIVER, PARTY, REDIS, Clock, Meter, clock, own
from .errors import BenchError
from .figures import Figure, interleave
from .parts import DIRECT, PROXY, Part
from .plan import Plan
from .rows import CLIENTS, Command, Row

NAME: Final = f"{CLIENTS} asyncio tasks of one Python process"
SCRIPT: Final = "script"
LIMITS: Final = "limits"
PART: Final = 10  # divisor of a rate's requests: a Python client is about as much slower

T = TypeVar("T")
Hit = Callable[[str], Awaitable[bool]]  # of a key: whether it was admitted
Open = Callable[[int, Command], AbstractAsyncContextManager[Hit]]  # for a port and a plain RL.HIT


# -- ways to hit -----------------------------------------------------------------------------------


@asynccontextmanager
async def _proxy(port: int, command: Command) -> AsyncIterator[Hit]:
    word, _, most, window_s = (each.decode() for each in command)
    async with Redis(port=port) as client:

        async def hit(key: str) -> bool:
            reply = await client.execute_command(  # type: ignore[no-untyped-call]
                word, key, int(most), int(window_s)
            )
            return bool(reply[0] == 0)

        yield hit


@asynccontextmanager
async def _script(port: int, command: Command) -> AsyncIterator[Hit]:
    call = calls.of(command)
    async with Redis(port=port) as client:
        script, args = client.register_script(call.source), list(call.evalsha[4:])

        async def hit(key: str) -> bool:
            return bool((await script([key], args))[0] == 0)

        yield hit


@asynccontextmanager
async def _limits(port: int, command: Command) -> AsyncIterator[Hit]:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    storage = RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy")
    limiter = MovingWindowRateLimiter(storage)
    item = RateLimitItemPerSecond(int(command[2]), int(command[3]))

    async def hit(key: str) -> bool:
        return await limiter.hit(item, key)

    yield hit
    bridge: Any = storage.bridge
    await bridge.storage.aclose()


WAYS: Final[Mapping[str, Open]] = {PROXY: _proxy, SCRIPT: _script, LIMITS: _limits}


# -- the rows --------------------------------------------------------------------------------------


def measure(row: Row, plan: Plan, parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` in each way in turn, without LIMITS if that is not installed. Raises BenchError."""
    columns = [way for way in WAYS if way != LIMITS or importlib.util.find_spec(LIMITS)]
    count = max(CLIENTS, plan.requests // PART)
    (command,) = row.commands
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
        made = WAYS[column](parts[party].port, command)
        with _Program(made, plan.limit_s) as program:
            program.run(keys, admitted=True)
            gc.collect()
            refused = row.refuses
            seconds = meter.run(
                column, count, clocks, lambda: program.run(hits, admitted=not refused)
            )
        return count / seconds

    note = f"{count:,} hits on {row.keys:,} keys, each of which has had one"
    figure = Figure(row.name, row.kind, row.unit, NAME, note)
    return [
        interleave(figure, columns, once, plan.repeats, plan.progress),
        *meter.figures(),
    ]


class _Program:
    """A Python program that hits in one way, while the context `made` is open.

    Raises BenchError.
    """

    def __init__(self, made: AbstractAsyncContextManager[Hit], limit_s: float) -> None:
        self._limit_s = limit_s
        self._runner = asyncio.Runner(loop_factory=load.new_loop)
        self._stack = AsyncExitStack()
        self._made = made
        self._hit: Hit | None = None

    def __enter__(self) -> _Program:
        try:
            self._hit = self._await(self._stack.enter_async_context(self._made))
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
