"""Fixtures of the tests of the scripts. The arithmetic of Lua is the same on all servers, so a test
runs on one of them, unless a mark of the harness names others.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests import harness
from tests.harness import RedisServer


@pytest.fixture(scope="module", params=[harness.one_engine()])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(module_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=module_server.port) as made:
        yield made
