"""Faults under load: `python -m tests.chaos --seconds 600`.

The server is killed and restarted, stopped, and loses its connections and its scripts; the link to
it is delayed, throttled, stalled, refused, and cut within a frame. During that redis-py, ioredis
and redis-benchmark, where installed, load the proxy, and every reply is checked. Exit code 1 if any
check failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from tests import harness, info
from tests.processes import paused
from tests.stress import checks
from tests.stress.checks import Violations
from tests.stress.load import (
    LOST,
    EchoWork,
    ForeignLoad,
    HitWork,
    WatchedProxy,
    World,
    close,
    command,
    command_line,
    finish,
    log,
    until_stopped,
    verdict,
    watched_proxy,
)
from tests.stress.relay import Relay

BACK_S = 1.0  # seconds until service is back after the server is
SPARE_FDS = 2
GIVE_UP_S = 15.0
CALM_S = 0.7  # seconds between faults, at least
Fault = Callable[["Chaos"], Awaitable[None]]


@dataclass(frozen=True)
class Plan:
    """What a run does.

    clients: of each kind of redis-py's.
    faults: FAULTS if there are none.
    """

    clients: int = 6
    back_s: float = BACK_S
    calm_s: float = CALM_S
    faults: tuple[Fault, ...] = ()


class Chaos:
    """One run."""

    def __init__(self, world: World, relay: Relay, proxy: WatchedProxy, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.relay = relay
        self.proxy = proxy
        self.source = random.Random(world.seed + 1)
        self.faults: Counter[str] = Counter()
        self.slowest_direct = 0.0
        self.busiest = 1.0  # runnable processes per core
        self.recoveries: dict[str, list[float]] = {}

    async def cause(self, fault: Fault) -> None:
        """Cause the fault, heal it, and check that service resumes."""
        name = fault.__name__.strip("_").replace("_", " ")
        self.faults[name] += 1
        await fault(self)
        self.relay.heal()
        while not await asyncio.to_thread(self.world.answers):
            await asyncio.sleep(0.005)
        # The same query without the proxy measures the load of this machine and of the relay.
        took, direct = await asyncio.gather(
            self.back(self.world.port, True), self.back(self.relay.port, False)
        )
        seconds = max(0.0, took - direct)
        self.recoveries.setdefault(name, []).append(seconds)
        self.slowest_direct = max(self.slowest_direct, direct)
        # Processes that share a core wait for it, the proxy longer than the relay.
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        self.busiest = max(self.busiest, busy)
        checks.check_recovery(self.world.violations, name, seconds, self.plan.back_s * busy)

    async def back(self, port: int, proxied: bool) -> float:
        """Seconds until the ECHO of a new connection, and then its hit, are served at `port`."""
        world = self.world
        started = time.monotonic()
        number = 0
        while time.monotonic() - started < GIVE_UP_S:
            number += 1
            one = world.client(port=port)
            try:
                async with asyncio.timeout(max(0.1, GIVE_UP_S + started - time.monotonic())):
                    text = f"back:{number}"
                    checks.check_echo(world.violations, text, await one.echo(text))
                    if proxied:
                        got = await command(one, "RL.HIT", text, 9, 60, "ALGO", "GCRA")
                        checks.check_hit(world.violations, text, 9, got)
                    else:
                        await one.echo(text)
                return time.monotonic() - started
            except (*LOST, RedisError):
                await asyncio.sleep(0.01)
            finally:
                with contextlib.suppress(*LOST, RedisError):
                    await close(one)
        return time.monotonic() - started

    def seconds(self, least: float, most: float) -> float:
        """A random duration of a fault."""
        return self.source.uniform(least, most)


async def _killed(chaos: Chaos) -> None:
    world = chaos.world
    world.life += 1
    world.started_at = math.inf
    await asyncio.to_thread(world.server.stop)
    world.life += 1  # connections made while it was dying belong to no life
    await asyncio.sleep(chaos.seconds(0, 1.5))
    world.started_at = time.time()
    await asyncio.to_thread(world.server.start)


async def _stopped(chaos: Chaos) -> None:
    process = chaos.world.server.pid
    with paused(process):
        await asyncio.sleep(chaos.seconds(0.2, 3))


async def stopped_briefly(chaos: Chaos) -> None:
    """For about as long as a short hit timeout."""
    with paused(chaos.world.server.pid):
        await asyncio.sleep(chaos.seconds(0.01, 0.3))


async def _connections_killed(chaos: Chaos) -> None:
    def kill() -> None:
        with harness.Raw(chaos.world.server.port) as raw:
            me = raw.ask("CLIENT", "ID")
            share = chaos.source.choice((0.1, 0.5, 1.0))
            for each in [int(row["id"]) for row in info.clients(raw)]:
                if each != me and chaos.source.random() < share:
                    raw.ask("CLIENT", "KILL", "ID", each)

    await asyncio.to_thread(kill)


async def scripts_flushed(chaos: Chaos) -> None:
    def flush() -> None:
        with harness.Raw(chaos.world.server.port) as raw:
            for _ in range(chaos.source.randrange(1, 20)):
                raw.ask("SCRIPT", "FLUSH")
                time.sleep(0.02)

    await asyncio.to_thread(flush)


async def _delayed(chaos: Chaos) -> None:
    chaos.relay.delay_s = chaos.seconds(0.005, 0.3)
    await asyncio.sleep(chaos.seconds(0.5, 2))


async def _throttled(chaos: Chaos) -> None:
    chaos.relay.bytes_per_s = chaos.seconds(2_000, 200_000)
    await asyncio.sleep(chaos.seconds(0.5, 2))


async def _stalled(chaos: Chaos) -> None:
    chaos.relay.stalled = True
    await asyncio.sleep(chaos.seconds(0.2, 2.5))
    if chaos.source.random() < 0.5:
        chaos.relay.cut(1.0, reset=True)


async def cut(chaos: Chaos) -> None:
    chaos.relay.cut(chaos.source.choice((0.2, 1.0)), reset=chaos.source.random() < 0.5)


async def _cut_in_mid_frame(chaos: Chaos) -> None:
    chaos.relay.cut_in_frame(chaos.source.choice((0.3, 1.0)), chaos.source.choice((40, 4000)))
    await asyncio.sleep(chaos.seconds(0.1, 0.5))


async def _refused(chaos: Chaos) -> None:
    chaos.relay.refuses = True
    chaos.relay.cut(1.0)
    await asyncio.sleep(chaos.seconds(0.1, 2))


FAULTS: tuple[Fault, ...] = (
    *(_killed, _stopped, stopped_briefly, _connections_killed, scripts_flushed, _delayed),
    *(_throttled, _stalled, cut, _cut_in_mid_frame, _refused),
)


async def _benchmarks(world: World) -> None:
    """Run redis-benchmark repeatedly: load, with its own pipelines. It ends on any error."""
    path = shutil.which("redis-benchmark")
    while path and not world.stop.is_set():
        process = await asyncio.create_subprocess_exec(
            *(path, "-p", str(world.port), "-c", "8", "-n", "4000", "-P", "4", "-q"),
            *("RL.HIT", "benchmark:__rand_int__", "50", "60"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while process.returncode is None:
            if world.stop.is_set():
                process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.2)
        await asyncio.sleep(0.3)


async def _reports(world: World, chaos: Chaos, every_s: float) -> None:
    started = time.monotonic()
    logged = 0
    while True:
        await asyncio.sleep(every_s)
        for line in world.violations.lines[logged:]:
            log(f"VIOLATION {line}")
            logged += 1
        counts = await asyncio.to_thread(chaos.proxy.counts)
        slowest = max((max(each) for each in chaos.recoveries.values()), default=0.0)
        log(
            f"{time.monotonic() - started:.0f} s: {world.answered} replies checked, {world.hits}"
            f" hits on {world.checked} keys compared, {world.refused} errors,"
            f" {sum(chaos.faults.values())} faults, back within {slowest:.2f} s, {counts},"
            f" {len(world.violations.lines)} violations"
        )


async def run(seconds: float, seed: int, engine: str, args: list[str], plan: Plan) -> int:
    """Run; return the exit code."""
    violations = Violations()
    world = World(engine, seed, violations)
    world.server.start()
    world.started_at = time.time()
    world.fails_open = "allow" in args
    relay = Relay(world.server.port, random.Random(seed + 2))
    await relay.start()
    facts: list[str] = []
    try:
        async with watched_proxy(violations, f"redis://127.0.0.1:{relay.port}", args) as proxy:
            world.port = await asyncio.to_thread(proxy.port)
            log(f"chaos for {seconds:g} s, seed {seed}, {engine}, proxy {args or 'plain'}")
            facts = await _run(Chaos(world, relay, proxy, plan), seconds)
    finally:
        await relay.close()
        world.server.close()
    return verdict("chaos", world, facts)


async def _run(chaos: Chaos, seconds: float) -> list[str]:
    world, relay, proxy, clients = chaos.world, chaos.relay, chaos.proxy, chaos.plan.clients
    for _ in range(3):  # a lane must be open before the base is measured
        await chaos.back(world.port, True)
    await asyncio.sleep(0.3)
    base = await asyncio.to_thread(proxy.counts)
    hits = [HitWork(world, f"hits:{number}") for number in range(clients)]
    work = [
        *(until_stopped(world, hit, 2 + number % 2) for number, hit in enumerate(hits)),
        *(
            until_stopped(world, EchoWork(world, f"own:{number}"), 2 + number % 2, number % 3 == 0)
            for number in range(clients)
        ),
    ]
    tasks = [asyncio.create_task(each) for each in work]
    reports = asyncio.create_task(_reports(world, chaos, 10))
    tasks.append(asyncio.create_task(_benchmarks(world)))
    foreign = ForeignLoad(world)
    other = await foreign.start(4)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(chaos.plan.calm_s * (1 + world.source.random()))
        await chaos.cause(chaos.source.choice(chaos.plan.faults or FAULTS))
        await world.check_counts()
    world.stop.set()
    await foreign.finish()
    for task in asyncio.as_completed(tasks, timeout=30):
        await task
    reports.cancel()
    for hit in hits:
        hit.end()
    await world.check_counts()
    now = await asyncio.to_thread(
        proxy.counts_after, base, ("tasks", "Session", "ClientConnection")
    )
    for counts in (base, now):  # lanes stay open for a while
        counts["fds but lanes"] = counts["fds"] - counts.get("ServerLane", 0)
    for what in sorted(now):
        if what in ("fds but lanes", "tasks", "Session", "ClientConnection", "Waiter", "Call"):
            spare = SPARE_FDS if what == "fds but lanes" else 1
            checks.check_back_to_base(world.violations, what, base.get(what, 0), now[what], spare)
    slowest = [f"{name} {max(each):.2f}" for name, each in sorted(chaos.recoveries.items())]
    recovered = [each for found in chaos.recoveries.values() for each in found]
    took_part = ["redis-py"]
    took_part += ["ioredis"] if other else []
    took_part += ["redis-benchmark"] if shutil.which("redis-benchmark") else []
    return [
        f"{world.answered} replies checked, {world.hits} hits, {world.refused} errors",
        f"{world.without} hits admitted without the server",
        f"{world.checked} keys compared with the server, {world.life // 2 + 1} lives of the server",
        f"took part: {', '.join(took_part)}",
        f"faults: {dict(sorted(chaos.faults.items()))}",
        f"service was back within {max(recovered, default=0):.2f} s at most: {', '.join(slowest)}",
        f"(beyond the {chaos.slowest_direct:.2f} s at most that it took without the proxy)",
        f"(required: {chaos.plan.back_s:g} s times {chaos.busiest:.1f}, the processes per core)",
        f"proxy before clients: {base}",
        f"proxy after clients: {now}",
        f"the relay made {relay.connections} connections and cut {relay.cuts}",
    ]


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line("chaos", __doc__, 6, "of each kind of redis-py's")
    parser.add_argument(
        "--back", type=float, default=BACK_S, help="seconds in which service must be back"
    )
    parser.add_argument("--share", action="store_true", help="the proxy runs with --share")
    parser.add_argument(
        "--fails-open", action="store_true", help="and with --on-upstream-failure allow"
    )
    options = parser.parse_args(argv)
    args = shlex.split(options.proxy_args) + (["--share"] if options.share else [])
    if options.fails_open:
        args += ["--on-upstream-failure", "allow"]
    seconds, engine = options.seconds, options.engine
    return finish(run(seconds, options.seed, engine, args, Plan(options.clients, options.back)))


if __name__ == "__main__":
    sys.exit(main())
