"""The table of bounds that the figures must meet. It measures nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MET: Final = "met"
MET_WITH_GOAL: Final = "met, and the goal"
NOT_MET: Final = "not met"
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True)
class Bound:
    """One requirement on a figure.

    work, against: the measured work and its comparison, as text.
    figure: its name.
    over, under: the columns whose ratio counts; the median of `over` if `under` is "".
    bound: the least value required; the greatest one if `most`.
    goal: a value beyond the bound to aim at; None if there is none.
    floor: a party that does less than a proxy must, so its ratio shows what this machine allows;
        "" if there is none.
    """

    work: str
    against: str
    figure: str
    over: str
    under: str
    bound: float
    goal: float | None = None
    most: bool = False
    floor: str = ""

    @property
    def value(self) -> str:
        """What is bounded, as text: `hit-1: proxy/direct`."""
        return f"{self.figure}: {self.over}{f'/{self.under}' if self.under else ''}"

    @property
    def required(self) -> str:
        """The bound as text."""
        return f"at {'most' if self.most else 'least'} {self.bound:.2f}"

    def verdict(self, value: float | None) -> str:
        """Return MET, MET_WITH_GOAL, NOT_MET or, without a value, NOT_MEASURED."""
        if value is None:
            return NOT_MEASURED
        sign = -1 if self.most else 1
        if sign * value < sign * self.bound:
            return NOT_MET
        return MET if self.goal is None or sign * value < sign * self.goal else MET_WITH_GOAL


LOG: Final = "EVALSHA of a bare log"
CLIENT: Final = "redis-benchmark --cluster"  # splits nothing: counts where no peer runs
OTHER: Final = "redis-cluster-proxy"
LIBRARY: Final = "limits, a library"

# A bound has one line, or two.
# fmt: off
BOUNDS: Final = (
    Bound("hit, P1", LOG, "hit-1", "proxy", "bare", 0.8, 0.95, floor="lane"),
    Bound("hit, P16", LOG, "hit-16", "proxy", "bare", 1.0, 1.1, floor="lane"),
    Bound("refused hit, P1", "EVALSHA", "refused-1", "proxy", "direct", 1.4, 1.5, floor="stub"),
    Bound("refused hit, P16", "EVALSHA", "refused-16", "proxy", "direct", 2.5, 4.0, floor="stub"),
    Bound("hit and GET, P2", "HAProxy", "mixed-2", "proxy", "haproxy", 0.9, 1.0, floor="splice"),
    Bound("hit and GET, P16", "HAProxy", "mixed-16", "proxy", "haproxy", 0.9, 1.0, floor="splice"),
    Bound("hit and GET, P16", f"{LOG}, and GET",
          "mixed-16", "proxy", "bare", 0.85, 1.0, floor="splice"),
    Bound("GET, P1", "HAProxy", "get-1", "proxy", "haproxy", 0.85, 1.0, floor="splice"),
    Bound("SET, P1", "HAProxy", "set-1", "proxy", "haproxy", 0.85, 1.0, floor="splice"),
    Bound("GET, P16", "HAProxy", "get-16", "proxy", "haproxy", 1.0, 1.1, floor="splice"),
    Bound("SET, P16", "HAProxy", "set-16", "proxy", "haproxy", 1.0, 1.1, floor="splice"),
    Bound("GET --share, P1", "HAProxy", "get-1", "share", "haproxy", 1.25, 1.5),
    Bound("SET --share, P1", "HAProxy", "set-1", "share", "haproxy", 1.25, 1.5),
    Bound("GET --share, P1", "twemproxy", "get-1", "share", "twemproxy", 0.95, 1.1),
    Bound("SET --share, P1", "twemproxy", "set-1", "share", "twemproxy", 0.95, 1.1),
    Bound("GET, P16", "twemproxy", "get-16", "proxy", "twemproxy", 1.3, 2.0, floor="splice"),
    Bound("SET, P16", "twemproxy", "set-16", "proxy", "twemproxy", 1.3, 2.0, floor="splice"),
    Bound("GET on three masters, P1", "predixy",
          "cluster-get-1", "proxy", "predixy", 1.0, floor="lane"),
    Bound("SET on three masters, P1", "predixy",
          "cluster-set-1", "proxy", "predixy", 1.0, floor="lane"),
    Bound("GET on three masters, P16", "predixy", "cluster-get-16", "proxy", "predixy", 1.0),
    Bound("SET on three masters, P16", "predixy", "cluster-set-16", "proxy", "predixy", 1.0),
    Bound("GET on three masters, P1", OTHER, "cluster-get-1", "proxy", OTHER, 1.0),
    Bound("SET on three masters, P1", OTHER, "cluster-set-1", "proxy", OTHER, 1.0),
    Bound("GET on three masters, P16", OTHER, "cluster-get-16", "proxy", OTHER, 1.0),
    Bound("SET on three masters, P16", OTHER, "cluster-set-16", "proxy", OTHER, 1.0),
    Bound("GET on three masters, P16", CLIENT, "cluster-get-16", "proxy", "direct", 0.7),
    Bound("SET on three masters, P16", CLIENT, "cluster-set-16", "proxy", "direct", 0.7),
    Bound("GET of 1 MB", "HAProxy", "values", "proxy", "haproxy", 0.9, 1.0),
    Bound("50 tasks, admitted", LIBRARY, "tasks-admitted", "proxy", "limits", 1.0, 1.2),
    Bound("50 tasks, refused", LIBRARY, "tasks-refused", "proxy", "limits", 1.2, 1.5),
    Bound("Redis' CPU for a hit, P1", "EVALSHA", "hit-1 redis", "proxy", "direct", 0.78, 0.6, True),
    Bound("CPU of Redis and proxy for a hit, P1", "Redis alone for a bare log",
          "hit-1 servers", "proxy", "bare", 1.45, 1.3, True, "lane"),
    Bound("the proxy's CPU for a GET, P1", "a bare splice",
          "get-1 party", "proxy", "splice", 1.2, 1.1, True),
    Bound("time of a plain hit's script", "bare log",
          "cost LOG admitted", "evalsha", "bare", 1.1, 1.0, True),
    Bound("median of a hit at a quarter of the peak", "HAProxy",
          "latency-25 p50", "proxy", "haproxy", 1.0, 0.9, True, "splice"),
    Bound("p99 of a hit at half the peak", "EVALSHA",
          "latency-50", "proxy", "direct", 2.0, 1.5, True, "splice"),
    Bound("idle client, its connection open", "kB", "idle", "proxy", "", 4.6, 3.3, True),
    Bound("the proxy's CPU for a hit, 2 workers", "1 worker",
          "workers party", "2-workers", "1-worker", 1.1, None, True),
)
# fmt: on
