"""Hits counted by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rlproxy.observability.counters import MAX_BULK, SHOWN, HitsByKey
from rlproxy.observability.metrics import Labels
from rlproxy.resp.escape import shown

NONE: Final = b"(none)"  # in place of a prefix: keys without a colon
OTHER: Final = b"(other)"  # in place of a prefix: prefixes beyond the bound
MAX_PREFIX: Final = 64  # bytes after which a prefix is cut

HITS: Final = "hits"  # outcome label of all hits
REFUSED: Final = "refused"  # outcome label of refused hits

PrefixHits = dict[bytes, list[int]]  # all hits and the refused ones, by prefix


class Prefixes:
    """The counters of hits and refusals by prefix: the beginning of a key up to the first colon.

    most: number of prefixes that are counted apart; the first ones are taken.
    before: the counts of the process that this one replaces.
    counts: those so far.
    """

    def __init__(self, most: int, before: PrefixHits) -> None:
        self.counts: PrefixHits = {prefix: list(counts) for prefix, counts in before.items()}
        self._room = most - len(before.keys() - {NONE, OTHER})  # further prefixes

    def add(self, hits: HitsByKey, refused: HitsByKey) -> None:
        """Count hits by the prefix of their keys; `refused` are the refused ones among them."""
        for at, of_kind in enumerate((hits, refused)):
            begins: dict[bytes, int] = {}  # by the beginning of a bulk string, colon included
            for key, number in of_kind.items():
                # Some long keys come cut by brief(), others whole: what all begin with counts.
                end = len(key) if len(key) <= MAX_BULK else key.index(b"\n") + 1 + SHOWN
                begin = key[: key.find(b":", 0, end) + 1]
                begins[begin] = begins.get(begin, 0) + number
            for begin, number in begins.items():
                self.counts.setdefault(self._prefix(begin), [0, 0])[at] += number

    def _prefix(self, begin: bytes) -> bytes:
        """Return what counts keys with a beginning, b"" without a colon."""
        prefix = begin[begin.index(b"\n") + 1 : -1][:MAX_PREFIX] if begin else NONE
        if prefix not in self.counts and prefix not in (NONE, OTHER):
            if self._room <= 0:
                return OTHER
            self._room -= 1
        return prefix


def samples(several: Iterable[PrefixHits]) -> dict[Labels, float]:
    """Return the samples of rlproxy_prefix_hits_total of all processes.

    Their labels are (prefix, outcome).
    """
    found: dict[Labels, float] = {}
    for counts in several:
        for prefix, both in counts.items():
            label = shown(prefix)
            for outcome, count in zip((HITS, REFUSED), both, strict=True):
                found[label, outcome] = found.get((label, outcome), 0) + count
    return found
