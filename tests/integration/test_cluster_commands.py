"""Commands on a Redis Cluster through one connection: keys in several slots, commands of all nodes,
what no node gets, what is no command, and large replies.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from tests import harness
from tests.clusters import ON_ONE_CLUSTER, Cluster, private_proxy
from tests.harness import Proxy, Raw, ReplyError, command, wait_until

CROSSSLOT = ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
LARGE = 10_000_000


@pytest.fixture
def client(cluster_proxy: Proxy, cluster: Cluster) -> Iterator[Raw]:
    """A client, in front of the empty cluster."""
    with cluster_proxy.raw() as made:
        made.ask("HELLO", 3)
        yield made


def test_keys_in_several_slots(client: Raw, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all(40)
    assert client.ask("MSET", *[word for key in keys for word in (key, f"<{key}>")]) == "OK"
    assert client.ask("MGET", "absent", *keys, keys[0]) == [
        None,
        *[f"<{key}>".encode() for key in keys],
        f"<{keys[0]}>".encode(),
    ]
    assert client.ask("EXISTS", *keys, keys[0], "absent") == len(keys) + 1
    assert client.ask("TOUCH", *keys) == len(keys)
    assert client.ask("DEL", *keys[:60], "absent") == 60
    assert client.ask("UNLINK", *keys) == len(keys) - 60
    assert client.ask("DBSIZE") == 0
    assert client.ask("MSET", "{a}1", 1, "{a}2", 2, "{b}", 3, "{a}1", 4) == "OK"
    assert client.ask("MGET", "{a}1", "{a}2", "{b}") == [b"4", b"2", b"3"]


def test_the_parts_of_a_large_command_keep_their_order(
    client: Raw, module_cluster: Cluster
) -> None:
    """They are sent in several ticks."""
    keys = [f"key:{number}" for number in range(6_000)]
    values = [f"<{key}>".encode() for key in keys]
    pipeline: list[tuple[bytes, object]] = [
        (command("GET", keys[-1]), None),
        (command("MSET", *[word for key in keys for word in (key, f"<{key}>")]), "OK"),
        (command("SET", keys[-1], "new"), "OK"),
        (command("MGET", "absent", *keys, keys[0]), [None, *values[:-1], b"new", values[0]]),
        (command("DEL", *keys[1:]), len(keys) - 1),
        (command("EXISTS", *keys), 1),
    ]
    sending = threading.Thread(
        target=client.send, args=[b"".join(request for request, _ in pipeline)]
    )
    sending.start()
    for request, reply in pipeline:
        assert client.reply() == reply, request[:20]
    sending.join()


def test_what_is_not_split(client: Raw, module_cluster: Cluster) -> None:
    one, two, three = module_cluster.keys_of_all()
    for words in (
        ("MSETNX", one, 1, two, 2),
        ("SINTER", one, two),
        ("SUNIONSTORE", one, two, three),
        ("RENAME", one, two),
        ("LMOVE", one, two, "LEFT", "LEFT"),
        ("PFCOUNT", one, two),
        ("BLPOP", one, two, "1"),
        ("EVAL", "return 1", "2", one, two),
        ("XREAD", "STREAMS", one, two, "0", "0"),
    ):
        assert client.ask(*words) == CROSSSLOT, words
    if module_cluster.engine == "valkey-9.1":
        assert client.ask("MSETEX", 2, one, 1, two, 2) == CROSSSLOT
    assert client.ask("DBSIZE") == 0
    assert client.ask("EVAL", "return redis.call('INCR', KEYS[1])", 1, two) == 1
    with module_cluster.nodes[0].raw() as node:
        assert client.ask("MSET", one, 1, two) == node.ask("MSET", one, 1, one)
    assert isinstance(client.ask("DEL"), ReplyError)


def test_a_script_uses_the_keys_of_its_own_node_alone(client: Raw, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all()
    script = "return redis.call('INCR', ARGV[1])"
    for declared in keys:
        for used in keys:
            reply = client.ask("EVAL", script, 1, declared, used)
            if used == declared:
                assert reply == 1
            else:
                assert isinstance(reply, ReplyError) and "non local key" in str(reply), reply
    replies = [client.ask("EVAL", script, 0, key) for key in keys]
    assert replies.count(2) == 1, replies
    assert sum(isinstance(reply, ReplyError) for reply in replies) == 2, replies
    assert client.ask("DBSIZE") == 3
    assert client.ask("EVAL", "return #redis.call('KEYS', '*')", 0) == 1


def test_other_databases_are_refused_as_by_a_node(client: Raw, module_cluster: Cluster) -> None:
    with module_cluster.nodes[0].raw() as node:
        for words in (("SELECT", 1), ("SWAPDB", 0, 1), ("MOVE", "k", 1)):
            reply = client.ask(*words)
            assert isinstance(reply, ReplyError), words
            if words[0] != "MOVE":  # a node may redirect it
                assert reply == node.ask(*words), words
    assert client.ask("SET", "k", 1) == "OK"


def test_the_first_error_of_a_split_command(client: Raw, module_cluster: Cluster) -> None:
    one, two, three = module_cluster.keys_of_all()
    client.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    try:
        module_cluster.owner_of_key(two).do("CONFIG", "SET", "maxmemory", 1)
        reply = client.ask("MSET", one, 1, two, 2, three, 3)
        assert isinstance(reply, ReplyError) and reply.args[0].startswith("OOM")
    finally:
        module_cluster.owner_of_key(two).do("CONFIG", "SET", "maxmemory", 0)
    assert client.ask("MGET", one, two, three) == [b"1", None, b"3"]
    client.ask("RPUSH", two, "x")
    assert client.ask("MGET", one, two, three) == [b"1", None, b"3"]
    wrong_type = client.ask("GET", two)
    assert isinstance(wrong_type, ReplyError) and wrong_type.args[0].startswith("WRONGTYPE")


def test_splitting_can_be_off(cluster: Cluster) -> None:
    with private_proxy(cluster, "--cross-slot", "error") as proxy, proxy.raw() as client:
        one, two, _ = cluster.keys_of_all()
        assert client.ask("MSET", one, 1, two, 2) == CROSSSLOT
        assert client.ask("DEL", one, two) == CROSSSLOT
        assert client.ask("DEL", one, one) == 0


def test_commands_of_all_nodes(client: Raw, module_cluster: Cluster) -> None:
    assert client.ask("RANDOMKEY") is None
    keys = module_cluster.keys_of_all(3)
    for key in keys:
        client.ask("SET", key, 1)
    assert client.ask("DBSIZE") == len(keys)
    found = client.ask("KEYS", "*")
    assert isinstance(found, list)
    assert sorted(found) == sorted(key.encode() for key in keys)
    assert client.ask("RANDOMKEY") in found
    digest = client.ask("SCRIPT", "LOAD", "return {KEYS[1]}")
    assert isinstance(digest, bytes)
    assert client.ask("SCRIPT", "EXISTS", digest, "0" * 40) == [1, 0]
    for key in keys:
        assert client.ask("EVALSHA", digest, 1, key) == [key.encode()]
    assert client.ask("SCRIPT", "FLUSH") == "OK"
    assert client.ask("SCRIPT", "EXISTS", digest) == [0]
    assert client.ask("SCRIPT", "KILL") == ReplyError("NOTBUSY No scripts in execution right now.")
    assert client.ask("CONFIG", "SET", "hz", 17) == "OK"
    for node in module_cluster.masters():
        assert node.ask("CONFIG", "GET", "hz") == [b"hz", b"17"]
    for node in module_cluster.masters():
        assert isinstance(node.ask("AUTH", "nobody", "x"), ReplyError)
    assert client.ask("ACL", "LOG", "RESET") == "OK"
    assert [node.ask("ACL", "LOG") for node in module_cluster.masters()] == [[], [], []]
    found = client.ask("CONFIG", "GET", "hz")
    assert found in ([b"hz", b"17"], {"b'hz'": b"17"})
    text = client.ask("INFO", "keyspace")
    assert isinstance(text, bytes) and b"db0:keys=9,expires=0" in text
    text = client.ask("INFO", "cluster")
    assert isinstance(text, bytes) and b"cluster_enabled:1" in text
    assert client.ask("FLUSHDB") == "OK"
    assert [node.ask("DBSIZE") for node in module_cluster.masters()] == [0, 0, 0]
    assert client.ask("WAIT", 0, 10) == 0


def test_functions_are_written_to_all_masters(client: Raw, module_cluster: Cluster) -> None:
    if module_cluster.nodes[0].version < (7,):
        pytest.skip("no functions")
    keys = module_cluster.keys_of_all()
    code = "#!lua name=mylib\nredis.register_function('f', function(keys, args) return keys[1] end)"
    assert client.ask("FUNCTION", "LOAD", "REPLACE", code) == b"mylib"
    for key in keys:
        assert client.ask("FCALL", "f", 1, key) == key.encode()
    dump = client.ask("FUNCTION", "DUMP")
    assert isinstance(dump, bytes)
    assert client.ask("FUNCTION", "FLUSH") == "OK"
    for key in keys:
        assert isinstance(client.ask("FCALL", "f", 1, key), ReplyError)
    assert client.ask("FUNCTION", "RESTORE", dump) == "OK"
    for key in keys:
        assert client.ask("FCALL", "f", 1, key) == key.encode()
    assert client.ask("FUNCTION", "DELETE", "mylib") == "OK"
    assert client.ask("FUNCTION", "KILL") == ReplyError(
        "NOTBUSY No scripts in execution right now."
    )


def test_pipelines_over_all_nodes(cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    keys = module_cluster.keys_of_all(20)
    requests: list[tuple[bytes, object]] = [(command("FLUSHALL"), "OK")]
    for number, key in enumerate(keys):
        requests += [
            (command("SET", key, number), "OK"),
            (command("GET", key), b"%d" % number),
            (b"ECHO %d\r\n" % number, b"%d" % number),
            (b"\r\n*0\r\nPING\r\n", "PONG"),
            (command("MGET", key, "absent"), [b"%d" % number, None]),
        ]
    requests.append((command("DBSIZE"), len(keys)))
    data = b"".join(request for request, _ in requests)
    for slowly in (False, True):
        with cluster_proxy.raw() as client:
            if slowly:
                data = data[: len(data) // 4]
                for at in range(0, len(data), 7):
                    client.send(data[at : at + 7])
            else:
                client.send(data)
            for request, reply in requests[: len(requests) // 4 if slowly else None]:
                assert client.reply() == reply, request


def test_inline_commands_and_protocol_errors(cluster_proxy: Proxy) -> None:
    with cluster_proxy.raw() as client:
        client.send_slowly(b"\r\nSET inline 'a b'\r\nget inline\n")
        assert client.reply() == "OK"
        assert client.reply() == b"a b"
    for data, error in (
        (b"*1\r\n+PING\r\n", b"-ERR Protocol error: expected '$', got '+'\r\n"),
        (b"*x\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$x\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b'GET "a\r\n', b"-ERR Protocol error: unbalanced quotes in request\r\n"),
    ):
        for slowly in (False, True):
            with cluster_proxy.raw() as client:
                whole = command("SET", "a", 1) + command("GET", "a") + data + command("GET", "a")
                (client.send_slowly if slowly else client.send)(whole)
                assert client.reply() == "OK"
                assert client.reply() == b"1"
                assert client.line() == error
                assert client.closes()


@pytest.mark.parametrize("bulk", [b"$536870913\r\n", b"$536870950\r\n", b"$99999999999\r\n"])
def test_behind_too_long_a_bulk_nothing_reaches_a_node(
    module_cluster: Cluster, bulk: bytes
) -> None:
    """The session takes what follows for the bulk, so it denies nothing there."""
    with harness.proxy(module_cluster.url, "--deny-command", "KEYS") as proxy:
        for behind in (b"", command("KEYS", "*")):
            with proxy.raw() as client:
                client.send(command("PING") + b"*2\r\n$3\r\nGET\r\n" + bulk + behind)
                assert client.reply() == "PONG"
                with contextlib.suppress(OSError):
                    client.send(command("KEYS", "*"))
                assert client.line() == b"-ERR Protocol error: invalid bulk length\r\n"
                assert client.closes()


def test_a_script_may_return_a_protocol_error(cluster_proxy: Proxy) -> None:
    text = "ERR Protocol error in the remote service"
    with cluster_proxy.raw() as client:
        client.send(command("EVAL", f"return redis.error_reply('{text}')", 0) + command("PING"))
        assert [str(client.reply()), client.reply()] == [text, "PONG"]
        assert client.ask("PING") == "PONG"


def test_a_line_end_that_only_some_servers_check(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    """Valkey from 9.1 does: the client's connection ends with its error, as on one server."""
    wrong = b"*3\r\n$3\r\nSET\r\n$1\r\nw\r\n$1\r\n7XX"
    with module_cluster.nodes[0].raw() as node:
        node.send(wrong + command("PING"))
        first = node.line()
    with cluster_proxy.raw() as client:
        client.send(command("SET", "w", 6) + wrong + command("GET", "w"))
        assert client.reply() == "OK"
        if first.startswith(b"-ERR Protocol error"):
            assert client.line() == first
            assert client.closes()
        else:
            assert [client.reply(), client.reply()] == ["OK", b"7"]


def test_quit_ends_the_connection_behind_all_replies(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    keys = module_cluster.keys_of_all()
    with cluster_proxy.raw() as client:
        sets = [command("SET", key, "before") for key in keys]
        client.send(b"".join(sets) + command("QUIT") + command("SET", keys[0], "after"))
        assert [client.reply() for _ in (*keys, "QUIT")] == ["OK"] * 4
        assert client.closes()
    with cluster_proxy.raw() as client:
        assert client.ask("MGET", *keys) == [b"before"] * 3
        client.send(command("GET", keys[0]))
        client.finish()
        assert client.reply() == b"before"
        assert client.closes()


def test_large_values_and_a_slow_reader(cluster_proxy: Proxy, cluster: Cluster) -> None:
    one, two, three = cluster.keys_of_all()
    value = b"0123456789" * (LARGE // 10)
    with cluster_proxy.raw() as client:
        for key in (one, two, three):
            assert client.ask("SET", key, value) == "OK"
        assert client.ask("MGET", one, two) == [value, value]
        before = cluster_proxy.memory()
        client.send(b"".join(command("GET", key) for key in (one, two, three)) * 5)
        time.sleep(0.5)  # long enough for all replies to come, if they were read
        assert cluster_proxy.memory() - before < 30_000_000
        for _ in range(15):
            assert client.reply() == value


def test_monitor_shows_the_commands_of_all_nodes(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    keys = module_cluster.keys_of_all()
    with cluster_proxy.raw() as monitor, cluster_proxy.raw() as client:
        assert monitor.ask("MONITOR") == "OK"
        seen = b""

        def shown() -> bool:
            nonlocal seen
            for key in keys:
                client.ask("SET", key, "monitored")
            seen += monitor.quiet(0.05)
            return all(b'"SET" "%b" "monitored"' % key.encode() in seen for key in keys)

        wait_until(shown, "the monitor shows the commands of all nodes")
        monitor.send(command("QUIT"))
        assert monitor.closes()


def test_a_transaction_that_fails_is_not_kept(cluster_proxy: Proxy) -> None:
    with cluster_proxy.raw() as client:
        assert client.ask("MULTI") == "OK"
        assert isinstance(client.ask("NOSUCHCOMMAND"), ReplyError)
        before = cluster_proxy.memory()
        for _ in range(60):
            assert client.ask("SET", "k", b"x" * 1_000_000) == "QUEUED"
        assert cluster_proxy.memory() - before < 30_000_000
        assert str(client.ask("EXEC")).startswith("EXECABORT")


@ON_ONE_CLUSTER
def test_a_large_command_without_a_login_is_refused(module_cluster: Cluster) -> None:
    with (
        module_cluster.requires("pw"),
        harness.proxy(module_cluster.url.replace("//", "//:pw@")) as proxy,
    ):
        before = proxy.memory()
        with proxy.raw() as client:
            client.send(b"*2\r\n$4\r\nECHO\r\n$100000000\r\n")
            with contextlib.suppress(OSError):
                for _ in range(60):
                    client.sock.sendall(b"x" * 1_000_000)
            assert client.closes()
        assert proxy.memory() - before < 30_000_000
        with proxy.raw() as client:
            assert client.ask("AUTH", "pw") == "OK"
            assert client.ask("ECHO", b"x" * 10_000_000) == b"x" * 10_000_000


def test_what_no_node_gets(cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    with cluster_proxy.raw() as client:
        assert [client.ask(word) for word in ("READONLY", "READWRITE", "ASKING")] == ["OK"] * 3
        for words in (
            ("CLUSTER", "RESET"),
            ("CLUSTER", "FAILOVER"),
            ("MIGRATE", "h", 1, "k", 0, 1),
            ("SHUTDOWN",),
            ("PSYNC", "?", -1),
        ):
            assert isinstance(client.ask(*words), ReplyError), words
        assert len(module_cluster.masters()) == 3


def test_without_a_login_a_client_is_refused_as_by_a_node(module_cluster: Cluster) -> None:
    refused = [
        *(("MULTI",), ("READONLY",), ("READWRITE",), ("ASKING",), ("CLUSTER", "SLOTS")),
        *(("CLUSTER", "SHARDS"), ("CLUSTER", "NODES"), ("CLUSTER", "MYID"), ("CLUSTER", "INFO")),
        *(("EXEC",), ("CLIENT", "REPLY", "OFF"), ("CLIENT", "CACHING", "YES")),
    ]
    with (
        module_cluster.requires("pw"),
        harness.proxy(module_cluster.url.replace("//", "//:pw@")) as proxy,
        Raw(module_cluster.nodes[0].port) as node,
        proxy.raw() as client,
    ):
        for words in (*refused, ("AUTH", "wrong"), ("NONE",), *refused):
            assert client.ask(*words) == node.ask(*words), words
        client.send(command("AUTH", "pw") + command("MULTI") + command("SET", "k", 1))
        assert [client.reply() for _ in range(3)] == ["OK", "OK", "QUEUED"]
        assert client.ask("EXEC") == ["OK"]
        assert isinstance(client.ask("CLUSTER", "SLOTS"), list)
        assert client.ask("RESET") == "RESET"
        assert str(client.ask("MULTI")).startswith("NOAUTH")
        assert client.ask("QUIT") == "OK"
