"""Slots that move under load: one client's commands on one key run in the order sent, none is lost
or runs twice, and a client sees no redirect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from rlproxy.resp.key_slot import key_slot

from tests.bare_cluster_proxy import BareClusterProxy
from tests.clusters import Cluster, Node
from tests.harness import Raw, ReplyError, command, wait_until

MOVES = 20
WRITERS = 3
BATCH = 40  # commands in one write
TAG = "{move}"
SLOT = key_slot(b"move")


@pytest.fixture
def client(cluster_proxy: BareClusterProxy) -> Iterator[Raw]:
    """A client of an empty cluster."""
    with cluster_proxy.raw() as made:
        assert made.ask("FLUSHALL") == "OK"
        yield made


def elsewhere(cluster: Cluster) -> Node:
    """Return a master that does not own SLOT."""
    return next(node for node in cluster.masters() if node is not cluster.owner(SLOT))


def move_often(cluster: Cluster, moves: int = MOVES) -> None:
    """Move SLOT to another node and back, key by key."""
    for _ in range(moves):
        to = elsewhere(cluster)
        cluster.begin_move(SLOT, to)
        while cluster.move_keys(SLOT, to, 1):
            pass
        cluster.end_move(SLOT, to)
        cluster.wait_ok()


class Load:
    """Threads that each run `step(client, number)` on a separate connection until stop()."""

    def __init__(
        self, proxy: BareClusterProxy, count: int, step: Callable[[Raw, int], None]
    ) -> None:
        self.errors: list[BaseException] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(proxy, step, number))
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, proxy: BareClusterProxy, step: Callable[[Raw, int], None], number: int) -> None:
        try:
            with proxy.raw() as client:
                while not self._stopped.is_set():
                    step(client, number)
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        """End the threads; fail if one of them failed."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


def test_pushes_are_in_order_and_run_once(
    client: Raw, cluster_proxy: BareClusterProxy, module_cluster: Cluster
) -> None:
    sent = [0] * WRITERS

    def step(writer: Raw, number: int) -> None:
        first = sent[number]
        # Its own list, a list of all writers, and a key that is new each time.
        batch = [
            (command("RPUSH", f"{TAG}own{number}", first + at), int)
            if at % 3 == 0
            else (command("RPUSH", f"{TAG}all", f"{number}:{first + at}"), int)
            if at % 3 == 1
            else (command("SETNX", f"{TAG}new{number}:{(first + at) % 30}", first + at), int)
            for at in range(BATCH)
        ]
        writer.send(b"".join(data for data, _ in batch))
        for _, kind in batch:
            reply = writer.reply()
            assert isinstance(reply, kind), reply
        sent[number] = first + BATCH

    load = Load(cluster_proxy, WRITERS, step)
    try:
        move_often(module_cluster)
    finally:
        load.stop()
    assert min(sent) > 0
    shared = client.ask("LRANGE", f"{TAG}all", 0, -1)
    assert isinstance(shared, list)
    for number in range(WRITERS):
        count = sent[number]
        order = [
            count_at for start in range(0, count, BATCH) for count_at in range(start, start + BATCH)
        ]
        own = client.ask("LRANGE", f"{TAG}own{number}", 0, -1)
        assert own == [b"%d" % at for at in order if (at % BATCH) % 3 == 0]
        mine = [each for each in shared if each.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, at) for at in order if (at % BATCH) % 3 == 1]


def test_commands_with_several_keys_of_the_slot(
    client: Raw, cluster_proxy: BareClusterProxy, module_cluster: Cluster
) -> None:
    keys = [f"{TAG}{number}" for number in range(8)]
    assert client.ask("MSET", *[word for key in keys for word in (key, 0)]) == "OK"

    def step(writer: Raw, number: int) -> None:
        assert writer.ask("MGET", *keys, "other") == [*[b"0"] * len(keys), None]
        assert writer.ask("MSET", *[word for key in keys for word in (key, 0)]) == "OK"
        assert writer.ask("EXISTS", "other", *keys) == len(keys)
        assert writer.ask("EVAL", "return #redis.call('MGET', unpack(KEYS))", 8, *keys) == 8

    load = Load(cluster_proxy, 2, step)
    try:
        move_often(module_cluster, 10)
    finally:
        load.stop()


def test_transactions_run_once(
    client: Raw, cluster_proxy: BareClusterProxy, module_cluster: Cluster
) -> None:
    done = [0] * WRITERS

    def step(writer: Raw, number: int) -> None:
        key = f"{TAG}count{number}"
        one = command("MULTI") + command("INCR", key) + command("INCR", f"{TAG}x") + command("EXEC")
        writer.send(one * 3)
        for _ in range(3):
            assert [writer.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
            done[number] += 1
            reply = writer.reply()
            assert isinstance(reply, list) and reply[0] == done[number], reply
        # In the same write, GET could overtake them: its key may move after the other one.
        assert writer.ask("GET", key) == b"%d" % done[number]

    load = Load(cluster_proxy, WRITERS, step)
    try:
        move_often(module_cluster, 10)
    finally:
        load.stop()
    assert client.ask("GET", f"{TAG}x") == b"%d" % sum(done)


def test_watch_loses_no_update(
    client: Raw, cluster_proxy: BareClusterProxy, module_cluster: Cluster
) -> None:
    done = [0] * WRITERS
    key = f"{TAG}watched"
    client.ask("SET", key, 0)

    def step(writer: Raw, number: int) -> None:
        assert writer.ask("WATCH", key) == "OK"
        value = writer.ask("GET", key)
        assert isinstance(value, bytes)
        assert writer.ask("MULTI") == "OK"
        assert writer.ask("SET", key, int(value) + 1) == "QUEUED"
        reply = writer.ask("EXEC")
        assert reply in (None, ["OK"])
        done[number] += reply is not None

    load = Load(cluster_proxy, WRITERS, step)
    try:
        move_often(module_cluster, 10)
    finally:
        load.stop()
    assert client.ask("GET", key) == b"%d" % sum(done)


def scan(client: Raw, *args: str, step: Callable[[], None] = lambda: None) -> list[bytes]:
    """Iterate over all keys; `step` is called after each reply."""
    cursor, found = b"0", []
    while True:
        reply = client.ask("SCAN", cursor, *args)
        assert isinstance(reply, list), reply
        cursor, keys = reply
        found += keys
        if cursor == b"0":
            return found
        step()


def test_scan(client: Raw) -> None:
    assert scan(client) == []
    keys = {f"key{number}".encode() for number in range(500)}
    for key in keys:
        client.ask("SET", key, 1)
    found = scan(client, "COUNT", "7")
    assert set(found) == keys
    assert len(found) == len(keys)
    assert set(scan(client, "MATCH", "key1*")) == {key for key in keys if key.startswith(b"key1")}
    assert isinstance(client.ask("SCAN", "x"), ReplyError)
    assert isinstance(client.ask("SCAN", 0, "NONSENSE"), ReplyError)


def test_scan_misses_nothing_while_slots_move(
    client: Raw, cluster_proxy: BareClusterProxy, module_cluster: Cluster
) -> None:
    keys = [f"{TAG}{number}".encode() for number in range(300)]
    keys += [f"key{number}".encode() for number in range(300)]
    for key in keys:
        client.ask("SET", key, 1)
    for at in (1, 10, 30, 50):  # replies before the slot moves, with all others waiting for that
        calls = 0

        def step() -> None:
            nonlocal calls
            calls += 1
            if calls == at:  # noqa: B023
                module_cluster.move_slot(SLOT, elsewhere(module_cluster))

        found = scan(client, "COUNT", "10", step=step)
        assert set(found) == set(keys), at
    wait_until(lambda: len(scan(client, "COUNT", "50")) == len(keys), "the cluster is calm")
