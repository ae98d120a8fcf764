"""Connections of clients without sockets: what the tests of downstream share."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from typing import Any, cast

from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.downstream.admission import Admission
from rlproxy.downstream.connection import ClientConnection, Clients, PrivateConnection
from rlproxy.observability.log_throttle import LogThrottle
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.grammar import Grammar
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream
from rlproxy.session.context import ServerFacts
from rlproxy.upstream.connector import Target

from tests.contexts import worker_context

GRAMMAR = Grammar(scripts.load())
CONFIG = Config((Address("127.0.0.1", 1),), Upstream(Address("redis", 6379)))
PING = bulks(b"PING")
PEER = Address("127.0.0.1", 7)


class Clock(asyncio.BaseEventLoop):
    """A loop that never runs, with a time that the test sets."""

    now = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], object]] = []
        self.later: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        self.soon.append(callback)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *_: Any, **__: Any
    ) -> asyncio.TimerHandle:
        self.later.append(callback)
        return asyncio.TimerHandle(self.now + delay, callback, (), self)

    def add_reader(self, fd: Any, callback: Any, *_: Any) -> None:  # type: ignore[override]
        """(The tests look themselves.)"""

    def remove_reader(self, fd: Any) -> bool:
        return True

    def create_task(self, coro: Any, **_: Any) -> asyncio.Task[Any]:
        coro.close()
        return cast("asyncio.Task[Any]", self.create_future())

    def __del__(self) -> None:
        self.close()


class Transport:
    """Takes what it is given; `waits` of it are not gone yet."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.written = b""
        self.waits = 0
        self.closed = self.aborted = self.ended = False
        self.reading = True
        self.protocol: asyncio.Protocol | None = None
        self.high = 0
        self.sock = sock

    def get_extra_info(self, name: str) -> object:
        return {"socket": self.sock}[name]

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.waits

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.ended = True

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.Protocol | None:
        return self.protocol

    def abort(self) -> None:
        self.aborted = True


class Bench:
    def __init__(self, **changes: object) -> None:
        self.config = config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
        self.clock = Clock()
        self.said: list[str] = []
        told = LogThrottle(self.clock.time, self.say)
        settings = worker_context(
            grammar=GRAMMAR, server=ServerFacts("redis:6379"), lane_of=lambda *_: None
        )
        admission = Admission(config, "redis:6379", 10_000)
        target = Target(Address("redis", 6379), 1.0)
        self.clients = Clients(self.clock, settings, target, admission, config, told)

    def say(self, _: str, text: str, **fields: object) -> None:
        self.said.append(text.format(**fields))

    def client(self, sock: socket.socket | None = None, peer: Address = PEER) -> Client:
        return Client(self, sock, peer)

    def turn(self) -> None:
        """One of the loop's: what was asked for before it."""
        turns, self.clock.soon = self.clock.soon, []
        assert turns
        for turn in turns:
            turn()

    def after(self, seconds: float) -> None:
        """A sweep, `seconds` later."""
        self.clock.now += seconds
        self.clients.sweep()


class Client:
    def __init__(self, bench: Bench, sock: socket.socket | None, peer: Address) -> None:
        self.transport = Transport(sock)
        self.protocol = self.transport.protocol = ClientConnection(bench.clients, peer)
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]


def connected(client: Client, redis: Transport) -> None:
    """Give the client an open private connection to `redis`."""
    private = PrivateConnection(client.protocol)
    private.connection_made(cast("asyncio.Transport", redis))
    client.protocol._private = private
    client.protocol.session.private.status = private_stream.PRIVATE_OPEN


def writes_to(client: Client, found: list[int], word: bytes = b"PING") -> None:
    """Redis is there; how often `word` is in each write is added to `found`."""

    class Redis(Transport):
        def write(self, data: bytes) -> None:
            found.append(data.count(word))

    connected(client, Redis())
