"""The counters of one process: plain integers, incremented in place. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from rlproxy.ratelimit.outcomes import (
    ADMITTED,
    CALLS,
    FAILED,
    OTHERS,
    REFUSED,
    REFUSED_LOCALLY,
    ROWS,
    UNSEEN,
    WIDTH,
)

MAX_KEY: Final = 128  # bytes; a longer one is told by its beginning and a hash of all of it
MAX_BULK: Final = MAX_KEY + len("$128\r\n\r\n")
SHOWN: Final = 105  # bytes of such a beginning
_HASH: Final = 10  # bytes
KEYS_AT_ONCE: Final = 1024  # handed on together: counting many at once costs half
MAX_POWER: Final = 17  # batches of 2**16 calls and more are one class

# Histograms of times: the upper bound of each class, in seconds; one more class holds the rest.
TIMES_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
)


class Times:
    """A histogram of times, by the bounds of TIMES_S."""

    __slots__ = ("classes", "sum_s")

    def __init__(self) -> None:
        self.classes: list[int] = [0] * (len(TIMES_S) + 1)
        self.sum_s: float = 0.0

    def add(self, time_s: float) -> None:
        """It took so long once."""
        at = 0
        for bound in TIMES_S:
            if time_s <= bound:
                break
            at += 1
        self.classes[at] += 1
        self.sum_s += time_s


Keys = list[bytes] | dict[bytes, int]  # one after the other, or how often each


class Counters:
    """The counters of one process. `on_keys` gets the keys of hits (as bulks, with their header),
    and those of refused ones, some at a time, and how many hits each of them stands for.
    """

    __slots__ = (
        "_keys",
        "_random",
        "_refused_keys",
        "_skip",
        "accepted",
        "batched",
        "batches",
        "calls",
        "client_in",
        "client_out",
        "commands",
        "errors",
        "harvest",
        "hits",
        "lag",
        "near",
        "noscript",
        "on_keys",
        "private",
        "round_trips",
        "stride",
        "upstream_in",
        "upstream_out",
    )

    def __init__(self) -> None:
        self.hits: list[int] = [0] * (len(ROWS) * WIDTH)  # see row_of()
        self.near: list[int] = [0] * len(ROWS)  # admitted, and nearly the last: see `metrics`
        self.calls: list[int] = [0] * len(CALLS)
        self.commands: int = 0  # passed on to Redis as they came
        self.client_in: int = 0  # bytes, of clients
        self.client_out: int = 0
        self.upstream_in: int = 0  # bytes, of Redis
        self.upstream_out: int = 0
        self.accepted: int = 0  # clients
        self.private: int = 0  # private connections that are open
        self.noscript: int = 0  # calls that were answered NOSCRIPT and sent again
        self.errors: dict[str, int] = {}  # by kind
        self.round_trips = Times()  # of lanes
        self.lag = Times()  # of the event loop
        self.batched: int = 0  # calls, in all batches
        self.batches: list[int] = [0] * (MAX_POWER + 1)  # calls in one write of a lane: 2**(n-1)..
        self._keys: list[bytes] = []
        self._refused_keys: list[bytes] = []
        self.stride: int = 1  # keys are handed on of one hit in so many, see sample()
        self._skip: int = 0  # hits until the next of these
        self._random: int = 1
        self.on_keys: Callable[[Keys, Keys, int], None] | None = None
        # what was refused without asking Redis since: row, key and how often
        self.harvest: Callable[[], list[tuple[int, bytes, int]]] | None = None

    def error(self, kind: str) -> None:
        """An error of this kind happened."""
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def answered(self, row: int, reply: bytes, key: bytes) -> None:
        """The client of a call gets `reply`: Redis' word, or that it is not known."""
        if row < 0:
            if row <= OTHERS:
                self.calls[OTHERS - row] += 1
            return
        if reply[0] != 42:
            if reply[0] != 45 and reply[0] != 33:  # +QUEUED, or the word of who is no Redis
                self.hits[row + UNSEEN] += 1
                return
            self.hits[row + FAILED] += 1
            self.error("lost" if reply.startswith(b"-UPSTREAMDOWN") else "redis")
            return
        if reply[1] != 53 or reply[2] != 13 or reply[4] != 58:  # *5, and the first is a number
            self.hits[row + UNSEEN] += 1  # (whoever said that is no Redis)
            return
        if reply[5] == 49:
            self.hits[row + REFUSED] += 1
            self.key(key, True)
            return
        self.hits[row + ADMITTED] += 1
        if _near(reply):
            self.near[row // WIDTH] += 1
        self.key(key, False)

    def decided(self) -> int:
        """How many hits Redis has admitted or refused."""
        out = 0
        for row in range(0, len(self.hits), WIDTH):
            out += self.hits[row + ADMITTED] + self.hits[row + REFUSED]
        return out

    def unanswered(self, row: int, outcome: int) -> None:
        """What became of a call that Redis has not answered, or whose reply is not seen."""
        if row >= 0:
            self.hits[row + outcome] += 1
        elif row <= OTHERS and outcome == UNSEEN:
            self.calls[OTHERS - row] += 1

    def key(self, key: bytes, refused: bool) -> None:
        """A hit on `key`."""
        if self._skip > 0:
            self._skip -= 1
            return
        if self.on_keys is None:
            return
        if self.stride > 1:
            self._skip = self._gap()
        self._keys.append(key)
        if refused:
            self._refused_keys.append(key)
        if len(self._keys) >= KEYS_AT_ONCE:
            self.flush_keys()

    def flush_keys(self) -> None:
        """Hand on the keys that are here."""
        keys, self._keys = self._keys, []
        refused, self._refused_keys = self._refused_keys, []
        if self.on_keys is not None and keys:
            self.on_keys(keys, refused, self.stride)

    def sample(self, stride: int) -> None:
        """From now on hand on the keys of one hit in `stride`, at random; 1: of all."""
        self.flush_keys()
        self.stride = stride
        self._skip = self._gap() if stride > 1 else 0

    def _gap(self) -> int:
        """How many to leave out: stride - 1 in the mean, and not always as many, or a client whose
        requests have a period would show one of its keys only.
        """
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF  # (as C's rand() once was)
        return (self._random >> 8) % (2 * self.stride - 1)

    def gather(self) -> None:
        """Bring all up to now: hand on the keys that are here, and count what was harvested."""
        self.flush_keys()
        if self.harvest is None:
            return
        counts: dict[bytes, int] = {}
        for row, key, times in self.harvest():
            self.hits[row + REFUSED_LOCALLY] += times
            counts[key] = counts.get(key, 0) + times
            if len(counts) >= KEYS_AT_ONCE and self.on_keys is not None:
                self.on_keys(counts, counts, 1)
                counts = {}
        if self.on_keys is not None and counts:
            self.on_keys(counts, counts, 1)

    def batch(self, calls: int) -> None:
        """So many calls went out in one write."""
        self.batched += calls
        power = 0
        while calls > 0 and power < MAX_POWER:
            calls >>= 1
            power += 1
        self.batches[power] += 1


def key_of(bulk: bytes) -> bytes:
    """What is in a bulk."""
    start = bulk.index(b"\n") + 1
    return bulk[start : len(bulk) - 2]


def brief(bulk: bytes) -> bytes:
    """The name by which a key is told: itself, unless it is too long."""
    if len(bulk) <= MAX_BULK:
        return bulk
    key = key_of(bulk)
    name = key[:SHOWN] + b"..." + blake2b(key, digest_size=_HASH).hexdigest().encode()
    return b"$%d\r\n%b\r\n" % (len(name), name)


def _near(reply: bytes) -> bool:
    """Whether the third of five integers is a tenth of the second, or less. (By the bytes, since
    every hit that was admitted comes here: int() of both takes as long as all else together.)
    """
    start = 9  # of the second's digits
    middle = start
    while reply[middle] != 13:
        middle += 1
    third = middle + 3
    end = third
    while reply[end] != 13:
        end += 1
    shorter = (middle - start) - (end - third)
    if shorter <= 0:
        return reply[third] == 48  # 0 is near to every limit
    if shorter > 1:
        return True
    if reply[third] != reply[start]:
        return reply[third] < reply[start]
    try:
        return 10 * int(reply[third:end]) <= int(reply[start:middle])
    except ValueError:
        return False
