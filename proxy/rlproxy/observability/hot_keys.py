"""The hot keys of the last minute (heavy hitters), in bounded memory. The clock is passed in.

Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in
data streams", 2005), in batches: keys are counted at C speed, and when there are too many the least
of them go together, as the mergeable summaries of Agarwal et al. ("Mergeable summaries", 2012) do
it. There is one summary for each ten seconds; they add up to a minute, and to several workers.

    keys ──> live slot ──every 10 s──> closed slots ──> their sum ─┐
                 └─────────────────────────────────────────────────┴─> busiest(), published()

What is told of a key is a count and an error: it was hit at least `count` times, and at most
`count + error`, since the begin of the slot that is 50 to 60 s old. A key that is not told of was
hit at most as often as the error of one that is new: the summary's `absent`. While no slot sees
more keys than are kept of a closed one, every error is 0.

Where hits are many, the keys of all of them would take a tenth of the proxy's time: then one in
`stride` is looked at and stands for so many (sampling, as NetFlow's), and what is told are bounds
again, SIGMAS standard deviations to both sides of the estimate.
"""

from __future__ import annotations

import math
from array import array
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from rlproxy.observability.counters import MAX_BULK, Keys, brief, key_of

SLOT_S: Final = 10.0
SLOTS: Final = 6  # the live one included
MOST: Final = 1000  # keys that can be asked for
CACHED_S: Final = 1.0  # what is published is so old at most
MERGED_S: Final = 0.25  # what clients are told is so much older at most
MAX_RENDERED: Final = 16  # different questions that are remembered with their answers
EXACT: Final = 5_000  # hits a second, of a process: all of so many are looked at
MAX_STRIDE: Final = 64
SIGMAS: Final = 4  # what is told of a sample is wrong once in thousands of times

_by_count: Final = itemgetter(1)


@dataclass(frozen=True)
class Sizes:
    """How many keys of each kind are kept: in a live slot until it is pruned (`room`, at least
    twice `kept`), what pruning leaves (`kept` at most, `filled` at least), in a closed one, and in
    what is published.
    """

    room: int = 6144
    kept: int = 2048
    filled: int = 1024
    closed: int = 1024
    published: int = MOST


SIZES: Final = Sizes()


def stride(hits_a_second: float) -> int:
    """How many hits one that is looked at stands for, at this rate."""
    return min(max(1, math.ceil(hits_a_second / EXACT)), MAX_STRIDE)


@dataclass
class Summary:
    """Of each key that it knows: it was there at least `counts[key]` times, and at most
    `absent - credits[key]` times more. Any other one was at most `absent` times. Of a sample the
    counts are estimates: `variances` says of which keys, and how good they are.
    """

    counts: dict[bytes, int] = field(default_factory=dict)
    credits: dict[bytes, int] = field(default_factory=dict)  # 0 where there is none
    absent: int = 0
    variances: dict[bytes, int] = field(default_factory=dict)  # likewise

    def copy(self) -> Summary:
        """One that can be added to."""
        variances = self.variances.copy()
        return Summary(self.counts.copy(), self.credits.copy(), self.absent, variances)

    def add(self, other: Summary) -> None:
        """What `other` has seen was seen, too."""
        for mine, theirs in (
            (self.counts, other.counts),
            (self.credits, other.credits),
            (self.variances, other.variances),
        ):
            for key, number in theirs.items():
                mine[key] = mine.get(key, 0) + number
        self.absent += other.absent

    def cut(self, most: int) -> Summary:
        """The `most` busiest keys of it."""
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
        return Summary(top, credits_, self.absent + lost, variances)

    def busiest(self, number: int) -> list[tuple[bytes, int, int]]:
        """So many keys as bulks, each with its count and error, most first."""
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

    def to_text(self) -> str:
        """For another process of this machine. Four times a second it is part of a JSON text: one
        string is a tenth of the work that lists are.
        """
        keys = list(self.counts)
        numbers = array("q", [self.absent, len(keys), *self.counts.values()])
        numbers.extend([self.credits.get(key, 0) for key in keys])
        numbers.extend([self.variances.get(key, 0) for key in keys])
        numbers.extend([len(key) for key in keys])
        return b64encode(numbers.tobytes() + b"".join(keys)).decode()

    @classmethod
    def from_text(cls, text: str) -> Summary:
        """What to_text() has made."""
        found = b64decode(text)
        size = array("q").itemsize
        absent, length = array("q", found[: 2 * size])
        end = (2 + 4 * length) * size
        numbers = array("q", found[2 * size : end])
        keys = []
        for key_length in numbers[3 * length :]:
            keys.append(found[end : end + key_length])
            end += key_length
        counts, credits_, variances = (
            dict(zip(keys, numbers[start : start + length], strict=True))
            for start in (0, length, 2 * length)
        )
        known = {key: variance for key, variance in variances.items() if variance}
        return cls(counts, credits_, absent, known)


class Slot:
    """The keys of ten seconds.

    The first `settled` keys of `_counts` have as many as they can have been hit at most; those
    behind them came since, and have as many as were counted: `absent` less.
    """

    __slots__ = ("_absent", "_counts", "_least", "_settled", "_since", "_sizes", "_stride")

    def __init__(self, sizes: Sizes = SIZES) -> None:
        self._sizes = sizes
        self._counts: Counter[bytes] = Counter()
        self._settled = 0
        self._absent = 0
        self._since: dict[bytes, int] = {}  # what `absent` was when a settled key came, if not 0
        self._stride = 1  # the largest
        self._least = MAX_STRIDE  # the smallest, of those that are not settled

    def add(self, keys: Keys, stride_: int = 1) -> None:
        """These were hit, each of them `stride_` times as far as one can tell."""
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
        """What is known so far."""
        out = self._exactly()
        if self._stride > 1:
            self._allow(out)
        return out

    def _allow(self, summary: Summary) -> None:
        """Make bounds hold that are those of a sample, of hits that come at random, one in n: with
        c of them in it, a key was hit n c times as far as one can tell, and n (c + 8 + 4 sqrt(c +
        4)) times at most, else so few in the sample were a chance of exp(-8) (Chernoff's bound on
        a Poisson variable).
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
        """What is kept of it when its time is over."""
        return self.summary().cut(self._sizes.closed)

    def _prune(self) -> None:
        """Let the least go: such as can't have been hit more than `least` times. More than `kept`
        have reached that, so `absent` is at most that part of all hits (Agarwal et al., 2012: what
        it grows by is subtracted from all of them).
        """
        settled, absent, sizes = self._settled, self._absent, self._sizes
        least = absent + self._least  # mostly that is enough, since most keys were seen once
        entries = iter(self._counts.items())
        old = {key: most for key, most in islice(entries, settled) if most > least}
        new = {key: count + absent for key, count in entries if count + absent > least}
        if len(old) + len(new) > sizes.kept:
            least = sorted([*old.values(), *new.values()], reverse=True)[sizes.kept]
            old = {key: most for key, most in old.items() if most > least}
            new = {key: most for key, most in new.items() if most > least}
        room = sizes.filled - len(old) - len(new)
        if room > 0:  # of many that are all but equal, those are counted on that came first
            entries = iter(self._counts.items())
            few = [(key, most) for key, most in islice(entries, settled) if most <= least]
            old.update(few[:room])
            came = (key for key, count in entries if count + absent == least)
            new.update(dict.fromkeys(islice(came, max(room - len(few), 0)), least))
        if absent:
            self._since.update(dict.fromkeys(new, absent))
        old.update(new)
        if len(self._since) > 2 * sizes.kept:  # (what is left of those who went does no harm)
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
    """The keys of the last minute. Slots go by number: that of a time is time / SLOT_S."""

    def __init__(self, number: int, sizes: Sizes = SIZES) -> None:
        self._sizes = sizes
        self._number = number
        self._live = Slot(sizes)
        self._closed: dict[int, Summary] = {}
        self._sum = Summary()  # of the closed ones

    def add(self, keys: Keys, number: int, stride_: int) -> None:
        """These were hit in this slot, which is the newest."""
        if number != self._number:
            self._turn(number)
        self._live.add(keys, stride_)

    def summary(self, number: int) -> Summary:
        """Of the minute that ends with this slot, which is the newest."""
        if number != self._number:
            self._turn(number)
        out = self._sum.copy()
        out.add(self._live.summary())
        return out

    def _turn(self, number: int) -> None:
        self._closed[self._number] = self._live.closed()
        self._number = number
        self._live = Slot(self._sizes)
        self._closed = {
            at: each for at, each in self._closed.items() if number - SLOTS < at < number
        }
        self._sum = Summary()
        for each in self._closed.values():
            self._sum.add(each)


class HotKeys:
    """The busiest keys of one process, and those that were refused most. `clock` is in seconds, and
    the same for all processes of the machine.
    """

    def __init__(self, clock: Callable[[], float], sizes: Sizes = SIZES) -> None:
        self._clock = clock
        self._sizes = sizes
        self._began = clock()
        self._hits = RecentKeys(self._number(), sizes)
        self._refused = RecentKeys(self._number(), sizes)
        self._windows = {"hits": self._hits, "refused": self._refused}
        self._published: dict[str, Any] = {}
        self._published_at = dict.fromkeys(self._windows, self._began)

    def add(self, keys: Keys, refused: Keys, stride_: int = 1) -> None:
        """Keys of hits, as bulks with their header, and those of them that were refused; each
        stands for `stride_` of them. About a thousand at a time cost least.
        """
        number = self._number()
        if keys:
            self._hits.add(keys, number, stride_)
        if refused:
            self._refused.add(refused, number, stride_)

    def busiest(self, n: int, refused: bool) -> list[tuple[bytes, int, int]]:
        """The `n` keys that were hit (refused) most in the last 50 to 60 s, most first: key, count,
        error. It was between `count` and `count + error` times.
        """
        window = self._refused if refused else self._hits
        return _told(window.summary(self._number()), n)

    def seconds(self) -> float:
        """How long the counts go back."""
        now = self._clock()
        return now - max(self._began, (now // SLOT_S - SLOTS + 1) * SLOT_S)

    def told(self) -> dict[str, Any]:
        """For merge(), as of now."""
        return {name: self._text(name) for name in self._windows} | {
            "seconds": round(self.seconds(), 3)
        }

    def published(self) -> dict[str, Any]:
        """For merge(), about a second old at most: hits and refusals are looked through in turn, so
        that a call takes a millisecond.
        """
        if not self._published:
            self._published = self.told()
        now = self._clock()
        for name, at in self._published_at.items():
            if now - at >= CACHED_S:
                self._published_at[name] = now
                self._published |= {name: self._text(name), "seconds": round(self.seconds(), 3)}
                break
        return self._published

    def _text(self, name: str) -> str:
        return self._windows[name].summary(self._number()).cut(self._sizes.published).to_text()

    def _number(self) -> int:
        return int(self._clock() // SLOT_S)


class Merged:
    """What merge() tells, for clients that ask as often as they like: `read`, which gives what each
    worker has published, is called at most every MERGED_S seconds, and so is `render`, which makes
    of it what they are sent, for the same question.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        read: Callable[[], Iterable[dict[str, Any]]],
        render: Callable[[list[tuple[bytes, int, int]]], bytes],
    ) -> None:
        self._clock = clock
        self._read = read
        self._render = render
        self._until = clock()
        self._rows: dict[bool, list[tuple[bytes, int, int]]] = {}
        self._rendered: dict[tuple[int, bool], bytes] = {}

    def told(self, n: int, refused: bool) -> bytes:
        """As HotKeys.busiest(), of all workers together, rendered; `n` is at most MOST."""
        now = self._clock()
        if now >= self._until:
            several = list(self._read())
            self._rows = {kind: merge(several, MOST, kind) for kind in (False, True)}
            self._rendered.clear()
            self._until = now + MERGED_S
        found = self._rendered.get((n, refused))
        if found is None:
            if len(self._rendered) >= MAX_RENDERED:
                self._rendered.clear()
            found = self._rendered[n, refused] = self._render(self._rows[refused][:n])
        return found


def merge(several: Iterable[dict[str, Any]], n: int, refused: bool) -> list[tuple[bytes, int, int]]:
    """What HotKeys.busiest() tells, of all workers together: `several` is what they published."""
    total = Summary()
    for each in several:
        if each:  # (a worker that has just begun has published nothing)
            total.add(Summary.from_text(each["refused" if refused else "hits"]))
    return _told(total, n)


def covered(several: Iterable[dict[str, Any]]) -> float:
    """How many seconds the counts of merge() go back."""
    return max((each["seconds"] for each in several if each), default=0.0)


def _told(summary: Summary, n: int) -> list[tuple[bytes, int, int]]:
    return [(key_of(bulk), count, error) for bulk, count, error in summary.busiest(n)]
