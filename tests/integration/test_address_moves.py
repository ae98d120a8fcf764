"""The name in --upstream leads to another master, and the former one is a replica that still
serves: how managed Redis fails over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

import redis.asyncio as client_library

from tests import harness
from tests.harness import RedisServer, ReplyError, command, wait_until
from tests.integration.started import Started, by_lane, started
from tests.stress.relay import Relay

BACK_S = 10.0  # seconds, for a busy machine


async def test_hits_follow_the_name_to_the_new_master(own_server: RedisServer) -> None:
    former = own_server
    with harness.server(former.engine) as master:
        relay = Relay(former.port, random.Random(1))
        await relay.start()
        url = f"redis://127.0.0.1:{relay.port}"
        args = ("--listen", "127.0.0.1:0", "--upstream", url)
        proxy = await asyncio.to_thread(lambda: Started(*args))
        client = client_library.Redis(port=await asyncio.to_thread(proxy.port), protocol=3)

        async def hit() -> object:
            return await client.execute_command("RL.HIT", "k", 1000, 60)  # type: ignore[no-untyped-call]

        try:
            for _ in range(3):  # the third one takes a lane
                await hit()
            assert await client.set("a", 1)
            relay.to_port = master.port
            with former.raw() as raw:
                assert raw.ask("REPLICAOF", "127.0.0.1", master.port) == "OK"
            async with asyncio.timeout(BACK_S):
                while True:
                    with contextlib.suppress(client_library.RedisError):
                        await hit()
                        await client.set("a", 2)  # by the connection of the client itself
                        break
                    await asyncio.sleep(0.05)
            with master.raw() as raw:
                assert raw.ask("GET", "a") == b"2"
        finally:
            await client.aclose()
            await asyncio.to_thread(proxy.close)
            await relay.close()


def test_a_busy_server_that_was_a_replica_is_no_other_one(own_server: RedisServer) -> None:
    url = own_server.url
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(started("--listen", "127.0.0.1:0", "--upstream", url))
        loop, other = (stack.enter_context(own_server.raw()) for _ in range(2))
        client = stack.enter_context(proxy.raw())
        client.ask("RL.HIT", "k", 10, 60)
        other.ask("CONFIG", "SET", "lua-time-limit", 5)
        other.ask("REPLICAOF", "127.0.0.1", harness.free_port())
        assert str(client.ask("RL.HIT", "k", 10, 60)).startswith("READONLY")
        proxy.logged("replica")
        loop.ask("MULTI")
        loop.ask("REPLICAOF", "NO", "ONE")
        loop.ask("EVAL", "while true do end", 0)
        loop.send(command("EXEC"))
        wait_until(lambda: isinstance(other.ask("PING"), ReplyError), "Redis is busy")
        try:
            proxy.logged("BUSY")
            assert str(client.ask("PING")).startswith("BUSY")
        finally:
            assert other.ask("SCRIPT", "KILL") == "OK"
        wait_until(lambda: other.ask("PING") == "PONG", "Redis is free")
        assert isinstance(client.ask("RL.HIT", "k", 10, 60), list)


def test_a_replica_promoted_in_place_keeps_its_clients_after_a_restart(
    own_server: RedisServer,
) -> None:
    url = own_server.url
    with started("--listen", "127.0.0.1:0", "--upstream", url) as proxy:
        with proxy.raw() as client:
            by_lane(own_server, client)
        own_server.stop()
        own_server.start()
        with proxy.raw() as client:
            by_lane(own_server, client)  # the control connection leads to the new process
            assert own_server.ask("REPLICAOF", "127.0.0.1", harness.free_port()) == "OK"
            assert str(client.ask("RL.HIT", "k", 10, 60)).startswith("READONLY")
            proxy.logged("it is a replica")
            assert own_server.ask("REPLICAOF", "NO", "ONE") == "OK"
            proxy.logged("it is a replica(.*\n)*.*the problem is over")
            assert client.ask("PING") == "PONG"
            assert isinstance(client.ask("RL.HIT", "k", 10, 60), list)
