"""How many hits there were by the beginning of their key, for a bounded number of beginnings."""

from __future__ import annotations

from collections import Counter
from typing import Final

from .names import shown
from .stats import MAX_BULK, SHOWN, Keys

NONE: Final = "(none)"  # of keys without a colon
OTHER: Final = "(other)"  # of beginnings that came when there were enough
MAX_PREFIX: Final = 64  # bytes; a longer one is cut
MAX_KNOWN: Final = 4096  # beginnings as they come, behind the header of their bulk

HITS: Final = "hits"  # all of them
REFUSED: Final = "refused"


class Prefixes:
    """The first `most` beginnings, up to the first colon, each by itself."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[bytes, str] = {}
        self._known: dict[bytes, str] = {}
        self._hits: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def add(self, keys: Keys, refused: Keys) -> None:
        """Keys of hits, as bulks with their header, and those of them that were refused."""
        self._count(keys, self._hits)
        self._count(refused, self._refused)

    def samples(self) -> dict[tuple[str, ...], float]:
        """How many by prefix and outcome, for rlproxy_prefix_hits_total."""
        out: dict[tuple[str, ...], float] = {}
        for prefix, hits in self._hits.items():
            out[prefix, HITS] = hits
            out[prefix, REFUSED] = self._refused[prefix]
        return out

    def _count(self, keys: Keys, counts: Counter[str]) -> None:
        # (a key without a colon counts as empty, which no bulk is)
        if isinstance(keys, list):
            begins = Counter([key[:end] if (end := _end(key)) > 0 else b"" for key in keys])
        else:
            begins = Counter()
            for key, times in keys.items():
                begins[key[:end] if (end := _end(key)) > 0 else b""] += times
        for begin, number in begins.items():
            prefix = self._known.get(begin)
            if prefix is None:
                prefix = self._label(begin)
            counts[prefix] += number

    def _label(self, begin: bytes) -> str:
        """The label of a beginning that is not known, or not any more."""
        label = NONE
        if begin:
            prefix = begin[begin.index(b"\n") + 1 :][:MAX_PREFIX]
            found = self._labels.get(prefix)
            if found is None:
                if len(self._labels) >= self._most:
                    return OTHER
                found = self._labels[prefix] = shown(prefix)
            label = found
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[begin] = label
        return label


def _end(key: bytes) -> int:
    """Where its beginning ends. Of a long key there may be no more than what `brief` leaves of it,
    depending on the way of its hit: so a colon behind that is none.
    """
    if len(key) <= MAX_BULK:
        return key.find(b":")
    return key.find(b":", 0, key.index(b"\n") + 1 + SHOWN)
