"""The data of the live page: the samples of all workers as one JSON value. No I/O, no clock."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf, isinf
from typing import Any, Final

from rlproxy.admin.history import LAG, ROUND_TRIP, History
from rlproxy.admin.probes import not_ready
from rlproxy.observability.hot_keys import merge
from rlproxy.observability.key_prefixes import REFUSED
from rlproxy.observability.metrics import PREFIX_HITS, Samples, total
from rlproxy.observability.snapshots import Lanes, Snapshot
from rlproxy.ratelimit.outcomes import OUTCOMES
from rlproxy.ratelimit.policies import mode
from rlproxy.resp import escape
from rlproxy.version import VERSION, compiled

MAX_SHOWN: Final = 200  # characters of a key, a name or a reason
MAX_LANES: Final = 12  # rows of lanes
KEYS: Final = 12  # hot keys
PREFIXES: Final = 12  # key prefixes
POLICIES: Final = 12  # policies
ADDRESSES: Final = 8  # addresses of clients
OVER: Final = "over"  # in place of a duration beyond the histogram's last bound

_QUANTILES: Final = (0.5, 0.99)
_UNKNOWN: Final = (None,) * len(_QUANTILES)


def label(text: bytes | str) -> str:
    """Escape `text` to one line of at most MAX_SHOWN characters, plus "…" where it is cut."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    out = escape.shown(data[: 4 * MAX_SHOWN + 4])  # a character has at most 4 bytes
    return out if len(out) <= MAX_SHOWN else out[:MAX_SHOWN] + "…"


def view(
    at: float,
    workers: Sequence[Snapshot],
    samples: Samples,
    history: History,
    rejected: Iterable[str],
) -> dict[str, Any]:
    """Return the data of the live page.

    at: the present time, in seconds since 1970.
    workers: the latest snapshot of each.
    samples: the sum of all workers' samples.
    rejected: mistakes for which the latest reload was rejected.
    """
    fresh = [one for one in workers if one.fresh]
    latest = max(workers, key=lambda one: one.at)
    busiest, refused = (merge([one.top for one in workers], KEYS, kind) for kind in (False, True))
    *now, commands = history.now()
    upstream = _upstream(fresh)
    # While Redis is away, earlier round trips are not shown as present ones.
    trips = history.quantiles(ROUND_TRIP, _QUANTILES) if upstream.get("seen_by") else _UNKNOWN
    return {
        "at": at,
        "version": VERSION,
        "compiled": compiled(),
        "python": platform.python_version(),
        "started": _plain(samples, "rlproxy_start_time_seconds"),
        "listen": [label(each) for each in latest.listen],
        "draining": any(one.draining for one in fresh),
        "not_ready": [label(why) for why in not_ready(workers)],
        "rejected": [label(why) for why in rejected],
        "on_upstream_failure": label(latest.on_upstream_failure),
        "upstream": upstream,
        "outcomes": list(OUTCOMES),
        "hits": [total(samples, "rlproxy_hits_total", outcome) for outcome in OUTCOMES],
        "rates": [round(each, 2) for each in now],
        "history": [[round(each, 2) for each in row] for row in history.rates()],
        "commands": round(commands, 2),
        "times": {
            "round_trip": [_seconds(each) for each in trips],
            "lag": [_seconds(each) for each in history.quantiles(LAG, _QUANTILES)],
        },
        "clients": _plain(samples, "rlproxy_clients"),
        "clients_max": _plain(samples, "rlproxy_clients_max"),
        "waiting": _plain(samples, "rlproxy_waiting"),
        "denials": _plain(samples, "rlproxy_denials"),
        "addresses": _addresses(fresh),
        "prefixes": _prefixes(samples),
        "policies": [
            [label(name), mode(shadow), *(round(rate, 2) for rate in rates)]
            for name, shadow, *rates in history.busiest(POLICIES)
        ],
        "lanes": _lanes(fresh),
        "workers": [_worker(one, samples) for one in workers],
        "busiest": [[label(key), count, error] for key, count, error, _ in busiest],
        "refused": [[label(key), count, error, label(rule)] for key, count, error, rule in refused],
    }


def _plain(samples: Samples, name: str, *labels: str) -> float | None:
    return samples.get(name, {}).get(labels)


def _seconds(found: float | None) -> float | str | None:
    return OVER if found is not None and isinf(found) else found


def _upstream(fresh: Sequence[Snapshot]) -> dict[str, Any]:
    """Return the upstream's state as seen by the worker for which Redis is away for longest.

    `changed` is the time of its last change, in seconds since 1970. Redis is up for `seen_by` of
    `workers` workers.
    """
    rows = [one.upstream for one in fresh]
    if not rows:
        return {}
    worst = min(rows, key=lambda row: (row.up, row.changed or inf))
    return {
        "where": label(worst.where),
        "server": label(worst.server),
        "up": worst.up,
        "changed": None if worst.changed is None else round(worst.changed),
        "why": label(worst.why),
        "problem": label(worst.problem),
        "workers": len(rows),
        "seen_by": sum(row.up for row in rows),
    }


def _addresses(fresh: Sequence[Snapshot]) -> list[list[Any]]:
    clients: Counter[str] = Counter()
    for one in fresh:
        clients.update(dict(one.addresses))
    most = sorted(clients.items(), key=lambda row: (-row[1], row[0]))[:ADDRESSES]
    return [[label(address), count] for address, count in most]


def _prefixes(samples: Samples) -> list[list[Any]]:
    """Return the prefixes with the most hits since the start: list of [prefix, hits, refused].

    Empty without --metrics-prefixes.
    """
    found: dict[str, list[int]] = {}
    for (prefix, kind), value in samples.get(PREFIX_HITS, {}).items():
        found.setdefault(prefix, [0, 0])[kind == REFUSED] = int(value)
    most = sorted(found.items(), key=lambda row: (-row[1][0], row[0]))[:PREFIXES]
    return [[label(prefix), *counts] for prefix, counts in most]


def _lanes(fresh: Sequence[Snapshot]) -> list[list[Any]]:
    """Return the lanes of all workers, grouped by user, database and kind of calls.

    The rows are [user, database, kind, lanes, lanes that are ready, unanswered calls].
    """
    found: Lanes = {}
    for one in fresh:
        for key, counts in one.lanes.items():
            found[key] = [a + b for a, b in zip(found.get(key, (0, 0, 0)), counts, strict=True)]
    most = sorted(found.items(), key=lambda row: (-row[1][2], row[0]))[:MAX_LANES]
    return [[label(user), db, label(carries), *counts] for (user, db, carries), counts in most]


def _worker(one: Snapshot, samples: Samples) -> dict[str, Any]:
    number = str(one.worker + 1)
    return {
        "number": one.worker + 1,
        "pid": one.pid or None,
        "age": None if isinf(one.age_s) else one.age_s,
        "fresh": one.fresh,
        "draining": one.draining,
        "cpu": _plain(samples, "rlproxy_process_cpu_seconds_total", number),
        "memory": _plain(samples, "rlproxy_process_resident_bytes", number),
        "files": _plain(samples, "rlproxy_process_open_fds", number),
    }
