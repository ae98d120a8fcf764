"""The worker's samples for the metrics, RL.STATS and RL.TOP, published to shared memory once a
second.

    counters, circuit, lanes ... ──> own() ──publish()──> shared memory ──> the admin process
                                       │                        │
                                       └────────> all() <───────┘  samples of the other workers
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Collection
from heapq import nlargest
from typing import Final

from rlproxy.config.config import Config
from rlproxy.downstream.connection import Clients
from rlproxy.observability.counters import Counters, HitsByKey
from rlproxy.observability.hot_keys import NO_TOP, HotKey, HotKeys, merge, stride_for
from rlproxy.observability.key_prefixes import Prefixes
from rlproxy.observability.metrics import (
    ERRORS,
    PREFIX_HITS,
    PROBLEMS,
    Labels,
    Samples,
    histogram_values,
    kept,
    merged,
)
from rlproxy.observability.policy_counters import PolicyCounters, hits_of, summed
from rlproxy.observability.snapshots import Lanes, Snapshot, UpstreamState
from rlproxy.process.resources import Resources
from rlproxy.process.stats import policies_request, stats_request, top_request
from rlproxy.process.upstreams import UpstreamWiring
from rlproxy.ratelimit.grammar import MAX_TOP, Policy, Rule
from rlproxy.ratelimit.outcomes import CALLS, OUTCOMES
from rlproxy.resp import commands
from rlproxy.version import VERSION, compiled

EVERY_S: Final = 1.0  # seconds between two publications
TOP_S: Final = 0.25  # seconds for which the merged hot keys of all workers are kept
POLICIES_S: Final = 1.0  # seconds for which the reply to RL.POLICIES is kept
MAX_USER: Final = 200  # bytes of a user's name that are published
MAX_ADDRESSES: Final = 10  # published addresses of clients, those with the most connections
FILES_EVERY_S: Final = 10.0  # seconds between two counts of open files


class Telemetry:
    """The telemetry of one worker process.

    worker: its number, from 0.
    """

    def __init__(
        self,
        config: Config,
        worker: int,
        resources: Resources,
        clients: Clients,
        upstream: UpstreamWiring,
    ) -> None:
        self._worker = worker
        self._memory = memory = resources.memory
        self._clients = clients
        self._context = clients.context
        self._upstream = upstream
        self._listen = [str(address) for address in resources.listeners.addresses()]
        self._stats: Counters = clients.context.stats
        # of the process that this one replaces
        before: Snapshot = memory.latest(worker) or Snapshot(worker)
        self._before: Samples = kept(before.samples)
        self._before.pop("rlproxy_hits_total", None)  # the counters go on with those
        self._policies = PolicyCounters(self._stats, before.policies)
        self._policies_kept: bytes = b""  # latest result of _policies_request()
        self._policies_until = 0.0  # time.monotonic() until which it is kept
        self._proxy_started = resources.started
        self._process_began = time.time()
        self._top = HotKeys(time.monotonic)
        self._top_published = NO_TOP
        self._tops: dict[bool, list[HotKey]] = {}  # result of merge(), by whether of refusals
        self._tops_until = 0.0  # time.monotonic() until which it is kept
        prefixes = self._before.pop(PREFIX_HITS, {})
        self._prefixes = Prefixes(config.metrics_prefixes, prefixes)
        # Counters by prefix need every hit's key. Otherwise a share of the keys is enough.
        self._counts_a_share = not config.metrics_prefixes
        self._stats.on_keys = self._top.add if self._counts_a_share else self._count_both
        self._denials = upstream.settings.denial_cache
        self._stats.harvest = self._denials.harvest
        self._files = 0
        self._files_due = 0.0  # time.monotonic() of their next count
        self._decided = self._stats.decided()  # its result at the latest call of _pace()

    def _count_both(
        self, hits: HitsByKey, refused: HitsByKey, stride: int, rules: dict[bytes, Rule]
    ) -> None:
        self._top.add(hits, refused, stride, rules)
        self._prefixes.add(hits, refused)

    def use_policies(self, policies: Collection[Policy]) -> None:
        """Count hits of `policies` from now on, and forget the counts of others."""
        self._policies.use(policies)
        self._policies_until = 0.0

    def request(self, name: bytes, args: list[bytes]) -> bytes:
        """Return the request by which Redis answers a command of commands.REPORTS.

        RL.HELP is not among them.
        """
        if name == commands.RL_STATS:
            return stats_request(self.all(), time.time())
        if name == commands.RL_POLICIES:
            return self._policies_request()
        return self._top_request(int(args[0]), len(args) > 1)

    def _top_request(self, number: int, refused: bool) -> bytes:
        """Return the request for RL.TOP. The keys of all workers are merged every TOP_S at most."""
        now = time.monotonic()
        if now >= self._tops_until:
            self._stats.gather()
            tops = [self._top.state(), *(each.top for each in self._others())]
            self._tops = {kind: merge(tops, MAX_TOP, kind) for kind in (False, True)}
            self._tops_until = now + TOP_S
        return top_request(self._tops[refused][:number], refused)

    def _policies_request(self) -> bytes:
        """Return the request for RL.POLICIES. It may be large: kept for POLICIES_S."""
        now = time.monotonic()
        if now >= self._policies_until:
            self._stats.gather()
            states = [self._policies.state(), *(each.policies for each in self._others())]
            policies = self._context.grammar.policies.values()
            self._policies_kept = policies_request(policies, summed(map(hits_of, states)))
            self._policies_until = now + POLICIES_S
        return self._policies_kept

    def tick(self, late_s: float) -> None:
        """Publish this worker's samples; called every EVERY_S seconds.

        late_s: the delay of this call, which is counted as the loop's lag.
        """
        self._stats.lag.add(late_s)
        if self._counts_a_share:
            self._pace(EVERY_S + late_s)
        self.publish()

    def publish(self) -> None:
        """Publish this worker's samples as of now. Its successor continues the counters."""
        self._stats.gather()
        self._top_published = self._top.state()
        self._memory.publish(self._worker, self.own())

    def _pace(self, passed_s: float) -> None:
        """Adapt the share of hits whose keys are counted to the rate of hits in `passed_s`."""
        decided = self._stats.decided()
        every = stride_for((decided - self._decided) / passed_s)
        if every != self._stats.stride:
            self._stats.sample(every)
        self._decided = decided

    def own(self) -> Snapshot:
        """Return this worker's samples as of now."""
        self._stats.gather()
        clients, context, state = self._clients, self._context, self._upstream.state()
        samples = merged([self._before, self._samples(state)])
        if self._prefixes.samples:
            samples[PREFIX_HITS] = self._prefixes.samples
        count = clients.addresses.__getitem__  # 10,000 addresses: 0.8 ms, 2.4 by a Python function
        return Snapshot(
            self._worker,
            time.time(),
            age_s=0.0,
            samples=samples,
            top=self._top_published,
            policies=self._policies.state(),
            pid=os.getpid(),
            listen=self._listen,
            draining=clients.draining,
            mode="share" if context.shares else "private",
            on_upstream_failure=context.failure.mode,
            upstream=state,
            lanes=self._lanes(),
            addresses=[
                (each, count(each)) for each in nlargest(MAX_ADDRESSES, clients.addresses, count)
            ],
        )

    def all(self) -> list[Snapshot]:
        """Return the samples of all workers.

        This worker comes first, as of now; the others follow as last published. Of a worker that
        has stopped publishing, only its counters remain: see Snapshot.valid_at().
        """
        return [self.own(), *self._others()]

    def _others(self) -> list[Snapshot]:
        """Return what the other workers have published last, as far as it is valid now."""
        now = time.time()
        places = (place for place in range(self._memory.workers) if place != self._worker)
        return [each.valid_at(now) for each in map(self._memory.latest, places) if each is not None]

    def _lanes(self) -> Lanes:
        found: Lanes = {}
        for lane in self._upstream.lanes():
            user = (lane.key.user or b"default")[:MAX_USER].decode("utf-8", "replace")
            counts = found.setdefault((user, lane.key.db, lane.key.carries()), [0, 0, 0])
            counts[0] += 1
            counts[1] += lane.ready
            counts[2] += lane.unanswered()
        return found

    def _samples(self, state: UpstreamState) -> Samples:
        stats, clients = self._stats, self._clients
        waiting, outages = self._context.waiting, self._context.circuit.counts
        hits: dict[Labels, float] = {}
        for name, counts in self._policies.by_algorithm().items():
            algorithm = name.decode().lower()
            for of, count in zip(OUTCOMES, counts, strict=True):
                hits[(algorithm, of)] = count
        lanes = self._upstream.lanes()
        ready = [lane.key.carries() == "hits" for lane in lanes if lane.ready]
        now = time.monotonic()
        if now >= self._files_due:  # with thousands of clients, counting takes milliseconds
            self._files_due = now + FILES_EVERY_S
            self._files = _open_files()
        used = resource.getrusage(resource.RUSAGE_SELF)
        worker = str(self._worker + 1)  # counted from 1, as in the log
        found: Samples = {
            "rlproxy_hits_total": hits,
            "rlproxy_calls_total": {
                (name,): count for name, count in zip(CALLS, stats.calls, strict=True)
            },
            "rlproxy_waits_total": {(how,): count for how, count in waiting.ended.items()},
            "rlproxy_waiting": _one(waiting.count),
            "rlproxy_denials": _one(len(self._denials)),
            "rlproxy_lane_round_trip_seconds": histogram_values(stats.round_trips),
            "rlproxy_lane_batch_calls": histogram_values(stats.batches),
            "rlproxy_event_loop_lag_seconds": histogram_values(stats.lag),
            "rlproxy_commands_total": _one(stats.commands),
            "rlproxy_bytes_total": {
                ("client", "in"): stats.client_in,
                ("client", "out"): stats.client_out,
                ("upstream", "in"): stats.upstream_in,
                ("upstream", "out"): stats.upstream_out,
            },
            "rlproxy_clients": _one(len(clients.clients)),
            "rlproxy_clients_max": _one(clients.admission.max_clients),
            "rlproxy_clients_accepted_total": _one(stats.accepted),
            "rlproxy_errors_total": {(kind,): stats.errors.get(kind, 0) for kind in ERRORS},
            "rlproxy_upstream_up": _one(state.up),
            "rlproxy_upstream_connections": {
                ("private",): stats.private,
                ("lane",): sum(ready),
                ("share",): len(ready) - sum(ready),
            },
            "rlproxy_upstream_problem": {(kind,): float(kind == state.kind) for kind in PROBLEMS},
            "rlproxy_upstream_opened_total": _one(outages.opened),
            "rlproxy_upstream_timeouts_total": _one(outages.timeouts),
            "rlproxy_upstream_connects_failed_total": _one(outages.connects_failed),
            "rlproxy_scripts_loaded": _one(state.loaded),
            "rlproxy_noscript_repairs_total": _one(stats.noscript),
            "rlproxy_draining": _one(clients.draining),
            "rlproxy_workers_wanted": _one(self._memory.workers),
            "rlproxy_start_time_seconds": _one(self._proxy_started),
            "rlproxy_build_info": {
                (VERSION, "yes" if compiled() else "no", platform.python_version()): 1
            },
            "rlproxy_process_cpu_seconds_total": {(worker,): used.ru_utime + used.ru_stime},
            "rlproxy_process_resident_bytes": {(worker,): _resident()},
            "rlproxy_process_open_fds": {(worker,): self._files},
            "rlproxy_process_max_fds": {(worker,): resource.getrlimit(resource.RLIMIT_NOFILE)[0]},
            "rlproxy_process_start_time_seconds": {(worker,): self._process_began},
        }
        if state.nodes:
            found["rlproxy_upstream_node_up"] = {
                (where,): float(up) for where, up in state.nodes.items()
            }
        return found


def _one(value: float) -> dict[Labels, float]:
    return {(): float(value)}


def _resident() -> int:
    """Return the resident memory of this process in bytes; 0 without /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the one that lists the folder
    except OSError:
        return 0
