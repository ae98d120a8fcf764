"""One bench (server, proxy, fences) per engine and module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.compare import Bench
from tests.harness import Proxy, RedisServer


@pytest.fixture(scope="module")
def bench(module_server: RedisServer, module_proxy: Proxy) -> Iterator[Bench]:
    made = Bench(module_server, module_proxy)
    yield made
    made.close()
