"""The reader of shared memory for HTTP requests: ten readings a second, one for the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from rlproxy.admin.history import GAP_S, Recent
from rlproxy.admin.page_data import KEYS, view
from rlproxy.admin.probes import Seen
from rlproxy.observability.exposition import exposition
from rlproxy.observability.hot_keys import merge
from rlproxy.observability.key_prefixes import samples as prefix_samples
from rlproxy.observability.metrics import PREFIX_HITS, SETTINGS_REJECTED, Samples, merged
from rlproxy.observability.policy_counters import HitsByPolicy, hits_of, summed
from rlproxy.observability.policy_counters import samples as policy_samples
from rlproxy.observability.published import Reloaded
from rlproxy.observability.shared_memory import SharedMemory

SAMPLE_S: Final = 1.0  # seconds between two moments of the history, at least
READ_S: Final = 0.1  # seconds between two readings of shared memory, at least
SHARE: Final = 100  # pause after a moment was added, in multiples of the time it took, at least


class Reading:
    """What all workers had published in `memory` at the time `at`; each value is made once.

    seen: the state of each worker.
    recent: the history, for the page.
    """

    def __init__(self, memory: SharedMemory, at: float, recent: Recent) -> None:
        self.at = at
        self._recent = recent
        found = {worker: memory.latest(worker) for worker in range(memory.workers)}
        self._workers = [each.seen_at(at) for each in found.values() if each is not None]
        self.seen = [
            Seen(worker) if each is None else Seen(worker, at - each.at, each.facts)
            for worker, each in found.items()
        ]
        self._mistakes = latest_reload(memory).mistakes

    @cached_property
    def samples(self) -> Samples:
        """The sum of all workers' samples, without policies; of a silent one its counters."""
        samples = merged(each.samples for each in self._workers)
        prefixes = prefix_samples(each.prefixes for each in self._workers)
        if prefixes:
            samples[PREFIX_HITS] = prefixes
        samples["rlproxy_workers"] = {(): float(sum(one.fresh() for one in self.seen))}
        samples[SETTINGS_REJECTED] = {(): float(bool(self._mistakes))}
        return samples

    @cached_property
    def policies(self) -> HitsByPolicy:
        """The hits of policies in all workers."""
        return summed(hits_of(each.policies) for each in self._workers)

    @cached_property
    def metrics(self) -> bytes:
        """The samples in Prometheus' text format."""
        return exposition({**self.samples, **policy_samples(self.policies)})

    @cached_property
    def view(self) -> dict[str, Any]:
        """The data of the live page."""
        tops = [each.top for each in self._workers]
        busiest, refused = (merge(tops, KEYS, kind) for kind in (False, True))
        return view(
            self.at, self.seen, self.samples, self._recent, busiest, refused, self._mistakes
        )


class Reader:
    """The readings of `memory`; `clock` returns seconds since 1970."""

    def __init__(self, memory: SharedMemory, clock: Callable[[], float] = time.time) -> None:
        self._memory = memory
        self._clock = clock
        self._recent = Recent()
        self._reading: Reading | None = None

    def reading(self) -> Reading:
        """Return a reading that is at most READ_S old."""
        now = self._clock()
        found = self._reading
        if found is None or abs(now - found.at) >= READ_S:
            self._reading = found = Reading(self._memory, now, self._recent)
        return found

    def look(self) -> float:
        """Add the present counters to the history.

        Returns the seconds until the next call.
        """
        before = time.monotonic()
        found = self.reading()
        if any(one.fresh() for one in found.seen):  # otherwise rates are unknown, not 0
            self._recent.add(found.at, found.samples, found.policies)
        pause_s = max(SAMPLE_S, SHARE * (time.monotonic() - before))
        return min(pause_s, GAP_S / 2)  # a longer pause would be a gap in the history


def latest_reload(memory: SharedMemory) -> Reloaded:
    """Return the outcome of the latest reload."""
    return memory.latest(memory.parent) or Reloaded()
