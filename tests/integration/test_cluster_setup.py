"""What a client sets up on its connection to a Redis Cluster holds at every node: its login first
of all, its protocol, name, tracking and CLIENT REPLY.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from rlproxy.resp.key_slot import key_slot
from rlproxy.upstream.cluster.links import REFUSED_S

from tests.clusters import ON_ONE_CLUSTER, Cluster
from tests.harness import Proxy, Raw, ReplyError, command, is_error, wait_until
from tests.info import calls


@pytest.fixture
def client(cluster_proxy: Proxy) -> Iterator[Raw]:
    """A client."""
    with cluster_proxy.raw() as made:
        yield made


@pytest.fixture
def users(module_cluster: Cluster) -> Iterator[None]:
    """`reader` and `writer` at all nodes; `default` may do nothing but log in and manage users."""
    for node in module_cluster.nodes:
        node.do("ACL", "SETUSER", "reader", "on", ">r", "~*", "+@all", "-@write")
        node.do("ACL", "SETUSER", "writer", "on", ">w", "~*", "+@all")
        node.do(
            "ACL", "SETUSER", "default", "-@all", "+acl", "+auth", "+hello", "+ping", "+cluster"
        )
    yield
    for node in module_cluster.nodes:
        node.do("ACL", "SETUSER", "default", "+@all")
        assert node.ask("ACL", "DELUSER", "reader", "writer") in (1, 2)


def is_refused(reply: object, code: str = "NOPERM") -> bool:
    """Return whether a reply is an error with this code."""
    return is_error(reply, code)


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(("by", "slowly"), [("AUTH", False), ("HELLO", True)])
def test_logins(client: Raw, module_cluster: Cluster, by: str, slowly: bool) -> None:
    keys = module_cluster.keys_of_all()

    def login(user: str, password: str) -> bytes:
        if by == "AUTH":
            return command("AUTH", user, password)
        return command("HELLO", 2, "AUTH", user, password)

    def exchange(*requests: bytes) -> list[object]:
        (client.send_slowly if slowly else client.send)(b"".join(requests))
        return [client.reply() for _ in requests]

    sets = [command("SET", key, 1) for key in keys]
    gets = [command("GET", key) for key in keys]
    assert all(map(is_refused, exchange(*sets, *gets)))
    assert exchange(login("writer", "w"), *sets)[1:] == ["OK"] * 3
    replies = exchange(login("reader", "r"), *sets, *gets)
    assert all(map(is_refused, replies[1:4]))
    assert replies[4:] == [b"1"] * 3
    replies = exchange(login("writer", "wrong"), *sets, *gets)
    assert is_refused(replies[0], "WRONGPASS")
    assert all(map(is_refused, replies[1:4]))
    assert replies[4:] == [b"1"] * 3
    assert exchange(login("writer", "w"), *sets, login("reader", "r"), *gets)[1:4] == ["OK"] * 3


@pytest.mark.parametrize("opened", [False, True], ids=["new link", "open link"])
def test_a_node_that_refuses_a_login_runs_nothing(
    cluster_proxy: Proxy, module_cluster: Cluster, opened: bool
) -> None:
    """Neither as the default user, who may do everything, nor as the client's former user."""
    nodes = module_cluster.nodes
    keys = [module_cluster.key_at(node, "mine") for node in nodes]
    refused = 0
    for node in nodes:
        node.do("ACL", "SETUSER", "bob", "on", ">b", "~*", "+@all")
    try:
        for other, key in zip(nodes, keys, strict=True):
            other.do("ACL", "SETUSER", "bob", "resetpass", ">new")
            with cluster_proxy.raw() as client:
                if opened:
                    for at in keys:
                        client.ask("GET", at)
                client.send(command("AUTH", "bob", "b") + command("SET", key, 1))
                if client.reply() == "OK":  # else this node is home to the client
                    refused += 1
                    assert is_refused(client.reply(), "WRONGPASS")
                    assert is_refused(client.ask("FLUSHALL"), "WRONGPASS")
                    assert other.ask("GET", key) is None
            other.do("ACL", "SETUSER", "bob", "resetpass", ">b")
    finally:
        for node, key in zip(nodes, keys, strict=True):
            node.ask("DEL", key)
            node.ask("ACL", "DELUSER", "bob")
    assert refused == len(nodes) - 1


@pytest.mark.usefixtures("users")
def test_a_login_of_which_a_part_fails_ends_the_client(client: Raw) -> None:
    """Redis 6.2 and 7.0 log the client in, later servers do not."""
    assert is_refused(client.ask("HELLO", 3, "AUTH", "reader", "wrong", "SETNAME", "ab"), "WRONG")
    assert client.ask("AUTH", "writer", "w") == "OK"
    assert is_refused(client.ask("HELLO", 3, "SETNAME", "a b"), "ERR")
    assert client.ask("ACL", "WHOAMI") == b"writer"
    client.send(command("HELLO", 3, "AUTH", "reader", "r", "SETNAME", "a b") + command("PING"))
    assert is_refused(client.reply(), "ERR")
    assert client.quiet(0.05) == b"" and client.closed


@pytest.mark.usefixtures("users")
def test_logins_of_two_clients_stay_apart(cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all(3)
    with cluster_proxy.raw() as reader, cluster_proxy.raw() as writer, cluster_proxy.raw() as none:
        for _ in range(5):
            assert writer.ask("AUTH", "writer", "w") == "OK"
            assert reader.ask("AUTH", "reader", "r") == "OK"
            for key in keys:
                assert writer.ask("SET", key, 1) == "OK"
                assert is_refused(reader.ask("SET", key, 2))
                assert reader.ask("GET", key) == b"1"
                assert is_refused(none.ask("GET", key))
            assert reader.ask("RESET") == "RESET"
            assert all(is_refused(reader.ask("GET", key)) for key in keys)


@ON_ONE_CLUSTER
def test_a_client_logs_in_once_a_second_at_a_node_that_refuses_it(
    client: Raw, module_cluster: Cluster
) -> None:
    masters = module_cluster.masters()
    assert client.ask("CLIENT", "SETNAME", "me") == "OK"
    refusing = next(node for node in masters if "name=me" not in str(node.ask("CLIENT", "LIST")))
    key = module_cluster.key_at(refusing)
    user = ("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all")
    for node in masters:
        if node is not refusing:
            node.do(*user)
    assert client.ask("AUTH", "ann", "pw") == "OK"
    before, begun = calls(refusing, "auth"), time.monotonic()
    for _ in range(50):
        assert is_refused(client.ask("GET", key), "WRONGPASS")
    tries = 1 + (time.monotonic() - begun) / REFUSED_S
    assert 0 < calls(refusing, "auth") - before <= tries
    refusing.do(*user)
    wait_until(
        lambda: not isinstance(client.ask("GET", key), ReplyError), "the node accepts it again"
    )
    for node in masters:
        assert node.ask("ACL", "DELUSER", "ann") == 1


def test_the_protocol_holds_at_all_nodes(client: Raw, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all()
    client.ask("DEL", *keys)
    for key in keys:
        assert client.ask("HSET", key, "f", "v") == 1
    for _ in range(2):
        assert isinstance(client.ask("HELLO", 3), dict)
        assert [client.ask("HGETALL", key) for key in keys] == [{"b'f'": b"v"}] * 3
        assert isinstance(client.ask("HELLO", 2), list)
        assert [client.ask("HGETALL", key) for key in keys] == [[b"f", b"v"]] * 3
    assert is_refused(client.ask("HELLO", 4), "NOPROTO")
    client.send(command("HELLO", 3, "SETNAME", "me") + command("HGETALL", keys[1]))
    assert isinstance(client.reply(), dict)
    assert client.reply() == {"b'f'": b"v"}
    assert client.ask("RESET") == "RESET"
    assert [client.ask("HGETALL", key) for key in keys] == [[b"f", b"v"]] * 3
    client.ask("DEL", *keys)


def test_a_hello_without_arguments_changes_nothing(client: Raw, module_cluster: Cluster) -> None:
    """A node would refuse the same prefix twice, and so end the client."""
    keys = module_cluster.keys_of_all()
    assert client.ask("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "p") == "OK"
    assert client.ask("MSET", *[word for key in keys for word in (key, "v")]) == "OK"
    assert isinstance(client.ask("HELLO"), list)
    assert [client.ask("GET", key) for key in keys] == [b"v"] * len(keys)


def test_names_and_ids(client: Raw, cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all()
    assert client.ask("CLIENT", "SETNAME", "mine") == "OK"
    assert client.ask("CLIENT", "SETNAME", "not mine") != "OK"
    assert client.ask("CLIENT", "NO-EVICT", "ON") == "OK" or module_cluster.nodes[0].version < (7,)
    for key in keys:
        client.ask("GET", key)
    found = client.ask("CLIENT", "LIST")
    assert isinstance(found, bytes)
    assert found.count(b" name=mine ") == 3
    ids = [int(line.partition(b" ")[0].removeprefix(b"id=")) for line in found.splitlines()]
    assert len(set(ids)) == len(ids)
    own = client.ask("CLIENT", "ID")
    assert own in ids
    info = client.ask("CLIENT", "INFO") if module_cluster.nodes[0].version > (6, 2) else b""
    assert isinstance(info, bytes) and (b"id=%d " % own in info or not info)
    hello = client.ask("HELLO", 2)
    assert isinstance(hello, list) and hello[hello.index(b"id") + 1] == own
    assert client.ask("CLIENT", "GETNAME") == b"mine"
    client.ask("HELLO", 2, "SETNAME", "other")
    for key in keys:
        client.ask("GET", key)
    found = client.ask("CLIENT", "LIST")
    assert isinstance(found, bytes)
    assert found.count(b" name=other ") == 3
    with cluster_proxy.raw() as other:
        number = other.ask("CLIENT", "ID")
        assert isinstance(number, int)
        text = client.ask("CLIENT", "LIST", "ID", number)
        assert isinstance(text, bytes)
        assert [line.partition(b" ")[0] for line in text.splitlines()] == [b"id=%d" % number]
        assert client.ask("CLIENT", "LIST", "ID", 99) == b""
        assert client.ask("CLIENT", "KILL", "ID", 99) == 0
        if module_cluster.nodes[0].version > (7, 0):  # Redis 6.2 kills all clients
            refusal = module_cluster.nodes[0].ask("CLIENT", "KILL", "ID", 0)
            assert isinstance(refusal, ReplyError)
            assert client.ask("CLIENT", "KILL", "ID", 0) == refusal
        assert client.ask("CLIENT", "KILL", "ID", number) == 1
        assert isinstance(client.ask("CLIENT", "KILL", "127.0.0.1:1"), ReplyError)
        for words in (("UNBLOCK",), ("REPLY",), ("CACHING",), ("CACHING", "MAYBE")):
            assert isinstance(client.ask("CLIENT", *words), ReplyError)
        assert client.ask("CLIENT", "GETREDIR") == -1
        assert isinstance(client.ask("RESET", "now"), ReplyError)
        hello = client.ask("HELLO")
        assert isinstance(hello, list) and hello[hello.index(b"id") + 1] == own
        assert client.ask("SELECT", 0) == "OK"
        with contextlib.suppress(AssertionError):  # it has a new connection, or is closed
            assert other.ask("CLIENT", "ID") != number


def test_replies_that_are_off(client: Raw, module_cluster: Cluster) -> None:
    one, two, three = module_cluster.keys_of_all()
    client.ask("DEL", one, two, three)
    client.send(
        b"".join(
            command(*words)
            for words in (
                ("CLIENT", "REPLY", "OFF"),
                ("SET", one, 1),
                ("MGET", one, two),
                ("PING",),
                ("CLIENT", "REPLY", "ON"),
                ("INCR", one),
                ("CLIENT", "REPLY", "SKIP"),
                ("INCR", two),
                ("INCR", two),
                ("CLIENT", "REPLY", "SKIP"),
                ("CLUSTER", "KEYSLOT", "x"),
                ("INCR", three),
            )
        )
    )
    assert [client.reply() for _ in range(4)] == ["OK", 2, 2, 1]
    assert client.quiet(0.05) == b""
    for mode in ("OFF", "SKIP"):
        for refused in (("SUBSCRIBE",), ("PSUBSCRIBE",), ("MONITOR", "x"), ("NO.SUCH",)):
            client.send(command("CLIENT", "REPLY", mode) + command(*refused))
            assert client.ask("CLIENT", "REPLY", "ON") == "OK"
            assert client.ask("PING") == "PONG"
    client.send(command("CLIENT", "REPLY", "OFF") + command("SUBSCRIBE", "a"))
    assert client.reply() == [b"subscribe", b"a", 1]
    client.send(command("UNSUBSCRIBE") + command("CLIENT", "REPLY", "ON"))
    assert client.reply() == [b"unsubscribe", b"a", 0]
    assert client.reply() == "OK"
    assert isinstance(client.ask("CLIENT", "REPLY", "PERHAPS"), ReplyError)
    client.send(command("CLIENT", "REPLY", "SKIP") + command("RESET") + command("ECHO", "a"))
    assert client.reply() == b"a"
    client.send(command("CLIENT", "REPLY", "OFF") + command("PING") + command("RESET"))
    assert client.reply() == "RESET"


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_a_protocol_error_while_replies_are_off(client: Raw, mode: str) -> None:
    """A node neither replies nor closes the connection; it reads no more commands."""
    client.send(command("CLIENT", "REPLY", mode) + b"*1\r\n$-1\r\n" + command("SET", "after", 1))
    client.send(command("CLIENT", "REPLY", "ON") + command("PING"))
    assert client.quiet(0.1) == b""
    assert not client.closed


@pytest.mark.parametrize(
    ("line", "tracks"),
    [("READONLY", 0), ("CLUSTER MYID", 0), ("PING", 0), ("CLIENT REPLY ON", 1), ("CLIENT ID", 1)],
)
def test_client_caching_is_for_the_next_command_that_is_not_client(
    cluster_proxy: Proxy, cluster: Cluster, line: str, tracks: int
) -> None:
    for key in cluster.keys_of_all():
        with cluster_proxy.raw() as client:
            assert isinstance(client.ask("HELLO", 3), dict)
            for words in (("TRACKING", "ON", "OPTIN"), ("CACHING", "YES")):
                assert client.ask("CLIENT", *words) == "OK"
            client.ask(*line.split())
            assert client.ask("GET", key) is None
            cluster.owner_of_key(key).do("SET", key, 1)
            client.send(command("GET", key))
            expected = [[b"invalidate", [key.encode()]]] * tracks + [b"1"]
            assert [client.reply() for _ in expected] == expected


def test_invalidations_of_all_nodes(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    keys = module_cluster.keys_of_all()
    with cluster_proxy.raw() as other:
        assert isinstance(client.ask("CLIENT", "TRACKING", "ON", "REDIRECT", 1), ReplyError)
        client.ask("HELLO", 3)
        client.send(command("CLIENT", "TRACKING", "ON"))
        client.send(b"".join(command("GET", key) for key in keys))
        assert client.reply() == "OK"
        for _ in keys:
            client.reply()
        for key in keys:
            assert other.ask("SET", key, 1) == "OK"
        found = [client.reply() for _ in keys]
        assert sorted(map(repr, found)) == sorted(
            repr([b"invalidate", [key.encode()]]) for key in keys
        )
        assert client.ask("CLIENT", "TRACKING", "OFF") == "OK"
        assert client.ask("CLIENT", "TRACKING", "ON", "OPTIN") == "OK"
        assert isinstance(client.ask("CLIENT", "CACHING", "NO"), ReplyError)
        client.send(b"".join(command("GET", key) for key in keys))
        client.send(command("CLIENT", "CACHING", "YES") + command("GET", keys[1]))
        client.send(command("CLIENT", "CACHING", "YES") + command("MULTI"))
        client.send(command("GET", keys[2]) + command("EXEC"))
        replies = [client.reply() for _ in range(9)]
        assert replies == [b"1", b"1", b"1", "OK", b"1", "OK", "OK", "QUEUED", [b"1"]]
        for key in keys:
            assert other.ask("SET", key, 2) == "OK"
        found = [client.reply() for _ in range(2)]
        assert sorted(map(repr, found)) == sorted(
            repr([b"invalidate", [key.encode()]]) for key in keys[1:]
        )
        assert client.ask("CLIENT", "TRACKING", "OFF") == "OK"
        assert client.ask("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "key") == "OK"
    with cluster_proxy.raw() as client_3, cluster_proxy.raw() as other:
        client_3.ask("HELLO", 3)
        assert client_3.ask("CLIENT", "TRACKING", "ON", "BCAST") == "OK"

        def tracked() -> bool:
            return all(
                node.info("clients")["tracking_clients"] == "2" for node in module_cluster.masters()
            )

        wait_until(tracked, "all nodes track")
        for key in keys:
            assert other.ask("SET", key, 3) == "OK"
        found = [client_3.reply() for _ in keys]
        assert sorted(map(repr, found)) == sorted(
            repr([b"invalidate", [key.encode()]]) for key in keys
        )
        # Without one of the nodes, invalidations would be lost.
        module_cluster.owner_of_key(keys[0]).ask("CLIENT", "KILL", "TYPE", "normal")
        assert client_3.closes()


@ON_ONE_CLUSTER
def test_broadcast_invalidations_of_a_master_that_joins(
    module_cluster: Cluster, cluster_proxy: Proxy
) -> None:
    slot = key_slot(b"moved")
    owner = module_cluster.owner(slot)
    with cluster_proxy.raw() as client, cluster_proxy.raw() as other:
        client.ask("HELLO", 3)
        for prefix in ("gone", "moved", "more"):
            assert client.ask("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix) == "OK"
            if prefix == "gone":
                assert client.ask("CLIENT", "TRACKING", "OFF") == "OK"
        added = module_cluster.add_node()
        try:
            module_cluster.move_slot(slot, added)
            wait_until(lambda: added.info("clients")["tracking_clients"] == "1", "it tracks")
            assert other.ask("SET", "moved", 1) == "OK"
            assert client.reply() == [b"invalidate", [b"moved"]]
            assert added.info("stats")["tracking_total_prefixes"] == "2"
        finally:
            module_cluster.move_slot(slot, owner)
            module_cluster.remove_node(added)
