"""Rows of kind TASKS: hits per second of one Python program, whose coroutines share connections.

The program is this process, and its CPU is the limit. So the rates show the costs of each client.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import uvloop
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import Redis

from . import calls, cpu, parts
from .errors import BenchError
from .figures import Figure, interleave
from .options import Plan
from .parts import DIRECT, PROXY
from .rows import CLIENTS, LIMIT_S, Command, Row

SCRIPT: Final = "script"
LIMITS: Final = "limits"
PART: Final = 10  # divisor of a rate's requests: a Python client is about as much slower

Hit = Callable[[str], Awaitable[bool]]  # of a key: whether it was admitted
Open = Callable[[int, Command], AbstractAsyncContextManager[Hit]]  # for a port and a plain RL.HIT


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
    storage = RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy")
    limiter = MovingWindowRateLimiter(storage)
    item = RateLimitItemPerSecond(int(command[2]), int(command[3]))

    async def hit(key: str) -> bool:
        return await limiter.hit(item, key)

    yield hit
    bridge: Any = storage.bridge
    await bridge.storage.aclose()


WAYS: Final[Mapping[str, Open]] = {PROXY: _proxy, SCRIPT: _script, LIMITS: _limits}


def measure(row: Row, plan: Plan) -> list[Figure]:
    """Run `row` in each way in turn. Raises BenchError."""
    count = max(CLIENTS, plan.requests // PART)
    keys = [f"key:{number:012}" for number in range(row.keys)]
    dice = random.Random(1)
    (command,) = row.commands
    note = f"{count:,} hits on {row.keys:,} keys, each of which has had one"
    figures = {row.name: Figure.of(row, note), **cpu.figures(row)}
    with parts.running(plan.executable, row.parties) as running:

        def once(column: str, _turn: int) -> dict[str, float]:
            running[DIRECT].ask_all(b"FLUSHALL")
            hits = dice.choices(keys, k=count)
            clocks = {cpu.DRIVER: cpu.own, cpu.REDIS: running[DIRECT].spent}
            if column == PROXY:
                clocks[cpu.PARTY] = running[PROXY].spent
            port = running[PROXY if column == PROXY else DIRECT].port

            async def program() -> dict[str, float]:
                async with WAYS[column](port, command) as hit, asyncio.timeout(LIMIT_S):
                    await _all(hit, keys, admitted=True)
                    gc.collect()
                    with cpu.spending(clocks, count) as spent:
                        began = time.perf_counter()
                        await _all(hit, hits, admitted=not row.refuses)
                        seconds = time.perf_counter() - began
                return {row.name: count / seconds, **spent}

            try:
                return uvloop.run(program())
            except BenchError:
                raise
            except TimeoutError:
                raise BenchError(f"a run took more than {LIMIT_S:g} s") from None
            except Exception as error:  # libraries raise errors of any type
                raise BenchError(f"{type(error).__name__}: {error}") from error

        return interleave(figures, list(WAYS), once, plan)


async def _all(hit: Hit, keys: Sequence[str], admitted: bool) -> None:
    """Hit each of `keys` by CLIENTS tasks.

    Raises BenchError unless all are admitted, or all refused, as `admitted` requires.
    """
    left, found = iter(keys), 0

    async def task() -> None:
        nonlocal found
        for key in left:
            if await hit(key):
                found += 1

    await asyncio.gather(*(task() for _ in range(CLIENTS)))
    if found != (len(keys) if admitted else 0):
        expected = "admitted" if admitted else "refused"
        raise BenchError(f"{found:,} of {len(keys):,} admitted, all should be {expected}")
