"""upstream: what answers tell of a password that is needed, and of the time that scripts take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import cast

import pytest
from rlproxy.config.urls import parse_upstream
from rlproxy.ratelimit.scripts import load
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.timeouts import HitTimeouts
from rlproxy.upstream.connector import Control, Target, _script_times, needs_password
from rlproxy.upstream.script_loading import ScriptLoading

TOLD = [
    (b"+PONG\r", False),
    (b"-NOAUTH Authentication required.\r", True),
    (b"-NOPERM this user has no permissions to run the 'ping' command\r", False),
    (b"-LOADING Redis is loading the dataset in memory\r", False),
    (b"-BUSY Redis is busy running a script.\r", False),
    (b"-MASTERDOWN Link with MASTER is down\r", False),
    (b"-DENIED Redis is running in protected mode\r", None),
    (b"-ERR max number of clients reached\r", None),
    (b"HTTP/1.1 400 Bad Request\r", None),
    (b"", None),
]


@pytest.mark.parametrize(("line", "expected"), TOLD)
def test_needs_password(line: bytes, expected: bool | None) -> None:
    assert needs_password(line) is expected


def test_the_time_of_scripts() -> None:
    found = {b"evalsha": {b"calls": 3, b"histogram_usec": {1: 1, 4: 3}}, b"eval": {}}
    told = _script_times(found, b"cmdstat_evalsha:calls=3,usec=2000000,x\r\n")
    assert told is not None
    assert (sum(told.classes), told.sum) == (3, 2.0)


@pytest.mark.parametrize(
    ("found", "took"),
    [
        (b"OK", b""),
        ({}, None),
        ({b"eval": 1}, b""),
        ({b"eval": [1]}, b""),
        ({b"eval": {b"histogram_usec": 1}}, b""),
        ({b"eval": {b"histogram_usec": {b"1": b"2"}}}, b""),
        ({b"eval": {b"histogram_usec": {1: None}}}, b""),
        ({b"eval": {b"histogram_usec": {1: 1, b"2": 1}}}, b""),
        ({b"eval": {}}, b"cmdstat_eval:calls=1,usec=" + b"9" * 5000),
    ],
)
def test_strange_times_are_none(found: object, took: object) -> None:
    assert _script_times(found, took) is None


# -- the control connection -----------------------------------------------------------------------


class Answering(asyncio.Transport):
    """A connection to a server that answers all of the control connection's requests."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        answer = b"%1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n" if b"HELLO" in data else b"+PONG\r\n"
        requests = max(1, bytes(data).count(b"\r\nLOAD\r\n"))
        asyncio.get_running_loop().call_soon(self.protocol.data_received, answer * requests)

    def abort(self) -> None:
        pass


class Answered:
    """A target whose connections are all answered."""

    where = "here"
    tls = None

    def __init__(self) -> None:
        self.connections: list[Answering] = []

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        made = Answering(protocol())
        made.protocol.connection_made(made)
        self.connections.append(made)
        return made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_connection_lost_while_it_waits_for_the_lanes_is_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Control._in_time, "__defaults__", (inf,))  # no limit ends the wait

    async def lose() -> None:
        target, circuit = Answered(), CircuitBreaker()
        timeouts = HitTimeouts(circuit)
        loading = ScriptLoading(timeouts, lambda _delay_s, _then: None)
        loading.drained = lambda: False
        control = Control(
            cast(Target, target),
            parse_upstream("redis://here"),
            load(),
            lambda _: None,
            timeouts,
            loading,
        )
        loading.on_wanted = control.reload
        task = asyncio.get_running_loop().create_task(control.run())
        await until(lambda: loading.held)
        control.connection_lost(None)
        await until(lambda: len(target.connections) == 2)
        task.cancel()
        assert b"LOAD" not in target.connections[0].written

    asyncio.run(lose())
