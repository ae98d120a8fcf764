"""Fixtures of the tests of the scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.harness import RedisServer


@pytest.fixture(scope="module")
def client(module_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=module_server.port) as made:
        yield made
