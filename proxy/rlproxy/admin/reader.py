"""The reader of shared memory for HTTP requests: ten reads a second, one for the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rlproxy.admin.history import GAP_S, Recent, moment
from rlproxy.admin.page_data import KEYS, POLICIES, view
from rlproxy.admin.policy_rates import PolicyRates
from rlproxy.admin.probes import Seen
from rlproxy.observability.exposition import exposition
from rlproxy.observability.hot_keys import merge
from rlproxy.observability.key_prefixes import samples as prefix_samples
from rlproxy.observability.metrics import PREFIX_HITS, SETTINGS_REJECTED, Samples, kept, merged
from rlproxy.observability.policy_counters import HitsByPolicy, hits_of, summed
from rlproxy.observability.policy_counters import samples as policy_samples
from rlproxy.observability.published import Published, Reloaded
from rlproxy.observability.shared_memory import SharedMemory

SAMPLE_S: Final = 1.0  # seconds between two moments of the history, at least
READ_S: Final = 0.1  # seconds between two reads of shared memory, at least
SHARE: Final = 100  # pause after a moment was added, in multiples of the time it took, at least

T = TypeVar("T")


class Reader:
    """The samples of all workers, read from `memory`; `clock` returns seconds since 1970."""

    def __init__(self, memory: SharedMemory, clock: Callable[[], float] = time.time) -> None:
        self._memory = memory
        self._clock = clock
        self._read_at = 0.0
        self._found: list[Published | None] = []
        self._recent = Recent()
        self._rates = PolicyRates()
        self._made: dict[Callable[[], Any], Any] = {}  # results derived from the last read

    def look(self) -> float:
        """Add the present counters to the history.

        Returns the seconds until the next call.
        """
        before = time.monotonic()
        self._read()
        if any(one.fresh() for one in self.seen()):  # otherwise rates are unknown, not 0
            self._recent.add(moment(self._read_at, self.samples()))
            self._rates.add(self._read_at, self.policies())
        self._made.pop(self._view, None)
        pause_s = max(SAMPLE_S, SHARE * (time.monotonic() - before))
        return min(pause_s, GAP_S / 2)  # a longer pause would be a gap in the history

    def seen(self) -> list[Seen]:
        """Return the present state of each worker."""
        self._read()
        return [
            Seen(worker, self._clock() - found.at, found.facts)
            if found is not None
            else Seen(worker)
            for worker, found in enumerate(self._found)
        ]

    def reloaded(self) -> Reloaded:
        """Return the outcome of the latest reload, as it is now."""
        return self._memory.latest(self._memory.parent) or Reloaded()

    def samples(self) -> Samples:
        """Return the sum of all workers' samples, without policies.

        Of a silent worker, only its counters remain.
        """
        return self._once(self._samples)

    def policies(self) -> HitsByPolicy:
        """Return the hits of policies in all workers."""
        return self._once(self._policies)

    def metrics(self) -> bytes:
        """Return the samples in Prometheus' text format."""
        return self._once(self._metrics)

    def view(self) -> dict[str, Any]:
        """Return the data of the live page."""
        return self._once(self._view)

    def _once(self, make: Callable[[], T]) -> T:
        """Return what `make` returns, which is called once for each read."""
        self._read()
        if make not in self._made:
            self._made[make] = make()
        made: T = self._made[make]
        return made

    def _samples(self) -> Samples:
        fresh = {one.worker for one in self.seen() if one.fresh()}
        samples = merged(
            found.samples if worker in fresh else kept(found.samples)
            for worker, found in enumerate(self._found)
            if found is not None
        )
        prefixes = prefix_samples(found.prefixes for found in self._found if found is not None)
        if prefixes:
            samples[PREFIX_HITS] = prefixes
        samples["rlproxy_workers"] = {(): float(len(fresh))}
        samples[SETTINGS_REJECTED] = {(): float(bool(self.reloaded().mistakes))}
        return samples

    def _policies(self) -> HitsByPolicy:
        return summed(hits_of(found.policies) for found in self._found if found is not None)

    def _metrics(self) -> bytes:
        return exposition({**self.samples(), **policy_samples(self.policies())})

    def _view(self) -> dict[str, Any]:
        seen = self.seen()
        pairs = zip(seen, self._found, strict=True)
        tops = [found.top for one, found in pairs if one.fresh() and found is not None]
        return view(
            self._read_at,
            seen,
            self.samples(),
            self._recent,
            merge(tops, KEYS, False),
            merge(tops, KEYS, True),
            self._rates.busiest(POLICIES),
            self.reloaded().mistakes,
        )

    def _read(self) -> None:
        now = self._clock()
        if abs(now - self._read_at) < READ_S:
            return
        self._read_at = now
        self._made.clear()
        self._found = [self._memory.latest(worker) for worker in range(self._memory.workers)]
