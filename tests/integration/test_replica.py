"""Replicas: RL.PEEK is answered there, and hits are refused as Redis refuses any write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests import harness
from tests.harness import Proxy, Raw, wait_until

READONLY = "READONLY You can't write against a read only replica."


@pytest.fixture(scope="module")
def pair(engine: str) -> Iterator[tuple[Proxy, Proxy]]:
    """Proxies in front of a primary and of its replica."""
    with ExitStack() as stack:
        primary = stack.enter_context(harness.server(engine, "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(harness.server(engine))
        with replica.raw() as raw:
            assert raw.ask("REPLICAOF", "127.0.0.1", primary.port) == "OK"
            wait_until(lambda: b"master_link_status:up" in info(raw), "the link is up")
        yield (
            stack.enter_context(harness.proxy(primary)),
            stack.enter_context(harness.proxy(replica)),
        )


def info(raw: Raw) -> bytes:
    found = raw.ask("INFO", "replication")
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("algorithm", [name.decode() for name in ALGORITHMS])
def test_replica_reports_the_primarys_counts(pair: tuple[Proxy, Proxy], algorithm: str) -> None:
    key = f"k:{algorithm}"
    rule: list[str | int] = [key, 3, 600, "ALGO", algorithm]
    with pair[0].raw() as primary, pair[1].raw() as replica:
        assert replica.ask("RL.PEEK", *rule) == [0, 3, 3, -1, 0]
        for left in (2, 1, 0):
            found = primary.ask("RL.HIT", *rule)
            assert isinstance(found, list)
            assert found[:3] == [0, 3, left]
        wait_until(lambda: peek(replica, rule)[:3] == [1, 3, 0], "the hits are replicated")
        assert peek(replica, rule)[4] > 0
        assert str(replica.ask("RL.HIT", "new", *rule[1:])) == READONLY
        assert str(replica.ask("RL.REFUND", key, 3, 600, 1, "ALGO", algorithm)) == READONLY
        for words in (("new", 60), (key, 60)):
            assert str(replica.ask("RL.BLOCK", *words, "ALGO", algorithm)) == READONLY
        assert primary.ask("RL.BLOCK", key, 7200, "ALGO", algorithm) == [1, 0, 0, 7200, 7200]
        wait_until(lambda: peek(replica, rule)[3] > 7000, "the block is replicated")
        for t in (3600, 0):
            assert str(replica.ask("RL.BLOCK", key, t, "ALGO", algorithm)) == READONLY


def peek(raw: Raw, rule: list[str | int]) -> list[int]:
    found = raw.ask("RL.PEEK", *rule)
    assert isinstance(found, list)
    return found
