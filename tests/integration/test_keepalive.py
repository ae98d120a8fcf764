"""TCP keepalive, toward clients and toward Redis."""

from __future__ import annotations

import pytest

from tests import harness, processes
from tests.clusters import Cluster
from tests.harness import RedisServer, wait_until


@pytest.mark.parametrize("seconds", [0, 300])
def test_both_sides_of_the_proxy_are_kept_alive(own_server: RedisServer, seconds: int) -> None:
    args = ("--tcp-keepalive", str(seconds))
    with harness.proxy(own_server, *args) as proxy, proxy.raw() as client:
        assert client.ask("SET", "a", 1) == "OK"
        for _ in range(3):
            client.ask("RL.HIT", "k", 100, 60)

        def kept() -> set[bool]:
            to_redis = processes.kept_alive(own_server.port, peers=True)
            assert len(to_redis) > 2  # the client's, a lane, the control connection
            return {*to_redis, *processes.kept_alive(proxy.port)}

        wait_until(lambda: kept() == {seconds > 0}, "the last bytes are acknowledged")


@pytest.mark.parametrize("seconds", [0, 300])
def test_so_are_the_nodes_of_a_cluster(module_cluster: Cluster, seconds: int) -> None:
    with (
        harness.proxy(module_cluster.url, "--tcp-keepalive", str(seconds)) as proxy,
        proxy.raw() as client,
    ):
        for key in module_cluster.keys_of_all():
            client.ask("BLPOP", key, "0.01")  # by a link of the client's own
        for node in module_cluster.masters():
            kept = processes.kept_alive(node.port, peers=True)
            assert any(kept) == (seconds > 0), kept
