"""The hot keys of the last minute (heavy hitters), in bounded memory. The clock is passed in.

Misra-Gries in batches (Agarwal et al., "Mergeable summaries", 2012): keys are counted at C speed.
When there are too many, the least busy ones are removed, and the largest of their counts is
subtracted from those of the others. There is one summary for each ten seconds. Summaries are added
up to a minute, and over several workers.

    keys ──> live slot ──every 10 s──> closed slots ──┐
                 └────────────────────────────────────┴──their sum──> state()

A key is reported with a count and an error: it was hit at least `count` times and at most
`count + error` times. The counts begin with the slot that began 50 to 60 s ago. While no slot sees
more keys than it keeps, every error of a single worker is 0. A refused key is reported with the
rule of a recent refusal, too.

At high rates, counting every key would take a tenth of the proxy's time. Then one hit in `stride`
is counted and stands for `stride` hits (sampling, as in NetFlow). The reported numbers are bounds
here too, SIGMAS standard deviations to both sides of the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

from rlproxy.observability.counters import MAX_BULK, HitsByKey, brief, key_of
from rlproxy.ratelimit.grammar import MAX_TOP, Rule

SLOT_S: Final = 10.0  # length of a slot, seconds
SLOTS: Final = 6  # slots of a minute, the live one included
ROOM: Final = 6144  # keys in a live slot before it is pruned
KEPT: Final = 1024  # keys in a pruned or closed slot
EXACT: Final = 5_000  # hits per second of one process up to which every key is counted
MAX_STRIDE: Final = 64  # largest number of hits per counted key
SIGMAS: Final = 4  # half width of a sample's bounds, standard deviations; fails once in thousands

# A reported key: its name, count, error, and Rule.label() of a recent refusal. The last is empty
# if unknown, and for hits.
HotKey = tuple[bytes, int, int, bytes]

_NONE: Final[Mapping[bytes, Rule]] = {}
_by_count: Final = itemgetter(1)


def stride_for(hits_a_second: float) -> int:
    """Return the number of hits per counted key at this rate, 1 to MAX_STRIDE."""
    return min(max(1, math.ceil(hits_a_second / EXACT)), MAX_STRIDE)


@dataclass
class Summary:
    """Bounds of the number of hits of every key.

    counts: hits of a key, at least.
    error: further hits of each key, at most.
    absent: further hits of each key that is not in `counts`, at most.
    stride: largest number of hits that a counted key stands for; beyond 1 these are estimates.
    rules: Rule.label() of a recent refusal of a key; unknown if missing.
    """

    counts: dict[bytes, int] = field(default_factory=dict)  # a Counter is slower to write
    error: int = 0
    absent: int = 0
    stride: int = 1
    rules: dict[bytes, bytes] = field(default_factory=dict)

    def count(self, hits: HitsByKey, stride: int = 1) -> None:
        """Count hits by key; each stands for about `stride` hits."""
        counts = self.counts
        self.stride = max(self.stride, stride)
        for key, number in hits.items():
            name = key if len(key) <= MAX_BULK else brief(key)
            counts[name] = counts.get(name, 0) + number * stride

    def add(self, other: Summary) -> None:
        """Add the hits of another slot."""
        counts = self.counts
        for key, number in other.counts.items():
            counts[key] = counts.get(key, 0) + number
        self.error += other.error
        self.stride = max(self.stride, other.stride)

    def prune(self, most: int) -> None:
        """Keep the `most` busiest keys, less the count of the next one.

        More than `most` keys lose that count. So `error` is at most 1 / `most` of all hits, and a
        key with more hits than `error` is kept, whatever the other keys are.
        """
        if len(self.counts) > most:
            busiest, lost = self._busiest(most)
            self.counts = {key: count - lost for key, count in busiest}
            self.error += lost

    def top(self, most: int) -> Summary:
        """Return a summary of the `most` busiest keys; may be this one."""
        if len(self.counts) <= most:
            return self
        busiest, lost = self._busiest(most)
        return Summary(dict(busiest), self.error, lost, self.stride)

    def _busiest(self, most: int) -> tuple[list[tuple[bytes, int]], int]:
        """Return the `most` busiest keys with their counts, and the count of the next one."""
        ranked = sorted(self.counts.items(), key=_by_count, reverse=True)
        return ranked[:most], ranked[most][1]


class Top(NamedTuple):
    """The hot keys of one worker, of the last `seconds`."""

    hits: Summary
    refused: Summary
    seconds: float


NO_TOP: Final = Top(Summary(), Summary(), 0.0)


class HotKeys:
    """The busiest keys of one process, and the keys that were refused most.

    clock: returns seconds; the same clock in all processes of the machine.
    published: largest number of keys in a published summary.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        room: int = ROOM,
        kept: int = KEPT,
        published: int = MAX_TOP,
    ) -> None:
        self._clock = clock
        self._room = room
        self._kept = kept
        self._published = published
        self._began = clock()
        # Hits and refusals of the last minute, by the number of their slot: time / SLOT_S.
        self._slots: dict[int, tuple[Summary, Summary]] = {}
        self._rules: dict[bytes, bytes] = {}  # see Summary.rules

    def add(
        self,
        hits: HitsByKey,
        refused: HitsByKey,
        stride: int = 1,
        rules: Mapping[bytes, Rule] = _NONE,
    ) -> None:
        """Count hits by key. Batches of about 1,000 hits cost least.

        refused: the refused ones among them.
        stride: number of hits that each of these stands for.
        rules: rules that have refused keys of `refused`.
        """
        number = int(self._clock() // SLOT_S)
        if number not in self._slots:
            for closed in self._slots.values():
                for summary in closed:
                    summary.prune(self._kept)
            self._slots = {at: slot for at, slot in self._slots.items() if at > number - SLOTS}
            self._slots[number] = (Summary(), Summary())
        for summary, found in zip(self._slots[number], (hits, refused), strict=True):
            if found:
                summary.count(found, stride)
                if len(summary.counts) > self._room:
                    summary.prune(self._kept)
        if rules:
            self._rules.update({brief(key): rule.label() for key, rule in rules.items()})
            if len(self._rules) > 2 * self._room:
                top = self._summary(1).counts
                self._rules = {key: label for key, label in self._rules.items() if key in top}

    def state(self) -> Top:
        """Return the current state."""
        now = self._clock()
        hits, refused = self._summary(0), self._summary(1)
        refused.rules = {key: self._rules[key] for key in refused.counts if key in self._rules}
        seconds = now - max(self._began, (now // SLOT_S - SLOTS + 1) * SLOT_S)
        return Top(hits, refused, round(seconds, 3))

    def _summary(self, kind: int) -> Summary:
        """Return the busiest keys of the last minute: of all hits (0), or of the refused (1)."""
        oldest = int(self._clock() // SLOT_S) - SLOTS + 1
        out = Summary()
        for at, slot in self._slots.items():
            if at >= oldest:
                out.add(slot[kind])
        return out.top(self._published)


def merge(several: Iterable[Top], n: int, refused: bool) -> list[HotKey]:
    """Return the `n` keys with most hits (refusals) of the last 50 to 60 s, busiest first.

    several: HotKeys.state() of each worker.
    """
    found = [each.refused if refused else each.hits for each in several]
    total = Summary()
    for each in found:
        total.add(each)
        total.rules.update(each.rules)
    rows = []
    for key, count in nlargest(n, total.counts.items(), key=_by_count):
        absent = sum(each.absent for each in found if key not in each.counts)
        least, most = _bounds(count, count + total.error + absent, total.stride)
        rows.append((key_of(key), least, most - least, total.rules.get(key, b"")))
    return rows


def _bounds(least: int, most: int, stride: int) -> tuple[int, int]:
    """Return the bounds of the hits of a counted key, from the bounds of its estimate.

    One hit in n is sampled at random. With c hits of a key in the sample, the estimate is n c
    hits. The upper bound is n (c + 8 + 4 sqrt(c + 4)): for more hits, a sample of c or fewer
    has a probability of at most exp(-8) (Chernoff's bound on a Poisson variable).
    """
    if stride > 1:
        few, many = (
            math.isqrt(SIGMAS**2 * stride * (number + SIGMAS**2 // 4 * stride))
            for number in (least, most)
        )
        least, most = least - few, most + SIGMAS**2 // 2 * stride + many
    return max(1, least), most
