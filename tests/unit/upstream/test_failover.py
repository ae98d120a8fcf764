"""Failover: what is reported of Sentinels and of the servers that they name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from rlproxy.config.urls import Address, parse_upstream
from rlproxy.upstream import failover as module
from rlproxy.upstream.failover import Failover
from rlproxy.upstream.master_target import MasterTarget

from tests.unit.upstream.test_control import until

OLD = Address("old", 1)
NEW = Address("new", 2)
SENTINELS = [Address("s1", 1), Address("s2", 1), Address("s3", 1)]
MASTER = b"*1\r\n$6\r\nmaster\r\n"


class Wire(asyncio.Transport):
    """A connection to a Sentinel or server of `world`."""

    def __init__(self, world: World, address: Address, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.world = world
        self.address = address
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if b"SUBSCRIBE" in data:
            self.world.subscriptions.append(self.protocol)
        reply = self.world.reply(self.address, bytes(data))
        asyncio.get_running_loop().call_soon(self.protocol.data_received, reply)

    def abort(self) -> None:
        pass


class World:
    """Three Sentinels and two servers, by their replies; and the Failover that follows them.

    names: the master and its epoch, by Sentinel. A Sentinel that is missing does not answer.
    roles: the reply to ROLE, by server. A server that is missing refuses connections.
    subscriptions: the connections of Sentinels on which the Failover subscribes.
    """

    def __init__(self) -> None:
        self.names = dict.fromkeys(SENTINELS, (OLD, 4))
        self.roles = {OLD: MASTER}
        self.subscriptions: list[asyncio.Protocol] = []
        hosts = ",".join(map(str, SENTINELS))
        self.target = MasterTarget("sentinel", 1.0)
        upstream = parse_upstream(f"redis+sentinel://{hosts}/m")
        self.failover = Failover(upstream, self.target, lambda: None)

    def reply(self, address: Address, data: bytes) -> bytes:
        if b"ROLE" in data:
            return self.roles[address]
        if b"SUBSCRIBE" in data:
            return b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
        if address not in self.names:
            return b""
        master, epoch = self.names[address]
        where = f"*2\r\n${len(master.host)}\r\n{master.host}\r\n$1\r\n{master.port}\r\n"
        return f"{where}*2\r\n$12\r\nconfig-epoch\r\n$1\r\n{epoch}\r\n".encode()

    async def connect(
        self, address: Address, protocol: Callable[[], asyncio.Protocol]
    ) -> asyncio.Transport:
        if address not in self.roles and address not in SENTINELS:
            raise ConnectionRefusedError
        wire = Wire(self, address, protocol())
        wire.protocol.connection_made(wire)
        return wire

    async def unknown(self) -> str:
        """Why no connection to the master is possible."""
        with pytest.raises(OSError) as found:
            await self.target.connect(asyncio.Protocol)
        return str(found.value)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "LOOK_S", 3600.0)  # no look is due
    made = World()

    class Fake:
        def __init__(self, address: Address, *_: object) -> None:
            self.address = address

        async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
            return await made.connect(self.address, protocol)

    monkeypatch.setattr(module, "Target", Fake)
    yield made
    await made.failover.stop()


async def test_the_master_that_all_name_is_followed(world: World) -> None:
    world.failover.start()
    await until(lambda: world.target.where == "old:1")
    world.roles[NEW] = MASTER
    world.names[SENTINELS[1]] = NEW, 5
    world.failover.suspect()
    await until(lambda: world.target.where == "new:2")


async def test_a_message_of_any_form_triggers_a_look(world: World) -> None:
    looks: list[int] = []
    listening = asyncio.create_task(world.failover._sentinels[0].listen(lambda: looks.append(1)))
    await until(lambda: world.subscriptions)
    for message in (b"*1\r\n$7\r\nmessage\r\n", b"*0\r\n", b":1\r\n"):
        looks.clear()
        world.subscriptions[0].data_received(message)
        await until(lambda: looks)
    listening.cancel()


async def test_a_server_that_is_refused_is_logged_though_one_sentinel_answers_first(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rlproxy")
    world.failover.start()
    await until(lambda: world.target.where == "old:1")
    del world.names[SENTINELS[1]], world.names[SENTINELS[2]]
    world.names[SENTINELS[0]] = NEW, 5
    world.failover.suspect()
    await until(lambda: caplog.messages)
    refused = "new:2, which the Sentinels name, cannot be reached: connection refused"
    assert caplog.messages == [f"{refused}; the master stays old:1"]
    for _ in range(3):  # and is not logged again
        world.failover.suspect()
        await asyncio.sleep(0.01)
    assert len(caplog.messages) == 1


async def test_a_sentinel_that_demands_a_password(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "reply", lambda _address, _data: b"-NOAUTH no\r\n" * 2)
    world.failover.start()
    await world.failover.settled.wait()
    why = "s1:1 wants a password, and the URL has none (sentinel_password)"
    assert why in await world.unknown()
