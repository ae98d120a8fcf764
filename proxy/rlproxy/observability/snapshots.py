"""What the processes of a proxy publish in shared memory: the state of each worker, and the outcome
of the latest reload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from rlproxy.observability.hot_keys import NO_TOP, Top
from rlproxy.observability.metrics import Samples, kept
from rlproxy.observability.policy_counters import NO_POLICIES, PolicyState

SILENT_S: Final = 3.0  # seconds without a publication after which a worker counts as silent


@dataclass(frozen=True)
class UpstreamState:
    """The upstream as one worker sees it.

    where, server: its address, and name and version of the server.
    up, why: whether Redis answers, and why not.
    changed: time.time() when `up` changed; None if it never did.
    kind, problem: see metrics.PROBLEMS; empty if there is none.
    loaded: the scripts are on all servers.
    reached: a server accepted the latest connection of the proxy's own.
    settled: the first attempt to open one is over.
    now: what stands behind the URL now, in a few words; "" if that is clear.
    nodes: whether each master of a cluster answers, by its address; empty for one server.
    """

    where: str = ""
    server: str = ""
    up: bool = True
    why: str = ""
    changed: float | None = None
    kind: str = ""
    problem: str = ""
    loaded: bool = False
    reached: bool = False
    settled: bool = False
    now: str = ""
    nodes: Mapping[str, bool] = field(default_factory=dict)


# By user, database and what they carry: the number of lanes, of those that are connected, and of
# their unanswered calls.
Lanes = dict[tuple[str, int, str], list[int]]


@dataclass(frozen=True)
class Snapshot:
    """The published state of one worker.

    worker: its number, from 0.
    at: time of publication, seconds since 1970.
    age_s: seconds since then, infinite if there was none; see valid_at().
    samples: metrics, without those of policies.
    top: hot keys; see HotKeys.state().
    policies: hits of policies; see `policy_counters`.
    listen: addresses where clients connect.
    mode: "share" or "private": the usual way of ordinary commands.
    addresses: addresses of clients with the number of their connections, those with most.
    """

    worker: int
    at: float = -inf
    age_s: float = inf
    samples: Samples = field(default_factory=dict)
    top: Top = NO_TOP
    policies: PolicyState = NO_POLICIES
    pid: int = 0
    listen: Sequence[str] = ()
    draining: bool = False
    mode: str = ""
    on_upstream_failure: str = ""
    upstream: UpstreamState = UpstreamState()
    lanes: Lanes = field(default_factory=dict)
    addresses: Sequence[tuple[str, int]] = ()

    @property
    def fresh(self) -> bool:
        """Whether the worker counts as running: it has published within SILENT_S."""
        return abs(self.age_s) <= SILENT_S  # a negative age: the clock was set back since

    def valid_at(self, now: float) -> Snapshot:
        """Return what is valid at the time `now`: all, or the counters of a silent worker."""
        made = replace(self, age_s=now - self.at)
        return made if made.fresh else replace(made, samples=kept(self.samples), top=NO_TOP)


@dataclass(frozen=True)
class Reloaded:
    """The outcome of the latest reload, published by the process that reads the settings file.

    began: time.monotonic() when it began, before the file was read; before all times if none did.
    mistakes: reasons why the settings were rejected; empty if they are in force.
    later: options that have changed and take a restart.
    """

    began: float = float("-inf")
    mistakes: Sequence[str] = ()
    later: Sequence[str] = ()
