"""Real Redis Clusters for the tests: masters and replicas, each a process of its own.

with Cluster("valkey-9.1", masters=3, replicas=1) as cluster:
    cluster.move_slot(0, cluster.nodes[1])
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from rlproxy.resp.key_slot import SLOTS, key_slot

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, free_port, wait_until

BUS_OFFSET = 10_000  # from a node's port to that of its cluster bus; free_port() leaves it room
NODE_TIMEOUT_MS = 1000
ELECTION = 4.1  # node timeouts for which an election affects the replica's next one
MIGRATE_TIMEOUT_MS = 5000
MIGRATE_AT_ONCE = 100  # keys in one MIGRATE
LOOK_S = 0.1  # seconds between two looks at all nodes
READY_S = 30.0  # seconds to wait for the nodes to agree; a busy machine can delay an election


def cluster_engines() -> list[str]:
    """The servers for tests of clusters: the oldest and the newest one; all with
    CLUSTER_ENGINES=all. A cluster takes 2 s to start and three processes.
    """
    found = sorted(harness.engines())
    if os.environ.get("CLUSTER_ENGINES") == "all":
        return found
    return [name for name in found if name in ("redis-6.2", "valkey-9.1")] or found


# For tests of the proxy alone, where the cluster of each server does the same.
ON_ONE_CLUSTER = pytest.mark.parametrize("module_cluster", cluster_engines()[-1:], indirect=True)


@contextlib.contextmanager
def started(clusters: Sequence[Cluster]) -> Iterator[None]:
    """Run the clusters; they start at the same time, as that is two seconds of waiting."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(clusters)) as pool:
        for each in clusters:
            stack.callback(each.close)
        for _ in pool.map(Cluster.start, clusters):
            pass
        yield


def _port_with_bus() -> int:
    """Return a free port for a node, whose bus port is free, too."""
    while True:
        port = free_port()
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port + BUS_OFFSET))
            return port


@dataclass
class Node(RedisServer):
    """A server with cluster-enabled. stop() and start() keep its place in the cluster, not its
    keys.

    password: of its default user; connections of raw() are logged in.
    """

    password: str = ""
    paused: bool = False
    _id: str = field(default="", init=False)

    @property
    def id(self) -> str:
        """Its node id."""
        if not self._id:
            self._id = text(self.ask("CLUSTER", "MYID"))
        return self._id

    @property
    def serves(self) -> bool:
        """Whether its process runs and is not paused."""
        return self._process is not None and not self.paused

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """See RedisServer.stop(). A file of a replication would bring back keys."""
        super().stop()
        (Path(self.directory) / "dump.rdb").unlink(missing_ok=True)

    def raw(self) -> Raw:
        """Return a new connection."""
        made = super().raw()
        if self.password:
            assert made.ask("AUTH", self.password) == "OK"
        return made

    def do(self, *words: bytes | str | int) -> None:
        """Send one command; fail unless the reply is OK."""
        reply = self.ask(*words)
        assert reply == "OK", (self.address, words[:4], reply)

    def info(self, section: str) -> dict[str, str]:
        """Return the fields of INFO `section`, or of CLUSTER INFO for "cluster"."""
        found = self.ask(*("CLUSTER", "INFO") if section == "cluster" else ("INFO", section))
        lines = text(found).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def log(self) -> str:
        """Return what it has logged."""
        return (Path(self.directory) / "log").read_text("utf-8", "replace")

    def view(self) -> list[Row]:
        """Return the rows of its CLUSTER NODES."""
        return [Row.parse(line) for line in text(self.ask("CLUSTER", "NODES")).splitlines()]

    def epoch(self) -> int:
        """Return its configuration epoch."""
        return next(row.epoch for row in self.view() if "myself" in row.flags)

    def newest_epoch(self) -> int:
        """Return the newest configuration epoch that it knows of any node."""
        return max(row.epoch for row in self.view())

    def since_election_s(self) -> float:
        """Return the seconds since it last asked for votes, by its log."""
        for line in reversed(self.log().splitlines()):
            if "Starting a failover election" in line:
                began = " ".join(line.split()[1:5])
                at = datetime.strptime(began, "%d %b %Y %H:%M:%S.%f")
                return (datetime.now() - at).total_seconds()
        return math.inf


@dataclass(frozen=True)
class Row:
    """A line of CLUSTER NODES.

    master: the id of its master; "-" for a master.
    epoch: its configuration epoch, which decides between nodes that claim the same slot.
    slots: ranges of slots, first and last included.
    moving: slots that the node migrates or imports; it reports only its own.
    """

    id: str
    flags: frozenset[str]
    master: str
    epoch: int
    connected: bool
    slots: tuple[tuple[int, int], ...]
    moving: tuple[int, ...]

    @classmethod
    def parse(cls, line: str) -> Row:
        """Parse one line."""
        words = line.split()
        ends = [word.split("-") for word in words[8:] if not word.startswith("[")]
        slots = tuple((int(each[0]), int(each[-1])) for each in ends)
        moving = tuple(int(word[1:].split("-")[0]) for word in words[8:] if word.startswith("["))
        flags, connected = frozenset(words[2].split(",")), words[7] == "connected"
        return cls(words[0], flags, words[3], int(words[6]), connected, slots, moving)


class Cluster:
    """A cluster whose masters share all slots evenly.

    nodes: the masters in the order of their slots, then the replicas of the first master, of the
    second and so on, then those that add_node() started. The order stays as it was after a
    failover.

    args: further options of every node.
    """

    def __init__(
        self,
        engine: str,
        masters: int = 3,
        replicas: int = 0,
        *,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        password: str = "",
        args: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self._masters, self._replicas = masters, replicas
        self._password = password
        self._election_s = ELECTION * node_timeout_ms / 1000
        self._args = (
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms)),
            # A replica takes over however old its data are, and stays with its master.
            *("--cluster-replica-validity-factor", "0"),
            *("--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0", "--appendonly", "no"),
            *(("--requirepass", password, "--masterauth", password) if password else ()),
            *args,
        )
        self.nodes = [self._make() for _ in range(masters * (1 + replicas))]

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> Node:
        executable, args = harness.engines()[self.engine], self._args
        return Node(self.engine, executable, args, _port_with_bus(), password=self._password)

    # -- start and end ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all nodes, give out the slots and wait until all nodes agree.

        A master refuses commands in the first two seconds of its process, so it takes that long.
        """
        for each in self.nodes:
            each.start()
        for epoch, node in enumerate(self.nodes, 1):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", epoch)  # equal ones would have to be resolved
        bounds = [index * SLOTS // self._masters for index in range(self._masters + 1)]
        for node, (first, end) in zip(self.nodes, itertools.pairwise(bounds), strict=False):
            node.do("CLUSTER", "ADDSLOTS", *range(first, end))
        for one, other in itertools.combinations(self.nodes, 2):
            one.do("CLUSTER", "MEET", "127.0.0.1", other.port)
        for index in range(self._masters * self._replicas):
            self._replicate(self.nodes[self._masters + index], self.nodes[index // self._replicas])
        self.wait_ok()

    def _replicate(self, replica: Node, master: Node) -> None:
        """Make `replica` one of `master`, once it has met it."""

        def done() -> bool:
            return replica.ask("CLUSTER", "REPLICATE", master.id) == "OK"

        wait_until(done, f"{replica.address} replicates {master.address}", READY_S)

    def close(self) -> None:
        """End all nodes."""
        for each in self.nodes:
            each.close()

    def add_node(self, replica_of: Node | None = None) -> Node:
        """Start one more node, a master without slots or a replica, and wait until all agree."""
        made = self._make()
        self.nodes.append(made)
        made.start()
        for other in self.serving():
            if other is not made:
                made.do("CLUSTER", "MEET", "127.0.0.1", other.port)
        if replica_of is not None:
            self._replicate(made, replica_of)
        self.wait_ok()
        return made

    def remove_node(self, node: Node) -> None:
        """Remove a node without slots and replicas, and end it."""
        assert node.id
        self.nodes.remove(node)
        for other in self.serving():
            other.do("CLUSTER", "FORGET", node.id)
        node.close()
        self.wait_ok()

    def emptied(self) -> Cluster:
        """Delete all keys; return the cluster."""
        for node in self.masters():
            node.do("FLUSHALL")
        return self

    @contextlib.contextmanager
    def setting(self, name: str, value: str | int) -> Iterator[None]:
        """Give all nodes this value of an option for the block; those that restart in it get their
        own one back, too.
        """
        found = self.nodes[0].ask("CONFIG", "GET", name)
        assert isinstance(found, list)
        before = text(found[1])
        self._set(name, value)
        try:
            yield
        finally:
            self._set(name, before)

    def _set(self, name: str, value: str | int) -> None:
        for node in self.nodes:
            node.do("CONFIG", "SET", name, value)

    @contextlib.contextmanager
    def requires(self, password: str) -> Iterator[None]:
        """Have masters require `password` of the default user for the block."""
        self._set("requirepass", password)
        for node in self.nodes:
            node.password = password
        try:
            yield
        finally:
            self._set("requirepass", "")
            for node in self.nodes:
                node.password = ""

    # -- what it is -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL for --upstream, without a password: all nodes are seeds."""
        return "redis+cluster://" + ",".join(node.address for node in self.nodes)

    def serving(self) -> list[Node]:
        """Return the nodes that run and are not paused."""
        return [node for node in self.nodes if node.serves]

    def masters(self) -> list[Node]:
        """Return the nodes that own slots, by their lowest slot, as the serving nodes report."""
        rows = [row for row in self.serving()[0].view() if row.slots]
        return [self.node(row.id) for row in sorted(rows, key=lambda row: row.slots[0])]

    def replicas(self, master: Node) -> list[Node]:
        """Return the replicas of `master`, as the serving nodes report."""
        return [self.node(row.id) for row in self.serving()[0].view() if row.master == master.id]

    def node(self, node_id: str) -> Node:
        """Return the node with this id."""
        return next(node for node in self.nodes if node.id == node_id)

    def owner(self, slot: int) -> Node:
        """Return the master of `slot`, as the serving nodes report."""
        for row in self.serving()[0].view():
            if any(first <= slot <= last for first, last in row.slots):
                return self.node(row.id)
        raise AssertionError(f"slot {slot} has no owner")

    def owner_of_key(self, key: str) -> Node:
        """Return the master of the slot of `key`."""
        return self.owner(key_slot(key.encode()))

    def other_master(self, slot: int) -> Node:
        """Return a master that does not own `slot`."""
        owner = self.owner(slot)
        return next(node for node in self.masters() if node is not owner)

    def keys_at(self, node: Node, prefix: str = "key") -> Iterator[str]:
        """Yield keys whose slots `node` owns now: `prefix` and a number."""
        slots = [row.slots for row in self.serving()[0].view() if row.id == node.id]
        ranges = [each for found in slots for each in found]
        for number in itertools.count():
            slot = key_slot(f"{prefix}{number}".encode())
            if any(first <= slot <= last for first, last in ranges):
                yield f"{prefix}{number}"

    def key_at(self, node: Node, prefix: str = "key") -> str:
        """Return the first of keys_at()."""
        return next(self.keys_at(node, prefix))

    def keys_of_all(self, count: int = 1, prefix: str = "key") -> list[str]:
        """Return `count` keys of each master, in turn."""
        each = [itertools.islice(self.keys_at(node, prefix), count) for node in self.masters()]
        return [key for keys in zip(*each, strict=True) for key in keys]

    def wait_ok(self) -> None:
        """Wait until the serving nodes serve all slots and agree on owners and roles."""
        wait_until(self.is_ok, "all nodes agree", READY_S, LOOK_S)

    def is_ok(self) -> bool:
        """Return whether the serving nodes serve all slots and agree on owners and roles.

        They must agree on epochs, too: a slot that moved on sooner could have two owners.
        """
        serving = self.serving()
        ids, views = {node.id for node in serving}, set()
        for node in serving:
            rows = [row for row in node.view() if row.id in ids]
            if len(rows) < len(ids) or not all(row.connected for row in rows):
                return False
            if node.info("cluster")["cluster_state"] != "ok":
                return False
            views.add(
                frozenset(
                    (row.id, row.master, row.epoch, row.slots, row.flags - {"myself"})
                    for row in rows
                )
            )
            replication = node.info("replication")
            if replication.get("master_link_status", "up") != "up":
                return False
        (view, *others) = views
        transient = {"fail", "fail?", "handshake", "noaddr"}
        return not others and not any(transient & flags for *_, flags in view)

    # -- slots ------------------------------------------------------------------------------------

    def begin_move(self, slot: int, to: Node) -> None:
        """Mark `slot` as migrating at its owner and as importing at `to`."""
        owner = self.owner(slot)
        to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.id)
        owner.do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)

    def move_keys(self, slot: int, to: Node, most: int | None = None) -> int:
        """Migrate keys of `slot` to `to`: all, or at most `most`. Returns their number."""
        owner, moved = self.owner(slot), 0
        auth = ("AUTH", self._password) if self._password else ()
        with owner.raw() as raw:
            while most is None or moved < most:
                count = MIGRATE_AT_ONCE if most is None else min(MIGRATE_AT_ONCE, most - moved)
                keys = raw.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
                assert isinstance(keys, list), keys
                if not keys:
                    break
                reply = raw.ask(
                    *("MIGRATE", "127.0.0.1", to.port, "", 0, MIGRATE_TIMEOUT_MS, *auth),
                    *("KEYS", *keys),
                )
                assert reply in ("OK", "NOKEY"), reply  # NOKEY: they expired
                moved += len(keys)
        return moved

    def end_move(self, slot: int, to: Node, everywhere: bool = True) -> None:
        """Make `to` the owner of `slot`.

        everywhere: set it at all other masters, too. Otherwise only the two nodes know at first,
        and the others learn it over the cluster bus.
        """
        owner = self.owner(slot)
        others = [node for node in self.masters() if node is not owner and node is not to]
        # Otherwise its own new epoch may not be the newest, and an older owner keeps the slot.
        wait_until(
            lambda: self._newest_epoch() <= to.newest_epoch(), "it knows all epochs", READY_S
        )
        for node in (to, owner, *(others if everywhere else ())):
            if node.serves:
                node.do("CLUSTER", "SETSLOT", slot, "NODE", to.id)

    def _newest_epoch(self) -> int:
        return max(node.epoch() for node in self.serving())

    def move_slot(self, slot: int, to: Node) -> None:
        """Move `slot` and its keys to `to`, and wait until all nodes agree."""
        self.begin_move(slot, to)
        self.move_keys(slot, to)
        self.end_move(slot, to)
        self.wait_ok()

    def give_up_moves(self) -> None:
        """Leave each slot whose move has begun with its owner. Keys that were moved are lost.

        A node does not learn another owner of a slot that it is importing.
        """
        for node in self.serving():
            for slot in itertools.chain.from_iterable(row.moving for row in node.view()):
                node.do("CLUSTER", "SETSLOT", slot, "STABLE")

    def moves_atomically(self) -> bool:
        """Return whether the servers have CLUSTER MIGRATESLOTS."""
        return self.engine.startswith("valkey") and self.nodes[0].version >= (9, 0)

    def move_atomically(self, first: int, last: int, to: Node) -> None:
        """Have the owner of these slots move them to `to` (Valkey 9), and wait until it has."""
        owner = self.owner(first)
        before = {job["name"] for job in _migrations(owner)}
        owner.do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", to.id)

        def moved() -> bool:
            (job,) = [job for job in _migrations(owner) if job["name"] not in before]
            assert job["state"] not in ("failed", "cancelled"), job
            return job["state"] == "success"

        wait_until(moved, f"slots {first} to {last} move to {to.address}", READY_S)

    # -- failures ---------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """End its process with SIGKILL; node.start() starts it again."""
        assert node.id  # known from now on without the process
        node.stop()
        node.paused = False

    def stop(self, node: Node) -> None:
        """Pause its process (SIGSTOP)."""
        assert node.id
        os.kill(node.pid, signal.SIGSTOP)
        node.paused = True

    def cont(self, node: Node) -> None:
        """Let a paused process continue (SIGCONT)."""
        os.kill(node.pid, signal.SIGCONT)
        node.paused = False

    def failover(self, replica: Node, option: str = "") -> None:
        """Make `replica` the master by a manual failover, and wait until all nodes agree.

        A replica that was elected shortly before has to wait: Redis 7.0 would pause its master for
        seconds, or count the votes of the earlier election, and then two masters accept writes.

        option: FORCE or TAKEOVER, where the master does not answer.
        """
        wait_until(
            lambda: replica.since_election_s() > self._election_s, "its election is over", READY_S
        )
        (master,) = [self.node(row.master) for row in replica.view() if "myself" in row.flags]
        replica.do("CLUSTER", "FAILOVER", *([option] if option else []))
        if not option and replica.version < (7, 0):
            wait_until(lambda: master.info("replication")["role"] == "slave", "it follows", READY_S)
            master.do("CLIENT", "UNPAUSE")  # Redis 6.2 forgets that, and is silent for 10 s
        self.wait_promoted(replica)

    def wait_promoted(self, replica: Node) -> None:
        """Wait until `replica` owns slots and all serving nodes agree."""

        def promoted() -> bool:
            return any("myself" in row.flags and row.slots for row in replica.view())

        wait_until(promoted, f"{replica.address} is a master", READY_S)
        self.wait_ok()


@contextlib.contextmanager
def private_proxy(cluster: Cluster, *args: str) -> Iterator[Proxy]:
    """Run a proxy in front of `cluster` whose clients share no connection."""
    with harness.proxy(cluster.url, "--share", "no", *args) as made:
        yield made


def text(reply: object) -> str:
    """Decode a bulk string reply."""
    assert isinstance(reply, bytes), reply
    return reply.decode()


def _migrations(owner: Node) -> list[dict[str, str]]:
    """Return the atomic migrations that `owner` reports."""
    found = owner.ask("CLUSTER", "GETSLOTMIGRATIONS")
    assert isinstance(found, list), found
    rows = []
    for each in found:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in each]
        rows.append(dict(zip(words[::2], words[1::2], strict=True)))
    return rows
