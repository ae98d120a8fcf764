"""Ordinary commands on shared connections (--share) in front of a real Redis Cluster, and private
connections to its nodes that close when they are idle.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import key_slot

from tests import harness, info
from tests.clusters import Cluster, Node
from tests.harness import Proxy, Raw, command, wait_at_once, wait_until
from tests.repeating import RepeatingClients


@pytest.fixture
def proxy(cluster: Cluster, module_cluster_proxy: Proxy) -> Proxy:
    """The module's proxy, in front of the empty cluster."""
    return module_cluster_proxy


def shares(node: Node) -> list[dict[str, str]]:
    """The shared connections of ordinary commands to `node`."""
    return [row for row in info.clients(node) if row["name"] == "rlproxy-share"]


def by_lane(client: Raw, node: Node, *words: str) -> bool:
    """Whether a command travels on a shared connection: only there it is the latest one."""
    client.ask(*words)
    return any(row["cmd"] == words[0].lower() for row in shares(node))


def warm(cluster: Cluster, clients: list[Raw]) -> None:
    """Let the clients use shared connections to all nodes, for reads and for writes."""
    first, *others = clients
    for node in cluster.masters():
        key = cluster.key_at(node, "warm")
        for name in ("GET", "PERSIST"):
            wait_until(partial(by_lane, first, node, name, key), f"{name} is shared")
    for client in others:
        client.ask("GET", "warm")


def test_many_clients_share_few_connections(cluster: Cluster, proxy: Proxy) -> None:
    before = [len(info.clients(node)) for node in cluster.nodes]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.raw()) for _ in range(40)]
        warm(cluster, clients)
        for number, client in enumerate(clients * 5):
            assert client.ask("SET", f"key{number}", f"value{number}") == "OK"
        for number, client in enumerate(reversed(clients * 5)):
            assert client.ask("GET", f"key{number}") == b"value%d" % number
        for node in cluster.nodes:
            found = shares(node)
            assert len(found) == 2  # one for reads, one for writes
            assert {row["user"] for row in found} == {"default"}
        # Each client has its home, and at most one more, for its first command.
        opened = sum(len(info.clients(node)) for node in cluster.nodes) - sum(before)
        assert opened <= 40 * 2 + 3 * 2


def test_the_option_turns_it_off(cluster: Cluster) -> None:
    with harness.proxy(cluster.url, "--share", "no") as private, private.raw() as client:
        assert info.stats(client)["mode"] == "private"
    with harness.proxy(cluster.url) as shared, shared.raw() as client:
        assert info.stats(client)["mode"] == "share"


def test_users_share_no_connection(cluster: Cluster, proxy: Proxy) -> None:
    for node in cluster.nodes:
        for user, pattern in (("ann", "~ann*"), ("bob", "~bob*")):
            node.do("ACL", "SETUSER", user, "reset", "on", ">pw", "+@all", pattern, "~warm*")
    with proxy.raw() as ann, proxy.raw() as bob, proxy.raw() as other:
        assert ann.ask("AUTH", "ann", "pw") == bob.ask("AUTH", "bob", "pw") == "OK"
        for client in (ann, bob, other):
            warm(cluster, [client])
        for number in range(30):
            assert ann.ask("SET", f"ann{number}", "a") == "OK"
            assert str(bob.ask("GET", f"ann{number}")).startswith("NOPERM")
            assert str(ann.ask("GET", f"bob{number}")).startswith("NOPERM")
            assert other.ask("GET", f"ann{number}") == b"a"
        for node in cluster.nodes:
            users = sorted(row["user"] for row in shares(node))
            assert users == ["ann", "ann", "bob", "bob", "default", "default"]
        # A right that is taken away is gone on the shared connections, too.
        for node in cluster.nodes:
            node.do("ACL", "SETUSER", "ann", "resetkeys", "~other*")
        for number in range(30):
            assert str(ann.ask("GET", f"ann{number}")).startswith("NOPERM")


def test_a_password_that_changes_ends_sharing(cluster: Cluster, proxy: Proxy) -> None:
    for node in cluster.nodes:
        node.do("ACL", "SETUSER", "eve", "reset", "on", ">old", "+@all", "~*")
    with proxy.raw() as client:
        assert client.ask("AUTH", "eve", "old") == "OK"
        for node in cluster.nodes:
            node.do("ACL", "SETUSER", "eve", "resetpass", ">new")
        for number in range(60):  # its private connections were accepted before
            reply = client.ask("SET", f"key{number}", "v")
            assert reply == "OK" or "WRONGPASS" in str(reply), reply
        assert not [row for node in cluster.nodes for row in shares(node) if row["user"] == "eve"]


def increment(raw: Raw, number: int, done: int) -> None:
    """Increment and read the client's own key of one slot, one command at a time."""
    key = f"{{tag}}{number}"
    assert (raw.ask("INCR", key), raw.ask("GET", key)) == (done + 1, b"%d" % (done + 1))


def test_a_slot_moves_under_load(cluster: Cluster, proxy: Proxy) -> None:
    slot = key_slot(b"tag")
    with RepeatingClients(proxy.raw, 8, increment) as load:
        load.wait_rounds(8)
        assert all(shares(node) for node in [cluster.owner(slot)])
        for turn in range(4):
            owner = cluster.owner(slot)
            to = cluster.nodes[(cluster.nodes.index(owner) + 1) % 3]
            cluster.begin_move(slot, to)
            while cluster.move_keys(slot, to, 1):  # some keys are here, some are there
                time.sleep(0.02)
            cluster.end_move(slot, to, everywhere=turn % 2 == 0)
            load.wait_rounds(8)
        owner = cluster.owner(slot)
        wait_until(
            lambda: {"get", "incr"} <= {row["cmd"] for row in shares(owner)}, "they share again"
        )
    with proxy.raw() as raw:
        for number, done in enumerate(load.rounds):
            assert raw.ask("GET", f"{{tag}}{number}") == b"%d" % done
    cluster.wait_ok()


def test_a_stopped_node_delays_no_key_of_others(replicated: Cluster) -> None:
    cluster = replicated
    with cluster.setting("cluster-node-timeout", 15000), harness.proxy(cluster.url) as proxy:
        stopped, well, *_ = cluster.masters()
        lost, kept = cluster.key_at(stopped), cluster.key_at(well)
        with proxy.raw() as client, proxy.raw() as other:
            warm(cluster, [client, other])
            cluster.stop(stopped)
            try:
                other.send(bulks(b"GET", lost.encode()))
                for number in range(100):
                    assert client.ask("SET", kept, number) == "OK"
                    assert client.ask("GET", kept) == b"%d" % number
                with proxy.raw() as new:  # its home may be the stopped node
                    new.send(bulks(b"GET", kept.encode()))
                wait_at_once(lambda: client.ask("GET", kept), "other keys wait for nothing")
                assert client.ask("GET", kept) == b"99"
            finally:
                cluster.cont(stopped)
            assert other.reply() is None
            assert client.ask("GET", lost) is None
        cluster.wait_ok()


def test_a_stopped_master_that_is_replaced_holds_no_pipeline(replicated: Cluster) -> None:
    cluster = replicated
    with harness.proxy(cluster.url) as proxy:
        stopped, well, *_ = cluster.masters()
        lost, kept = cluster.key_at(stopped), cluster.key_at(well)
        with proxy.raw() as reader, proxy.raw() as writer:
            warm(cluster, [reader, writer])
            assert reader.ask("SET", lost, "v") == "OK"
            assert stopped.ask("WAIT", 1, 1000) == 1
            cluster.stop(stopped)
            try:
                reader.send(bulks(b"GET", lost.encode()) + bulks(b"GET", kept.encode()))
                writer.send(bulks(b"INCR", kept.encode()) + bulks(b"INCR", lost.encode()))
                assert writer.reply() == 1
                assert (reader.reply(), reader.reply()) == (b"v", b"1")  # asked of the new master
                assert writer.line() == b"" and writer.closed  # it may have run
            finally:
                cluster.cont(stopped)
    cluster.wait_ok()


def test_wait_covers_a_write_that_was_redirected_in_the_same_pipeline(replicated: Cluster) -> None:
    cluster = replicated
    first, second, *_ = cluster.masters()
    key = cluster.key_at(first, "moving")
    slot = key_slot(key.encode())
    cluster.begin_move(slot, second)
    (lag,) = cluster.replicas(second)
    cluster.stop(lag)
    try:
        with harness.proxy(cluster.url, "--share", "no") as proxy, proxy.raw() as client:
            client.send(command("SET", key, "v") + command("WAIT", 1, 200) + command("PING"))
            assert [client.reply() for _ in range(3)] == ["OK", 0, "PONG"]
    finally:
        cluster.cont(lag)
    cluster.end_move(slot, second)


def test_wait_never_returns_too_high_a_number(replicated: Cluster) -> None:
    cluster = replicated
    with harness.proxy(cluster.url) as proxy:
        first_master, second_master, *_ = cluster.masters()
        one, two = cluster.key_at(first_master), cluster.key_at(second_master)
        (lag,) = cluster.replicas(first_master)
        with proxy.raw() as hits, proxy.raw() as first, proxy.raw() as shared:
            assert first.ask("WAIT", 0, 0) in (0, 1)  # keeps its writes on its own connections
            for client in (hits, shared):
                warm(cluster, [client])
                for node in cluster.masters():
                    client.ask("RL.HIT", cluster.key_at(node, "h"), 1000, 60)
            with proxy.raw() as single:
                for _ in range(5):
                    assert isinstance(single.ask("RL.HIT", one, 1000, 60), list)
                assert single.ask("WAIT", 1, 2000) == 1
            cluster.stop(lag)
            try:
                for _ in range(3):
                    assert isinstance(hits.ask("RL.HIT", one, 1000, 60), list)
                assert isinstance(hits.ask("RL.HIT", two, 1000, 60), list)
                assert "can't cover" in str(hits.ask("WAIT", 1, 100))
                assert first.ask("SET", f"{{{one}}}s", "v") == "OK"
                assert first.ask("SET", f"{{{two}}}s", "v") == "OK"
                assert first.ask("WAIT", 1, 100) == 0
                assert shared.ask("SET", f"{{{one}}}s", "v") == "OK"
                assert isinstance(shared.ask("RL.HIT", two, 1000, 60), list)
                assert "can't cover" in str(shared.ask("WAIT", 1, 100))
            finally:
                cluster.cont(lag)
