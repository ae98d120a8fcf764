"""Hits counted by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rlproxy.observability.counters import MAX_BULK, SHOWN, Keys
from rlproxy.observability.metrics import Labels
from rlproxy.resp.escape import shown

NONE: Final = b"(none)"  # in place of a prefix: keys without a colon
OTHER: Final = b"(other)"  # in place of a prefix: prefixes beyond the bound
MAX_PREFIX: Final = 64  # bytes after which a prefix is cut
MAX_KNOWN: Final = 4096  # bound of the cache of prefixes by prefix with bulk header

HITS: Final = "hits"  # outcome label of all hits
REFUSED: Final = "refused"  # outcome label of refused hits

PrefixHits = tuple[dict[bytes, int], dict[bytes, int]]  # hits, and the refused ones, by prefix


class Prefixes:
    """The counters of hits and refusals by prefix: the beginning of a key up to the first colon.

    most: number of prefixes that are counted apart; the first ones are taken.
    before: the counts of the process that this one replaces.
    """

    def __init__(self, most: int, before: PrefixHits = ({}, {})) -> None:
        self._hits, self._refused = (Counter(counts) for counts in before)
        self._known: dict[bytes, bytes] = {}  # prefixes by prefix with the header of its bulk
        self._room = most - len(self._hits.keys() - {NONE, OTHER})  # further prefixes

    def add(self, keys: Keys, refused: Keys) -> None:
        """Count hits by the prefix of their keys.

        keys: keys of all hits, as bulk strings with their header.
        refused: keys of the refused hits among them.
        """
        self._count(keys, self._hits)
        self._count(refused, self._refused)

    def counts(self) -> PrefixHits:
        """Return the hits so far; must not be changed."""
        return self._hits, self._refused

    def _count(self, keys: Keys, counts: Counter[bytes]) -> None:
        # A key without a colon counts under b"", which is never the beginning of a bulk string.
        if isinstance(keys, list):
            begins = Counter([key[:end] if (end := _end(key)) > 0 else b"" for key in keys])
        else:
            begins = Counter()
            for key, times in keys.items():
                begins[key[:end] if (end := _end(key)) > 0 else b""] += times
        for begin, number in begins.items():
            prefix = self._known.get(begin)
            counts[self._prefix(begin) if prefix is None else prefix] += number

    def _prefix(self, begin: bytes) -> bytes:
        """Return what counts keys with a beginning that is not in the cache."""
        found = begin[begin.index(b"\n") + 1 :][:MAX_PREFIX] if begin else NONE
        if found not in self._hits and found not in (NONE, OTHER):
            if self._room <= 0:
                return OTHER
            self._room -= 1
            self._hits[found] = 0
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[begin] = found
        return found


def samples(several: Iterable[PrefixHits]) -> dict[Labels, float]:
    """Return the samples of rlproxy_prefix_hits_total of all processes.

    Their labels are (prefix, outcome).
    """
    found: dict[Labels, float] = {}
    for hits, refused in several:
        for prefix, number in hits.items():
            label = shown(prefix)
            for outcome, count in ((HITS, number), (REFUSED, refused.get(prefix, 0))):
                found[label, outcome] = found.get((label, outcome), 0) + count
    return found


def _end(key: bytes) -> int:
    """Return the offset of the colon that ends the beginning of `key`, -1 if there is none.

    For a key longer than MAX_KEY, only the first SHOWN bytes count. Some of these keys come cut by
    brief(), others come whole, and both must give the same prefix.
    """
    if len(key) <= MAX_BULK:
        return key.find(b":")
    return key.find(b":", 0, key.index(b"\n") + 1 + SHOWN)
