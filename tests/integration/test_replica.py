"""Replicas: RL.PEEK is answered there, and hits are refused as Redis refuses any write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, wait_until

READONLY = "READONLY You can't write against a read only replica."


@pytest.fixture(scope="module")
def pair(engine: str) -> Iterator[tuple[Proxy, Proxy]]:
    """Proxies in front of a primary and of its replica."""
    with ExitStack() as stack:
        primary = stack.enter_context(harness.server(engine))
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


def test_read_only_user_may_peek(module_server: RedisServer, module_proxy: Proxy) -> None:
    if module_server.version < (7, 0):
        pytest.skip("this server has no EVAL_RO")
    with module_server.raw() as admin, module_proxy.raw() as raw:
        admin.ask("DEL", "k")
        rights = ["~none", "%R~k", "+eval_ro", "+evalsha_ro", "+time", "+get", "+eval"]
        assert admin.ask("ACL", "SETUSER", "reader", "reset", "on", ">pw", *rights) == "OK"
        assert raw.ask("AUTH", "reader", "pw") == "OK"
        for _ in range(5):  # on its own connection, and by lane
            assert raw.ask("RL.PEEK", "k", 3, 60, "ALGO", "GCRA") == [0, 3, 3, -1, 0]
        assert str(raw.ask("RL.HIT", "k", 3, 60, "ALGO", "GCRA")).startswith("NOPERM")
        admin.ask("ACL", "DELUSER", "reader")


def test_replica_of_a_cluster_answers_peeks(engine: str) -> None:
    if engine == "redis-6.2":
        pytest.skip("this server has no EVAL_RO")
    with ExitStack() as stack:
        primary, replica = (
            stack.enter_context(
                harness.server(
                    engine, "--cluster-enabled", "yes", "--cluster-port", str(harness.free_port())
                )
            )
            for _ in range(2)
        )
        with primary.raw() as one, replica.raw() as two:
            one.ask("CLUSTER", "ADDSLOTS", *range(16384))
            two.ask("CLUSTER", "MEET", "127.0.0.1", primary.port, primary.args[-1])
            name = one.ask("CLUSTER", "MYID")
            assert isinstance(name, bytes)
            wait_until(lambda: two.ask("CLUSTER", "REPLICATE", name) == "OK", "it is a replica")
            wait_until(lambda: b"cluster_state:ok" in state(two), "the cluster is up")
            wait_until(lambda: b"master_link_status:up" in info(two), "the link is up")
        with stack.enter_context(harness.proxy_of_node(replica)).raw() as raw:
            assert str(raw.ask("RL.PEEK", "k", 3, 60)).startswith("MOVED")
            assert raw.ask("READONLY") == "OK"
            assert raw.ask("RL.PEEK", "k", 3, 60) == [0, 3, 3, -1, 0]
            # Redis judges a script by the commands in it, so this is no MOVED.
            refusal = str(raw.ask("RL.HIT", "k", 3, 60))
            assert refusal.startswith(("ERR Attempted to access a non local key", "READONLY"))


def state(raw: Raw) -> bytes:
    found = raw.ask("CLUSTER", "INFO")
    assert isinstance(found, bytes)
    return found
