"""Commands that the proxy answers in the place of the nodes, and those before a login."""

from __future__ import annotations

from tests import harness
from tests.bare_cluster_proxy import BareClusterProxy
from tests.clusters import Cluster
from tests.harness import Raw, ReplyError, command


def test_what_no_node_gets(cluster_proxy: BareClusterProxy, module_cluster: Cluster) -> None:
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
