"""A Redis Cluster of a few nodes on this machine, for tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from rlproxy.resp.key_slot import SLOTS, key_slot

from tests import harness
from tests.harness import RedisServer, wait_until

NODE_TIMEOUT_MS = 1000


class Nodes:
    """Masters that share all slots, and one replica for each if wanted.

    options: further arguments of each server.
    """

    def __init__(
        self,
        engine: str,
        masters: int = 3,
        replicas: bool = False,
        options: tuple[str, ...] = (),
    ) -> None:
        common: tuple[str, ...] = (
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            str(NODE_TIMEOUT_MS),
        )
        common += ("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0")
        executable = harness.engines()[engine]
        number = 2 * masters if replicas else masters
        made = [RedisServer(engine, executable, common + options) for _ in range(number)]
        self.masters, self.replicas = made[:masters], made[masters:]
        self.servers = made

    def start(self) -> Nodes:
        """Start all nodes, and wait until all slots are served."""
        for server in self.servers:
            server.start()
        step = -(-SLOTS // len(self.masters))
        for at, server in enumerate(self.masters):
            owned = range(at * step, min(SLOTS, (at + 1) * step))
            with server.raw() as raw:
                assert raw.ask("CLUSTER", "ADDSLOTS", *owned) == "OK"
                assert raw.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1) == "OK"
        for server in self.servers[1:]:
            with server.raw() as raw:
                assert raw.ask("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port) == "OK"
        for server in self.servers:
            wait_until(partial(self._knows_all, server), "the nodes know each other")
        for master, replica in zip(self.masters, self.replicas, strict=False):
            name = self.id_of(master)
            with replica.raw() as raw:
                assert raw.ask("CLUSTER", "REPLICATE", name) == "OK"
        for server in self.servers:
            wait_until(partial(self._serves, server), "all slots are served")
        for replica in self.replicas:
            wait_until(partial(self._follows, replica), "the replicas follow")
        if self.replicas:
            for master in self.masters:
                wait_until(partial(self._lists_all, master), "replicas are listed")
        return self

    def _knows_all(self, server: RedisServer) -> bool:
        with server.raw() as raw:
            lines = _lines(raw.ask("CLUSTER", "NODES"))
        return len(lines) == len(self.servers) and not any("handshake" in line for line in lines)

    def _serves(self, server: RedisServer) -> bool:
        with server.raw() as raw:
            info = raw.ask("CLUSTER", "INFO")
        assert isinstance(info, bytes)
        return b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info

    def _follows(self, replica: RedisServer) -> bool:
        with replica.raw() as raw:
            info = raw.ask("INFO", "replication")
        assert isinstance(info, bytes)
        return b"master_link_status:up" in info

    def _lists_all(self, server: RedisServer) -> bool:
        with server.raw() as raw:
            lines = _lines(raw.ask("CLUSTER", "NODES"))
        return sum("slave" in line for line in lines) == len(self.replicas)

    @property
    def url(self) -> str:
        """The URL for --upstream: two seeds."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.masters[:2])

    def id_of(self, server: RedisServer) -> str:
        """Return the node id of `server`."""
        with server.raw() as raw:
            found = raw.ask("CLUSTER", "MYID")
        assert isinstance(found, bytes)
        return found.decode()

    def owner(self, key: str) -> RedisServer:
        """Return the master of `key` as the masters see it."""
        return self._by_slots(key_slot(key.encode()))

    def _by_slots(self, slot: int) -> RedisServer:
        with self.live()[0].raw() as raw:
            for first, last, node, *_ in _rows(raw.ask("CLUSTER", "SLOTS")):
                if int(first) <= slot <= int(last):
                    port = int(node[1])
                    return next(each for each in self.servers if each.port == port)
        raise AssertionError(f"slot {slot} has no owner")

    def live(self) -> list[RedisServer]:
        """Return the servers whose processes run."""
        return [each for each in self.servers if each._process is not None]

    def move(self, slot: int, to: RedisServer, pause_s: float = 0.0) -> None:
        """Move a slot with its keys, as redis-cli --cluster reshard does.

        pause_s: seconds between the steps.
        """
        source = self._by_slots(slot)
        if source is to:
            return
        here, there = self.id_of(source), self.id_of(to)
        with source.raw() as old, to.raw() as new:
            assert new.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", here) == "OK"
            assert old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there) == "OK"
            time.sleep(pause_s)
            while True:
                keys = old.ask("CLUSTER", "GETKEYSINSLOT", slot, 10)
                assert isinstance(keys, list)
                if not keys:
                    break
                words = [str(key, "latin-1") for key in keys if isinstance(key, bytes)]
                answer = old.ask(*("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS"), *words)
                assert answer in ("OK", "NOKEY"), answer
                time.sleep(pause_s)
            assert new.ask("CLUSTER", "SETSLOT", slot, "NODE", there) == "OK"
            assert old.ask("CLUSTER", "SETSLOT", slot, "NODE", there) == "OK"

    def close(self) -> None:
        """End all nodes."""
        for server in self.servers:
            server.close()


def _lines(text: object) -> list[str]:
    assert isinstance(text, bytes)
    return text.decode().strip().splitlines()


def _rows(found: object) -> list[list]:  # type: ignore[type-arg]
    assert isinstance(found, list)
    return found


@contextlib.contextmanager
def nodes(
    engine: str, masters: int = 3, replicas: bool = False, options: tuple[str, ...] = ()
) -> Iterator[Nodes]:
    """Run a cluster."""
    made = Nodes(engine, masters, replicas, options)
    try:
        yield made.start()
    finally:
        made.close()
