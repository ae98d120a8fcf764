"""The counters of one process: plain integers, incremented in place. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from mypy_extensions import i64

from rlproxy.ratelimit import outcomes
from rlproxy.ratelimit.grammar import Rule
from rlproxy.resp.encoding import content

MAX_KEY: Final = 128  # longest key counted by its full name, bytes; see brief()
MAX_BULK: Final = MAX_KEY + len("$128\r\n\r\n")  # the same as a bulk string, bytes
SHOWN: Final = 105  # bytes of a longer key that its short name begins with
_HASH: Final = 10  # digest in a short name, bytes
KEYS_AT_ONCE: Final = 1024  # collected keys that are counted together; that costs half

# The bounds of histograms: of times in seconds, and of the calls in one write of a lane.
TIMES_S: Final[tuple[float, ...]] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
BATCHES: Final[tuple[float, ...]] = tuple(2.0**power - 1 for power in range(1, 17))


class Histogram:
    """The numbers of values in classes.

    bounds: upper bounds of the classes; a further class holds the values above the last one.
    classes: number of values in each class.
    sum_of: sum of the values.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.classes: list[int] = [0] * (len(bounds) + 1)
        self.sum_of: float = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        at = 0
        for bound in self.bounds:  # the first ones are the most frequent, and bisect() costs more
            if value <= bound:
                break
            at += 1
        self.classes[at] += 1
        self.sum_of += value


HitsByKey = dict[bytes, int]  # keys are bulk strings, with their header
OnKeys = Callable[[HitsByKey, HitsByKey, int, dict[bytes, Rule]], None]  # see Counters


class Counters:
    """The counters of one process.

    on_keys: called with counted hits by key, the refused ones among them, the number of hits that
        each of these stands for, and the rule of the latest refusal by key.
    harvest: returns and resets the hits that the denial cache refused, as (rule, key, hits).
    """

    def __init__(self) -> None:
        # Hits by algorithm or policy, and outcome: a pair of rows of each, see `outcomes`.
        self.hits: list[int] = [0] * (len(outcomes.ROWS) * outcomes.PAIR)
        self.calls: list[int] = [0] * len(outcomes.CALLS)  # other RL commands
        self.commands: int = 0  # commands forwarded unchanged
        self.client_in: int = 0  # bytes from clients
        self.client_out: int = 0  # bytes to clients
        self.upstream_in: int = 0  # bytes from Redis
        self.upstream_out: int = 0  # bytes to Redis
        self.accepted: int = 0  # accepted clients
        self.private: int = 0  # open private connections
        self.noscript: int = 0  # calls sent again after NOSCRIPT
        self.errors: dict[str, int] = {}  # errors by kind
        self.round_trips = Histogram(TIMES_S)  # of lanes
        self.lag = Histogram(TIMES_S)  # delays of a timer of the event loop
        self.batches = Histogram(BATCHES)  # calls in each write of a lane
        self._keys: list[bytes] = []
        self._refused_keys: list[bytes] = []
        self._refused_by: dict[bytes, Rule] = {}  # rule of the latest refusal, by key
        self.stride: i64 = 1  # mean number of hits per counted key; see sample()
        self._skip: i64 = 0  # hits until the next counted key
        self._random: i64 = 1  # state of _gap()
        self.on_keys: OnKeys = lambda _keys, _refused, _stride, _rules: None
        self.harvest: Callable[[], list[tuple[Rule, bytes, int]]] = list

    def error(self, kind: str) -> None:
        """Count an error; the kinds are in metrics.ERRORS."""
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def answered(self, row: int, reply: bytes, key: bytes, rule: Rule | None = None) -> None:
        """Count a call by its reply.

        row: see `outcomes`; NO_ROW is not counted.
        reply: reply from Redis, or the error for an unknown outcome.
        key: key as a bulk string.
        rule: the hit's rule, which a refusal is reported with.
        """
        if row < 0:
            self.unanswered(row, outcomes.UNSEEN)  # calls other than hits have no outcome
        elif reply[0] == 45 or reply[0] == 33:
            self.hits[row + outcomes.FAILED] += 1
            self.error("lost" if reply.startswith(b"-UPSTREAMDOWN") else "redis")
        elif reply[0] != 42 or reply[1] != 53 or reply[2] != 13 or reply[4] != 58:
            # Not *5 with an integer first: +QUEUED, or the upstream is not Redis.
            self.hits[row + outcomes.UNSEEN] += 1
        elif reply[5] == 49:
            self.hits[row + outcomes.REFUSED] += 1
            self.key(key, True, rule)
        else:
            hits = self.hits
            hits[row] = hits[row] + 1  # ADMITTED; faster than += when compiled
            self.key(key, False)

    def decided(self) -> int:
        """Return the number of hits that Redis has admitted or refused."""
        hits, width = self.hits, outcomes.WIDTH
        return sum(hits[outcomes.ADMITTED :: width]) + sum(hits[outcomes.REFUSED :: width])

    def unanswered(self, row: int, outcome: int) -> None:
        """Count a call that Redis has not answered, or whose reply cannot be seen.

        row: see `outcomes`.
        outcome: outcome of a hit; other calls are counted if it is UNSEEN.
        """
        if row >= 0:
            self.hits[row + outcome] += 1
        elif row <= outcomes.OTHERS and outcome == outcomes.UNSEEN:
            self.calls[outcomes.PEEK if row == outcomes.SHADOW_PEEK else outcomes.OTHERS - row] += 1

    def key(self, key: bytes, refused: bool, rule: Rule | None = None) -> None:
        """Count a hit on `key`, a bulk string, unless sampling skips it.

        rule: the rule that refused it, if known.
        """
        if self._skip > 0:
            self._skip -= 1
            return
        if self.stride > 1:
            self._skip = self._gap()
        self._keys.append(key)
        if refused:
            self._refused_keys.append(key)
            if rule is not None:
                self._refused_by[key] = rule
        if len(self._keys) >= KEYS_AT_ONCE:
            self.flush_keys()

    def flush_keys(self) -> None:
        """Pass the collected keys to `on_keys`."""
        keys, self._keys = self._keys, []
        refused, self._refused_keys = self._refused_keys, []
        rules, self._refused_by = self._refused_by, {}
        if keys:
            self.on_keys(Counter(keys), Counter(refused), self.stride, rules)

    def sample(self, stride: int) -> None:
        """Count the key of one hit in `stride` from now on, chosen at random; 1: of every hit."""
        self.flush_keys()
        self.stride = stride
        self._skip = self._gap()

    def _gap(self) -> i64:
        """Return the number of hits to skip, stride - 1 in the mean.

        The number varies, because a constant one would find only one key of a client whose requests
        have a period.
        """
        # A linear congruential generator with the constants of ANSI C's rand().
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        return (self._random >> 8) % (2 * self.stride - 1)

    def gather(self) -> None:
        """Bring all counts up to date: pass on the collected keys, and count the harvest."""
        self.flush_keys()
        counts: dict[bytes, int] = {}
        rules: dict[bytes, Rule] = {}
        for rule, key, times in self.harvest():
            self.hits[rule.row + outcomes.REFUSED_LOCALLY] += times
            counts[key] = counts.get(key, 0) + times
            rules[key] = rule
        if counts:
            self.on_keys(counts, counts, 1, rules)


def key_of(bulk: bytes) -> bytes:
    """Return the content of a bulk string."""
    start, end = content(bulk)
    return bulk[start:end]


def brief(bulk: bytes) -> bytes:
    """Return the name under which a key is counted, as a bulk string.

    It is the key itself if that has at most MAX_KEY bytes. The name of a longer key is its first
    SHOWN bytes, three dots and a hash of the whole key.
    """
    if len(bulk) <= MAX_BULK:
        return bulk
    key = key_of(bulk)
    name = key[:SHOWN] + b"..." + blake2b(key, digest_size=_HASH).hexdigest().encode()
    return b"$%d\r\n%b\r\n" % (len(name), name)
