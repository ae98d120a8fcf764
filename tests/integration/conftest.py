"""Fixtures of the integration tests: one engine for behaviour that does not depend on the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import harness
from tests.clusters import Cluster, private_proxy
from tests.harness import Proxy, Raw, RedisServer
from tests.tlsparts import Certificates


@pytest.fixture(scope="session")
def one_engine() -> str:
    """See harness.one_engine()."""
    found = harness.one_engine()
    if found is None:
        pytest.skip("no Redis or Valkey server on this machine")
    return found


@pytest.fixture(scope="module")
def one_server(one_engine: str) -> Iterator[RedisServer]:
    """Run a server that a module's tests share; it is not emptied between them."""
    with harness.server(one_engine) as made:
        yield made


@pytest.fixture(scope="module")
def one_proxy(one_server: RedisServer) -> Iterator[Proxy]:
    """Run a proxy in front of `one_server`, shared by a module's tests."""
    with harness.proxy(one_server) as made:
        yield made


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """Empty the module's cluster."""
    return module_cluster.emptied()


@pytest.fixture(scope="module")
def module_cluster_proxy(module_cluster: Cluster) -> Iterator[Proxy]:
    """Run a proxy in front of `module_cluster`."""
    with harness.proxy(module_cluster.url) as made:
        yield made


@pytest.fixture(scope="module")
def one_cluster(one_engine: str) -> Iterator[Cluster]:
    """Run a cluster of three masters that a module's tests share; see module_cluster."""
    with Cluster(one_engine) as made:
        yield made


@pytest.fixture(scope="module")
def module_replicated(one_engine: str) -> Iterator[Cluster]:
    """A cluster of three masters with a replica each, for a module's tests. They leave it complete,
    not the roles of its nodes.
    """
    with Cluster(one_engine, replicas=1) as made:
        yield made


@pytest.fixture
def replicated(module_replicated: Cluster) -> Cluster:
    """The same, empty."""
    return module_replicated.emptied()


@pytest.fixture(scope="module")
def cluster_proxy(module_cluster: Cluster) -> Iterator[Proxy]:
    """Run a proxy in front of `module_cluster` whose clients share no connection."""
    with private_proxy(module_cluster) as made:
        yield made


@pytest.fixture(params=[2, 3])
def client(cluster_proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Raw]:
    """Connect a client to `cluster_proxy`, whose cluster is empty, in both protocols."""
    with cluster_proxy.raw() as made:
        made.ask("HELLO", request.param)
        assert made.ask("FLUSHALL") == "OK"
        yield made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The files of an authority, shared by a module's tests."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def own_server(one_engine: str) -> Iterator[RedisServer]:
    """Start a server for one test."""
    with harness.server(one_engine) as made:
        yield made


@pytest.fixture
def unstarted_server(one_engine: str) -> Iterator[RedisServer]:
    """Reserve a port for a server that is not running yet."""
    made = RedisServer(one_engine, harness.engines()[one_engine])
    try:
        yield made
    finally:
        made.close()
