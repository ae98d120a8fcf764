"""Fixtures: one server and one proxy per engine and module; tests begin with an empty server.

Hypothesis checks no durations here, because a busy machine is no error of the code. It generates
the same examples in every run; with TESTS_RANDOM=yes in the environment it generates new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests import harness
from tests.clusters import Cluster, cluster_engines, started
from tests.harness import Proxy, RedisServer

settings.register_profile(
    "steady",
    deadline=None,
    derandomize=not os.environ.get("TESTS_RANDOM"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

harness.put_redis_cli_on_path()


# The files that take longest. A parallel run begins with them, so that all its processes have work
# until its end.
LONGEST = (
    "tests/conformance/test_acl_histories.py",
    "tests/integration/test_admin.py",
    "tests/integration/test_admission.py",
    "tests/integration/test_chaos.py",
    "tests/integration/test_cluster_failures.py",
    "tests/integration/test_cluster_hits.py",
    "tests/integration/test_denial_cache.py",
    "tests/integration/test_documented_commands.py",
    "tests/integration/test_examples.py",
    "tests/integration/test_sentinel.py",
    "tests/integration/test_wait.py",
    "tests/scripts/test_exact_windows.py",
    "tests/scripts/test_string_states.py",
    "tests/unit/test_bench.py",
    "tests/unit/test_bench_model.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put LONGEST first. Refuse a mark `flaky` without a reason, or with more than one retry."""
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONGEST)
    for item in items:
        for mark in item.iter_markers("flaky"):
            if mark.args or set(mark.kwargs) != {"reason"} or not mark.kwargs["reason"]:
                raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.flaky(reason="...")')


@pytest.fixture(scope="module", params=harness.OLDEST_AND_NEWEST)
def engine(request: pytest.FixtureRequest) -> str:
    """The oldest server and the newest in turn; each installed one with ON_EVERY_ENGINE."""
    return str(request.param)


@pytest.fixture(scope="module")
def module_server(engine: str) -> Iterator[RedisServer]:
    """One server for a module's tests."""
    with harness.server(engine) as made:
        yield made


@pytest.fixture(scope="module")
def module_proxy(module_server: RedisServer) -> Iterator[Proxy]:
    """One proxy in front of it."""
    with harness.proxy(module_server) as made:
        yield made


@pytest.fixture(scope="module")
def module_clusters() -> Iterator[dict[str, Cluster]]:
    """A cluster of three masters per engine for a module's tests."""
    made = {engine: Cluster(engine) for engine in cluster_engines()}
    with started(list(made.values())):
        yield made


@pytest.fixture(scope="module", params=cluster_engines())
def module_cluster(request: pytest.FixtureRequest, module_clusters: dict[str, Cluster]) -> Cluster:
    """Each of them in turn; it is not emptied between the tests."""
    return module_clusters[request.param]


@pytest.fixture
def redis_server(module_server: RedisServer) -> RedisServer:
    """The module's server, empty and without passwords."""
    with module_server.raw() as raw:
        raw.ask("FLUSHALL")
    return module_server


@pytest.fixture
def proxy(redis_server: RedisServer, module_proxy: Proxy) -> Proxy:
    """The module's proxy, in front of the empty server."""
    return module_proxy
