"""The rows of policies in Counters.hits: which policy counts where. No I/O, no clock.

    use() ──> in force ──removed by a reload──> retired ──at the next reload──> free ──> in force

A hit that is under way keeps the row of its policy. So a row is given to another policy only at the
second reload after its own policy was removed. The hits of a removed policy are added to those of
its algorithm, whose sums never decrease.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlproxy.observability.counters import Counters
from rlproxy.observability.metrics import Labels, Value
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Policy
from rlproxy.ratelimit.outcomes import (
    OUTCOMES,
    PAIR,
    REFUSED,
    REFUSED_LOCALLY,
    WIDTH,
    by_outcome,
    row_of,
)


class PolicyCounters:
    """The rows of one process' policies."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._rows: dict[tuple[bytes, bytes], int] = {}  # by name and algorithm
        self._retired: dict[int, bytes] = {}  # algorithm by row
        self._free: list[int] = []

    def use(self, policies: Iterable[Policy]) -> None:
        """Set the row of each policy. One with the same name and algorithm as before keeps it."""
        self._counters.gather()  # the denial cache counts in rows that are retired now
        for row, algorithm in self._retired.items():
            self._move(row, row_of(algorithm))  # hits that were under way
        self._free += self._retired
        before, self._rows, self._retired = self._rows, {}, {}
        for policy in policies:
            key = (policy.name, policy.limiter.algorithm.name)
            row = before.pop(key, -1)
            policy.row = self._rows[key] = row if row >= 0 else self._new()
        for (_, algorithm), row in before.items():
            self._move(row, row_of(algorithm))
            self._retired[row] = algorithm

    def hits(self) -> dict[Labels, Value]:
        """Return the hits by (policy, outcome), without zeros."""
        counts = self._counters.hits
        return {
            (name.decode(), outcome): number
            for (name, _), row in self._rows.items()
            if any(counts[row : row + PAIR])
            for outcome, number in zip(OUTCOMES, by_outcome(counts, row), strict=True)
            if number
        }

    def shadow_refused(self) -> dict[str, int]:
        """Return the hits that policies in shadow would have refused, without zeros."""
        counts = self._counters.hits
        return {
            name.decode(): number
            for (name, _), row in self._rows.items()
            if (number := counts[row + WIDTH + REFUSED] + counts[row + WIDTH + REFUSED_LOCALLY])
        }

    def by_algorithm(self) -> dict[bytes, tuple[list[int], int]]:
        """Return the hits of each algorithm in the order of OUTCOMES, and how many were near.

        Hits of policies are among them.
        """
        counters = self._counters
        hits = dict.fromkeys(ALGORITHMS, [0] * PAIR)
        near = dict.fromkeys(ALGORITHMS, 0)
        for row, algorithm in self._all_rows():
            found = counters.hits[row : row + PAIR]
            if any(found):
                sums = hits[algorithm]
                hits[algorithm] = [one + more for one, more in zip(sums, found, strict=True)]
                near[algorithm] += sum(counters.near[row // WIDTH : (row + PAIR) // WIDTH])
        return {name: (by_outcome(hits[name], 0), near[name]) for name in ALGORITHMS}

    def _all_rows(self) -> list[tuple[int, bytes]]:
        rows = [(row_of(name), name) for name in ALGORITHMS]
        rows += [(row, algorithm) for (_, algorithm), row in self._rows.items()]
        return rows + list(self._retired.items())

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        counters = self._counters
        row = len(counters.hits)
        counters.hits += [0] * PAIR
        counters.near += [0] * (PAIR // WIDTH)
        return row

    def _move(self, row: int, to: int) -> None:
        """Add the counts of one pair to those of another, and clear it."""
        counters = self._counters
        for counts, width in ((counters.hits, PAIR), (counters.near, PAIR // WIDTH)):
            start, into = row * width // PAIR, to * width // PAIR
            for at in range(width):
                counts[into + at] += counts[start + at]
                counts[start + at] = 0
