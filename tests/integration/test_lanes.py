"""Lanes: which clients share one, a hung server, and the timeout of the server.

Rights, users and lost connections: test_acl_histories, test_routing and test_routing_failures in
tests/conformance.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, command, wait_until
from tests.integration.started import (
    by_lane,
    by_lane_as_eval,
    client_list,
    lanes,
    private,
)
from tests.processes import paused


@pytest.fixture
def own_proxy(own_server: RedisServer) -> Iterator[Proxy]:
    """A proxy for one test in front of one engine's server."""
    with harness.proxy(own_server) as running:
        yield running


# -- which clients share a lane --------------------------------------------------------------------


def test_hits_of_many_clients_share_one_connection(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(own_proxy.raw()) for _ in range(20)]
        for client in clients:
            by_lane(own_server, client)
        (lane,) = lanes(own_server)
        assert len(private(own_server)) == 20
        monitor = stack.enter_context(own_server.raw())
        assert monitor.ask("MONITOR") == "OK"
        for client in clients:
            client.send(command("RL.HIT", "shared", 100, 60) * 3)
        replies = [client.reply() for client in clients for _ in range(3)]
        assert sorted(map(str, replies)) == sorted(
            str([0, 100, left, -1, 60]) for left in range(40, 100)
        )
        with own_server.raw() as direct:
            direct.ask("ECHO", "over")
        seen = b""
        while b'"over"' not in seen:
            seen += monitor.line()
        found = re.findall(rb"\[0 ([\d.:]+)\] \"EVALSHA\" \"\w+\" \"(\d+)\"", seen)
        assert {address for address, _ in found} == {lane["addr"].encode()}
        assert sum(int(hits) for _, hits in found) == 60
        assert [row["id"] for row in lanes(own_server)] == [lane["id"]]


# -- a user that Redis refuses ---------------------------------------------------------------------


def test_hits_go_by_lane_again_once_redis_accepts_the_user(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    """A client that stays connected needs no lane meanwhile, and gets one afterwards."""
    with own_server.raw() as admin, own_proxy.raw() as client:
        admin.ask("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all")
        assert client.ask("AUTH", "bob", "pw") == "OK"
        by_lane(own_server, client, admin)
        admin.ask("ACL", "SETUSER", "bob", "off")
        (lane,) = lanes(own_server, admin)
        assert admin.ask("CLIENT", "KILL", "ID", lane["id"]) == 1

        def refused() -> int:
            reply = client.ask("RL.HIT", "warm", 1_000_000, 3600)
            assert isinstance(reply, list) or str(reply).startswith("UPSTREAMDOWN"), reply
            return len(cast("list[object]", admin.ask("ACL", "LOG")))

        wait_until(refused, "Redis refuses a lane")
        admin.ask("ACL", "SETUSER", "bob", "on")
        by_lane(own_server, client, admin)


# -- a hung server ---------------------------------------------------------------------------------


def test_hung_server_delays_hits_and_loses_none(own_server: RedisServer, own_proxy: Proxy) -> None:
    with own_proxy.raw() as client, own_proxy.raw() as other:
        by_lane(own_server, client)
        by_lane(own_server, other)
        with paused(own_server.pid):
            client.send(command("RL.HIT", "k", 100, 60) * 30)
            other.send(command("RL.HIT", "k", 100, 60) + command("ECHO", "x"))
            time.sleep(0.3)
        replies = [client.reply() for _ in range(30)] + [other.reply()]
        assert sorted(reply[2] for reply in replies if isinstance(reply, list)) == [*range(69, 100)]
        assert other.reply() == b"x"


# -- the server's timeout -------------------------------------------------------------------------


def test_busy_client_outlives_a_timeout_unknown_to_the_proxy(one_engine: str) -> None:
    """Hits by lane, cached refusals and a held hit count as activity. One proxy has learned another
    timeout, the other has no password and learns nothing.
    """
    with contextlib.ExitStack() as stack:
        checks = [
            busy_clients(stack, one_engine, ("PING",), by_lane),
            busy_clients(stack, one_engine, ("AUTH", "s3"), by_lane_as_eval, "--requirepass", "s3"),
        ]
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            for hits, refused, _ in checks:
                assert isinstance(hits.ask("RL.HIT", "busy", 1_000_000, 3600), list)
                assert isinstance(refused.ask("RL.HIT", "full", 1, 600), list)
            time.sleep(0.02)
        for _, _, check in checks:
            check()


def busy_clients(
    stack: contextlib.ExitStack,
    engine: str,
    login: tuple[str, ...],
    join: Callable[[RedisServer, Raw, Raw], None],
    *args: str,
) -> tuple[Raw, Raw, Callable[[], None]]:
    """A client with hits by lane, and one with cached refusals, of a server that closes silent
    clients after 1 s; and a check that they, and one with a held hit, were not closed.
    """
    server = stack.enter_context(harness.server(engine, *args))
    admin = stack.enter_context(server.raw())
    admin.ask(*login)
    proxy = stack.enter_context(harness.proxy(server))
    clients = [stack.enter_context(proxy.raw()) for _ in range(3)]
    for raw in clients:
        raw.ask(*login)
    hits, refused, held = clients
    for raw in clients:
        join(server, raw, admin)
    numbers = [raw.ask("CLIENT", "ID") for raw in clients]
    for raw in clients:
        join(server, raw, admin)
    assert held.ask("RL.HIT", "full", 1, 600) == [0, 1, 0, -1, 600]
    held.send(command("RL.HIT", "full", 1, 600, "WAIT", 900))
    assert admin.ask("CONFIG", "SET", "timeout", 1) == "OK"

    def check() -> None:
        assert [raw.ask("CLIENT", "ID") for raw in (hits, refused)] == numbers[:2]
        again = stack.enter_context(server.raw())
        again.ask(*login)
        assert numbers[2] in [int(row["id"]) for row in client_list(server, again)]

    return hits, refused, check
