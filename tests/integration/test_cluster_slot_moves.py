"""Slots that move under load: one client's commands on one key run in the order sent, none is lost
or runs twice, and a client sees no redirect.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rlproxy.resp.key_slot import key_slot

from tests.clusters import Cluster
from tests.harness import Proxy, Raw, ReplyError, command, wait_until
from tests.repeating import RepeatingClients

MOVES = 4
WRITERS = 3
BATCH = 40  # commands in one write
TAG = "{move}"
SLOT = key_slot(b"move")


pytestmark = pytest.mark.parametrize("client", [2], indirect=True)


def move_often(cluster: Cluster) -> None:
    """Move SLOT to another node and back, key by key."""
    for _ in range(MOVES):
        to = cluster.other_master(SLOT)
        cluster.begin_move(SLOT, to)
        while cluster.move_keys(SLOT, to, 1):
            pass
        cluster.end_move(SLOT, to)
        cluster.wait_ok()


def test_pushes_are_in_order_and_run_once(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    def step(writer: Raw, number: int, done: int) -> None:
        first = done * BATCH
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

    with RepeatingClients(cluster_proxy.raw, WRITERS, step) as writers:
        move_often(module_cluster)
    assert min(writers.rounds) > 0
    shared = client.ask("LRANGE", f"{TAG}all", 0, -1)
    assert isinstance(shared, list)
    for number in range(WRITERS):
        count = writers.rounds[number] * BATCH
        order = [
            count_at for start in range(0, count, BATCH) for count_at in range(start, start + BATCH)
        ]
        own = client.ask("LRANGE", f"{TAG}own{number}", 0, -1)
        assert own == [b"%d" % at for at in order if (at % BATCH) % 3 == 0]
        mine = [each for each in shared if each.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, at) for at in order if (at % BATCH) % 3 == 1]


def test_commands_with_several_keys_of_the_slot(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    keys = [f"{TAG}{number}" for number in range(8)]
    assert client.ask("MSET", *[word for key in keys for word in (key, 0)]) == "OK"

    def step(writer: Raw, _number: int, _done: int) -> None:
        assert writer.ask("MGET", *keys, "other") == [*[b"0"] * len(keys), None]
        assert writer.ask("MSET", *[word for key in keys for word in (key, 0)]) == "OK"
        assert writer.ask("EXISTS", "other", *keys) == len(keys)
        assert writer.ask("EVAL", "return #redis.call('MGET', unpack(KEYS))", 8, *keys) == 8

    with RepeatingClients(cluster_proxy.raw, 2, step):
        move_often(module_cluster)


def test_transactions_run_once(client: Raw, cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    def step(writer: Raw, number: int, done: int) -> None:
        key = f"{TAG}count{number}"
        one = command("MULTI") + command("INCR", key) + command("INCR", f"{TAG}x") + command("EXEC")
        writer.send(one * 3)
        for count in range(3 * done + 1, 3 * done + 4):
            assert [writer.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
            reply = writer.reply()
            assert isinstance(reply, list) and reply[0] == count, reply
        # In the same write, GET could overtake them: its key may move after the other one.
        assert writer.ask("GET", key) == b"%d" % count

    with RepeatingClients(cluster_proxy.raw, WRITERS, step) as writers:
        move_often(module_cluster)
    assert client.ask("GET", f"{TAG}x") == b"%d" % (3 * sum(writers.rounds))


def test_watch_loses_no_update(client: Raw, cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    updates = [0] * WRITERS
    key = f"{TAG}watched"
    client.ask("SET", key, 0)

    def step(writer: Raw, number: int, _done: int) -> None:
        assert writer.ask("WATCH", key) == "OK"
        value = writer.ask("GET", key)
        assert isinstance(value, bytes)
        assert writer.ask("MULTI") == "OK"
        assert writer.ask("SET", key, int(value) + 1) == "QUEUED"
        reply = writer.ask("EXEC")
        assert reply in (None, ["OK"])
        updates[number] += reply is not None

    with RepeatingClients(cluster_proxy.raw, WRITERS, step):
        move_often(module_cluster)
    assert client.ask("GET", key) == b"%d" % sum(updates)


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


FORGET_ALL = [b"invalidate", None]  # comes once the proxy has seen that a slot has moved


def reply(reader: Raw) -> object:
    """The next reply, or the invalidation of a key."""
    while (found := reader.reply()) == FORGET_ALL:
        pass
    return found


def ask(reader: Raw, *words: str) -> object:
    reader.send(command(*words))
    return reply(reader)


@pytest.mark.parametrize("ended", [True, False], ids=["MOVED", "ASK"])
@pytest.mark.parametrize("inside", [True, False], ids=["MULTI", "alone"])
def test_a_redirected_read_behind_client_caching_is_invalidated(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster, ended: bool, inside: bool
) -> None:
    """A node that only imports the slot can't track the key: the client forgets all at once."""
    to = module_cluster.other_master(SLOT)
    with cluster_proxy.raw() as reader:
        reader.ask("HELLO", 3)
        assert reader.ask("CLIENT", "TRACKING", "ON", "OPTIN") == "OK"
        assert ask(reader, "SET", TAG, "old") == "OK"  # the proxy knows the owner
        module_cluster.begin_move(SLOT, to)
        module_cluster.move_keys(SLOT, to)
        if ended:
            module_cluster.end_move(SLOT, to)
        read = command("GET", TAG)
        if inside:
            read = command("MULTI") + read + command("EXEC")
        reader.send(command("CLIENT", "CACHING", "YES") + read)
        replies = [reply(reader) for _ in range(4 if inside else 2)]
        assert replies[-1] == ([b"old"] if inside else b"old")
        if ended:
            assert client.ask("SET", TAG, "new") == "OK"
            assert reply(reader) == [b"invalidate", [TAG.encode()]]
        else:
            assert reader.reply() == FORGET_ALL
            module_cluster.end_move(SLOT, to)
    module_cluster.wait_ok()


def test_a_cached_missing_key_of_a_moved_slot_is_invalidated(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    """Its former owner has nothing to invalidate, and the new one does not know of the read."""
    with cluster_proxy.raw() as reader:
        reader.ask("HELLO", 3)
        assert reader.ask("CLIENT", "TRACKING", "ON") == "OK"
        assert ask(reader, "GET", TAG) is None
        module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
        assert client.ask("SET", TAG, "new") == "OK"
        assert reader.reply() == FORGET_ALL
        assert ask(reader, "GET", TAG) == b"new"
    module_cluster.wait_ok()


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
    assert isinstance(client.ask("SCAN"), ReplyError)
    assert isinstance(client.ask("SCAN", 0, "NONSENSE"), ReplyError)


def test_scan_misses_nothing_while_slots_move(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
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
                module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))

        found = scan(client, "COUNT", "10", step=step)
        assert set(found) == set(keys), at
    wait_until(lambda: len(scan(client, "COUNT", "50")) == len(keys), "the cluster is calm")
