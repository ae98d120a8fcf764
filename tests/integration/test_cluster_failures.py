"""Nodes of a cluster that stop, end and come back, seen by one client's connection."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from rlproxy.resp.encoding import LOST
from rlproxy.resp.key_slot import key_slot
from rlproxy.upstream.cluster.cluster import PERIOD_S

from tests.clusters import Cluster, Node, private_proxy
from tests.harness import Proxy, Raw, ReplyError, command, wait_until
from tests.integration.started import by_lane_of

ADDED_S = 10.0  # to the outage of the cluster itself; generous, the proxy adds milliseconds


@pytest.fixture(scope="module")
def cluster(one_engine: str) -> Iterator[Cluster]:
    """A cluster with a replica of each master, for all tests; they leave it complete."""
    with Cluster(one_engine, replicas=1) as made:
        yield made


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy whose clients share no connection."""
    cluster.wait_ok()
    with private_proxy(cluster) as made:
        yield made


def clients_of_all(proxy: Proxy, keys: list[str]) -> list[Raw]:
    """Return clients with all masters as homes, each connected to all of them."""
    clients = [proxy.raw() for _ in keys]
    for client in clients:
        assert client.ask("MSET", *[word for key in keys for word in (key, 1)]) == "OK"
    return clients


def answers(proxy: Proxy, key: str) -> bool:
    """Return whether a new client gets the value of `key` at once."""
    with proxy.raw() as client:
        client.send(command("GET", key))
        return client.exactly(7, 0.2) == b"$1\r\n1\r\n"


def reaches_all(client: Raw, cluster: Cluster, setting: int) -> bool:
    """Set `hz` to `setting`; return whether all nodes have it, so that the proxy knows them."""
    assert client.ask("CONFIG", "SET", "hz", setting) == "OK"
    found = [b"hz", b"%d" % setting]
    return all(node.ask("CONFIG", "GET", "hz") == found for node in cluster.nodes)


def all_answer(clients: list[Raw], key: str, value: bytes) -> bool:
    """Return whether all clients get this value of `key`."""
    return all(client.ask("GET", key) == value for client in clients)


def test_a_stopped_node_holds_up_only_its_own_keys(cluster: Cluster, proxy: Proxy) -> None:
    node, *others = cluster.masters()
    keys = [cluster.key_at(each) for each in (node, *others)]
    clients = clients_of_all(proxy, keys)
    (replica,) = cluster.replicas(node)
    cluster.stop(node)
    held, *free = clients
    held.send(command("INCR", keys[0]) + command("GET", keys[1]))
    for client in free:
        for key in keys[1:]:
            assert client.ask("INCR", key) in (2, 3)
    cluster.wait_promoted(replica)
    begun = time.monotonic()
    wait_until(lambda: answers(proxy, keys[0]), "its keys are back")
    # A silent master fails no connection: here, only the periodic look at the cluster finds it.
    assert time.monotonic() - begun < PERIOD_S + ADDED_S
    assert held.closes()  # whether its command ran is unknown
    cluster.cont(node)
    cluster.wait_ok()
    for client in free:
        assert client.ask("INCR", keys[0]) in (2, 3)
        assert client.ask("DBSIZE") == 3
        client.close()
    held.close()
    cluster.failover(node)


def test_nothing_waits_for_a_silent_master_that_was_replaced(cluster: Cluster) -> None:
    cluster.wait_ok()
    with (
        private_proxy(cluster, "--hit-timeout", "0") as proxy,
        contextlib.ExitStack() as stack,
    ):
        node = cluster.masters()[0]
        (replica,) = cluster.replicas(node)
        key = cluster.key_at(node)
        hit = command("RL.HIT", "{" + key + "}hit", 5, 60)
        hits, later, blocked, watching = (stack.enter_context(proxy.raw()) for _ in range(4))
        for client in (hits, later):
            by_lane_of(node, client, "{" + key + "}warm")
        assert watching.ask("WATCH", key) == "OK"
        blocked.send(command("BLPOP", "{" + key + "}list", 0))
        wait_until(lambda: node.info("clients")["blocked_clients"] == "1", "a client is blocked")
        cluster.stop(node)
        stack.callback(cluster.wait_ok)
        stack.callback(cluster.cont, node)
        hits.send(hit)
        cluster.wait_promoted(replica)
        wait_until(lambda: "the masters of the cluster are now" in proxy.read_log(), "it is known")
        later.send(hit)
        assert hits.line() == LOST
        assert later.reply() == [0, 5, 4, -1, 60]
        assert blocked.closes() and watching.closes()


def test_a_killed_node(cluster: Cluster, proxy: Proxy) -> None:
    node, *others = cluster.masters()
    keys = [cluster.key_at(each) for each in (node, *others)]
    clients = clients_of_all(proxy, keys)
    (replica,) = cluster.replicas(node)
    blocked, *free = clients
    blocked.send(command("BLPOP", "{" + keys[0] + "}list", 0))
    wait_until(lambda: node.info("clients")["blocked_clients"] == "1", "a client is blocked")
    cluster.kill(node)
    assert blocked.closes()
    blocked.close()
    for client in free:
        reply = client.ask("GET", keys[0])
        assert isinstance(reply, ReplyError) and reply.args[0].startswith("UPSTREAMDOWN"), reply
        for key in keys[1:]:
            assert client.ask("GET", key) == b"1"
        # Keyless commands go on at another home, at most one of them fails.
        client.ask("PING")
        assert client.ask("PING") == "PONG"
    with proxy.raw() as late:
        assert late.ask("GET", keys[1]) == b"1"

    wait_until(lambda: "does not answer" in proxy.read_log(), "the outage is logged")
    missed = isinstance(free[0].ask("RL.HIT", "{" + keys[0] + "}hit", 5, 60), ReplyError)

    def promoted() -> bool:
        reply = replica.ask("SET", "{" + keys[0] + "}direct", 1)
        return reply == "OK"

    def served() -> bool:
        return free[0].ask("SET", keys[0], 2) == "OK"

    back_s = served_s = 0.0
    end = time.monotonic() + 20
    while not served_s:
        assert time.monotonic() < end
        back_s = back_s or (time.monotonic() if promoted() else 0.0)
        served_s = time.monotonic() if served() else 0.0
        time.sleep(0.01)
    assert served_s - (back_s or served_s) < ADDED_S
    assert free[1].ask("GET", keys[0]) == b"2"
    left = f"Redis at {node.address} is no master any more; hits answered without it: {missed:d}\n"
    wait_until(lambda: left in proxy.read_log(), "the end of the outage is logged")
    node.start()
    cluster.wait_ok()
    cluster.failover(node)
    wait_until(lambda: all_answer(free, keys[0], b"2"), "it is back")
    for client in free:
        assert client.ask("PING") == "PONG"
        client.close()


def test_manual_failovers_under_load(cluster: Cluster, proxy: Proxy) -> None:
    (node, *_) = cluster.masters()
    key = cluster.key_at(node)
    with proxy.raw() as client:
        client.ask("DEL", key)
        pushed = 0
        for _ in range(2):
            (replica,) = cluster.replicas(cluster.owner_of_key(key))
            replica.do("CLUSTER", "FAILOVER")

            def promoted(replica: Node = replica) -> bool:
                nonlocal pushed
                batch = 50
                client.send(command("RPUSH", key, "x") * batch)
                for _ in range(batch):
                    pushed += 1
                    assert client.reply() == pushed
                return replica.info("replication")["role"] == "master"

            wait_until(promoted, "the replica takes over")
            cluster.wait_promoted(replica)
        assert client.ask("LLEN", key) == pushed
        wait_until(
            lambda: reaches_all(client, cluster, 15), "the former masters are known as replicas"
        )


def test_acl_writes_reach_the_replicas(cluster: Cluster, proxy: Proxy) -> None:
    with proxy.raw() as client:
        assert client.ask("ACL", "SETUSER", "everywhere", "on", ">pw", "+@all", "~*") == "OK"
        for node in cluster.nodes:
            names = node.ask("ACL", "USERS")
            assert isinstance(names, list) and b"everywhere" in names
        assert client.ask("WAIT", 1, 1000) == 1
        assert client.ask("ACL", "DELUSER", "everywhere") == 1
        for node in cluster.nodes:
            assert node.ask("ACL", "USERS") == [b"default"]


@pytest.fixture(scope="module")
def added(cluster: Cluster) -> Iterator[Node]:
    """A master without slots and without a replica, for the rest of the tests."""
    made = cluster.add_node()
    yield made
    cluster.remove_node(made)


def test_settings_and_scripts_reach_a_master_without_slots(
    cluster: Cluster, proxy: Proxy, added: Node
) -> None:
    with proxy.raw() as client:
        wait_until(lambda: reaches_all(client, cluster, 16), "the proxy knows the node")
        assert client.ask("ACL", "SETUSER", "everywhere", "off") == "OK"
        names = added.ask("ACL", "USERS")
        assert isinstance(names, list) and b"everywhere" in names
        assert client.ask("ACL", "DELUSER", "everywhere") == 1
        sha = client.ask("SCRIPT", "LOAD", "return 1")
        assert isinstance(sha, bytes)
        assert added.ask("SCRIPT", "EXISTS", sha) == [1]
        assert client.ask("SET", "key", 1) == "OK"
        assert client.ask("WAIT", 1, 5000) == 1  # it has no replica


def test_a_setting_fails_for_a_failed_replica(cluster: Cluster, proxy: Proxy) -> None:
    (replica,) = cluster.replicas(cluster.masters()[0])
    failed = ReplyError(
        f"UPSTREAMDOWN cannot reach Redis at {replica.address}: the cluster counts it as failed"
    )
    with proxy.raw() as client:
        cluster.stop(replica)
        try:
            assert client.ask("CONFIG", "SET", "hz", 17) == failed  # once the nodes notice
            assert client.ask("CONFIG", "SET", "hz", 18) == failed
            for node in cluster.serving():
                assert node.ask("CONFIG", "GET", "hz") == [b"hz", b"18"]
            assert isinstance(client.ask("ACL", "LOG"), list)
            assert client.ask("PING") == "PONG"
        finally:
            cluster.cont(replica)
        wait_until(lambda: client.ask("CONFIG", "SET", "hz", 19) == "OK", "it is back")
    assert replica.ask("CONFIG", "GET", "hz") == [b"hz", b"19"]


def test_wait_covers_a_write_at_a_master_that_gets_its_first_slot(
    cluster: Cluster, proxy: Proxy, added: Node
) -> None:
    slot = key_slot(b"moved")
    owner = cluster.owner(slot)
    with proxy.raw() as client:
        wait_until(lambda: reaches_all(client, cluster, 20), "the proxy knows the node")
        cluster.begin_move(slot, added)
        assert client.ask("SET", "moved", 1) == "OK"  # by ASK
        assert client.ask("WAIT", 1, 100) == 0  # it has no replica
        cluster.end_move(slot, added)
        cluster.move_slot(slot, owner)


def test_home_is_away_and_then_all_nodes_are(one_engine: str) -> None:
    with Cluster(one_engine) as cluster, private_proxy(cluster) as proxy, proxy.raw() as client:
        assert client.ask("CLIENT", "SETNAME", "me") == "OK"
        listed = [(str(node.ask("CLIENT", "LIST")), node) for node in cluster.masters()]
        (home,) = [node for text, node in listed if "name=me" in text]
        assert client.ask("SET", "key", 1) == "OK"
        cluster.kill(home)
        with proxy.raw() as malformed:
            malformed.send(b"*x\r\n")
            assert malformed.closes()
        for node in cluster.serving():
            cluster.kill(node)
        with proxy.raw() as other:  # the proxy sees the ends of the connections first
            assert isinstance(other.ask("PING"), ReplyError)
        for words in [("GET", "key")] * 5 + [("MGET", "a", "b", "c")]:
            reply = client.ask(*words)
            assert isinstance(reply, ReplyError), reply
            assert reply.args[0].startswith("UPSTREAMDOWN")
        with proxy.raw() as late:
            late.send(command("PING"))
            assert late.line().startswith(b"-UPSTREAMDOWN")


def test_commands_for_a_node_that_accepts_no_connection_are_bounded(cluster: Cluster) -> None:
    stopped = cluster.masters()[0]
    key = cluster.key_at(stopped)
    home = cluster.key_at(cluster.masters()[1])
    with (
        cluster.setting("cluster-node-timeout", 15000),
        private_proxy(cluster) as proxy,
        contextlib.ExitStack() as stack,
    ):
        client = stack.enter_context(proxy.raw())
        client.ask("GET", home)
        cluster.stop(stopped)
        stack.callback(cluster.wait_ok)
        stack.callback(cluster.cont, stopped)
        with contextlib.suppress(OSError):
            while True:  # its kernel accepts connections until the queue is full
                made = socket.create_connection(("127.0.0.1", stopped.port), 0.2)
                stack.enter_context(made)
        before = proxy.memory()
        client.sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(100):
                client.sock.sendall(command("SET", key, b"x" * 1_000_000))
        assert proxy.memory() - before < 30_000_000
