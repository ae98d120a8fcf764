"""What a cluster suffers: slots that move, failovers, nodes that come, go and fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from rlproxy.resp.key_slot import key_slot

from tests.clusters import Cluster, Node
from tests.harness import Raw, ReplyError
from tests.stress import checks
from tests.stress.checks import Violations
from tests.stress.cluster_checks import check_waited
from tests.stress.cluster_work import TAGS

LONG_S = 13.0  # longer than cluster_client.ANSWER_S
GIVE_UP_S = 30.0  # the longest wait for a recovery
PATIENCE_S = 0.1  # until a probe tries another connection, times the load per core
NEIGHBOUR_S = 1.0  # in which other masters' keys are answered
SETTLED_S = 0.5  # after which no proxy uses a node whose slots have moved
PROBE_S = 0.02  # seconds between two probes
RANGE = 40  # slots on each side of one that is moved atomically
Change = Callable[["Suffering"], None]
Fault = Callable[["Suffering", Node], None]


class Suffering:
    """What happens to one cluster. Its methods block."""

    def __init__(
        self, cluster: Cluster, port: int, seed: int, violations: Violations, back_s: float
    ) -> None:
        self.cluster = cluster
        self.port = port  # of the proxy
        self.source = random.Random(seed + 1)
        self.violations = violations
        self.back_s = back_s
        self.actions: Counter[str] = Counter()
        self.recoveries: list[tuple[str, float, float]] = []  # the cluster's own, the proxy's more
        self.slowest_neighbour = (0.0, "none")
        self.busiest = 1.0
        self.probes = 0
        self._nodes = len(cluster.nodes)

    def any_tag(self) -> str:
        """Return a hash tag."""
        return f"t{self.source.randrange(TAGS)}"

    def other_master(self, owner: Node) -> Node:
        """Return another master."""
        return self.source.choice([node for node in self.cluster.masters() if node is not owner])

    def pause(self, most_s: float) -> None:
        """Let the clients work on."""
        time.sleep(self.source.uniform(0, most_s))

    def change(self, change: Change) -> None:
        """Change the cluster without loss, and wait until all nodes agree."""
        self.actions[_name(change)] += 1
        change(self)
        self.cluster.wait_ok()

    def repair(self) -> None:
        """Undo what a failed change has left: moves that have begun, and a node that was added."""
        cluster = self.cluster
        cluster.give_up_moves()
        cluster.wait_ok()
        for added in cluster.nodes[self._nodes :]:
            _remove(self, added)

    async def cause(self, fault: Fault, numbered: str) -> None:
        """Cause a fault of one master, and measure what clients notice."""
        name = _name(fault)
        self.actions[name] += 1
        cluster = self.cluster
        hurt = await asyncio.to_thread(lambda: self.source.choice(cluster.masters()))
        where = f"{name} in phase {numbered}"
        self.busiest = max(self.busiest, self.busy())
        over = threading.Event()
        kept = [node for node in cluster.masters() if node is not hurt]
        neighbours = [
            asyncio.to_thread(self._neighbour, f"{where}: {kind}", cluster.key_at(node), over)
            for node in kept
            for kind in ("SET", "RL.HIT", "a new client")
        ]
        key = cluster.key_at(hurt, f"probe:{numbered}:")
        nodes = [hurt, *cluster.replicas(hurt)]
        hitter = await asyncio.to_thread(Hitter, self.port, f"{{{key}}}hit")
        tasks = [asyncio.ensure_future(each) for each in neighbours]
        await asyncio.sleep(0.1)
        hurting = asyncio.ensure_future(asyncio.to_thread(fault, self, hurt))
        await asyncio.sleep(0.02)
        try:
            await self._recovered(name, where, key, nodes, hitter)
            await hurting
            await asyncio.to_thread(cluster.wait_ok)
        finally:
            over.set()
            await asyncio.gather(hurting, *tasks)

    def busy(self) -> float:
        """Return the runnable processes per core."""
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    # -- what clients notice ----------------------------------------------------------------------

    async def _recovered(
        self, name: str, where: str, key: str, nodes: list[Node], hitter: Hitter
    ) -> None:
        """Measure when the cluster itself serves `key` again, and when the proxy does."""
        began = time.monotonic()
        served = threading.Event()
        patience_s = PATIENCE_S * self.busy()
        direct = [
            asyncio.to_thread(_served_to_new_clients, node.port, key, patience_s, served)
            for node in nodes
        ]
        command = asyncio.to_thread(
            _served_to_new_clients, self.port, key, patience_s, threading.Event()
        )
        hit = asyncio.to_thread(hitter.served_at)
        *times, command_at, hit_at = await asyncio.gather(*direct, command, hit)
        own_at = min(times)
        if own_at - began > GIVE_UP_S:
            self.violations.add("the harness", f"the cluster did not recover: {where}")
            return
        for what, at in (("a command", command_at), ("a hit", hit_at)):
            late_s = max(0.0, at - own_at)
            self.recoveries.append((f"{name}, {what}", own_at - began, late_s))
            most_s = self.back_s * self.busiest
            checks.check_recovery(self.violations, f"{where} ({what})", late_s, most_s)

    def _neighbour(self, what: str, key: str, over: threading.Event) -> None:
        """Use a key of a master that serves, until the fault is over."""
        new = "new" in what
        words = ("RL.HIT", f"{{{key}}}hit", 1_000_000, 3600) if "HIT" in what else ("SET", key, 1)
        raw = Raw(self.port)
        while not over.is_set():
            began = time.monotonic()
            if new:
                raw.close()
                raw = Raw(self.port)
            try:
                got = raw.ask(*words)
            except AssertionError as error:
                got = error
            took = time.monotonic() - began
            self.probes += 1
            self.slowest_neighbour = max(
                self.slowest_neighbour, (took, f"{what} got {got!r}"[:150])
            )
            if "CLUSTERDOWN" not in str(got):
                check_waited(self.violations, what, took, NEIGHBOUR_S * self.busiest)
            if isinstance(got, Exception) and "CLUSTERDOWN" not in str(got):
                self.violations.add("a neighbour", f"{what} got {got!r}")
                if raw.closed:
                    raw = Raw(self.port)
            over.wait(PROBE_S)
        raw.close()


def _name(action: Callable[..., None]) -> str:
    return action.__name__.strip("_").replace("_", " ")


def _until(condition: Callable[[], bool], over: threading.Event | None = None) -> float:
    """Return the time at which the condition was met; GIVE_UP_S later, or the end, if it wasn't."""
    began = time.monotonic()
    while time.monotonic() - began < GIVE_UP_S and not (over is not None and over.is_set()):
        with contextlib.suppress(OSError, AssertionError):
            if condition():
                return time.monotonic()
        time.sleep(0.005)
    return began + 2 * GIVE_UP_S


def _served_to_new_clients(
    port: int, key: str, patience_s: float, served: threading.Event
) -> float:
    """Return when a new client that waits `patience_s` can set `key`, unless `served` is set.

    On a busy machine, abandoned clients would fill the proxy's queue of those to be accepted.
    """

    def serves() -> bool:
        with Raw(port) as raw:
            raw.sock.settimeout(patience_s)
            raw.sock.sendall(b"SET %b 1\r\n" % key.encode())
            return raw.sock.recv(5) == b"+OK\r\n"

    found = _until(serves, served)
    served.set()
    return found


class Hitter:
    """A client whose hits go by lane."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._key = key
        self._raw = Raw(port)
        for _ in range(5):
            self.served()

    def served(self) -> bool:
        """Return whether a hit is served."""
        if self._raw.closed:
            self._raw.close()
            self._raw = Raw(self._port)
        return isinstance(self._raw.ask("RL.HIT", self._key, 1_000_000, 3600), list)

    def served_at(self) -> float:
        """Return when hits are served, and close the connection."""
        found = _until(self.served)
        self._raw.close()
        return found


# -- changes without loss -------------------------------------------------------------------------


def _step_by_step(all_: Suffering) -> None:
    """Move one to three slots key by key, while clients write."""
    cluster = all_.cluster
    tags = all_.source.sample(range(TAGS), all_.source.randrange(1, 4))
    moves = []
    for tag in tags:
        slot = key_slot(b"t%d" % tag)
        to = all_.other_master(cluster.owner(slot))
        cluster.begin_move(slot, to)
        moves.append((slot, to))
    all_.pause(0.1)
    left = list(moves)
    deadline = time.monotonic() + GIVE_UP_S
    while left and time.monotonic() < deadline:
        slot, to = all_.source.choice(left)
        if not cluster.move_keys(slot, to, all_.source.choice((1, 5, 20))):
            left.remove((slot, to))
        all_.pause(0.02)
    for slot, to in moves:
        cluster.end_move(slot, to, everywhere=all_.source.random() < 0.5)
        all_.pause(0.05)


def _at_once(all_: Suffering) -> None:
    """Move a slot as fast as possible."""
    cluster = all_.cluster
    slot = key_slot(all_.any_tag().encode())
    to = all_.other_master(cluster.owner(slot))
    cluster.begin_move(slot, to)
    cluster.move_keys(slot, to)
    cluster.end_move(slot, to, everywhere=all_.source.random() < 0.5)


def _atomically(all_: Suffering) -> None:
    """Move a range of slots by CLUSTER MIGRATESLOTS; earlier servers move them at once."""
    cluster = all_.cluster
    if not cluster.moves_atomically():
        _at_once(all_)
        return
    slot = key_slot(all_.any_tag().encode())
    owner = cluster.owner(slot)
    (row,) = [row for row in owner.view() if row.id == owner.id]
    ((low, high),) = [each for each in row.slots if each[0] <= slot <= each[1]]
    first, last = max(low, slot - RANGE), min(high, slot + RANGE)
    cluster.move_atomically(first, last, all_.other_master(owner))


def _manual_failover(all_: Suffering) -> None:
    cluster = all_.cluster
    master = all_.source.choice([each for each in cluster.masters() if cluster.replicas(each)])
    cluster.failover(all_.source.choice(cluster.replicas(master)))


def _node_added_and_removed(all_: Suffering) -> None:
    cluster = all_.cluster
    slots = [key_slot(b"t%d" % tag) for tag in all_.source.sample(range(TAGS), 2)]
    added = cluster.add_node()
    for slot in slots:
        _move(all_, slot, added)
    all_.pause(0.3)
    _remove(all_, added)


def _remove(all_: Suffering, added: Node) -> None:
    """Give the slots of a node to other masters, and remove it."""
    cluster = all_.cluster
    owned = [each for row in added.view() if "myself" in row.flags for each in row.slots]
    for first, last in owned:
        for slot in range(first, last + 1):
            _move(all_, slot, all_.other_master(added))
    cluster.wait_ok()
    time.sleep(SETTLED_S * all_.busy())
    cluster.remove_node(added)


def _move(all_: Suffering, slot: int, to: Node) -> None:
    cluster = all_.cluster
    if cluster.moves_atomically() and all_.source.random() < 0.5:
        cluster.move_atomically(slot, slot, to)
    else:
        cluster.begin_move(slot, to)
        while cluster.move_keys(slot, to, 5):
            all_.pause(0.01)
        cluster.end_move(slot, to)
    cluster.wait_ok()


# Redis serves all slots during these.
MOVES: tuple[Change, ...] = (
    *(_step_by_step, _step_by_step, _atomically, _at_once),
    _node_added_and_removed,
)
# A node that receives the old master's message before the new one's answers CLUSTERDOWN for up to
# one second.
CHANGES: tuple[Change, ...] = (*MOVES, _manual_failover)


# -- faults ---------------------------------------------------------------------------------------


def _killed(all_: Suffering, master: Node) -> None:
    """Kill a master; it comes back once its replica is a master."""
    (replica,) = all_.cluster.replicas(master)[:1]
    all_.cluster.kill(master)
    _until(lambda: _owns_slots(replica))
    all_.pause(1.0)
    master.start()


def _killed_and_restarted(all_: Suffering, master: Node) -> None:
    """Kill a master and start it again at once, empty."""
    all_.cluster.kill(master)
    all_.pause(0.3)
    master.start()


def _stopped_briefly(all_: Suffering, master: Node) -> None:
    """Stop a master for less than the cluster's timeout."""
    all_.cluster.stop(master)
    time.sleep(all_.source.uniform(0.1, 0.7))
    all_.cluster.cont(master)


def _stopped(all_: Suffering, master: Node) -> None:
    """Stop a master; it continues once its replica is a master."""
    (replica,) = all_.cluster.replicas(master)[:1]
    all_.cluster.stop(master)
    _until(lambda: _owns_slots(replica))
    all_.pause(1.0)
    all_.cluster.cont(master)


def _stopped_for_long(all_: Suffering, master: Node) -> None:
    """Stop a master for longer than clients wait."""
    all_.cluster.stop(master)
    time.sleep(LONG_S)
    all_.cluster.cont(master)


def _owns_slots(node: Node) -> bool:
    try:
        return any("myself" in row.flags and row.slots for row in node.view())
    except ReplyError:
        return False


FAULTS: tuple[Fault, ...] = (
    *(_killed, _killed, _killed_and_restarted, _killed_and_restarted),
    *(_stopped_briefly, _stopped_briefly, _stopped, _stopped, _stopped_for_long),
)
