"""The table of bounds that the figures must meet, and the verdict on each. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .figures import Figure
from .parts import LANE, SPLICE, STUB

MET: Final = "met"
MET_WITH_GOAL: Final = "met, and the goal"
NOT_MET: Final = "not met"
NOT_MEASURED: Final = "not measured"
NONE: Final = Figure("", "", "")  # of a row that was not measured


@dataclass(frozen=True)
class Bound:
    """One requirement on a figure.

    work, against: the measured work and its comparison, as text.
    figure: its name, and a ratio (`hit-1: proxy/direct`), or a column, whose median counts.
    bound: the least value required; the greatest one if `most`.
    goal: a value beyond the bound to aim at; None if there is none.
    floor: a party that does less than a proxy must, so its ratio shows what this machine allows;
        "" if there is none.
    """

    work: str
    against: str
    figure: str
    bound: float
    goal: float | None = None
    most: bool = False
    floor: str = ""

    @property
    def required(self) -> str:
        """The bound as text."""
        return f"at {'most' if self.most else 'least'} {self.bound:.2f}"


BARE: Final = "EVALSHA of a bare log"
CLIENT: Final = "redis-benchmark --cluster"  # splits nothing: counts where no peer runs
PREDIXY: Final = "predixy"
OTHER: Final = "redis-cluster-proxy"
LIMITS: Final = "limits, a library"

# A bound has one line, or two.
# fmt: off
BOUNDS: Final = (
    Bound("hit, P1", BARE, "hit-1: proxy/bare", 0.8, 0.95, floor=LANE),
    Bound("hit, P16", BARE, "hit-16: proxy/bare", 1.0, 1.1, floor=LANE),
    Bound("refused hit, P1", "EVALSHA", "refused-1: proxy/direct", 1.4, 1.5, floor=STUB),
    Bound("refused hit, P16", "EVALSHA", "refused-16: proxy/direct", 2.5, 4.0, floor=STUB),
    Bound("hit and GET, P2", "HAProxy", "mixed-2: proxy/haproxy", 0.9, 1.0, floor=SPLICE),
    Bound("hit and GET, P16", "HAProxy", "mixed-16: proxy/haproxy", 0.9, 1.0, floor=SPLICE),
    Bound("hit and GET, P16", f"{BARE}, and GET", "mixed-16: proxy/bare", 0.85, 1.0, floor=SPLICE),
    Bound("GET, P1", "HAProxy", "get-1: proxy/haproxy", 0.85, 1.0, floor=SPLICE),
    Bound("SET, P1", "HAProxy", "set-1: proxy/haproxy", 0.85, 1.0, floor=SPLICE),
    Bound("GET, P16", "HAProxy", "get-16: proxy/haproxy", 1.0, 1.1, floor=SPLICE),
    Bound("SET, P16", "HAProxy", "set-16: proxy/haproxy", 1.0, 1.1, floor=SPLICE),
    Bound("GET --share, P1", "HAProxy", "get-1: share/haproxy", 1.25, 1.5),
    Bound("SET --share, P1", "HAProxy", "set-1: share/haproxy", 1.25, 1.5),
    Bound("GET --share, P1", "twemproxy", "get-1: share/twemproxy", 0.95, 1.1),
    Bound("SET --share, P1", "twemproxy", "set-1: share/twemproxy", 0.95, 1.1),
    Bound("GET, P16", "twemproxy", "get-16: proxy/twemproxy", 1.3, 2.0, floor=SPLICE),
    Bound("SET, P16", "twemproxy", "set-16: proxy/twemproxy", 1.3, 2.0, floor=SPLICE),
    Bound("GET on three masters, P1", PREDIXY, "cluster-get-1: proxy/predixy", 1.0, floor=LANE),
    Bound("SET on three masters, P1", PREDIXY, "cluster-set-1: proxy/predixy", 1.0, floor=LANE),
    Bound("GET on three masters, P16", PREDIXY, "cluster-get-16: proxy/predixy", 1.0),
    Bound("SET on three masters, P16", PREDIXY, "cluster-set-16: proxy/predixy", 1.0),
    Bound("GET on three masters, P1", OTHER, f"cluster-get-1: proxy/{OTHER}", 1.0),
    Bound("SET on three masters, P1", OTHER, f"cluster-set-1: proxy/{OTHER}", 1.0),
    Bound("GET on three masters, P16", OTHER, f"cluster-get-16: proxy/{OTHER}", 1.0),
    Bound("SET on three masters, P16", OTHER, f"cluster-set-16: proxy/{OTHER}", 1.0),
    Bound("GET on three masters, P16", CLIENT, "cluster-get-16: proxy/direct", 0.7),
    Bound("SET on three masters, P16", CLIENT, "cluster-set-16: proxy/direct", 0.7),
    Bound("GET of 1 MB", "HAProxy", "values: proxy/haproxy", 0.9, 1.0),
    Bound("50 tasks, admitted", LIMITS, "tasks-admitted: proxy/limits", 1.0, 1.2),
    Bound("50 tasks, refused", LIMITS, "tasks-refused: proxy/limits", 1.2, 1.5),
    Bound("Redis' CPU for a hit, P1", "EVALSHA", "hit-1 redis: proxy/direct", 0.78, 0.6, True),
    Bound("CPU of Redis and proxy for a hit, P1", "Redis alone for a bare log",
          "hit-1 servers: proxy/bare", 1.45, 1.3, True, LANE),
    Bound("the proxy's CPU for a GET, P1", "a bare splice",
          "get-1 party: proxy/splice", 1.2, 1.1, True),
    Bound("time of a plain hit's script", "bare log",
          "cost LOG admitted: evalsha/bare", 1.1, 1.0, True),
    Bound("median of a hit at a quarter of the peak", "HAProxy",
          "latency-25 p50: proxy/haproxy", 1.0, 0.9, True, SPLICE),
    Bound("p99 of a hit at half the peak", "EVALSHA",
          "latency-50: proxy/direct", 2.0, 1.5, True, SPLICE),
    Bound("idle client, its connection open", "kB", "idle: proxy", 4.6, 3.3, True),
    Bound("the proxy's CPU for a hit, 2 workers", "1 worker",
          "workers party: 2-workers/1-worker", 1.1, None, True),
)
# fmt: on


@dataclass(frozen=True)
class Verdict:
    """A bound, and its measured value and that of its floor; None if they were not measured."""

    bound: Bound
    value: float | None
    floor: float | None = None

    @property
    def word(self) -> str:
        """The verdict: MET, MET_WITH_GOAL, NOT_MET or NOT_MEASURED."""
        if self.value is None:
            return NOT_MEASURED
        if not self._reaches(self.bound.bound):
            return NOT_MET
        return MET_WITH_GOAL if self._reaches(self.bound.goal) else MET

    def _reaches(self, wanted: float | None) -> bool:
        if self.value is None or wanted is None:
            return False
        return self.value <= wanted if self.bound.most else self.value >= wanted


def judge(
    figures: Iterable[Figure], rows: Sequence[str], table: Sequence[Bound] = BOUNDS
) -> list[Verdict]:
    """Return the verdicts on all bounds of figures of the named `rows`, in the table's order."""
    # `hit-1` has the figures `hit-1` and `hit-1 redis`, `latency` also `latency-25 p50`.
    of_rows = tuple(f"{row}{end}" for row in rows for end in (": ", " ", "-"))
    by_name = {figure.name: figure for figure in figures}
    found = []
    for bound in table:
        name, _, column = bound.figure.partition(": ")
        if bound.figure.startswith(of_rows):
            figure, under = by_name.get(name, NONE), column.partition("/")[2]
            value = figure.ratios.get(column) if under else figure.medians.get(column)
            found.append(Verdict(bound, value, figure.ratio(bound.floor, under)))
    return found
