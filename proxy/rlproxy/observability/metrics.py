"""The table of metrics, and the rules that combine the samples of several workers.

The samples of a process are a dict of metric name to a dict of label values to value (Samples). A
histogram has a value for each class, labelled with its upper bound, and one labelled SUM_OF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rlproxy.observability.counters import Histogram

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

SUM_OF: Final = ("sum",)  # label of the sum of a histogram's observations

PREFIX_HITS: Final = "rlproxy_prefix_hits_total"
POLICY_HITS: Final = "rlproxy_policy_hits_total"
POLICY_SHADOW: Final = "rlproxy_policy_shadow"
SETTINGS_REJECTED: Final = "rlproxy_settings_rejected"

Labels = tuple[str, ...]
Samples = dict[str, dict[Labels, float]]


@dataclass(frozen=True)
class Row:
    """One metric.

    name, help: as in Prometheus' text format.
    kind: COUNTER, GAUGE or HISTOGRAM.
    labels: names of its labels.
    across: combines the values of several workers: sum, or of gauges max or min.
    """

    name: str
    kind: str
    help: str
    labels: Labels = ()
    across: Callable[[Iterable[float]], float] = sum


TABLE: Final = (
    # hits
    Row(
        "rlproxy_hits_total",
        COUNTER,
        "Hits (RL.HIT, CL.THROTTLE, RL.THROTTLE), by outcome: admitted, refused, "
        "refused_locally (by the denial cache, Redis was not asked), failed_open and failed_closed "
        "(by --on-upstream-failure), failed (an error), unseen (in a transaction, or where replies "
        "can't be matched to requests), shadow_refused (by a policy in shadow: admitted)",
        ("algorithm", "outcome"),
    ),
    Row(
        POLICY_HITS,
        COUNTER,
        "Hits that name a policy, by the outcomes of rlproxy_hits_total. A policy that is removed "
        "from the settings is left out",
        ("policy", "outcome"),
    ),
    Row(
        POLICY_SHADOW,
        GAUGE,
        "1 of each policy in shadow (others have none)",
        ("policy",),
        across=max,
    ),
    Row(
        PREFIX_HITS,
        COUNTER,
        "Hits that Redis or the denial cache answered (outcome hits), and the refused ones "
        "(outcome refused), by the part of their key before the first colon: --metrics-prefixes "
        "prefixes, (other) for later ones, (none) for keys without a colon",
        ("prefix", "outcome"),
    ),
    Row(
        "rlproxy_calls_total",
        COUNTER,
        "Other commands of the family that were answered",
        ("command",),
    ),
    Row(
        "rlproxy_waits_total",
        COUNTER,
        "Hits with WAIT that had to wait, by how it ended: admitted, refused, left (the client "
        "went, or Redis did not answer)",
        ("outcome",),
    ),
    Row("rlproxy_waiting", GAUGE, "Hits that wait now"),
    Row("rlproxy_denials", GAUGE, "Entries of the denial cache, those that are over included"),
    # time and batches
    Row(
        "rlproxy_lane_round_trip_seconds",
        HISTOGRAM,
        "From the writing of a call on a lane to its reply, of one call per lane at a time",
    ),
    Row(
        "rlproxy_lane_batch_calls",
        HISTOGRAM,
        "Calls that went out together in one write of a lane",
    ),
    Row(
        "rlproxy_event_loop_lag_seconds",
        HISTOGRAM,
        "How late a timer was, once a second",
    ),
    # traffic
    Row("rlproxy_commands_total", COUNTER, "Commands that were passed on to Redis as they came"),
    Row(
        "rlproxy_bytes_total",
        COUNTER,
        "Bytes from and to clients and Redis (side: client, upstream; direction: in, out)",
        ("side", "direction"),
    ),
    Row("rlproxy_clients", GAUGE, "Clients that are connected"),
    Row("rlproxy_clients_max", GAUGE, "Clients that may be: --max-clients, or what files allow"),
    Row("rlproxy_clients_accepted_total", COUNTER, "Clients that were accepted"),
    Row("rlproxy_errors_total", COUNTER, "What went wrong, by kind: see the list below", ("kind",)),
    # Redis
    Row(
        "rlproxy_upstream_up",
        GAUGE,
        "1 while Redis answers, 0 while the circuit is open",
        across=min,
    ),
    Row(
        "rlproxy_upstream_node_up",
        GAUGE,
        "The same of each master of a Redis Cluster",
        ("node",),
        across=min,
    ),
    Row(
        "rlproxy_upstream_connections",
        GAUGE,
        "Connections to Redis (kind: private, lane, share)",
        ("kind",),
    ),
    Row(
        "rlproxy_upstream_problem",
        GAUGE,
        "1 while Redis can't be used, or not fully, by kind: see below",
        ("kind",),
        across=max,
    ),
    Row("rlproxy_upstream_opened_total", COUNTER, "How often the circuit opened"),
    Row("rlproxy_upstream_timeouts_total", COUNTER, "Calls that Redis answered late, or never"),
    Row("rlproxy_upstream_connects_failed_total", COUNTER, "Connections that could not be opened"),
    Row("rlproxy_scripts_loaded", GAUGE, "1 if Redis has the scripts", across=min),
    Row("rlproxy_noscript_repairs_total", COUNTER, "Calls that were sent again after NOSCRIPT"),
    # the processes
    Row("rlproxy_draining", GAUGE, "1 while the proxy ends", across=max),
    Row("rlproxy_workers", GAUGE, "Processes that serve and have reported lately"),
    Row("rlproxy_workers_wanted", GAUGE, "Processes that should serve: --workers", across=max),
    Row(
        SETTINGS_REJECTED,
        GAUGE,
        "1 if the latest reload found a mistake: the settings before it are in force",
        across=max,
    ),
    Row(
        "rlproxy_start_time_seconds",
        GAUGE,
        "When the proxy began, in seconds since 1970",
        across=min,
    ),
    Row("rlproxy_build_info", GAUGE, "Always 1", ("version", "compiled", "python"), across=max),
    Row("rlproxy_process_cpu_seconds_total", COUNTER, "CPU time of each worker", ("worker",)),
    Row("rlproxy_process_resident_bytes", GAUGE, "Memory of each worker", ("worker",)),
    Row("rlproxy_process_open_fds", GAUGE, "Open files of each worker", ("worker",)),
    Row("rlproxy_process_max_fds", GAUGE, "Open files that each worker may have", ("worker",)),
    Row(
        "rlproxy_process_start_time_seconds",
        GAUGE,
        "When each worker began, in seconds since 1970: it changes when one is replaced",
        ("worker",),
    ),
)
BY_NAME: Final = {row.name: row for row in TABLE}

# Every kind of rlproxy_errors_total.
ERRORS: Final = {
    "syntax": "a command of the family was wrong",
    "denied": "a command that its client must not send",
    "redis": "Redis answered a hit with an error",
    "lost": "the connection to Redis was lost before it answered a hit",
    "late": "Redis did not answer a hit within --hit-timeout",
    "unreachable": "a hit found no Redis",
    "unanswered": "Redis did not answer a client's handshake: the client was closed",
    "turned_away": "a client found no room, or protected mode",
    "handshake": "a client's TLS handshake or PROXY header failed",
    "cut": "a client read nothing for --write-timeout",
    "idle": "a client was silent for --idle-timeout",
    "protocol": "a client's bytes were no command",
}

UNREACHABLE: Final = "unreachable"
FULL: Final = "full"
CLUSTER: Final = "cluster"
LOGIN: Final = "login"
SCRIPTS: Final = "scripts"
REPLICA: Final = "replica"
NODE: Final = "node"
SENTINEL: Final = "sentinel"
UNABLE: Final = "unable"
MISFITS: Final = (CLUSTER, SENTINEL)  # kinds of a server that does not fit the URL

# Every kind of rlproxy_upstream_problem.
PROBLEMS: Final = {
    UNREACHABLE: "the server can't be reached, or is no Redis",
    FULL: "the server has no room for one more client (`maxclients`)",
    CLUSTER: "the server is a node of a Redis Cluster, and the URL of --upstream names one server",
    LOGIN: "the server refuses the user or password of the URL, or wants one",
    SCRIPTS: "the server refuses to load the scripts",
    REPLICA: "the server is a replica, which refuses hits (READONLY)",
    NODE: "a master of a Redis Cluster can't be used, and others serve their keys",
    SENTINEL: "the server is a Sentinel, and the URL of --upstream names a server",
    UNABLE: "the server can't run hits now: it answers LOADING, BUSY, MASTERDOWN or MISCONF; "
    "or a cluster is down",
}


def merged(several: Iterable[Samples]) -> Samples:
    """Combine the samples of all workers, by the rules in the table."""
    out: Samples = {}
    for samples in several:
        for name, values in samples.items():
            row = BY_NAME[name]
            found = out.setdefault(name, {})
            for labels, value in values.items():
                found[labels] = row.across((found[labels], value)) if labels in found else value
    return out


def histogram_values(histogram: Histogram) -> dict[Labels, float]:
    """Return the values of a histogram: the number of observations in each class, and their sum."""
    labels: list[Labels] = [*((str(bound),) for bound in histogram.bounds), ("+Inf",), SUM_OF]
    return dict(zip(labels, (*histogram.classes, histogram.sum_of), strict=True))


def classes_of(samples: Samples, name: str) -> list[float]:
    """Return the number of observations in each class of a histogram; empty without samples."""
    return list(samples.get(name, {}).values())[:-1]


def total(samples: Samples, name: str, *labels: str) -> float:
    """Return the sum of the values of a counter or gauge whose last labels are `labels`."""
    return sum(
        value
        for found, value in samples.get(name, {}).items()
        if found[len(found) - len(labels) :] == labels
    )


def kept(samples: Samples) -> Samples:
    """Return the samples that a worker's successor continues: those that never decrease."""
    return {name: values for name, values in samples.items() if BY_NAME[name].kind != GAUGE}
