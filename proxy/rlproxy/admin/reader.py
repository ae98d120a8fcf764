"""The reader of shared memory for HTTP requests: up to ten readings a second, one for the history;
and their samples in the text format of Prometheus.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rlproxy.admin.history import History
from rlproxy.admin.page_data import view
from rlproxy.observability.metrics import (
    COUNTER,
    HISTOGRAM,
    SETTINGS_REJECTED,
    TABLE,
    Labels,
    Row,
    Samples,
    merged,
)
from rlproxy.observability.policy_counters import HitsByPolicy, hits_of, summed
from rlproxy.observability.policy_counters import samples as policy_samples
from rlproxy.observability.shared_memory import SharedMemory
from rlproxy.observability.snapshots import Reloaded, Snapshot

READ_S: Final = 0.1  # seconds between two readings of shared memory, at least


class Reading:
    """What all workers had published in `memory` at the time `at`; each value is made once.

    workers: the state of each, as far as it is valid.
    history: for the page.
    """

    def __init__(self, memory: SharedMemory, at: float, history: History) -> None:
        self.at = at
        self._history = history
        places = range(memory.workers)
        self.workers = [(memory.latest(n) or Snapshot(n)).valid_at(at) for n in places]
        self._mistakes = latest_reload(memory).mistakes

    @cached_property
    def samples(self) -> Samples:
        """The sum of all workers' samples, without policies; of a silent one its counters."""
        samples = merged(each.samples for each in self.workers)
        samples["rlproxy_workers"] = {(): float(sum(one.fresh for one in self.workers))}
        samples[SETTINGS_REJECTED] = {(): float(bool(self._mistakes))}
        return samples

    @cached_property
    def policies(self) -> HitsByPolicy:
        """The hits of policies in all workers."""
        return summed(hits_of(each.policies) for each in self.workers)

    @cached_property
    def metrics(self) -> bytes:
        """The samples in Prometheus' text format."""
        return exposition({**self.samples, **policy_samples(self.policies)})

    @cached_property
    def view(self) -> dict[str, Any]:
        """The data of the live page."""
        return view(self.at, self.workers, self.samples, self._history, self._mistakes)


class Reader:
    """The readings of `memory`; `clock` returns seconds since 1970."""

    def __init__(self, memory: SharedMemory, clock: Callable[[], float] = time.time) -> None:
        self._memory = memory
        self._clock = clock
        self._history = History()
        self._recorded_at = 0.0  # time of the latest counters in the history
        self._reading: Reading | None = None

    def reading(self) -> Reading:
        """Return a reading that is at most READ_S old."""
        now = self._clock()
        found = self._reading
        if found is None or abs(now - found.at) >= READ_S:
            self._reading = found = Reading(self._memory, now, self._history)
        return found

    def record(self) -> None:
        """Add the present counters to the history; called once a second.

        Their time is that of the latest publication. Otherwise a rate would be wrong by the time
        that passes until they are read.
        """
        found = self.reading()
        at = max((one.at for one in found.workers if one.fresh), default=self._recorded_at)
        if at != self._recorded_at:
            self._recorded_at = at
            self._history.add(at, found.samples, found.policies)


def latest_reload(memory: SharedMemory) -> Reloaded:
    """Return the outcome of the latest reload."""
    return memory.latest(memory.parent) or Reloaded()


def exposition(samples: Samples) -> bytes:
    """Return `samples` in Prometheus' text format."""
    families = [_family(row, samples[row.name]) for row in TABLE if row.name in samples]
    collector: Any = SimpleNamespace(collect=lambda: families)
    return generate_latest(collector)


def _family(row: Row, values: dict[Labels, float]) -> Metric:
    if row.kind == HISTOGRAM:
        *classes, (_, sum_of) = values.items()
        counts = accumulate(number for _, number in classes)
        buckets = [(bound, count) for ((bound,), _), count in zip(classes, counts, strict=True)]
        return HistogramMetricFamily(row.name, row.help, buckets, sum_of)
    family = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    out = family(row.name, row.help, labels=row.labels)
    for found, value in values.items():
        out.add_metric(found, value)
    return out
