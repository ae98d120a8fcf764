"""The reader of shared memory for HTTP requests: ten reads a second, one for the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rlproxy.admin.history import GAP_S, Recent, moment
from rlproxy.admin.page_data import KEYS, view
from rlproxy.admin.probes import Seen
from rlproxy.observability.exposition import exposition
from rlproxy.observability.hot_keys import merge
from rlproxy.observability.key_prefixes import samples as prefix_samples
from rlproxy.observability.metrics import PREFIX_HITS, SETTINGS_REJECTED, Samples, merged
from rlproxy.observability.policy_counters import HitsByPolicy, hits_of, summed
from rlproxy.observability.policy_counters import samples as policy_samples
from rlproxy.observability.published import Published, Reloaded
from rlproxy.observability.shared_memory import SharedMemory

SAMPLE_S: Final = 1.0  # seconds between two moments of the history, at least
READ_S: Final = 0.1  # seconds between two reads of shared memory, at least
SHARE: Final = 100  # pause after a moment was added, in multiples of the time it took, at least

T = TypeVar("T")


def _once(make: Callable[[Reader], T]) -> Callable[[Reader], T]:
    """Make a method that calls `make` once for each read."""

    def made(reader: Reader) -> T:
        reader._read()
        if make.__name__ not in reader._made:
            reader._made[make.__name__] = make(reader)
        found: T = reader._made[make.__name__]
        return found

    return made


class Reader:
    """The samples of all workers, read from `memory`; `clock` returns seconds since 1970."""

    def __init__(self, memory: SharedMemory, clock: Callable[[], float] = time.time) -> None:
        self._memory = memory
        self._clock = clock
        self._read_at = 0.0
        self._found: list[Published | None] = []
        self._recent = Recent()
        self._made: dict[str, Any] = {}  # results derived from the last read, by method

    def look(self) -> float:
        """Add the present counters to the history.

        Returns the seconds until the next call.
        """
        before = time.monotonic()
        self._read()
        if any(one.fresh() for one in self.seen()):  # otherwise rates are unknown, not 0
            self._recent.add(moment(self._read_at, self.samples()), self.policies())
        self._made.pop("view", None)
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

    @_once
    def samples(self) -> Samples:
        """Return the sum of all workers' samples, without policies.

        Of a silent worker, only its counters remain.
        """
        found = [each for each in self._found if each is not None]
        samples = merged(each.samples for each in found)
        prefixes = prefix_samples(each.prefixes for each in found)
        if prefixes:
            samples[PREFIX_HITS] = prefixes
        samples["rlproxy_workers"] = {(): float(sum(one.fresh() for one in self.seen()))}
        samples[SETTINGS_REJECTED] = {(): float(bool(self.reloaded().mistakes))}
        return samples

    @_once
    def policies(self) -> HitsByPolicy:
        """Return the hits of policies in all workers."""
        return summed(hits_of(found.policies) for found in self._found if found is not None)

    @_once
    def metrics(self) -> bytes:
        """Return the samples in Prometheus' text format."""
        return exposition({**self.samples(), **policy_samples(self.policies())})

    @_once
    def view(self) -> dict[str, Any]:
        """Return the data of the live page."""
        tops = [found.top for found in self._found if found is not None]
        return view(
            self._read_at,
            self.seen(),
            self.samples(),
            self._recent,
            merge(tops, KEYS, False),
            merge(tops, KEYS, True),
            self.reloaded().mistakes,
        )

    def _read(self) -> None:
        now = self._clock()
        if abs(now - self._read_at) < READ_S:
            return
        self._read_at = now
        self._made.clear()
        published = map(self._memory.latest, range(self._memory.workers))
        self._found = [each.seen_at(now) if each is not None else None for each in published]
