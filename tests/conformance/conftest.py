"""One bench (server, proxy, fences) per engine and module.

The proxies in front of the newest server have --share, except with ON_ONE_ENGINE and
ON_EVERY_ENGINE. THROUGH_TLS=yes in the environment puts TLS on both sides of the proxy, where the
server supports it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import harness, tlsparts
from tests.conformance.compare import Bench
from tests.harness import Proxy, RedisServer

SHARE = " --share"  # behind the name of a server
_ONCE = [*harness.OLDEST_AND_NEWEST[:-1], harness.OLDEST_AND_NEWEST[-1] + SHARE]
_PORTS: dict[int, tuple[tlsparts.Certificates, int]] = {}  # of the servers with TLS


@pytest.fixture(scope="module", params=_ONCE)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The oldest server, and the newest with --share."""
    name = str(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if name.endswith(SHARE):
            patch.setenv("RLPROXY_SHARE", "yes")
        yield name.removesuffix(SHARE)


if os.environ.get("THROUGH_TLS"):

    @pytest.fixture(scope="module")
    def engine() -> str:
        return tlsparts.tls_engine() or pytest.skip("no server here has TLS")

    @pytest.fixture(scope="module")
    def module_server(
        engine: str, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[RedisServer]:
        certificates = tlsparts.Certificates(Path(tmp_path_factory.mktemp("tls")))
        with tlsparts.tls_server(certificates) as (made, port):
            _PORTS[made.port] = certificates, port
            yield made

    @pytest.fixture(scope="module")
    def module_proxy(module_server: RedisServer) -> Iterator[Proxy]:
        certificates, port = _PORTS[module_server.port]
        with tlsparts.tls_proxy(certificates, f"rediss://localhost:{port}") as (made, _):
            yield made


@pytest.fixture(scope="module")
def bench(module_server: RedisServer, module_proxy: Proxy) -> Iterator[Bench]:
    made = Bench(module_server, module_proxy)
    yield made
    made.close()
