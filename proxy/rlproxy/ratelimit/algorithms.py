"""The algorithms and their limits, and the ARGV of a script call: algorithm, rule, cost and mode.

An ALGO is one row of this table and one Lua file. The module depends neither on the syntax of
commands nor on the route of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MICROSECONDS: Final = 1_000_000
MILLISECONDS: Final = 1_000
SECONDS: Final = b"%d" % MICROSECONDS  # default unit of the scripts
MAX_HITS: Final = 1_000_000_000  # largest max, COST and BURST, hits
MAX_SPAN_NS: Final = 315_360_000 * 1_000_000_000  # ten years
MAX_EXACT: Final = 1 << 53  # bound of the integers that a Lua number (a double) represents exactly

# The modes of a script call. A hit with a PENALTY passes the penalty in microseconds instead.
HIT: Final = b"hit"
PEEK: Final = b"peek"
REFUND: Final = b"refund"


class Algorithm:
    """One row of the table of algorithms.

    name: value of the ALGO option.
    script: stem of the Lua file's name.
    options: supported option words, separated by blanks.
    max_hits: largest `max`, hits.
    max_cost: largest COST, hits.
    bucket: True if the script takes a limit and an emission interval, not a max and a window.
    """

    def __init__(
        self,
        name: bytes,
        script: str,
        options: bytes,
        max_hits: int = MAX_HITS,
        max_cost: int = MAX_HITS,
        bucket: bool = False,
    ) -> None:
        self.name = name
        self.script = script
        self.bounds = {"max": max_hits, "COST": max_cost}  # largest value, by argument name
        self.options = frozenset(options.split())
        self.bucket = bucket


_ROWS: Final = (
    Algorithm(
        b"LOG",
        "sliding_window_log",
        b"COST GAP STRICT PENALTY WAIT AND",
        max_hits=1_000_000,
        max_cost=100_000,
    ),
    Algorithm(
        b"ZLOG",
        "sliding_window_zset",
        b"COST GAP STRICT PENALTY WAIT AND",
        max_hits=100_000,
        max_cost=10_000,
    ),
    Algorithm(b"FIXED", "fixed_window", b"COST STRICT PENALTY WAIT"),
    Algorithm(b"COUNTER", "sliding_window_counter", b"COST PENALTY WAIT"),
    Algorithm(b"TOKEN", "token_bucket", b"COST BURST PENALTY WAIT", bucket=True),
    Algorithm(b"LEAKY", "leaky_bucket", b"COST BURST PENALTY WAIT", bucket=True),
    Algorithm(b"GCRA", "gcra", b"COST BURST PENALTY WAIT", bucket=True),
)
ALGORITHMS: Final = {row.name: row for row in _ROWS}
DEFAULT_ALGORITHM: Final = b"LOG"
SHAPING: Final = b"LEAKY"  # algorithm whose script, with WAIT, returns how long to hold a hit

# The field of a limiter that an option word sets, in the order of Limiter.text().
FIELDS: Final = {
    b"COST": "cost",
    b"BURST": "burst",
    b"STRICT": "strict",
    b"GAP": "gap_us",
    b"PENALTY": "penalty_us",
    b"WAIT": "wait_us",
}


@dataclass
class Limiter:
    """The arguments of one script call, except its key.

    max: hits per window.
    window_us, gap_us, penalty_us, wait_us: microseconds.
    unit_us: unit of the times in the reply, microseconds: 1000000, 1000 or 1.
    cost: of a refund the number of hits to give back.
    burst: 0 stands for `max`.
    limits: (max, window in microseconds) of every AND.
    shapes: the script is to return how long to hold the hit (SHAPING).
    """

    algorithm: Algorithm
    max: int
    window_us: int
    unit_us: int
    mode: bytes = HIT
    cost: int = 1
    burst: int = 0
    gap_us: int = 0
    strict: bool = False
    penalty_us: int = 0
    wait_us: int = 0
    limits: list[tuple[int, int]] = field(default_factory=list)
    shapes: bool = False

    def limit(self) -> int:
        """Return the first limit, in hits; the reply reports it unless an AND leaves less."""
        return (self.burst or self.max) if self.algorithm.bucket else self.max

    def emission_ns(self) -> int:
        """Return the nanoseconds between two hits at a steady rate, at least 1."""
        return max(1, self.window_us * 1000 // self.max)

    def exact(self) -> bool:
        """Return whether the script can compute this limiter without rounding errors.

        A bucket must not span more than MAX_SPAN_NS; COUNTER needs max * window below MAX_EXACT.
        """
        algorithm = self.algorithm
        if algorithm.bucket:
            hits = self.limit() if self.mode == REFUND else max(self.limit(), self.cost)
            return hits * self.emission_ns() <= MAX_SPAN_NS
        return algorithm.name != b"COUNTER" or self.max * self.window_us < MAX_EXACT

    def takes(self) -> bool:
        """Return whether admission consumes quota: a hit with a cost above 0."""
        return self.mode == HIT and self.cost > 0

    def text(self) -> bytes:
        """Return the words that RL.HIT takes behind the key; those of CL.THROTTLE become GCRA's."""
        ms = self.unit_us == MILLISECONDS
        words = [b"%d" % self.max, _time(self.window_us, ms)]
        if ms:
            words.append(b"MS")
        if self.algorithm.name != DEFAULT_ALGORITHM:
            words += [b"ALGO", self.algorithm.name]
        for word, field_name in FIELDS.items():
            value: int = getattr(self, field_name)
            if value == (1 if word == b"COST" else 0):
                continue
            words.append(word)
            if field_name.endswith("_us"):
                words.append(_time(value, ms))
            elif word != b"STRICT":
                words.append(b"%d" % value)
        for most, window_us in self.limits:
            words += [b"AND", b"%d" % most, _time(window_us, ms)]
        return b" ".join(words)

    def argv(self) -> list[bytes]:
        """Return the script's ARGV without trailing words that equal their defaults."""
        more: list[int] = []
        if self.shapes:
            more = [self.wait_us]
        elif self.strict or self.gap_us or self.limits:
            more = [self.gap_us, 1 if self.strict else 0]
            for most, window_us in self.limits:
                more += [most, window_us]
        words = [
            b"%d" % self.limit(),
            b"%d" % (self.emission_ns() if self.algorithm.bucket else self.window_us),
            b"%d" % self.unit_us,
            b"%d" % self.cost,
            b"%d" % self.penalty_us if self.penalty_us else self.mode,
            b" ".join([b"%d" % number for number in more]),
        ]
        defaults = (SECONDS, b"1", HIT, b"")
        while len(words) > 2 and words[-1] == defaults[len(words) - 3]:
            words.pop()
        return words


def _time(time_us: int, ms: bool) -> bytes:
    """Return a time as RL.HIT takes it: in milliseconds, or in seconds."""
    if ms:
        return b"%d" % (time_us // MILLISECONDS)
    seconds = b"%d.%06d" % divmod(time_us, MICROSECONDS)
    return seconds.rstrip(b"0").rstrip(b".")
