"""Hits counted by the beginning of their key, for a bounded number of prefixes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Final

from rlproxy.observability.counters import MAX_BULK, SHOWN, Keys
from rlproxy.resp.escape import shown

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
        self._rows: dict[str, int] = {}  # of each label, in the two below
        self._hits: list[int] = []
        self._refused: list[int] = []
        self._taken: int = 0  # of `most`
        self._labels: dict[bytes, int] = {}  # rows by beginning
        self._by_text = False  # some must be looked for by their label
        self._known: dict[bytes, int] = {}
        self._names: bytes = b""  # the labels as text() has them, and how many there were
        self._named: int = -1

    def go_on(self, before: bytes) -> None:
        """Count on from what text() was in the process that this one succeeds."""
        self._by_text = before != b""
        for (label, kind), number in samples(before).items():
            row = self._row(label)
            counts = self._hits if kind == HITS else self._refused
            counts[row] += int(number)

    def add(self, keys: Keys, refused: Keys) -> None:
        """Keys of hits, as bulks with their header, and those of them that were refused."""
        self._count(keys, self._hits)
        self._count(refused, self._refused)

    def text(self) -> bytes:
        """How many by prefix, for another process: see samples(). Empty if there were none. (With
        10,000 prefixes it is written ten times as fast as that as samples would be.)
        """
        if not self._rows:
            return b""
        if self._named != len(self._rows):
            self._named = len(self._rows)
            self._names = _plain(list(self._rows))
        return b"[%b,%b,%b]" % (self._names, _plain(self._hits), _plain(self._refused))

    def _count(self, keys: Keys, counts: list[int]) -> None:
        # (a key without a colon counts as empty, which no bulk is)
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
        """The row of a beginning that is not known, or not any more."""
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
    """What Prefixes.text() says, by prefix and outcome, for rlproxy_prefix_hits_total."""
    out: dict[tuple[str, ...], float] = {}
    if text:
        for prefix, hits, refused in zip(*json.loads(text), strict=True):
            out[prefix, HITS] = hits
            out[prefix, REFUSED] = refused
    return out


def _plain(found: list[str] | list[int]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _end(key: bytes) -> int:
    """Where its beginning ends. Of a long key there may be no more than what `brief` leaves of it,
    depending on the way of its hit: so a colon behind that is none.
    """
    if len(key) <= MAX_BULK:
        return key.find(b":")
    return key.find(b":", 0, key.index(b"\n") + 1 + SHOWN)
