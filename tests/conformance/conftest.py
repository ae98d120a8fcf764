"""One bench (server, proxy, fences) per engine and module.

THROUGH_TLS=yes in the environment puts TLS on both sides of the proxy, where the server supports
it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tlsparts
from tests.conformance.compare import Bench
from tests.harness import Proxy, RedisServer

_PORTS: dict[int, tuple[tlsparts.Certificates, int]] = {}  # of the servers with TLS

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
