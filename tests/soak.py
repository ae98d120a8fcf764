"""Hours under real traffic: `python -m tests.soak --seconds 1800 [--cluster]`.

Hits of every algorithm, hits that wait, GET and SET, MULTI, MGET and MSET, pub/sub, blocking
commands, values of a megabyte, and short-lived clients: every reply is checked, and the proxy's
memory, files, tasks and objects are sampled. With --cluster the proxy stands in front of three
masters with a replica each: slots move, and a node is added and removed. Exit code 1 if any check
failed or a resource grew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.clusters import Cluster
from tests.stress import checks
from tests.stress.checks import Violations
from tests.stress.cluster_faults import MOVES, Suffering
from tests.stress.cluster_work import TAGS
from tests.stress.load import (
    EchoWork,
    ForeignLoad,
    HitWork,
    WatchedProxy,
    World,
    close,
    command_line,
    finish,
    log,
    until_stopped,
    verdict,
    watched_proxy,
)

SAMPLE_S = 1.0
CALM_S = 5.0  # seconds between two changes of the cluster
NODE_TIMEOUT_MS = 5000  # of the cluster: a node that a busy machine delays is not replaced
# Permitted growth from the middle third to the last: a share, and a small absolute amount.
BOUNDS: dict[str, tuple[float, float]] = {
    "rss_kb": (0.05, 2048),
    "fds": (0.05, 8),
    "tasks": (0.1, 8),
    "Session": (0.1, 8),
    "ServerLane": (0.0, 4),
    "Link": (0.1, 8),
    "Waiter": (0.2, 10),
    "Call": (0.5, 400),
}
ALGORITHMS = ("LOG", "ZLOG", "FIXED", "COUNTER", "TOKEN", "LEAKY", "GCRA")
Work = Callable[[Any], Awaitable[None]]


class Algorithms:
    """Hits on new and old keys of each algorithm: never more admitted than the rule permits."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._number = 0

    async def __call__(self, one: Any) -> None:
        world = self._world
        self._number += 1
        algorithm = ALGORITHMS[self._number % len(ALGORITHMS)]
        key, most = f"{self._name}:{self._number}", world.source.randrange(2, 30)
        words = ("RL.HIT", key, most, 3600, "ALGO", algorithm)
        many = most + world.source.randrange(1, 5)
        admitted = 0
        for at in range(many):
            got = await one.execute_command(*words)
            verdict = checks.check_hit(world.violations, key, most, got)
            admitted += bool(verdict)
            if verdict is not (at < most):
                world.fail("admitted wrongly", f"hit {at + 1} by {words} got {got}")
        if many > most:  # the refusal may be cached: a reset must take effect at once
            if await one.execute_command("RL.PEEK", *words[1:]) is None:
                world.fail("no reply of a hit", f"RL.PEEK {key}")
            removed = await one.execute_command("RL.RESET", key)
            got = await one.execute_command(*words)
            if removed != 1 or not checks.check_hit(world.violations, key, most, got):
                world.fail("reset unseen", f"{key}: {removed}, {got}")
        await one.delete(key)
        world.answered += many + 4
        world.hits += many + 1


class Waits:
    """A hit that waits for its place, on a key that other clients use too."""

    def __init__(self, world: World, key: str) -> None:
        self._world = world
        self._key = key

    async def __call__(self, one: Any) -> None:
        world = self._world
        words = ("RL.HIT", self._key, 20, 400, "MS", "ALGO", "GCRA", "WAIT", 3000)
        started = time.monotonic()
        got = await one.execute_command(*words)
        checks.check_hit(world.violations, self._key, 20, got)
        if time.monotonic() - started > 6:
            world.fail("late", f"WAIT 3000 took {time.monotonic() - started:.1f} s")
        world.answered += 1
        world.hits += 1


class Large:
    """A value of a megabyte, written and read."""

    def __init__(self, world: World, key: str) -> None:
        self._world = world
        self._key = key

    async def __call__(self, one: Any) -> None:
        world = self._world
        digest = hashlib.sha256(str(world.source.random()).encode()).hexdigest()
        value = digest * (1024 * 1024 // len(digest))
        await one.set(self._key, value)
        if await one.get(self._key) != value:
            world.fail("another's reply", f"GET {self._key}: not the megabyte that was set")
        world.answered += 2
        await asyncio.sleep(0.3)


class Keys:
    """A pipeline of commands with several keys, which are in several slots on a cluster."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._keys = [tagged(name, tag) for tag in range(TAGS)]
        self._number = 0

    async def __call__(self, one: Any) -> None:
        world = self._world
        self._number += 1
        keys = world.source.sample(self._keys, world.source.randrange(2, TAGS))
        values = [f"{key}:{self._number}" for key in keys]
        pipe = one.pipeline(transaction=False)
        pipe.mset(dict(zip(keys, values, strict=True)))
        pipe.mget(keys)
        pipe.exists(*self._keys)
        pipe.delete(*keys)
        pipe.mget(keys)
        expected = [True, values, len(keys), len(keys), [None] * len(keys)]
        got = await pipe.execute()
        if got != expected:
            world.fail("several keys", f"{keys} got {got}, not {expected}")
        world.answered += len(got)


class Subscribed:
    """Publishes to itself, and receives each message once and in order."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._number = 0

    async def __call__(self, one: Any) -> None:
        world = self._world
        other = world.client(2 + self._number % 2)
        # A cluster may deliver a message late, when its channel is subscribed to anew.
        channel = f"channel:{self._name}:{self._number}"
        subscription = other.pubsub()
        try:
            await subscription.subscribe(channel)
            first = await subscription.get_message(timeout=10)
            if first is None or first["type"] != "subscribe":
                world.fail("pub/sub", f"SUBSCRIBE {channel} got {first}")
            for _ in range(10):
                self._number += 1
                text = f"{self._name}:{self._number}"
                # A cluster counts the subscribers of one node, which the publisher's may not be.
                if await one.publish(channel, text) != 1 and world.cluster is None:
                    world.fail("pub/sub", f"no subscriber received {text}")
                got = await subscription.get_message(timeout=10)
                if got is None or got.get("data") != text:
                    world.fail("pub/sub", f"{text} published, {got} received")
                world.answered += 2
        finally:
            await close(subscription)
            await close(other)


class Blocking:
    """A BLPOP that is served, and one that times out."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._number = 0

    async def __call__(self, one: Any) -> None:
        world = self._world
        self._number += 1
        key, value = f"list:{self._name}", f"{self._name}:{self._number}"
        other = world.client()
        try:
            popping = asyncio.ensure_future(one.blpop(key, 5))
            await asyncio.sleep(0.02)
            await other.rpush(key, value)
            got = await popping
            if got is None and world.cluster is not None:
                # The slot has moved. Redis 6.2 and 7.0 redirect a client that blocks when they look
                # at it. While many clients connect they look at the new ones only.
                world.left_blocked += 1
                got = (key, await one.lpop(key))
            if list(got or ()) != [key, value]:
                world.fail("another's reply", f"BLPOP {key} got {got}, {value} was pushed")
            if await one.blpop(f"{key}:empty", 0.05) is not None:
                world.fail("another's reply", f"BLPOP {key}:empty got something")
            world.answered += 3
        finally:
            await close(other)


def tagged(kind: str, number: int) -> str:
    """Return a name whose slot is one of those that move on a cluster."""
    return f"{{t{number % TAGS}}}:{kind}:{number}"


async def _changes(world: World, all_: Suffering) -> None:
    """Change the cluster by each kind of change in turn, until the end or the first that fails."""
    for change in itertools.cycle(MOVES):
        try:
            await asyncio.to_thread(all_.change, change)
        except (AssertionError, OSError) as error:
            world.fail("the harness", f"{change.__name__}: {error}"[:2000])
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(world.stop.wait(), CALM_S)
            return


async def _samples(world: World, proxy: WatchedProxy, into: dict[str, list[float]]) -> None:
    started = logged_at = time.monotonic()
    shown = 0
    while True:
        await asyncio.sleep(SAMPLE_S)
        counts = await asyncio.to_thread(proxy.counts)
        for name, value in counts.items():
            into.setdefault(name, []).append(float(value))
        await world.check_counts()
        for line in world.violations.lines[shown:]:
            log(f"VIOLATION {line}")
            shown += 1
        now = time.monotonic()
        if now - logged_at >= 10:
            logged_at = now
            log(
                f"{now - started:.0f} s: {world.answered} replies checked, {world.hits} hits on "
                f"{world.checked} keys compared, {counts}, {len(world.violations.lines)} violations"
            )


async def run(
    seconds: float, seed: int, engine: str, args: list[str], clients: int, clustered: bool = False
) -> int:
    """Run; return the exit code."""
    violations = Violations()
    made = Cluster(engine, replicas=1, node_timeout_ms=NODE_TIMEOUT_MS) if clustered else None
    world = World(engine, seed, violations, made)
    samples: dict[str, list[float]] = {}
    facts: list[str] = []
    try:
        await asyncio.to_thread((made or world.server).start)
        url = made.url if made else world.server.url
        async with watched_proxy(violations, url, args) as proxy:
            world.port = await asyncio.to_thread(proxy.port)
            what = f"a cluster of {engine}" if made else engine
            log(f"soak for {seconds:g} s, seed {seed}, {what}, proxy {args or 'plain'}")
            facts = await _run(world, proxy, seconds, clients, samples)
    finally:
        (made or world.server).close()
    for name, (share, spare) in BOUNDS.items():
        found = samples.get(name, [])
        if len(found) >= 30:
            checks.check_growth(violations, name, found, share, spare)
            middle, last = checks.growth(found)
            facts.append(f"{name}: median {middle:g} in the middle third, {last:g} in the last")
    if world.refused:
        violations.add("an unexpected error", f"{world.refused} errors, and nothing was broken")
    return verdict("soak", world, facts)


async def _run(
    world: World, proxy: WatchedProxy, seconds: float, clients: int, samples: dict[str, list[float]]
) -> list[str]:
    hits = [HitWork(world, tagged("hits", number)) for number in range(clients)]
    work: list[tuple[Work, bool]] = [(hit, False) for hit in hits]
    work += [(EchoWork(world, tagged("own", n)), n % 2 == 0) for n in range(clients)]
    work += [(Algorithms(world, tagged("algorithms", n)), n == 0) for n in range(2)]
    work += [(Waits(world, tagged("waits", n % 2)), False) for n in range(4)]
    work += [(Large(world, tagged("large", 2)), False), (Subscribed(world, "one"), False)]
    work += [(Blocking(world, tagged("blocking", n)), n == 4) for n in (3, 4)]
    work += [(Keys(world, f"keys:{n}"), n == 1) for n in range(2)]
    tasks = [
        asyncio.create_task(until_stopped(world, each, 2 + number % 2, reconnects))
        for number, (each, reconnects) in enumerate(work)
    ]
    foreign = ForeignLoad(world)
    other = await foreign.start(2)
    all_ = None
    if world.cluster is not None:
        all_ = Suffering(world.cluster, world.port, world.seed, world.violations, 0)
        tasks.append(asyncio.create_task(_changes(world, all_)))
    sampling = asyncio.create_task(_samples(world, proxy, samples))
    await asyncio.sleep(seconds)
    world.stop.set()
    await foreign.finish()
    for task in asyncio.as_completed(tasks, timeout=30):
        await task
    sampling.cancel()
    for hit in hits:
        hit.end()
    await world.check_counts()
    changes = sum(all_.actions.values()) if all_ else 0
    if world.left_blocked > changes:
        world.fail("left to block", f"{world.left_blocked} times in {changes} changes")
    if world.closing:
        world.fail("not counted", f"{world.closing} keys could not be compared with the server")
    last = await asyncio.to_thread(proxy.counts)
    return [
        *([f"changes of the cluster: {dict(all_.actions)}"] if all_ else []),
        f"{world.answered} replies checked, {world.hits} hits",
        f"{world.checked} keys compared with the server",
        f"{world.left_blocked} clients left to block by a node that had lost the slot",
        f"ioredis {'took part' if other else 'is not installed'}",
        f"at the end, without clients: {last}",
    ]


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line("soak", __doc__, 4, "of each kind of redis-py's")
    parser.add_argument("--cluster", action="store_true", help="three masters, not one server")
    parser.add_argument("--share", action="store_true", help="the proxy runs with --share")
    options = parser.parse_args(argv)
    args = shlex.split(options.proxy_args) + (["--share"] if options.share else [])
    seconds, engine = options.seconds, options.engine
    return finish(run(seconds, options.seed, engine, args, options.clients, options.cluster))


if __name__ == "__main__":
    sys.exit(main())
