"""The cluster: its nodes and the map of its slots, kept up to date.

every 1 s ───────────────────────────┐
a redirect, a failed connection ─────┼─> query nodes ─> the best view ─> map ─> on_change
while a node does not answer: 0.25 s ┘
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

from rlproxy.config.urls import Address, Upstream
from rlproxy.net.tls_contexts import ClientSide
from rlproxy.observability.logs import log
from rlproxy.observability.metrics import MISFITS, UNREACHABLE
from rlproxy.upstream.backoff import pause
from rlproxy.upstream.cluster import discovery
from rlproxy.upstream.cluster.discovery import View
from rlproxy.upstream.cluster.routes import Routes
from rlproxy.upstream.cluster.slot_map import NO_MAP, SlotMap
from rlproxy.upstream.connector import Target

IS_DOWN: Final = "the nodes count the cluster as down (cluster_state:fail)"
PERIOD_S: Final = 1.0  # seconds between two looks at a cluster without trouble
TROUBLE_S: Final = 0.25  # the same while the cluster or a master is down, or no node answers
LEAST_S: Final = 0.1  # shortest time between two looks


class Cluster:
    """The nodes of one Redis Cluster and the map of its slots, kept up to date.

    upstream: the URL, with the seeds and the login.
    map: empty until discovered. Another owner of a slot makes another map.
    tls: the TLS settings of new targets; may be replaced at any time.
    replicas, unlisted: the nodes that are not in the map; see discovery.View.
    routes: made of a node's reply to COMMAND, which is requested again when the version changes.
    version: name and version of the nodes' server; "" until discovered.
    settled: the first attempt to discover is over.
    on_change: called once after the changes of the map in a tick, of which redirects may bring
        thousands.
    lost: by these changes, the slots of each master that has lost some.
    problem, kind: why no node gives a view; see metrics.PROBLEMS. Empty if one does.
    down_since: loop time since which the nodes count the cluster as down; 0 if they do not.
    is_open: returns whether the circuit of the node at an address is open.
    on_refused: called with the address of a node that has refused a new connection.
    on_unknown: called with `problem` if no node gives a view, and there is no map yet.
    """

    def __init__(
        self,
        upstream: Upstream,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        keepalive_s: int = 0,
    ) -> None:
        self.upstream = upstream
        self._loop = loop
        self._timeout_s = timeout_s
        self._keepalive_s = keepalive_s
        self.tls: ClientSide | None = None
        self.map: SlotMap = NO_MAP
        self.replicas: list[Address] = []
        self.unlisted: dict[Address, str] = {}
        self.routes = Routes([])
        self.version = ""
        self.settled = asyncio.Event()
        self.on_change: dict[Callable[[], None], None] = {}  # in order
        self.lost: dict[Address, set[int]] = {}
        self._changes = False  # on_change is called next
        self.problem = ""
        self.kind = ""
        self.is_open: Callable[[Address], bool] = lambda _address: False
        self.on_refused: Callable[[Address], None] = lambda _address: None
        self.on_unknown: Callable[[str], None] = lambda _problem: None
        self._epoch = 0  # of the view that the map was made from
        self.down_since: float = 0.0
        self._turn = -1  # the node that is queried first, unless a redirect has named one
        self._redirected: dict[int, Address] = {}  # owners by redirects since the look began
        self._home: Address | None = None
        self._wake = asyncio.Event()
        self._logged = ""  # the problem that was logged last
        self._task: asyncio.Task[None] | None = None

    # -- for connections --------------------------------------------------------------------------

    def target(self, address: Address) -> Target:
        """Return the connector to the node at `address`."""
        return Target(address, self._timeout_s, self.tls, self._keepalive_s)

    def home(self, failed: Address | None = None) -> Address | None:
        """Return the master that is home to all clients of this process; None if none is known.

        It stays the same while it is a master that answers. Workers choose different ones. The
        clients of a process share the counts of subscribers, and the state of one node.
        failed: a node that can't be reached; another one becomes home.
        """
        shards = self.map.shards
        if not shards:
            return None
        at = os.getpid() % len(shards)
        if self._home is not None:
            at = self.map.index.get(self._home, at)
        ranked = [*shards[at:], *shards[:at]]
        up = (one for one in ranked if one.address != failed and not self.is_open(one.address))
        self._home = next(up, ranked[0]).address
        return self._home

    def is_down(self) -> bool:
        """Return whether no master is known, or the circuits of all are open."""
        return all(map(self.is_open, self.map.index))

    def redirected(self, node: Address, error: bytes) -> Address | None:
        """Take the new owner that a MOVED of `node` names; query the nodes soon after other errors.

        Returns the node that a MOVED or ASK names; None for other errors.
        """
        slot, address = discovery.redirect(error, node)
        if address is None:
            self.refresh()
        elif error.startswith(b"-MOVED") and (owner := self.map.owner(slot)) != address:
            self._redirected.pop(slot, None)  # the latest redirect is the last one
            self._redirected[slot] = address
            self._take(self.map.with_owner(slot, address), {owner: {slot}} if owner else {})
            self.refresh()
        return address

    def refresh(self) -> None:
        """Query the nodes soon."""
        self._wake.set()

    # -- discovery --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to follow the cluster."""
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            pause_s = PERIOD_S
            try:
                pause_s = await self._discover()
            except Exception as error:  # an exception would end the task that follows the cluster
                log.error(
                    "cluster_failed",
                    "cannot read the cluster's state: {reason}; retrying",
                    reason=repr(error),
                )
            self.settled.set()
            # A move that a redirect reports reaches the other nodes within milliseconds.
            await asyncio.sleep(LEAST_S)
            await pause(pause_s - LEAST_S, self._wake)

    async def _discover(self) -> float:
        """Query the nodes and take the best view. Returns the seconds until the next look."""
        self._wake.clear()
        nodes, slots = self._order(), self.map.owned()
        self._redirected.clear()
        found = await discovery.best_view(nodes, self._query, self._epoch, slots)
        if not found.map.shards:
            self._failed(found)
            return TROUBLE_S
        self.problem = self.kind = ""
        if self._logged:
            self._logged = ""
            log.info("cluster_back", "the nodes of the cluster report their slots again")
        self._epoch = found.epoch
        if found.commands is not None:
            self.routes, self.version = Routes(found.commands), found.version
        self.replicas, self.unlisted = found.replicas, found.unlisted
        seen = found.map
        for slot, address in self._redirected.items():
            seen = seen.with_owner(slot, address)
        if (seen.shards, seen.owners) != (self.map.shards, self.map.owners):
            self._take(seen, self.map.lost(seen))
        await self._judge(found)
        calm = not (self.down_since or found.suspects or any(map(self.is_open, self.map.index)))
        return PERIOD_S if calm else TROUBLE_S

    async def _judge(self, found: View) -> None:
        """Record whether the nodes count the cluster as down: all that were queried for `found`.

        After that it is available only once all masters that answer count it so: a master that was
        away does so long before those that it was away from.
        """
        if not (found.healthy or self.down_since):
            self.down_since = self._loop.time()
            log.warning("cluster_down", IS_DOWN)
        elif found.healthy and self.down_since:
            views = await asyncio.gather(*map(self._query, self.map.index))
            if all(each.healthy or each.problem for each in views):
                self.down_since = 0.0
                log.info("cluster_back", "the nodes of the cluster count it as available again")

    async def _query(self, address: Address) -> View:
        found = await discovery.view(self.target(address), self.upstream, self.version)
        known = View(self.map, replicas=self.replicas).nodes()
        found.foreign = bool(known) and known.isdisjoint(found.nodes())
        return found

    def _order(self) -> list[Address]:
        """Return the nodes in the order of querying: one that a redirect named, then in turn."""
        known = list(dict.fromkeys([*self.map.index, *self.replicas, *self.upstream.cluster]))
        self._turn += 1
        at = self._turn % len(known)
        named = list(self._redirected.values())[-1:]
        return list(dict.fromkeys([*named, *known[at:], *known[:at]]))

    def _take(self, found: SlotMap, lost: dict[Address, set[int]]) -> None:
        """Make another map the present one."""
        former, masters = (sorted(map(str, each.index)) for each in (self.map, found))
        self.map = found
        for address, slots in lost.items():
            self.lost.setdefault(address, set()).update(slots)
        if not self._changes:
            self._changes = True
            self._loop.call_soon(self._changed)
        if former and masters != former:
            log.info(
                "cluster_changed",
                "the masters of the cluster are now {masters} (were {former})",
                masters=masters,
                former=former,
            )

    def _changed(self) -> None:
        self._changes = False
        for changed in list(self.on_change):
            changed()
        self.lost = {}

    def _failed(self, found: View) -> None:
        """Record that no node gives a view of the cluster."""
        where = ", ".join(map(str, self.upstream.cluster))
        self.kind = found.kind or UNREACHABLE
        self.problem = found.problem or "its nodes own no slots yet"
        if self.kind in MISFITS and not self.settled.is_set():
            return  # the server reports it as a start error
        if not self.map.shards:
            self.on_unknown(self.problem)
        if self.problem != self._logged:
            self._logged = self.problem
            log.warning(
                "cluster_unreachable",
                "no node of the cluster ({address}) reports its slots: {reason}; retrying",
                address=where,
                reason=self.problem,
            )
