"""The table of bounds that the figures must meet, and the verdict on each. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from .cluster_peers import PEERS
from .figures import Figure
from .parts import SPLICE, STUB

MET: Final = "met"
MET_WITH_GOAL: Final = "met, and the goal"
NOT_MET: Final = "not met"
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True)
class Bound:
    """One requirement on the figure called `figure` of the row called `row`.

    work, against: the measured work and its comparison, as text.
    of: a ratio of the figure (`proxy/direct`), or a column, whose median counts.
    bound: the least value required; the greatest one if `most`.
    goal: a value beyond the bound to aim at; None if there is none.
    floor: the party that does less than any proxy can, so its ratio shows what this machine allows;
        "" if there is none.
    """

    work: str
    against: str
    row: str
    figure: str
    of: str
    bound: float
    goal: float | None = None
    most: bool = False
    floor: str = ""


def _both(work: str, against: str, size: int, of: str, bound: float, goal: float) -> list[Bound]:
    return [
        Bound(
            f"{name.upper()}{work}",
            against,
            f"{name}-{size}",
            f"{name}-{size}",
            of,
            bound,
            goal,
            floor=SPLICE if of.startswith("proxy/") else "",
        )
        for name in ("get", "set")
    ]


BOUNDS: Final = (
    Bound("hit, P1", "EVALSHA of a bare log", "hit-1", "hit-1", "proxy/bare", 0.8, 0.95),
    Bound("hit, P16", "EVALSHA of a bare log", "hit-16", "hit-16", "proxy/bare", 1.0, 1.1),
    *(
        Bound(
            f"refused hit, P{size}",
            "EVALSHA",
            f"refused-{size}",
            f"refused-{size}",
            "proxy/direct",
            bound,
            goal,
            floor=STUB,
        )
        for size, bound, goal in ((1, 1.4, 1.5), (16, 2.5, 4.0))
    ),
    *(
        Bound(
            f"hit and GET, P{size}",
            "HAProxy",
            f"mixed-{size}",
            f"mixed-{size}",
            "proxy/haproxy",
            0.9,
            1.0,
            floor=SPLICE,
        )
        for size in (2, 16)
    ),
    Bound(
        "hit and GET, P16",
        "EVALSHA of a bare log, and GET",
        "mixed-16",
        "mixed-16",
        "proxy/bare",
        0.85,
        1.0,
        floor=SPLICE,
    ),
    *_both(", P1", "HAProxy", 1, "proxy/haproxy", 0.85, 1.0),
    *_both(", P16", "HAProxy", 16, "proxy/haproxy", 1.0, 1.1),
    *_both(" --share, P1", "HAProxy", 1, "share/haproxy", 1.25, 1.5),
    *_both(" --share, P1", "twemproxy", 1, "share/twemproxy", 0.95, 1.1),
    *_both(", P16", "twemproxy", 16, "proxy/twemproxy", 1.3, 2.0),
    *(
        Bound(
            f"{name.upper()} on three masters, P{size}",
            peer,
            f"cluster-{name}-{size}",
            f"cluster-{name}-{size}",
            f"proxy/{peer}",
            1.0,
        )
        for peer in PEERS
        for size in (1, 16)
        for name in ("get", "set")
    ),
    # What counts where no peer runs: a cluster client, which splits nothing.
    *(
        Bound(
            f"{name.upper()} on three masters, P16",
            "redis-benchmark --cluster",
            f"cluster-{name}-16",
            f"cluster-{name}-16",
            "proxy/direct",
            0.7,
        )
        for name in ("get", "set")
    ),
    Bound("GET of 1 MB", "HAProxy", "values", "values", "proxy/haproxy", 0.9, 1.0),
    Bound(
        "50 tasks, admitted",
        "limits, a library",
        "tasks-admitted",
        "tasks-admitted",
        "proxy/limits",
        1.0,
        1.2,
    ),
    Bound(
        "50 tasks, refused",
        "limits, a library",
        "tasks-refused",
        "tasks-refused",
        "proxy/limits",
        1.2,
        1.5,
    ),
    Bound(
        "Redis' CPU for a hit, P1",
        "EVALSHA",
        "hit-1",
        "hit-1 redis",
        "proxy/direct",
        0.78,
        0.6,
        True,
    ),
    Bound(
        "CPU of Redis and proxy for a hit, P1",
        "Redis alone for a bare log",
        "hit-1",
        "hit-1 servers",
        "proxy/bare",
        1.45,
        1.3,
        True,
    ),
    Bound(
        "the proxy's CPU for a GET, P1",
        "a bare splice",
        "get-1",
        "get-1 party",
        "proxy/splice",
        1.2,
        1.1,
        True,
    ),
    Bound(
        "time of a plain hit's script",
        "bare log",
        "cost",
        "cost LOG admitted",
        "evalsha/bare",
        1.1,
        1.0,
        True,
    ),
    Bound(
        "median of a hit at a quarter of the peak",
        "HAProxy",
        "latency",
        "latency-25 p50",
        "proxy/haproxy",
        1.0,
        0.9,
        True,
        SPLICE,
    ),
    Bound(
        "p99 of a hit at half the peak",
        "EVALSHA",
        "latency",
        "latency-50",
        "proxy/direct",
        2.0,
        1.5,
        True,
        SPLICE,
    ),
    Bound("idle client, its connection open", "kB", "idle", "idle", "proxy", 4.6, 3.3, True),
    Bound(
        "the proxy's CPU for a hit, 2 workers",
        "1 worker",
        "workers",
        "workers party",
        "2-workers/1-worker",
        1.1,
        None,
        True,
    ),
)


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
        goal = self.bound.goal
        return MET_WITH_GOAL if goal is not None and self._reaches(goal) else MET

    def _reaches(self, wanted: float) -> bool:
        assert self.value is not None
        return self.value <= wanted if self.bound.most else self.value >= wanted


def judge(
    figures: Iterable[Figure], rows: Sequence[str], table: Sequence[Bound] = BOUNDS
) -> list[Verdict]:
    """Return the verdicts on all bounds of the rows that were run, in the table's order."""
    by_name = {figure.name: figure for figure in figures}
    return [_verdict(bound, by_name.get(bound.figure)) for bound in table if bound.row in rows]


def _verdict(bound: Bound, figure: Figure | None) -> Verdict:
    if figure is None:
        return Verdict(bound, None)
    medians = figure.medians()
    if "/" not in bound.of:
        return Verdict(bound, medians.get(bound.of))
    under = bound.of.partition("/")[2]
    floor = medians[bound.floor] / medians[under] if {bound.floor, under} <= set(medians) else None
    return Verdict(bound, figure.ratios().get(bound.of), floor)
