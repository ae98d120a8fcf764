"""Blocking commands on a Redis Cluster: timeouts, slots that move, replicas that take over."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import pytest
from rlproxy.resp.key_slot import key_slot
from rlproxy.upstream.cluster.redirects import with_remaining_timeout

from tests.clusters import Cluster, private_proxy
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.info import blocked_clients, clients

KEY, ELSEWHERE = "list", "b"  # at two nodes
SAME = "{list}2"
SLOT = key_slot(KEY.encode())


@pytest.fixture
def client(cluster_proxy: Proxy, cluster: Cluster) -> Iterator[Raw]:
    """A client, in front of the empty cluster."""
    with cluster_proxy.raw() as made:
        made.ask("HELLO", 3)
        yield made


def wait_blocked(cluster: Cluster, slot: int = SLOT) -> None:
    """Wait until the owner of `slot` has a blocked client."""
    wait_until(lambda: blocked_clients(cluster.owner(slot)) == 1, "a client is blocked")


def test_timeouts(client: Raw) -> None:
    for line in (
        f"BLPOP {KEY} 0.2",
        f"BRPOP {KEY} 0.2",
        f"BLMOVE {KEY} {KEY} LEFT RIGHT 0.2",
        f"BZPOPMIN {KEY} 0.2",
        f"XREAD BLOCK 200 STREAMS {KEY} $",
    ):
        begun = time.monotonic()
        client.send(command(*line.split()) + command("PING"))
        assert client.reply() is None
        assert client.reply() == "PONG"
        assert 0.2 <= time.monotonic() - begun < 5
    assert isinstance(client.ask("BLPOP", KEY, "x"), ReplyError)


def test_a_push_ends_it_and_commands_behind_it_run(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    with cluster_proxy.raw() as other:
        client.send(command("BLPOP", KEY, 0) + command("SET", ELSEWHERE, 1) + command("LLEN", KEY))
        wait_blocked(module_cluster)
        wait_until(lambda: other.ask("GET", ELSEWHERE) == b"1", "another node has run its command")
        assert other.ask("RPUSH", KEY, "x", "y") == 2
        assert [client.reply() for _ in range(3)] == [[KEY.encode(), b"x"], "OK", 1]
        client.send(command("XREAD", "BLOCK", 0, "STREAMS", "{list}stream", "$"))
        wait_blocked(module_cluster)
        assert other.ask("XADD", "{list}stream", "1-1", "f", "v") == b"1-1"
        streams = client.reply()
        assert streams in (
            [[b"{list}stream", [[b"1-1", [b"f", b"v"]]]]],
            {"b'{list}stream'": [[b"1-1", [b"f", b"v"]]]},
        )


def test_another_client_unblocks_it(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    with cluster_proxy.raw() as other:
        for mode, expected in (
            ("TIMEOUT", None),
            ("ERROR", ReplyError("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        ):
            client.send(command("BLPOP", KEY, 0))
            wait_blocked(module_cluster)
            (number,) = [row["id"] for row in clients(other) if row["cmd"] == "blpop"]
            assert other.ask("CLIENT", "UNBLOCK", number, mode) == 1
            assert client.reply() == expected
            assert other.ask("CLIENT", "UNBLOCK", number) == 0
        assert other.ask("CLIENT", "UNBLOCK", 12345678) == 0
        assert isinstance(other.ask("CLIENT", "UNBLOCK", "x"), ReplyError)


def test_the_slot_moves_while_it_is_blocked(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    with cluster_proxy.raw() as other:
        client.send(command("BLPOP", KEY, 0))
        for _ in range(3):
            wait_blocked(module_cluster)
            module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
        wait_blocked(module_cluster)
        assert other.ask("RPUSH", KEY, "x") == 1
        assert client.reply() == [KEY.encode(), b"x"]
        begun = time.monotonic()
        client.send(command("BLPOP", KEY, "1.5"))
        wait_blocked(module_cluster)
        time.sleep(1.0)
        target = module_cluster.other_master(SLOT)
        with target.raw() as monitor:
            assert monitor.ask("MONITOR") == "OK"
            module_cluster.move_slot(SLOT, target)
            assert client.reply() is None
            assert time.monotonic() - begun >= 1.5
            sent = re.search(rb'"BLPOP" "list" "([0-9.]+)"', monitor.quiet(0.05))
        assert sent is not None
        assert 0 < float(sent[1]) <= 0.5  # what was left of the timeout


@pytest.mark.parametrize("line", [f"BLPOP {KEY} 1", f"XREAD BLOCK 1000 STREAMS {KEY} $"])
def test_command_whose_timeout_is_over_ends_when_it_goes_again(
    redis_server: RedisServer, line: str
) -> None:
    with redis_server.raw() as raw:
        raw.send(with_remaining_timeout(command(*line.split()), 2.0))
        assert raw.reply() is None


def test_the_client_goes_while_it_is_blocked(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    with cluster_proxy.raw() as other:
        other.send(command("BLPOP", KEY, 0))
        wait_blocked(module_cluster)
    owner = module_cluster.owner(SLOT)
    wait_until(lambda: owner.info("clients")["blocked_clients"] == "0", "no client is blocked")
    assert client.ask("RPUSH", KEY, "kept") == 1
    with cluster_proxy.raw() as other:
        other.send(command("WAIT", 9, 0))
        wait_until(lambda: blocked(module_cluster) > 0, "WAIT waits")
    wait_until(lambda: blocked(module_cluster) == 0, "no client is blocked")


def blocked(cluster: Cluster) -> int:
    """The number of blocked clients of all masters."""
    return sum(map(blocked_clients, cluster.masters()))


def test_commands_run_behind_one_that_could_have_blocked_as_the_client_ends(
    client: Raw, cluster_proxy: Proxy
) -> None:
    for _ in range(10):
        client.ask("DEL", KEY, SAME)
        assert client.ask("RPUSH", KEY, "a") == 1
        with cluster_proxy.raw() as other:
            assert other.ask("LLEN", KEY) == 1
            other.send(command("BLPOP", KEY, SAME, 0) + command("INCR", SAME))
            other.sock.shutdown(socket.SHUT_WR)
            assert [other.reply(), other.reply()] == [[KEY.encode(), b"a"], 1]
            assert other.closes()


def test_the_client_goes_while_the_connection_on_which_it_blocks_is_being_opened(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    for node in module_cluster.masters():
        with cluster_proxy.raw() as client:
            client.send(command("BLPOP", module_cluster.key_at(node), 0))
            client.sock.shutdown(socket.SHUT_WR)
            assert client.closes()


def test_replicas_take_over_while_it_is_blocked(one_engine: str) -> None:
    with (
        Cluster(one_engine, replicas=1) as cluster,
        private_proxy(cluster) as proxy,
        proxy.raw() as client,
        proxy.raw() as other,
    ):
        client.send(command("BLPOP", KEY, 0))
        wait_blocked(cluster)
        cluster.failover(cluster.replicas(cluster.owner(SLOT))[0])
        wait_blocked(cluster)
        assert other.ask("RPUSH", KEY, "x") == 1
        assert client.reply() == [KEY.encode(), b"x"]
        client.send(command("BLPOP", KEY, 0))
        wait_blocked(cluster)
        owner = cluster.owner(SLOT)
        (replica,) = cluster.replicas(owner)
        cluster.kill(owner)
        assert client.closes()
        cluster.wait_promoted(replica)
        wait_until(lambda: other.ask("RPUSH", KEY, "y") == 1, "the new master is used")
