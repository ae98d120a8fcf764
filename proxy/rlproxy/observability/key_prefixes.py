"""Hits counted by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Final

from rlproxy.observability.counters import MAX_BULK, SHOWN, Keys
from rlproxy.resp.escape import shown

NONE: Final = "(none)"  # label of keys without a colon
OTHER: Final = "(other)"  # label of prefixes beyond the bound
MAX_PREFIX: Final = 64  # bytes after which a prefix is cut
MAX_KNOWN: Final = 4096  # bound of the cache of rows by prefix with bulk header

HITS: Final = "hits"  # outcome label of all hits
REFUSED: Final = "refused"  # outcome label of refused hits


class Prefixes:
    """The counters of hits and refusals by prefix: the beginning of a key up to the first colon.

    most: number of prefixes that are counted apart; the first ones are taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[str, int] = {}  # index in the next two lists, by label
        self._hits: list[int] = []
        self._refused: list[int] = []
        self._taken: int = 0  # labels that count toward `most`
        self._labels: dict[bytes, int] = {}  # rows by prefix
        self._by_text = False  # some labels are not in `_labels`: look them up in `_rows`
        self._known: dict[bytes, int] = {}  # rows by prefix with the header of its bulk (a cache)
        self._names: bytes = b""  # labels in the form of text()
        self._named: int = -1  # number of labels in `_names`

    def go_on(self, before: bytes) -> None:
        """Continue the counts of the process that this one replaces.

        before: last result of its text().
        """
        self._by_text = before != b""
        for (label, kind), number in samples(before).items():
            row = self._row(label)
            counts = self._hits if kind == HITS else self._refused
            counts[row] += int(number)

    def add(self, keys: Keys, refused: Keys) -> None:
        """Count hits by the prefix of their keys.

        keys: keys of all hits, as bulk strings with their header.
        refused: keys of the refused hits among them.
        """
        self._count(keys, self._hits)
        self._count(refused, self._refused)

    def text(self) -> bytes:
        """Encode the counts for another process; see samples(). Empty if there are none.

        With 10,000 prefixes this takes a tenth of the time that samples would take.
        """
        if not self._rows:
            return b""
        if self._named != len(self._rows):
            self._named = len(self._rows)
            self._names = _plain(list(self._rows))
        return b"[%b,%b,%b]" % (self._names, _plain(self._hits), _plain(self._refused))

    def _count(self, keys: Keys, counts: list[int]) -> None:
        # A key without a colon counts under b"", which is never the beginning of a bulk string.
        if isinstance(keys, list):
            begins = Counter([key[:end] if (end := _end(key)) > 0 else b"" for key in keys])
        else:
            begins = Counter()
            for key, times in keys.items():
                begins[key[:end] if (end := _end(key)) > 0 else b""] += times
        for begin, number in begins.items():
            row = self._known.get(begin)
            if row is None:
                row = self._find(begin)
            counts[row] += number

    def _find(self, begin: bytes) -> int:
        """Return the row of a beginning that is not in the cache."""
        if begin:
            prefix = begin[begin.index(b"\n") + 1 :][:MAX_PREFIX]
            found = self._labels.get(prefix)
            full = self._taken >= self._most
            if found is None and full and not self._by_text:
                return self._row(OTHER)
            if found is None:
                label = shown(prefix)
                if full and label not in self._rows:
                    return self._row(OTHER)
                found = self._row(label)
                if len(self._labels) < self._most:
                    self._labels[prefix] = found
                else:
                    self._by_text = True
            row = found
        else:
            row = self._row(NONE)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[begin] = row
        return row

    def _row(self, label: str) -> int:
        row = self._rows.get(label)
        if row is None:
            row = self._rows[label] = len(self._rows)
            self._hits.append(0)
            self._refused.append(0)
            if label not in (NONE, OTHER):
                self._taken += 1
        return row


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Decode the result of Prefixes.text(), for the metric rlproxy_prefix_hits_total.

    Returns hits by (prefix, outcome).
    """
    out: dict[tuple[str, ...], float] = {}
    if text:
        for prefix, hits, refused in zip(*json.loads(text), strict=True):
            out[prefix, HITS] = hits
            out[prefix, REFUSED] = refused
    return out


def _plain(found: list[str] | list[int]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _end(key: bytes) -> int:
    """Return the offset of the colon that ends the beginning of `key`, -1 if there is none.

    For a key longer than MAX_KEY, only the first SHOWN bytes count. Some of these keys come cut by
    brief(), others come whole, and both must give the same prefix.
    """
    if len(key) <= MAX_BULK:
        return key.find(b":")
    return key.find(b":", 0, key.index(b"\n") + 1 + SHOWN)
