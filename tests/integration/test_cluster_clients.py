"""Real clients use a cluster of three masters through the proxy: cluster-aware and plain ones, in
both protocols, through TLS, at an announced address, with reads from replicas, and where the
cluster is hidden.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.cluster import LoadBalancingStrategy

from tests import harness
from tests.clusters import Cluster
from tests.harness import Proxy
from tests.integration import cluster_clients, runtimes
from tests.integration.cluster_clients import (
    KEYS,
    NO_TRANSACTIONS,
    ONE_SLOT,
    SHARDED,
    VALUES,
    Results,
    Way,
    normal,
)
from tests.integration.started import by_lane_of
from tests.tlsparts import Certificates

EXPECTED: Results = {
    "hit": [0, 5, 4, -1, 60],
    "set": ["OK"] * len(VALUES),
    "get": list(VALUES.values()),
    "mset": "OK",
    "mget": list(VALUES.values()),
    "pipeline": [*VALUES.values(), [0, 5, 3, -1, 60]],
    "transaction": ["OK", 2, [0, 5, 4, -1, 60]],
    "crossing": ONE_SLOT,
    "keys": KEYS,
    "dbsize": len(VALUES) + 3,  # also the keys of two limits, and that of the transaction
    "scan": KEYS,
    "script": list(VALUES.values()),
    "popped": ["list", "x"],
    "messages": [["news", "m"]] * 2,
    "sharded": [[channel, "m"] for channel in SHARDED],
    "behind": "1",
    "mode": "cluster",
    "del": len(VALUES),
    "reset": 1,
}


@dataclass(frozen=True)
class Client:
    """A client library, and how it is used.

    name: as in runtimes.CLIENTS.
    kind: single or cluster.
    library: the module of a Python library.
    replicas: its options to read from replicas.
    differs: results unlike EXPECTED, because the client itself is more strict.
    """

    name: str
    kind: str
    use: Callable[[str, str, Way, int], Results]
    library: str = ""
    replicas: dict[str, Any] = field(default_factory=dict)
    differs: Results = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.library if '.' in self.library else self.name}-{self.kind}"


STRICT = {"mset": ONE_SLOT, "mget": ONE_SLOT}
CLIENTS = [
    Client(
        "redis-py",
        "cluster",
        cluster_clients.python,
        "redis",
        {"load_balancing_strategy": LoadBalancingStrategy.ROUND_ROBIN_REPLICAS},
        STRICT,
    ),
    Client(
        "redis-py",
        "cluster",
        cluster_clients.python,
        "redis.asyncio",
        {"load_balancing_strategy": LoadBalancingStrategy.ROUND_ROBIN_REPLICAS},
        STRICT,
    ),
    Client(
        "valkey-py",
        "cluster",
        cluster_clients.python,
        "valkey",
        {"read_from_replicas": True},
        {**STRICT, "transaction": NO_TRANSACTIONS, "crossing": NO_TRANSACTIONS, "dbsize": 7},
    ),
    Client("ioredis", "cluster", cluster_clients.node, replicas={"scaleReads": "slave"}),
    Client("node-redis", "cluster", cluster_clients.node, replicas={"useReplicas": True}),
    Client("redis-py", "single", cluster_clients.python, "redis"),
    Client("ioredis", "single", cluster_clients.node),
    Client("node-redis", "single", cluster_clients.node),
]
PLAIN = [client for client in CLIENTS if client.kind == "single"]
# One of Python and one of Node: the others connect in the same ways.
TWO = [client for client in CLIENTS if str(client) in ("redis-py-cluster", "ioredis-cluster")]


def run(client: Client, way: Way, plain_port: int, at: str, mode: str = "cluster") -> None:
    """Run a client, and compare its results.

    at: the one node that a cluster-aware client must see.
    mode: the mode in INFO.
    """
    missing = runtimes.CLIENTS[client.name].missing()
    if missing:
        pytest.skip(missing)
    expected = {**EXPECTED, **client.differs, "mode": mode}
    if client.kind == "cluster":
        resolves = client.name in ("redis-py", "valkey-py")  # this one name
        expected["nodes"] = [at.replace("localhost", "127.0.0.1") if resolves else at]
    library = client.library or client.name
    found = normal(client.use(library, client.kind, way, plain_port))
    found.get("sharded", []).sort()  # messages of different nodes come in any order
    assert found == expected


@dataclass
class Doors:
    """A proxy in front of the cluster: its first listener, and the port of a second one."""

    proxy: Proxy
    second: int


@contextlib.contextmanager
def doors(one_cluster: Cluster, second: int, *args: str) -> Iterator[Doors]:
    url = f"redis+cluster://127.0.0.1:{one_cluster.nodes[0].port}"
    with harness.proxy(url, *args) as made:
        yield Doors(made, second)


@pytest.fixture(scope="module")
def with_tls(one_cluster: Cluster, certificates: Certificates) -> Iterator[Doors]:
    """A proxy whose second listener has TLS."""
    port = harness.free_port()
    listener = ("--listen", f"tls:127.0.0.1:{port}", *certificates.server_args())
    with doors(one_cluster, port, *listener) as made:
        yield made


@pytest.fixture(scope="module")
def announcing(one_cluster: Cluster) -> Iterator[Doors]:
    """A proxy that announces its second listener, by name."""
    port = harness.free_port()
    listener = ("--listen", f"127.0.0.1:{port}", "--announce", f"localhost:{port}")
    with doors(one_cluster, port, *listener) as made:
        yield made


@pytest.fixture(scope="module")
def hiding(one_cluster: Cluster) -> Iterator[Doors]:
    """A proxy that hides the cluster."""
    with doors(one_cluster, 0, "--present", "standalone") as made:
        yield made


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_clients(client: Client, with_tls: Doors, protocol: int) -> None:
    port = with_tls.proxy.port
    run(client, Way("127.0.0.1", port, protocol), port, f"127.0.0.1:{port}")


@pytest.mark.parametrize("client", TWO, ids=str)
def test_clients_through_tls(client: Client, with_tls: Doors, certificates: Certificates) -> None:
    way = Way("localhost", with_tls.second, 3, certificates.ca)
    run(client, way, with_tls.proxy.port, f"127.0.0.1:{with_tls.second}")


@pytest.mark.parametrize("client", TWO, ids=str)
def test_clients_go_to_the_announced_address(client: Client, announcing: Doors) -> None:
    port = announcing.proxy.port
    run(client, Way("127.0.0.1", port, 3), port, f"localhost:{announcing.second}")


@pytest.mark.parametrize("client", TWO, ids=str)
def test_clients_that_read_from_replicas(client: Client, with_tls: Doors) -> None:
    port = with_tls.proxy.port
    way = Way("127.0.0.1", port, 3, more=client.replicas)
    run(client, way, port, f"127.0.0.1:{port}")


@pytest.mark.parametrize("client", PLAIN, ids=str)
def test_plain_clients_of_a_hidden_cluster(client: Client, hiding: Doors) -> None:
    port = hiding.proxy.port
    run(client, Way("127.0.0.1", port, 3), port, "", "standalone")


def test_hits_behind_readonly_go_by_lane(with_tls: Doors, one_cluster: Cluster) -> None:
    owner = one_cluster.owner_of_key("lane")
    with with_tls.proxy.raw() as client:
        for word in ("READONLY", "READWRITE"):
            assert client.ask(word) == "OK"
            by_lane_of(owner, client, "lane")
            assert client.ask("COMMAND", "INFO", "RL.HIT") != [None]
