"""The algorithms and their limits, and the ARGV of a script call: algorithm, rule, cost and mode.

The table of algorithms is here: an ALGO is a row, a Lua file and nothing else. Knows neither how a
command is written nor where a call goes.
"""

from __future__ import annotations

from typing import Final

MICROSECONDS: Final = 1_000_000
MILLISECONDS: Final = 1_000
MAX_HITS: Final = 1_000_000_000  # max, COST, BURST
MAX_SPAN_NS: Final = 315_360_000 * 1_000_000_000  # ten years
MAX_EXACT: Final = 1 << 53  # what a double of Lua's counts without a gap

# What a script is called for. (A hit with a PENALTY gives its length instead.)
HIT: Final = b"hit"
PEEK: Final = b"peek"
REFUND: Final = b"refund"


class Algorithm:
    """One row of the table: an ALGO name, its script, its bounds, the options it supports."""

    __slots__ = ("bounds", "bucket", "name", "options", "script")

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
        self.bounds = {"max": max_hits, "COST": max_cost}  # the largest it takes, by argument
        self.options = frozenset(options.split())
        self.bucket = bucket  # called with a limit and an emission interval, not a max and a window


# Every ALGO: the file it runs, the options it supports, its own bounds.
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
SHAPING: Final = b"LEAKY"  # with WAIT its script itself says how long a hit is held


class Limiter:
    """One call of a script but its key. Times are microseconds; `burst` 0 means max."""

    __slots__ = (
        "algorithm",
        "burst",
        "cost",
        "gap_us",
        "limits",
        "max",
        "mode",
        "penalty_us",
        "strict",
        "unit_us",
        "wait_us",
        "window_us",
    )

    def __init__(self, algorithm: Algorithm, most: int, window_us: int, unit_us: int) -> None:
        self.algorithm = algorithm
        self.max = most
        self.window_us = window_us
        self.unit_us = unit_us  # of the times in the reply
        self.mode = HIT
        self.cost = 1  # of a refund: how many hits
        self.burst = 0
        self.gap_us = 0
        self.strict = False
        self.penalty_us = 0
        self.wait_us = 0
        self.limits: list[tuple[int, int]] = []  # of every AND: max and window

    def limit(self) -> int:
        """The limit that the reply tells, if it is the first one."""
        return (self.burst or self.max) if self.algorithm.bucket else self.max

    def emission_ns(self) -> int:
        """Nanoseconds from one hit to the next at a steady rate."""
        return max(1, self.window_us * 1000 // self.max)

    def exact(self) -> bool:
        """Whether the script can count it without rounding."""
        algorithm = self.algorithm
        if algorithm.bucket:
            hits = self.limit() if self.mode == REFUND else max(self.limit(), self.cost)
            return hits * self.emission_ns() <= MAX_SPAN_NS
        return algorithm.name != b"COUNTER" or self.max * self.window_us < MAX_EXACT

    def takes(self) -> bool:
        """Whether it would take something if it is admitted."""
        return self.mode == HIT and self.cost > 0

    def argv(self, shape: bool = False) -> list[bytes]:
        """The script's ARGV. `shape`: a hit of SHAPING says how long it may be held."""
        penalty = b"%d" % self.penalty_us
        mode = penalty if self.mode == HIT and self.penalty_us else self.mode
        if self.algorithm.bucket:
            interval = self.emission_ns()
            words = [
                b"%d" % self.limit(),
                b"%d" % (interval // 1000),
                b"%d" % self.unit_us,
                b"%d" % (interval % 1000),
                b"%d" % self.cost,
                b"%b %d" % (penalty, self.wait_us) if shape else mode,
            ]
            defaults = (b"0", b"1", HIT)
        else:
            more: list[int] = []
            if self.strict or self.gap_us or self.limits:
                more = [self.gap_us, 1 if self.strict else 0]
                for most, window_us in self.limits:
                    more += [most, window_us]
            words = [
                b"%d" % self.max,
                b"%d" % self.window_us,
                b"%d" % self.unit_us,
                b"%d" % self.cost,
                mode,
                b" ".join([b"%d" % number for number in more]),
            ]
            if self.algorithm.name == b"FIXED":
                words[5] = b"1" if self.strict else b""
            defaults = (b"1", HIT, b"")
        while len(words) > 3 and words[-1] == defaults[len(words) - 4]:
            words.pop()
        return words

    def final(self) -> Limiter:
        """The same hit, answered in microseconds."""
        made = Limiter(self.algorithm, self.max, self.window_us, 1)
        made.mode = self.mode
        made.cost = self.cost
        made.burst = self.burst
        made.gap_us = self.gap_us
        made.strict = self.strict
        made.penalty_us = self.penalty_us
        made.wait_us = self.wait_us
        made.limits = self.limits
        return made

    def attempt(self) -> Limiter:
        """The same hit, a refusal of which leaves nothing behind; answered in microseconds."""
        made = self.final()
        made.strict = False
        made.penalty_us = 0
        return made

    def look(self) -> Limiter:
        """The same hit looked at, answered in microseconds."""
        made = self.attempt()
        made.mode = PEEK
        return made
