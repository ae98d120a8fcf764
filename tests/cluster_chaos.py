"""A cluster that changes and fails under load: `python -m tests.cluster_chaos --seconds 600`.

A proxy stands in front of three masters with a replica each. In exact phases slots move, step by
step and atomically, replicas take over by hand, and a node is added and removed: nothing may be
lost, doubled, reordered or refused. In phases of faults masters are killed and stopped: Redis may
lose what it has not replicated, but nothing may be doubled, reordered or forgotten. Exit code 1 if
any check failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rlproxy.resp.key_slot import key_slot

from tests.clusters import Cluster
from tests.harness import Raw, command
from tests.stress import checks, cluster_work
from tests.stress.checks import Violations
from tests.stress.cluster_checks import check_list
from tests.stress.cluster_client import Client
from tests.stress.cluster_faults import CHANGES, FAULTS, Suffering
from tests.stress.cluster_work import TAGS, Limit, Phase, Work
from tests.stress.load import WatchedProxy, command_line, finish, log, verdict, watched_proxy

BACK_S = 0.5  # seconds from the cluster's recovery to the proxy's
EXACT_S = 8.0  # of an exact phase
THREADS = 64  # each probe and each action blocks one
STOP_S = 40.0  # until all clients have their replies
SPARE = 1
# What nodes log when they fail or hold clients up without a fault of ours.
OWN_FAILURES = ("state changed: fail", "Manual failover timed out", "Failover attempt expired")
Maker = Callable[[Phase, str, dict[str, Limit]], list[Work]]


class Run:
    """One run: its clients, what they were answered, and what was wrong."""

    def __init__(self, engine: str, seed: int, args: list[str]) -> None:
        self.engine = engine
        self.seed = seed
        self.args = args
        self.violations = Violations()
        self.errors: dict[str, int] = {}
        self.judged = 0
        self.lists = 0  # that were compared with the server's
        self.limits = 0
        self.phases: Counter[str] = Counter()
        self.slowest = {True: 0.0, False: 0.0}  # by whether the phase was exact
        self.clients: list[Client] = []

    def make_clients(self, port: int, each: int) -> None:
        """Make the clients: `each` that mix commands, and half as many that only hit."""
        shared: dict[int, dict[str, Limit]] = {}

        def make(kind: Maker, name: str, phase: Phase) -> list[Work]:
            if phase.number not in shared:
                shared.clear()
                shared[phase.number] = cluster_work.shared_limits(phase)
            return kind(phase, name, shared[phase.number])

        kinds = [cluster_work.of_a_mixed_client] * each
        kinds += [cluster_work.of_a_hitting_client] * ((each + 1) // 2)
        for number, kind in enumerate(kinds):
            seed = self.seed * 1000 + number
            of_phase = partial(make, kind, f"c{number}")
            self.clients.append(Client(port, seed, of_phase, number % 3 == 2))

    async def phase(self, all_: Suffering, exact: bool, seconds: float) -> None:
        """Let the clients work while the cluster suffers, and judge the whole."""
        number = sum(self.phases.values()) + 1
        self.phases["exact" if exact else "faults"] += 1
        phase = Phase(number, exact, self.violations, all_.source)
        failures = await asyncio.to_thread(_failures, all_.cluster)
        stop = asyncio.Event()
        tasks = [asyncio.create_task(client.work(phase, stop)) for client in self.clients]
        try:
            end = time.monotonic() + seconds
            while True:
                await asyncio.sleep(all_.source.uniform(0.1, 0.5))
                if exact:
                    await asyncio.to_thread(all_.change, all_.source.choice(CHANGES))
                else:
                    await all_.cause(all_.source.choice(FAULTS), str(number))
                if time.monotonic() >= end:
                    break
        except AssertionError:
            if failures == await asyncio.to_thread(_failures, all_.cluster):
                raise
            await asyncio.to_thread(all_.repair)
        finally:
            stop.set()
            await asyncio.wait_for(asyncio.gather(*tasks), STOP_S)
        await asyncio.to_thread(all_.cluster.wait_ok)
        await asyncio.to_thread(self._compare, phase, all_)
        self._take(phase, failures == await asyncio.to_thread(_failures, all_.cluster))
        await asyncio.to_thread(_empty, all_.cluster)

    def _take(self, phase: Phase, well: bool) -> None:
        """Take the results of a phase.

        well: the cluster did not fail on its own, as it does on a machine that is too busy.
        """
        self.judged += phase.judged
        self.slowest[phase.exact] = max(self.slowest[phase.exact], phase.slowest)
        for text, count in phase.errors.items():
            self.errors[text] = self.errors.get(text, 0) + count
        if not well and phase.exact:
            self.phases["not exact, as the cluster failed"] += 1
            return
        for kind, count in phase.strict.counts.items():
            self.violations.counts[kind] = self.violations.counts.get(kind, 0) + count
        self.violations.lines += phase.strict.lines

    def _compare(self, phase: Phase, all_: Suffering) -> None:
        """Compare what the servers hold with the replies."""
        kinds = phase.strict if phase.exact else self.violations
        for tag in range(TAGS):
            prefix = f"{{t{tag}}}"
            lists = [key for key in phase.lists if key.startswith(prefix)]
            with all_.cluster.owner(key_slot(b"t%d" % tag)).raw() as raw:
                raw.send(b"".join(command("LRANGE", key, 0, -1) for key in lists))
                for key in lists:
                    held = raw.reply()
                    assert isinstance(held, list), (key, held)
                    values = [each.decode() for each in held]
                    check_list(kinds, key, phase.lists[key], values, phase.exact)
                    self.lists += 1
        with Raw(all_.port) as raw:
            for limit in phase.hits.values():
                if limit.replenishes or not limit.tally.sent:
                    continue
                words = ("RL.PEEK", limit.key, limit.most, cluster_work.WINDOW_S)
                got = raw.ask(*words, "ALGO", limit.algorithm)
                assert isinstance(got, list), (limit.key, got)
                held = limit.most - int(got[2])
                checks.check_count(kinds, limit.key, limit.tally, held, phase.exact)
                self.limits += 1


def _failures(cluster: Cluster) -> dict[int, tuple[str, int]]:
    """Return how many failures each node has reported to the others, and has had itself."""
    name = "cluster_stats_messages_fail_sent"
    return {
        node.port: (node.info("cluster").get(name, "0"), sum(map(node.log().count, OWN_FAILURES)))
        for node in cluster.serving()
    }


def _views(cluster: Cluster) -> str:
    """Return what each node says of all nodes."""
    with contextlib.suppress(OSError, AssertionError):
        return "".join(
            f"\n  {node.port}: {node.info('cluster')['cluster_state']}"
            + "".join(f"\n    {row}" for row in node.view())
            for node in cluster.serving()
        )
    return ""


def _empty(cluster: Cluster) -> None:
    for node in cluster.masters():
        node.do("FLUSHALL")


async def run(
    seconds: float,
    seed: int,
    engine: str,
    args: list[str],
    clients: int = 6,
    back_s: float = BACK_S,
    only: str = "",
    exact_s: float = EXACT_S,
) -> int:
    """Run; return the exit code."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    made = Run(engine, seed, args)
    cluster = Cluster(engine, replicas=1)
    facts: list[str] = []
    try:
        await asyncio.to_thread(cluster.start)
        async with watched_proxy(made.violations, cluster.url, args) as proxy:
            log(f"cluster chaos for {seconds:g} s, seed {seed}, {engine}, proxy {args or 'plain'}")
            facts = await _run(made, cluster, proxy, seconds, clients, back_s, only, exact_s)
    finally:
        await asyncio.to_thread(cluster.close)
    return verdict("cluster chaos", made, facts)


async def _run(
    made: Run,
    cluster: Cluster,
    proxy: WatchedProxy,
    seconds: float,
    clients: int,
    back_s: float,
    only: str,
    exact_s: float,
) -> list[str]:
    port = await asyncio.to_thread(proxy.port)
    all_ = Suffering(cluster, port, made.seed, made.violations, back_s)
    await asyncio.to_thread(_warm, port)
    base = await asyncio.to_thread(proxy.counts)
    made.make_clients(port, clients)
    end, exact, logged = time.monotonic() + seconds, only != "faults", 0
    while (left := end - time.monotonic()) > 0:
        try:
            await made.phase(all_, exact, min(exact_s, left) if exact else 0)
        except (AssertionError, TimeoutError, OSError) as error:
            views = await asyncio.to_thread(_views, cluster)
            made.violations.add("the harness", f"{type(error).__name__}: {error}"[:2000] + views)
            break
        exact = not exact if not only else exact
        for line in made.violations.lines[logged:]:
            log(f"VIOLATION {line}")
        logged = len(made.violations.lines)
        log(
            f"{sum(made.phases.values())} phases, {made.judged} replies judged,"
            f" {sum(all_.actions.values())} actions, {len(made.violations.lines)} violations"
        )
    for client in made.clients:
        await client.close()
    now = await asyncio.to_thread(proxy.counts_after, base, ("Session", "ClientConnection", "Link"))
    for what in ("Session", "ClientConnection", "Link", "Waiter", "Call"):
        found = made.violations
        checks.check_back_to_base(found, what, base.get(what, 0), now.get(what, 0), SPARE)
    return _facts(made, all_, base, now)


def _facts(made: Run, all_: Suffering, base: dict[str, int], now: dict[str, int]) -> list[str]:
    slowest: dict[str, tuple[float, float]] = {}
    for name, own_s, late_s in all_.recoveries:
        before = slowest.get(name, (0.0, 0.0))
        slowest[name] = (max(before[0], own_s), max(before[1], late_s))
    back = [f"{name} {own:.2f} + {late:.2f} s" for name, (own, late) in sorted(slowest.items())]
    return [
        f"{made.engine}, proxy {' '.join(made.args) or 'plain'}",
        f"{made.judged} replies judged, {all_.probes} more beside faults",
        f"{made.lists} lists and {made.limits} limits compared with the servers",
        f"phases: {dict(made.phases)}",
        f"actions: {dict(sorted(all_.actions.items()))}",
        f"slowest reply in exact phases: {made.slowest[True]:.2f} s",
        f"slowest beside faults: {made.slowest[False]:.2f} s",
        "slowest of a master that serves, beside faults: {:.2f} s, {}".format(
            *all_.slowest_neighbour
        ),
        f"connections lost: {sum(client.lost for client in made.clients)}",
        f"recovery, the cluster's own and the proxy's: {'; '.join(back) or 'none measured'}",
        f"(required of the proxy: {all_.back_s:g} s times {all_.busiest:.1f}, the load per core)",
        f"proxy before clients: {base}",
        f"proxy after clients: {now}",
    ]


def _warm(port: int) -> None:
    """Have the proxy open its lanes."""
    with Raw(port) as raw:
        for number in range(60):
            raw.ask("RL.HIT", f"warm{number}", 1000, 1)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line("cluster_chaos", __doc__, 6, "that mix commands")
    parser.add_argument(
        "--back", type=float, default=BACK_S, help="seconds in which the proxy must be back"
    )
    parser.add_argument("--only", choices=("exact", "faults"), default="", help="one kind of phase")
    options = parser.parse_args(argv)
    made = run(
        *(options.seconds, options.seed, options.engine, shlex.split(options.proxy_args)),
        *(options.clients, options.back, options.only),
    )
    return finish(made)


if __name__ == "__main__":
    sys.exit(main())
