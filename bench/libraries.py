"""The rate limiters that a Python program may use, each called as its documentation describes.

Each becomes a coroutine function hit(key) -> admitted. Packages that are not installed are left
out; the rest of the benchmark needs none of them.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from . import calls
from .parts import PROXY
from .rows import Command

SCRIPT: Final = "script"

Hit = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class Rule:
    """At most `most` hits in `window_s` seconds."""

    most: int
    window_s: int

    @classmethod
    def of(cls, command: Command) -> Rule:
        """Return the rule of a plain `RL.HIT key max window`."""
        return cls(int(command[2]), int(command[3]))

    def command(self, key: bytes) -> Command:
        """Return the rule as a command for the proxy."""
        return (calls.HIT, key, b"%d" % self.most, b"%d" % self.window_s)


Open = Callable[[int, Rule], AbstractAsyncContextManager[Hit]]


@asynccontextmanager
async def _proxy(port: int, rule: Rule) -> AsyncIterator[Hit]:
    client = _import("redis.asyncio").Redis(port=port)
    word, most, window_s = calls.HIT.decode(), rule.most, rule.window_s

    async def hit(key: str) -> bool:
        return bool((await client.execute_command(word, key, most, window_s))[0] == 0)

    yield hit
    await client.aclose()


@asynccontextmanager
async def _script(port: int, rule: Rule) -> AsyncIterator[Hit]:
    client = _import("redis.asyncio").Redis(port=port)
    call = calls.of(rule.command(b"key"))
    script, args = client.register_script(call.source), list(call.evalsha[4:])

    async def hit(key: str) -> bool:
        return bool((await script([key], args))[0] == 0)

    yield hit
    await client.aclose()


@asynccontextmanager
async def _limits(port: int, rule: Rule, implementation: str) -> AsyncIterator[Hit]:
    storage = _import("limits.aio.storage").RedisStorage(
        f"async+redis://127.0.0.1:{port}", implementation=implementation
    )
    limiter = _import("limits.aio.strategies").MovingWindowRateLimiter(storage)
    item = _import("limits").RateLimitItemPerSecond(rule.most, rule.window_s)

    async def hit(key: str) -> bool:
        return bool(await limiter.hit(item, key))

    yield hit
    client = storage.bridge.storage
    if implementation == "redispy":
        await client.aclose()
    else:
        client.connection_pool.disconnect()  # takes effect in the next tick of the event loop
        await asyncio.sleep(0)


@asynccontextmanager
async def _pyrate(port: int, rule: Rule, locked: bool) -> AsyncIterator[Hit]:
    """Use one bucket per key, created at its first hit and kept; their script is loaded once.

    The library's background task, which empties every bucket every 10 s, is left out.
    """
    pyrate = _import("pyrate_limiter")
    client = _import("redis.asyncio").Redis(port=port)
    rates = [pyrate.Rate(rule.most, rule.window_s * pyrate.Duration.SECOND)]
    script = (await pyrate.RedisBucket.init(rates, client, "first")).script_hash
    buckets: dict[str, Any] = {}

    def wrap_item(self: object, name: str, weight: int = 1) -> Any:
        return pyrate.RateItem(name, time.time_ns() // 1_000_000, weight=weight)

    def get(self: object, item: Any) -> Any:
        if item.name not in buckets:
            buckets[item.name] = pyrate.RedisBucket(rates, client, item.name, script)
        return buckets[item.name]

    factory = type("PerKey", (pyrate.BucketFactory,), {"wrap_item": wrap_item, "get": get})
    limiter = pyrate.Limiter(factory())
    acquire = limiter.try_acquire_async if locked else limiter.try_acquire

    async def hit(key: str) -> bool:
        return bool(await acquire(key, blocking=False))

    yield hit
    limiter.close()
    await client.aclose()


@asynccontextmanager
async def _throttled(port: int, rule: Rule, algorithm: str) -> AsyncIterator[Hit]:
    throttled = _import("throttled.asyncio")
    store = throttled.RedisStore(server=f"redis://127.0.0.1:{port}/0")
    quota = throttled.per_duration(timedelta(seconds=rule.window_s), rule.most, burst=rule.most)
    limiter = throttled.Throttled(using=algorithm, quota=quota, store=store)

    async def hit(key: str) -> bool:
        return not (await limiter.limit(key)).limited

    yield hit
    await store._backend.get_client().aclose(close_connection_pool=True)


@dataclass(frozen=True)
class Library:
    """One library, or one way to use it.

    column: its name in figures.
    package: its name on PyPI; `modules` are the imports that it needs.
    exact: by design, never more than `most` hits in any window are admitted.
    description: its client and its method.
    open: connects to a port, for a rule.
    """

    column: str
    package: str
    modules: tuple[str, ...]
    exact: bool
    description: str
    open: Open

    @property
    def installed(self) -> bool:
        """Whether all its modules are installed."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


LIBRARIES: Final = (
    Library(PROXY, "redis", ("redis",), True, "redis-py, execute_command('RL.HIT', ...)", _proxy),
    Library(SCRIPT, "redis", ("redis",), True, "redis-py, the proxy's own script", _script),
    Library(
        "limits",
        "limits",
        ("limits", "redis"),
        True,
        "MovingWindowRateLimiter on redis-py: a list of times, the clients' clocks",
        lambda port, rule: _limits(port, rule, "redispy"),
    ),
    Library(
        "limits-coredis",
        "limits[async-redis]",
        ("limits", "coredis"),
        True,
        "the same on coredis, its default",
        lambda port, rule: _limits(port, rule, "coredis"),
    ),
    Library(
        "pyrate",
        "pyrate-limiter",
        ("pyrate_limiter", "redis"),
        True,
        "pyrate-limiter, RedisBucket (a sorted set of times, the clients' clocks) and "
        "try_acquire_async, which lets one task at a time through",
        lambda port, rule: _pyrate(port, rule, True),
    ),
    Library(
        "pyrate-free",
        "pyrate-limiter",
        ("pyrate_limiter", "redis"),
        True,
        "the same with try_acquire awaited, which takes no such lock",
        lambda port, rule: _pyrate(port, rule, False),
    ),
    Library(
        "throttled-window",
        "throttled-py",
        ("throttled", "redis"),
        False,
        "throttled-py, sliding_window: an estimate from two counters",
        lambda port, rule: _throttled(port, rule, "sliding_window"),
    ),
    Library(
        "throttled-gcra",
        "throttled-py",
        ("throttled", "redis"),
        False,
        "throttled-py, gcra: an even rate, up to twice the limit in one window",
        lambda port, rule: _throttled(port, rule, "gcra"),
    ),
)
OURS: Final = (PROXY, SCRIPT)
EXACT: Final = tuple(one.column for one in LIBRARIES if one.exact and one.column not in OURS)


def _import(module: str) -> Any:
    return importlib.import_module(module)
