"""The control connection: problems, retries, and what it does for the lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import cast

import hiredis
import pytest
from rlproxy.config.urls import parse_upstream
from rlproxy.ratelimit.scripts import load
from rlproxy.resp.encoding import EMPTY_REQUEST
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.upstream import control as module
from rlproxy.upstream.connector import Target
from rlproxy.upstream.control import MAX_LOST, Control

from tests.contexts import hit_timeouts

HELLO = b"%1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
REPLICA_HELLO = b"%1\r\n$4\r\nrole\r\n$7\r\nreplica\r\n"


class Answering(asyncio.Transport):
    """A connection to a server that answers all of the control connection's requests.

    replies: replies other than +PONG, by a word of the command.
    lost_by: bytes that end it when they are sent.
    """

    def __init__(
        self, protocol: asyncio.Protocol, replies: dict[bytes, bytes], lost_by: bytes = b""
    ) -> None:
        super().__init__()
        self.lost_by = lost_by
        self.protocol = protocol
        self.replies = replies
        self.written = b""
        self._requests = hiredis.Reader()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self._requests.feed(bytes(data))
        if self.lost_by and self.lost_by in data:
            self.abort()
            return
        while (words := self._requests.gets()) is not False:
            if words:  # Redis ignores an empty request
                found = [reply for word, reply in self.replies.items() if word in words]
                reply = found[0] if found else b"+PONG\r\n"
                asyncio.get_running_loop().call_soon(self.protocol.data_received, reply)

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Answered:
    """A target whose connections are all answered."""

    where = "here"
    tls = None

    def __init__(self) -> None:
        self.connections: list[Answering] = []
        self.replies = {b"HELLO": HELLO}
        self.lost = 0  # number of connections that an empty request ends

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        ends = EMPTY_REQUEST if len(self.connections) < self.lost else b""
        made = Answering(protocol(), self.replies, ends)
        made.protocol.connection_made(made)
        self.connections.append(made)
        return made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.001)


class World:
    """A control connection, its target, and the loading of scripts for lanes that are drained."""

    def __init__(
        self, url: str = "redis://here", target: Answered | None = None, timeout_s: float = inf
    ) -> None:
        self.target, self.circuit = target or Answered(), CircuitBreaker()
        timeouts = hit_timeouts(self.circuit, timeout_s)
        self.facts = ServerFacts("here")
        self.found: list[str] = []  # what was known of the server at each call of on_server()
        self.control = Control(
            cast(Target, self.target),
            parse_upstream(url),
            load(),
            self.facts,
            lambda: self.found.append(self.facts.found.title()),
            timeouts,
        )
        self.task = asyncio.get_running_loop().create_task(self.control.run())

    def count(self, word: bytes) -> int:
        """How many requests with this word were sent on the latest connection."""
        return self.target.connections[-1].written.count(b"\r\n" + word + b"\r\n")


async def test_the_facts_are_there_once_the_server_is_identified() -> None:
    world = World()
    await world.control.settled.wait()
    assert world.found == ["Redis ?"]  # this server names no version
    world.task.cancel()


@pytest.mark.parametrize("lost", range(MAX_LOST + 1))
async def test_one_lost_connection_does_not_prove_that_empty_requests_end_it(lost: int) -> None:
    target = Answered()
    target.lost = lost
    world = World(target=target)
    await until(lambda: world.found)
    assert world.facts.found.ignores_empty == (lost < MAX_LOST)
    world.task.cancel()


async def test_missing_scripts_are_loaded_however_many_pings_are_requested() -> None:
    world = World()
    await world.control.settled.wait()
    await until(lambda: world.facts.loaded)
    loads = world.count(b"SCRIPT")
    world.facts.loaded = False
    async with asyncio.timeout(10.0):
        while not world.facts.loaded:
            world.control.ping_now()
            await asyncio.sleep(0.001)
    assert world.count(b"SCRIPT") == 2 * loads
    assert world.count(b"HELLO") == 1  # the password of the URL may be another one by now
    world.task.cancel()


async def test_scripts_are_loaded_once_no_evalsha_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEEP_S", 0.01)
    world = World()
    drained = False
    world.control.drained = lambda: drained
    await world.control.settled.wait()
    await until(lambda: world.count(b"PING") >= 3)
    assert world.count(b"LOAD") == 0
    drained = True
    for times in (1, 2):
        await until(lambda: world.facts.loaded)
        assert world.count(b"LOAD") == times * len(load())
        world.facts.loaded = False  # one is missing
    world.task.cancel()


async def test_scripts_are_loaded_until_the_connection_is_lost() -> None:
    world = World()
    await world.control.settled.wait()
    assert world.facts.loaded
    assert world.count(b"LOAD") == len(load())
    world.target.connections[0].protocol.connection_lost(None)
    await until(lambda: not world.facts.loaded)
    assert not world.facts.loaded
    await until(lambda: world.facts.loaded)
    assert len(world.target.connections) == 2
    world.task.cancel()


class Silent(Answering):
    """A connection to a server that does not answer, or closes instead."""

    closes = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closes:
            self.abort()


class Unanswered(Answered):
    """A target with such connections, as a load balancer without a server."""

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        made = Silent(protocol(), {})
        made.protocol.connection_made(made)
        self.connections.append(made)
        return made


@pytest.mark.parametrize(
    ("closes", "timeout_s", "opens"), [(True, 1.0, True), (False, 1.0, True), (False, inf, False)]
)
async def test_the_circuit_opens_without_any_hit(
    monkeypatch: pytest.MonkeyPatch, closes: bool, timeout_s: float, opens: bool
) -> None:
    monkeypatch.setattr(module, "_REPLY_S", 0.02)
    monkeypatch.setattr(Silent, "closes", closes)
    world = World(target=Unanswered(), timeout_s=timeout_s)
    await until(lambda: world.control.problem)
    assert world.circuit.open == opens
    if closes:
        assert "write rediss://" in world.circuit.why


async def test_errors_to_ping_are_a_problem_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEEP_S", 0.01)
    world = World()
    await world.control.settled.wait()
    for kind, reply in [("unable", b"-BUSY a script\r\n"), ("", b"+PONG\r\n"), ("", b"-ERR x\r\n")]:
        sent = world.count(b"PING")
        world.target.replies[b"PING"] = reply
        await until(lambda sent=sent: world.count(b"PING") >= sent + 3)  # type: ignore[misc]
        assert world.control.kind == kind
    assert world.count(b"LOAD") == len(load())
    world.task.cancel()


async def test_a_replica_is_a_problem_until_it_is_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEEP_S", 0.01)
    world = World()
    replies, control, moved = world.target.replies, world.control, asyncio.Event()
    control.on_moved = moved.set
    await until(control.settled.is_set)
    for _ in range(2):  # it is promoted twice
        replies[b"HELLO"] = REPLICA_HELLO
        control.look_at_role()
        await until(lambda: control.kind == "replica")
        control.look_at_role()
        replies[b"HELLO"] = HELLO
        await until(lambda: not control.problem)
        assert not moved.is_set()
    control.look_at_role()  # other connections lead to another server
    await until(moved.is_set)
    world.task.cancel()


async def test_one_reply_of_a_replica_may_be_that_of_a_master_promoted_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEEP_S", 0.01)
    world = World()
    control, moved = world.control, asyncio.Event()
    control.on_moved = moved.set
    await until(control.settled.is_set)
    control.look_at_role()
    await until(lambda: not control._read_only)
    assert not moved.is_set()
    control.look_at_role()
    await until(moved.is_set)
    world.task.cancel()
