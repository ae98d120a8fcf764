"""Fixtures of the integration tests: one engine for behaviour that does not depend on the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import harness
from tests.harness import RedisServer


@pytest.fixture(scope="session")
def one_engine() -> str:
    """See harness.one_engine()."""
    found = harness.one_engine()
    if found is None:
        pytest.skip("no Redis or Valkey server on this machine")
    return found


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
