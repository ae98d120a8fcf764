"""Cluster-aware clients see one node with all slots: redis-py's RedisCluster, and raw replies."""

from __future__ import annotations

import pytest
import redis
from redis.cluster import RedisCluster

from tests import harness
from tests.bare_cluster_proxy import BareClusterProxy
from tests.clusters import Cluster
from tests.harness import Raw, ReplyError, command


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_as_a_cluster_client(cluster_proxy: BareClusterProxy, protocol: int) -> None:
    with RedisCluster(host="127.0.0.1", port=cluster_proxy.port, protocol=protocol) as client:
        assert [(node.host, node.port) for node in client.get_nodes()] == [
            ("127.0.0.1", cluster_proxy.port)
        ]
        client.flushall()
        values = {f"key{number}": str(number) for number in range(50)}
        assert client.mset_nonatomic(values)
        assert client.mget_nonatomic(list(values)) == [value.encode() for value in values.values()]
        assert client.dbsize() == 50
        assert sorted(client.scan_iter(count=10)) == sorted(key.encode() for key in values)
        assert len(client.keys("*")) == 50
        pipe = client.pipeline()
        for key in values:
            pipe.get(key)
        assert pipe.execute() == [value.encode() for value in values.values()]
        assert client.cluster_keyslot("a") == 15495
        assert client.cluster_info(target_nodes=RedisCluster.ALL_NODES)["cluster_state"] == "ok"
        assert client.delete(*[key for key in values if "{" in key] or ["key1"]) == 1
        assert client.eval("return redis.call('GET', KEYS[1])", 1, "key2") == b"2"


def test_redis_py_as_a_plain_client(cluster_proxy: BareClusterProxy) -> None:
    with redis.Redis(port=cluster_proxy.port) as client:
        client.flushall()
        values = {f"key{number}": str(number) for number in range(50)}
        assert client.mset(values)
        assert client.mget(list(values)) == [value.encode() for value in values.values()]
        assert client.delete(*values) == 50
        with client.pipeline() as pipe:
            assert pipe.set("{a}1", 1).incr("{a}1").execute() == [True, 2]
        with client.pipeline(transaction=False) as pipe:
            assert pipe.set("a", 1).set("b", 2).mget("a", "b").execute()[2] == [b"1", b"2"]
        lock = client.lock("lock", timeout=5)
        assert lock.acquire(blocking=False)
        lock.release()
        with client.pubsub() as pubsub:
            pubsub.subscribe("news")
            assert pubsub.get_message(timeout=5)["type"] == "subscribe"
            client.publish("news", "x")
            assert pubsub.get_message(timeout=5)["data"] == b"x"


def test_raw_replies(cluster_proxy: BareClusterProxy, module_cluster: Cluster) -> None:
    with cluster_proxy.raw() as client:
        rows = client.ask("CLUSTER", "SLOTS")
        assert isinstance(rows, list) and len(rows) == 1
        slots = rows[0]
        assert slots[:2] == [0, 16383]
        assert slots[2][:2] == [b"127.0.0.1", cluster_proxy.port]
        own = client.ask("CLUSTER", "MYID")
        assert isinstance(own, bytes)
        nodes = client.ask("CLUSTER", "NODES")
        assert isinstance(nodes, bytes) and nodes.startswith(own) and nodes.count(b"\n") == 1
        rows = client.ask("CLUSTER", "SHARDS")
        assert isinstance(rows, list) and len(rows) == 1
        assert rows[0][:2] == [b"slots", [0, 16383]]
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


def test_without_a_login_a_client_is_refused_as_by_a_node(one_engine: str) -> None:
    refused = [
        *(("MULTI",), ("READONLY",), ("READWRITE",), ("ASKING",), ("CLUSTER", "SLOTS")),
        *(("CLUSTER", "SHARDS"), ("CLUSTER", "NODES"), ("CLUSTER", "MYID"), ("CLUSTER", "INFO")),
        *(("EXEC",), ("CLIENT", "REPLY", "OFF"), ("CLIENT", "CACHING", "YES")),
    ]
    with (
        Cluster(one_engine, masters=1, password="pw") as cluster,
        harness.proxy(cluster.url.replace("//", "//:pw@")) as proxy,
        Raw(cluster.nodes[0].port) as node,
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
