"""The worker's reports: samples for the metrics, the text of RL.STATS and RL.TOP. It publishes
them to shared memory four times a second.

    counters, circuit, lanes ... ──> own() ──publish()──> shared memory ──> the admin process
                                       │                        │
                                       └────────> all() <───────┘  samples of the other workers
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final

from rlproxy.admin.probes import heard
from rlproxy.build import compiled
from rlproxy.downstream.clients import Clients
from rlproxy.observability.counters import TIMES_S, Counters, Times
from rlproxy.observability.hot_keys import covered, stride
from rlproxy.observability.key_prefixes import Prefixes
from rlproxy.observability.metrics import (
    ERRORS,
    PROBLEMS,
    Distribution,
    Labels,
    Samples,
    Value,
    kept,
    merged,
)
from rlproxy.observability.shared_memory import Published, SharedMemory, apart
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.outcomes import CALLS, OUTCOMES, WAITS, row_of
from rlproxy.resp import encoding
from rlproxy.session.context import WorkerContext
from rlproxy.upstream.lane import LanePool
from rlproxy.version import VERSION

EVERY_S: Final = 0.25  # seconds between two calls of publish()
MOST_S: Final = 1.0  # seconds of the pause after a publication, at most
SHARE: Final = 50  # pause after a publication, in multiples of its duration, up to MOST_S
MAX_USER: Final = 200  # bytes of a user's name that are published
MAX_ADDRESSES: Final = 10  # published addresses of clients, those with the most connections
ADDRESSES_EVERY_S: Final = 1.0  # seconds between two selections of these
FILES_EVERY_S: Final = 10.0  # seconds between two counts of open files


@dataclass
class Sources:
    """The sources of a worker's samples: objects, and functions that return a current value.

    script_times: returns the durations of scripts in Redis' own classes and their sum in seconds;
    None if Redis reports none.
    upstream: returns facts that are published as they are.
    """

    settings: WorkerContext
    shared: Clients
    lanes: LanePool
    denial_cache: Callable[[], int]
    clients_max: Callable[[], int]
    upstream: Callable[[], dict[str, Any]]
    problem: Callable[[], str]  # the kind of the control connection's problem
    scripts_loaded: Callable[[], bool]
    script_times: Callable[[], Distribution | None]
    top: Callable[[], dict[str, Any]]
    prefixes: Prefixes
    samples_keys: bool  # whether only some keys are counted at high rates of hits
    listen: Sequence[str]


class Telemetry:
    """The telemetry of one worker process.

    worker: the worker's number, from 0.
    started: time.time() at the start of the proxy.
    read: whether another process reads the shared memory.
    """

    def __init__(
        self, worker: int, memory: SharedMemory, sources: Sources, started: float, read: bool
    ) -> None:
        self._worker = worker
        self._memory = memory
        self._read = read
        self._sources = sources
        self._stats: Counters = sources.settings.stats
        self._started = started
        self._began = time.time()  # the start of this process
        before = memory.latest(worker)  # samples of the process that this one replaces
        head, prefix_hits = apart(before)
        self._before: Samples = kept(Published.from_json(head).samples) if head else {}
        sources.prefixes.go_on(prefix_hits)
        self._due = 0.0
        self._publish_due = 0.0
        self._others: dict[int, tuple[bytes, Published]] = {}  # each worker's last text, and parsed
        self._files = 0
        self._files_due = 0.0
        self._addresses: list[list[Any]] = []
        self._addresses_due = 0.0
        self._paced_at = 0.0
        self._decided = 0

    def publish(self, now: float) -> None:
        """Publish this worker's samples if they are due.

        now: the event loop's time in seconds. Call it every EVERY_S seconds: the delay of each
        call is counted as the loop's lag.
        """
        if self._due:
            self._stats.lag.add(max(0.0, now - self._due))
        self._due = now + EVERY_S
        if self._sources.samples_keys:
            self._pace(now)
        if not self._read:
            self._stats.gather()
        elif now >= self._publish_due:
            begun = time.monotonic()
            text = self.own().to_json(self._sources.prefixes.text())
            self._memory.publish(self._worker, text)
            took_s = time.monotonic() - begun
            self._publish_due = now + min(SHARE * took_s, MOST_S)

    def _pace(self, now: float) -> None:
        """Adapt the share of hits whose keys are counted to the rate of hits."""
        decided = self._stats.decided()
        if self._paced_at:
            every = stride((decided - self._decided) / max(EVERY_S, now - self._paced_at))
            if every != self._stats.stride:
                self._stats.sample(every)
        self._paced_at, self._decided = now, decided

    def own(self) -> Published:
        """Return this worker's samples as of now, without prefixes.

        There may be thousands of prefixes, and only the metrics contain them.
        """
        self._stats.gather()
        samples = merged([self._before, self._samples()])
        return Published(time.time(), samples, self._sources.top(), self._facts())

    def all(self) -> list[Published]:
        """Return the samples of all workers, without prefixes.

        This worker comes first, as of now; the others follow as last published. Of a worker that
        has stopped publishing, only its counters remain: see Published.silent().
        """
        out = [self.own()]
        now = time.time()
        for worker in range(self._memory.workers):
            if worker != self._worker:
                found = self._read_of(worker)
                if found is not None:
                    out.append(found if heard(now - found.at) else found.silent())
        return out

    def _read_of(self, worker: int) -> Published | None:
        """Return what another worker has published last; None if nothing.

        A text is parsed once only: clients may send RL.STATS at any rate.
        """
        text, _ = apart(self._memory.latest(worker))
        before = self._others.get(worker)
        if before is not None and (before[0] == text or not text):
            return before[1]
        if not text:
            return None
        found = Published.from_json(text)
        self._others[worker] = (text, found)
        return found

    def _facts(self) -> dict[str, Any]:
        shared, settings = self._sources.shared, self._sources.settings
        if self._due >= self._addresses_due:
            self._addresses_due = self._due + ADDRESSES_EVERY_S
            most = nlargest(MAX_ADDRESSES, shared.addresses.items(), key=lambda item: item[1])
            self._addresses = [list(item) for item in most]
        return {
            "worker": self._worker,
            "workers": self._memory.workers,
            "pid": os.getpid(),
            "version": VERSION,
            "compiled": compiled(),
            "python": platform.python_version(),
            "started": self._started,
            "listen": list(self._sources.listen),
            "draining": shared.draining,
            "scripts": self._sources.scripts_loaded(),
            "mode": "share" if settings.share_of is not None else "private",
            "on_upstream_failure": settings.failure.mode,
            "upstream": self._sources.upstream(),
            "lanes": [
                {
                    "user": _shown(lane.identity.user or b"default"),
                    "db": lane.identity.db,
                    "carries": lane.carries(),
                    "ready": lane.ready,
                    "unanswered": lane.unanswered(),
                }
                for lane in self._sources.lanes.lanes()
            ],
            "addresses": self._addresses,
        }

    def _samples(self) -> Samples:
        sources, stats = self._sources, self._stats
        settings, shared = sources.settings, sources.shared
        waiting, circuit = settings.waiting, settings.circuit
        hits: dict[Labels, Value] = {}
        near: dict[Labels, Value] = {}
        for number, name in enumerate(ALGORITHMS):
            row = row_of(name)
            algorithm = name.decode().lower()
            near[(algorithm,)] = stats.near[number]
            for outcome, of in enumerate(OUTCOMES):
                hits[(algorithm, of)] = stats.hits[row + outcome]
        lanes = sources.lanes.lanes()
        ready = [lane.carries() == "hits" for lane in lanes if lane.ready]
        if self._due >= self._files_due:  # with thousands of clients, counting takes milliseconds
            self._files_due = self._due + FILES_EVERY_S
            self._files = _open_files()
        used = resource.getrusage(resource.RUSAGE_SELF)
        worker = str(self._worker + 1)  # counted from 1, as in the log
        found: Samples = {
            "rlproxy_hits_total": hits,
            "rlproxy_hits_near_limit_total": near,
            "rlproxy_calls_total": _labelled(CALLS, stats.calls),
            "rlproxy_waits_total": _labelled(WAITS, waiting.ended),
            "rlproxy_waiting": _one(waiting.count),
            "rlproxy_denials": _one(sources.denial_cache()),
            "rlproxy_lane_round_trip_seconds": {(): _times(stats.round_trips)},
            "rlproxy_lane_batch_calls": {(): Distribution(tuple(stats.batches[1:]), stats.batched)},
            "rlproxy_event_loop_lag_seconds": {(): _times(stats.lag)},
            "rlproxy_commands_total": _one(stats.commands),
            "rlproxy_bytes_total": {
                ("client", "in"): stats.client_in,
                ("client", "out"): stats.client_out,
                ("upstream", "in"): stats.upstream_in,
                ("upstream", "out"): stats.upstream_out,
            },
            "rlproxy_clients": _one(len(shared.clients)),
            "rlproxy_clients_max": _one(sources.clients_max()),
            "rlproxy_clients_accepted_total": _one(stats.accepted),
            "rlproxy_errors_total": {(kind,): stats.errors.get(kind, 0) for kind in ERRORS},
            "rlproxy_upstream_up": _one(not circuit.open),
            "rlproxy_upstream_connections": {
                ("private",): stats.private,
                ("lane",): sum(ready),
                ("share",): len(ready) - sum(ready),
            },
            "rlproxy_upstream_problem": {
                (kind,): float(kind == sources.problem()) for kind in PROBLEMS
            },
            "rlproxy_upstream_opened_total": _one(circuit.counts.opened),
            "rlproxy_upstream_timeouts_total": _one(circuit.counts.timeouts),
            "rlproxy_upstream_connects_failed_total": _one(circuit.counts.connects_failed),
            "rlproxy_scripts_loaded": _one(sources.scripts_loaded()),
            "rlproxy_noscript_repairs_total": _one(stats.noscript),
            "rlproxy_draining": _one(shared.draining),
            "rlproxy_workers": _one(1),
            "rlproxy_workers_wanted": _one(self._memory.workers),
            "rlproxy_start_time_seconds": _one(self._started),
            "rlproxy_build_info": {
                (VERSION, "yes" if compiled() else "no", platform.python_version()): 1
            },
            "rlproxy_process_cpu_seconds_total": {(worker,): used.ru_utime + used.ru_stime},
            "rlproxy_process_resident_bytes": {(worker,): _resident()},
            "rlproxy_process_open_fds": {(worker,): self._files},
            "rlproxy_process_max_fds": {(worker,): resource.getrlimit(resource.RLIMIT_NOFILE)[0]},
            "rlproxy_process_start_time_seconds": {(worker,): self._began},
        }
        scripts = sources.script_times()
        if scripts is not None:
            found["rlproxy_script_seconds"] = {(): scripts}
        return found


def _shown(user: bytes) -> str:
    return user[:MAX_USER].decode("utf-8", "replace")


def _one(value: float) -> dict[Labels, Value]:
    return {(): float(value)}


def _labelled(names: Sequence[str], values: Sequence[int]) -> dict[Labels, Value]:
    return {(name,): value for name, value in zip(names, values, strict=True)}


def _times(times: Times) -> Distribution:
    return Distribution(tuple(times.classes), times.sum_s)


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


# -- the results of RL.STATS and RL.TOP ------------------------------------------------------------


def stats_text(several: Sequence[Published], now: float) -> bytes:
    """Return the text of RL.STATS: the sum of all workers, in the format of INFO.

    several: the samples of each worker, those of the worker that replies first.
    now: time.time().
    """
    samples = merged(each.samples for each in several)
    facts = several[0].facts
    upstream = facts["upstream"]

    def total(name: str, *labels: str) -> int:
        values = samples.get(name, {})
        return int(
            sum(
                value
                for found, value in values.items()
                if not isinstance(value, Distribution)
                and found[len(found) - len(labels) :] == labels
            )
        )

    def outcomes(algorithm: str) -> str:
        values = samples["rlproxy_hits_total"]
        return ",".join(f"{each}={int(_number(values[algorithm, each]))}" for each in OUTCOMES)

    hits = {outcome: total("rlproxy_hits_total", outcome) for outcome in OUTCOMES}
    algorithms = [name.decode().lower() for name in ALGORITHMS]
    sections: list[tuple[str, list[tuple[str, object]]]] = [
        (
            "Server",
            [
                ("version", facts["version"]),
                ("compiled", int(facts["compiled"])),
                ("uptime_in_seconds", max(0, int(now - facts["started"]))),
                ("workers", facts["workers"]),
                ("process_id", facts["pid"]),
                ("mode", facts["mode"]),
                ("on_upstream_failure", facts["on_upstream_failure"]),
            ],
        ),
        (
            "Hits",
            [
                ("hits", sum(hits.values())),
                *hits.items(),
                ("near_limit", total("rlproxy_hits_near_limit_total")),
                ("waiting", total("rlproxy_waiting")),
                ("denials", total("rlproxy_denials")),
                ("top_seconds", round(covered(each.top for each in several), 1)),
                *((f"hits_{name}", outcomes(name)) for name in algorithms),
            ],
        ),
        ("Calls", [(name, total("rlproxy_calls_total", name)) for name in CALLS]),
        (
            "Traffic",
            [
                ("commands", total("rlproxy_commands_total")),
                ("bytes_in", total("rlproxy_bytes_total", "client", "in")),
                ("bytes_out", total("rlproxy_bytes_total", "client", "out")),
                ("clients", total("rlproxy_clients")),
                ("clients_accepted", total("rlproxy_clients_accepted_total")),
            ],
        ),
        (
            "Upstream",
            [
                ("upstream", upstream["where"]),
                ("upstream_server", upstream["server"]),
                ("upstream_up", total("rlproxy_upstream_up")),
                ("upstream_why", upstream["why"]),
                ("scripts_loaded", total("rlproxy_scripts_loaded")),
                ("lanes", total("rlproxy_upstream_connections", "lane")),
                ("shared_connections", total("rlproxy_upstream_connections", "share")),
                ("private_connections", total("rlproxy_upstream_connections", "private")),
                ("round_trips_us", _classes(samples["rlproxy_lane_round_trip_seconds"][()])),
                ("timeouts", total("rlproxy_upstream_timeouts_total")),
                ("connects_failed", total("rlproxy_upstream_connects_failed_total")),
                ("noscript_repairs", total("rlproxy_noscript_repairs_total")),
            ],
        ),
        (
            "Errors",
            [
                ("errors", total("rlproxy_errors_total")),
                *((f"errors_{kind}", total("rlproxy_errors_total", kind)) for kind in ERRORS),
            ],
        ),
    ]
    parts = [
        f"# {title}\r\n" + "".join(f"{name}:{value}\r\n" for name, value in lines)
        for title, lines in sections
    ]
    return "\r\n".join(parts).encode("utf-8", "replace")


def _classes(value: Value) -> str:
    """Format a histogram: the upper bound of each class, in microseconds, with its count."""
    assert isinstance(value, Distribution)
    bounds = [*(f"{bound * 1_000_000:.0f}" for bound in TIMES_S), "inf"]
    return ",".join(f"{bound}={n}" for bound, n in zip(bounds, value.classes, strict=True))


def _number(value: Value) -> float:
    assert not isinstance(value, Distribution)
    return value


def said(text: bytes) -> bytes:
    """Return a request to which Redis replies with `text`."""
    return encoding.bulks(b"EVAL", b"return ARGV[1]", b"0", text)


_TOP: Final = (
    b"local r={} for i=1,#ARGV,3 do "
    b"r[#r+1]={ARGV[i],tonumber(ARGV[i+1]),tonumber(ARGV[i+2])} end return r"
)


def said_top(rows: Sequence[tuple[bytes, int, int]]) -> bytes:
    """Return a request to which Redis replies with `rows`: list of (key, count, error)."""
    words = [word for key, count, error in rows for word in (key, b"%d" % count, b"%d" % error)]
    return encoding.bulks(b"EVAL", _TOP, b"0", *words)
