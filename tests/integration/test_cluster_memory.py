"""A client, or a node, that leaves is freed without a collection by the garbage collector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.clusters import Cluster
from tests.harness import Raw, ReplyError, command, wait_until
from tests.stress.load import WatchedProxy

OBJECTS = ("Session", "ClientConnection", "Link", "Exchange", "Call")

# What the last command of a client leaves behind. Of the keys, each is on another master.
LEAVES: dict[str, list[tuple[object, ...]]] = {
    "nothing": [],
    "a subscription": [("SUBSCRIBE", "c")],
    "the end of shard channels": [("SUNSUBSCRIBE", "c")],
    "a watched key in MULTI": [("WATCH", "{0}"), ("MULTI",), ("GET", "{0}")],
    "a watched key of a transaction that is over": [("WATCH", "{0}"), ("MULTI",), ("EXEC",)],
    "a command that blocks": [("BLPOP", "{1}", 0)],
    "parts of a command": [("MSET", "{0}", "x" * 2_000_000, "{1}", 1), ("MGET", "{0}", "{1}")],
    "a scan": [("SCAN", 0)],
    "replies of all masters": [("INFO",), ("CLIENT", "LIST")],
}


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[WatchedProxy]:
    """Run a proxy without collections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCHED_COLLECTS", "no")
        made = WatchedProxy("--upstream", cluster.url, "--listen", "127.0.0.1:0")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def proxy(one_cluster: Cluster) -> Iterator[WatchedProxy]:
    """The proxy of tests that leave it without clients."""
    with watched(one_cluster) as made:
        yield made


def all_are_freed(proxy: WatchedProxy) -> None:
    """Wait until the proxy has no object of a client."""
    wait_until(lambda: not any(map(proxy.counts().get, OBJECTS)), "the client is freed")


@pytest.mark.parametrize("last", LEAVES)
def test_a_client_that_leaves_is_freed_at_once(
    one_cluster: Cluster, proxy: WatchedProxy, last: str
) -> None:
    keys = one_cluster.keys_of_all()
    for owed in (False, True):  # whether it leaves before the last replies
        with Raw(proxy.port()) as client:
            for key in keys:
                assert client.ask("SET", key, 1) == "OK"
            client.send(command("GET", keys[0]) + command("INCR", keys[1]))  # not by lane
            assert [client.reply(), client.reply()] == [b"1", 2]
            assert client.ask("RL.HIT", f"{{{keys[2]}}}hit", 100, 60)
            for words in LEAVES[last]:
                client.send(command(*[str(word).format(*keys) for word in words]))
                if not owed and words[0] != "BLPOP":
                    client.reply()
        all_are_freed(proxy)


def test_the_lanes_to_a_node_that_was_removed_are_freed(one_cluster: Cluster) -> None:
    with watched(one_cluster) as proxy, Raw(proxy.port()) as client:

        def lanes() -> int:
            for key in one_cluster.keys_of_all():
                assert client.ask("SET", key, 1) == "OK"
                assert client.ask("RL.HIT", f"{{{key}}}hit", 100, 60)
            return proxy.counts()["ServerLane"]

        wait_until(lambda: lanes() == 6, "each master has one for SET, and one for hits")
        former = one_cluster.owner(0)
        added = one_cluster.add_node()
        one_cluster.move_slot(0, added)
        wait_until(lambda: lanes() == 8, "so has the added node")
        one_cluster.move_slot(0, former)
        one_cluster.remove_node(added)
        wait_until(lambda: lanes() == 6, "the lanes to the removed node are freed")


def test_a_transaction_at_a_master_that_is_down_is_freed(
    one_cluster: Cluster, proxy: WatchedProxy
) -> None:
    key = one_cluster.keys_of_all()[2]
    with Raw(proxy.port()) as client:
        assert client.ask("PING") == "PONG"
    one_cluster.kill(one_cluster.owner_of_key(key))
    for _ in range(3):
        with Raw(proxy.port()) as client:
            assert client.ask("MULTI") == "OK"
            assert isinstance(client.ask("GET", key), ReplyError)
    all_are_freed(proxy)
