"""Hits counted by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

from typing import Final

from rlproxy.observability.counters import MAX_BULK, SHOWN, HitsByKey
from rlproxy.observability.metrics import Labels
from rlproxy.resp.escape import shown, unescaped

NONE: Final = "(none)"  # in place of a prefix: keys without a colon
OTHER: Final = "(other)"  # in place of a prefix: prefixes beyond the bound
MAX_PREFIX: Final = 64  # bytes after which a prefix is cut

HITS: Final = "hits"  # outcome label of all hits
REFUSED: Final = "refused"  # outcome label of refused hits


class Prefixes:
    """The counters of hits and refusals by prefix: the beginning of a key up to the first colon.

    most: number of prefixes that are counted apart; the first ones are taken.
    before: the samples of the process that this one replaces.
    samples: those of rlproxy_prefix_hits_total so far.
    """

    def __init__(self, most: int, before: dict[Labels, float]) -> None:
        self.samples = dict(before)
        # By prefix: escape.shown() takes up to 10 us, and a prefix comes with each batch of keys.
        self._labels = {label.encode(): label for label in (NONE, OTHER)}
        self._most = most + len(self._labels)
        self._labels.update((unescaped(label), label) for label, _ in before)

    def add(self, hits: HitsByKey, refused: HitsByKey) -> None:
        """Count hits by the prefix of their keys; `refused` are the refused ones among them."""
        for outcome, of_kind in ((HITS, hits), (REFUSED, refused)):
            begins: dict[bytes, int] = {}  # by the beginning of a bulk string, colon included
            for key, number in of_kind.items():
                # Some long keys come cut by brief(), others whole: what all begin with counts.
                end = len(key) if len(key) <= MAX_BULK else key.index(b"\n") + 1 + SHOWN
                begin = key[: key.find(b":", 0, end) + 1]
                begins[begin] = begins.get(begin, 0) + number
            for begin, number in begins.items():
                self.samples[self._label(begin), outcome] += number

    def _label(self, begin: bytes) -> str:
        """Return the label of keys with a beginning, b"" without a colon; it has samples then."""
        prefix = begin[begin.index(b"\n") + 1 : -1][:MAX_PREFIX] if begin else NONE.encode()
        label = self._labels.get(prefix)
        if label is None:
            if len(self._labels) >= self._most:
                label = OTHER
            else:
                label = self._labels[prefix] = shown(prefix)
        if (label, HITS) not in self.samples:
            for outcome in (HITS, REFUSED):
                self.samples[label, outcome] = 0
        return label
