"""The hot keys of the last minute (heavy hitters), in bounded memory. The clock is passed in.

Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in
data streams", 2005), in batches: keys are counted at C speed, and when there are too many, the
keys with the least counts are removed together. The mergeable summaries of Agarwal et al.
("Mergeable summaries", 2012) work in this way. There is one summary for each ten seconds. Summaries
are added up to a minute, and over several workers.

    keys ──> live slot ──every 10 s──> closed slots ──┐
                 └────────────────────────────────────┴──their sum──> published()

A key is reported with a count and an error: it was hit at least `count` times and at most
`count + error` times. The counts begin with the slot that began 50 to 60 s ago. A key that is not
in the summary was hit at most `Summary.absent` times. While no slot sees more keys than a closed
slot keeps, every error is 0. A refused key is reported with the rule of a recent refusal, too.

At high rates, counting every key would take a tenth of the proxy's time. Then one hit in `stride`
is counted and stands for `stride` hits (sampling, as in NetFlow). The reported numbers are bounds
here too, SIGMAS standard deviations to both sides of the estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from rlproxy.observability.counters import MAX_BULK, Keys, brief, key_of
from rlproxy.ratelimit.grammar import Rule

SLOT_S: Final = 10.0  # length of a slot, seconds
SLOTS: Final = 6  # slots of a minute, the live one included
MOST: Final = 1000  # largest number of keys in a request or a published summary
CACHED_S: Final = 1.0  # age at which a published summary is replaced, seconds
EXACT: Final = 5_000  # hits per second of one process up to which every key is counted
MAX_STRIDE: Final = 64  # largest number of hits per counted key
SIGMAS: Final = 4  # half width of a sample's bounds, standard deviations; fails once in thousands

# A reported key: its name, count, error, and Rule.label() of a recent refusal. The last is empty
# if unknown, and for hits.
Row = tuple[bytes, int, int, bytes]

_NONE: Final[Mapping[bytes, Rule]] = {}
_by_count: Final = itemgetter(1)


@dataclass(frozen=True)
class Sizes:
    """The bounds of summaries, in keys.

    room: in a live slot before it is pruned; at least twice `kept`.
    kept: in a live slot after pruning, at most.
    filled: in a live slot after pruning, at least.
    closed: in a closed slot.
    published: in a published summary.
    """

    room: int = 6144
    kept: int = 2048
    filled: int = 1024
    closed: int = 1024
    published: int = MOST


SIZES: Final = Sizes()


def stride(hits_a_second: float) -> int:
    """Return the number of hits per counted key at this rate, 1 to MAX_STRIDE."""
    return min(max(1, math.ceil(hits_a_second / EXACT)), MAX_STRIDE)


@dataclass
class Summary:
    """Bounds of the number of hits of every key.

    counts: hits of a key, at least.
    credits: part of `absent` that does not apply to a key; 0 if missing. The key was hit at most
        `counts[key] + absent - credits[key]` times.
    absent: hits of any key that is not in `counts`, at most.
    variances: variance of `counts[key]` where it is the estimate of a sample; 0 if missing.
    rules: Rule.label() of a recent refusal of a key; unknown if missing.
    """

    counts: dict[bytes, int] = field(default_factory=dict)
    credits: dict[bytes, int] = field(default_factory=dict)
    absent: int = 0
    variances: dict[bytes, int] = field(default_factory=dict)
    rules: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, other: Summary) -> None:
        """Add the hits of `other`: of another slot or another worker."""
        for mine, theirs in (
            (self.counts, other.counts),
            (self.credits, other.credits),
            (self.variances, other.variances),
        ):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number
        self.absent += other.absent
        self.rules = self.rules | other.rules

    def cut(self, most: int) -> Summary:
        """Return a summary of the `most` busiest keys; may be this one."""
        if len(self.counts) <= most:
            return self
        lost = sorted(self.counts.values(), reverse=True)[most]
        top = {key: count for key, count in self.counts.items() if count > lost}
        equal = (key for key, count in self.counts.items() if count == lost)
        top.update(dict.fromkeys(islice(equal, most - len(top)), lost))
        credits_ = {key: self.credits.get(key, 0) + lost for key in top}
        variances = self.variances
        if variances:
            variances = {key: variances[key] for key in top if key in variances}
        return Summary(top, credits_, self.absent + lost, variances, self.rules)

    def busiest(self, number: int) -> list[tuple[bytes, int, int]]:
        """Return the `number` busiest keys as a list of (bulk, count, error), busiest first."""
        absent, credits_ = self.absent, self.credits
        rows = [
            (key, count, absent - credits_.get(key, 0))
            for key, count in nlargest(number, self.counts.items(), key=_by_count)
        ]
        if self.variances:
            rows = [self._bounds(*row) for row in rows]
            rows.sort(key=_by_count, reverse=True)
        return rows

    def _bounds(self, key: bytes, count: int, error: int) -> tuple[bytes, int, int]:
        wrong = math.isqrt(SIGMAS**2 * self.variances.get(key, 0))
        least = max(min(1, count), count - wrong)
        return key, least, count - least + error + wrong


class Slot:
    """The keys of ten seconds.

    `_counts` has two parts. For its first `_settled` keys it holds the largest possible number of
    hits. Later keys came after the latest pruning. For them it holds the counted hits, which is
    `_absent` less than the largest possible number.
    """

    __slots__ = ("_absent", "_counts", "_least", "_settled", "_since", "_sizes", "_stride")

    def __init__(self, sizes: Sizes = SIZES) -> None:
        self._sizes = sizes
        self._counts: Counter[bytes] = Counter()
        self._settled = 0
        self._absent = 0
        self._since: dict[bytes, int] = {}  # `_absent` at the time a settled key came, if not 0
        self._stride = 1  # largest stride of all keys
        self._least = MAX_STRIDE  # smallest stride of the keys since the latest pruning

    def add(self, keys: Keys, stride_: int = 1) -> None:
        """Count keys of hits; each key stands for about `stride_` hits."""
        counts = self._counts
        self._stride = max(self._stride, stride_)
        self._least = min(self._least, stride_)
        before = len(counts)
        if stride_ == 1:
            counts.update(keys)
        else:
            for key, number in Counter(keys).items():
                counts[key] = counts.get(key, 0) + number * stride_
        new = len(counts) - before
        if new and max(map(len, islice(reversed(counts), new))) > MAX_BULK:
            self._shorten(new)
        if len(counts) > self._sizes.room:
            self._prune()

    def summary(self) -> Summary:
        """Return the bounds of the hits so far; must not be changed."""
        out = self._exactly()
        if self._stride > 1:
            self._allow(out)
        return out

    def _allow(self, summary: Summary) -> None:
        """Widen the bounds of a sample, so that they hold for all hits.

        One hit in n is sampled at random. With c hits of a key in the sample, the estimate is n c
        hits. The upper bound is n (c + 8 + 4 sqrt(c + 4)): for more hits, a sample of c or fewer
        has a probability of at most exp(-8) (Chernoff's bound on a Poisson variable).
        """
        stride_, absent = self._stride, summary.absent
        more = SIGMAS**2 // 2 * stride_
        least = SIGMAS**2 // 4 * stride_ * stride_
        summary.absent = absent + more + math.isqrt(SIGMAS**2 * (stride_ * absent + least))
        for key, count in summary.counts.items():
            error = absent - summary.credits.get(key, 0)
            summary.credits[key] = summary.absent - error - more
            summary.variances[key] = stride_ * (count + error) + least

    def _exactly(self) -> Summary:
        if not self._absent:
            return Summary(self._counts)
        came = [self._since.get(key, 0) for key in islice(self._counts, self._settled)]
        entries = iter(self._counts.items())
        settled = islice(entries, self._settled)
        counts = {key: most - since for (key, most), since in zip(settled, came, strict=True)}
        credits_ = {key: self._absent - since for key, since in zip(counts, came, strict=True)}
        counts.update(entries)
        return Summary(counts, credits_, self._absent)

    def closed(self) -> Summary:
        """Return the summary to keep after the end of the slot."""
        return self.summary().cut(self._sizes.closed)

    def _prune(self) -> None:
        """Remove the keys that cannot have been hit more than `least` times.

        More than `kept` keys have reached `least`, so `absent` is at most 1 / `kept` of all hits
        (Agarwal et al., 2012: its growth is subtracted from every count).
        """
        settled, absent, sizes = self._settled, self._absent, self._sizes
        least = absent + self._least  # mostly sufficient, since most keys were seen once
        entries = iter(self._counts.items())
        old = {key: most for key, most in islice(entries, settled) if most > least}
        new = {key: count + absent for key, count in entries if count + absent > least}
        if len(old) + len(new) > sizes.kept:
            least = sorted([*old.values(), *new.values()], reverse=True)[sizes.kept]
            old = {key: most for key, most in old.items() if most > least}
            new = {key: most for key, most in new.items() if most > least}
        room = sizes.filled - len(old) - len(new)
        if room > 0:  # of many nearly equal keys, keep the earliest
            entries = iter(self._counts.items())
            few = [(key, most) for key, most in islice(entries, settled) if most <= least]
            old.update(few[:room])
            came = (key for key, count in entries if count + absent == least)
            new.update(dict.fromkeys(islice(came, max(room - len(few), 0)), least))
        if absent:
            self._since.update(dict.fromkeys(new, absent))
        old.update(new)
        if len(self._since) > 2 * sizes.kept:  # entries of removed keys are harmless until here
            self._since = {key: since for key, since in self._since.items() if key in old}
        self._counts = Counter(old)
        self._settled = len(old)
        self._absent = least
        self._least = MAX_STRIDE

    def _shorten(self, new: int) -> None:
        counts = self._counts
        for key in [key for key in islice(reversed(counts), new) if len(key) > MAX_BULK]:
            counts[brief(key)] += counts.pop(key)


class RecentKeys:
    """The keys of the last minute, in slots.

    number: number of the live slot: clock time / SLOT_S, rounded down. It never decreases.
    """

    def __init__(self, number: int, sizes: Sizes = SIZES) -> None:
        self._sizes = sizes
        self._number = number
        self._live = Slot(sizes)
        self._closed: dict[int, Summary] = {}

    def add(self, keys: Keys, number: int, stride_: int) -> None:
        """Count keys of hits in slot `number`, the newest; each key stands for `stride_` hits."""
        if number != self._number:
            self._turn(number)
        self._live.add(keys, stride_)

    def summary(self, number: int) -> Summary:
        """Return the sum of the minute that ends with slot `number`, the newest."""
        if number != self._number:
            self._turn(number)
        out = Summary()
        for each in (*self._closed.values(), self._live.summary()):
            out.add(each)
        return out

    def _turn(self, number: int) -> None:
        self._closed[self._number] = self._live.closed()
        self._number = number
        self._live = Slot(self._sizes)
        self._closed = {
            at: each for at, each in self._closed.items() if number - SLOTS < at < number
        }


class HotKeys:
    """The busiest keys of one process, and the keys that were refused most.

    clock: returns seconds; the same clock in all processes of the machine.
    """

    def __init__(self, clock: Callable[[], float], sizes: Sizes = SIZES) -> None:
        self._clock = clock
        self._sizes = sizes
        self._began = clock()
        self._hits = RecentKeys(self._number(), sizes)
        self._refused = RecentKeys(self._number(), sizes)
        self._rules: dict[bytes, bytes] = {}  # see Summary.rules
        self._published: dict[str, Any] = {}
        self._published_until = self._began

    def add(
        self, keys: Keys, refused: Keys, stride_: int = 1, rules: Mapping[bytes, Rule] = _NONE
    ) -> None:
        """Count keys of hits. Batches of about 1,000 keys cost least.

        keys: keys of all hits, as bulk strings with their header.
        refused: keys of the refused hits among them.
        stride_: number of hits that each key stands for.
        rules: rules that have refused keys of `refused`.
        """
        number = self._number()
        if keys:
            self._hits.add(keys, number, stride_)
        if refused:
            self._refused.add(refused, number, stride_)
        if rules:
            self._rules.update({brief(key): rule.label() for key, rule in rules.items()})
            if len(self._rules) > 2 * self._sizes.room:
                top = self._refused.summary(number).cut(self._sizes.published).counts
                self._rules = {key: label for key, label in self._rules.items() if key in top}

    def state(self) -> dict[str, Any]:
        """Return the current state, for merge() and covered()."""
        now, number = self._clock(), self._number()
        hits, refused = (
            keys.summary(number).cut(self._sizes.published) for keys in (self._hits, self._refused)
        )
        refused.rules = {key: self._rules[key] for key in refused.counts if key in self._rules}
        seconds = now - max(self._began, (now // SLOT_S - SLOTS + 1) * SLOT_S)
        return {"hits": hits, "refused": refused, "seconds": round(seconds, 3)}

    def published(self) -> dict[str, Any]:
        """Return a state at most one second old, for merge() and covered()."""
        now = self._clock()
        if now >= self._published_until:
            self._published_until = now + CACHED_S
            self._published = self.state()
        return self._published

    def _number(self) -> int:
        return int(self._clock() // SLOT_S)


def merge(several: Iterable[dict[str, Any]], n: int, refused: bool) -> list[Row]:
    """Return the `n` keys with most hits (refusals) of the last 50 to 60 s, busiest first.

    several: HotKeys.published() or state() of each worker; empty ones are left out.
    """
    total = Summary()
    for each in several:
        if each:  # a worker that has just started has published nothing
            total.add(each["refused" if refused else "hits"])
    return [
        (key_of(bulk), count, error, total.rules.get(bulk, b""))
        for bulk, count, error in total.busiest(n)
    ]


def covered(several: Iterable[dict[str, Any]]) -> float:
    """Return the seconds that the counts of merge() cover."""
    return max((each["seconds"] for each in several if each), default=0.0)
