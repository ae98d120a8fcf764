"""The rows of kind CLUSTER: commands to three masters, by a cluster client and through proxies.

redis-benchmark --cluster gives each connection a node, and each pipeline keys of one slot. Through
a proxy the keys of a pipeline are on all nodes, as those of an application are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import cluster_peers, cpu, redis_benchmark
from .cpu import PARTY, REDIS, Clock, Meter, Times
from .figures import Figure, interleave
from .model import nodes
from .parts import DIRECT, PROXY, Part
from .plan import Plan
from .rows import RANDOM, Row

MASTERS: Final = 3
TAGGED: Final = b"{tag}:" + RANDOM  # redis-benchmark puts a tag of the node's slots there


def measure(row: Row, plan: Plan, _parts: Mapping[str, Part]) -> list[Figure]:
    """Run `row` through all in turn: commands per second, then CPU times.

    Returns no figures without redis-benchmark: it is the cluster client. Raises BenchError.
    """
    if not plan.redis_benchmark:
        return []
    (command,) = row.commands
    tagged = tuple(word.replace(RANDOM, TAGGED) for word in command)
    requests = row.requests(plan.requests)
    figure = Figure(row.name, row.kind, row.unit, redis_benchmark.NAME, row.help)
    meter = Meter(row, redis_benchmark.NAME)
    with (
        nodes.cluster(plan.executable, MASTERS) as masters,
        nodes.proxy(masters, workers=1) as proxy,
        cluster_peers.running(masters) as peers,
    ):
        proxies = {PROXY: proxy, **peers}

        def once(column: str) -> float:
            through = proxies.get(column)
            clocks: Mapping[str, Clock] = {
                REDIS: _clock(*(node.process.pid for node in masters.nodes)),
                **({PARTY: _clock(through.process.pid)} if through else {}),
            }
            masters.ask_all(b"FLUSHALL")
            return meter.run(
                column,
                requests,
                clocks,
                lambda: redis_benchmark.rate(
                    through.port if through else masters.nodes[0].port,
                    command if through else tagged,
                    row.pipeline,
                    row.keys,
                    requests,
                    row.clients,
                    plan.limit_s,
                    cluster=through is None,
                ),
            )

        return [
            interleave(figure, (DIRECT, *proxies), once, plan.repeats, plan.progress),
            *meter.figures(),
        ]


def _clock(*pids: int) -> Clock:
    """Return a clock of the CPU time of several programs."""

    def read() -> Times | None:
        found = [cpu.times(pid) for pid in pids]
        known = [times for times in found if times is not None]
        if len(known) < len(found):
            return None
        return Times(sum(one.user for one in known), sum(one.system for one in known))

    return read
