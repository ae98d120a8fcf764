"""The password probe: what the reply to a PING without AUTH shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from rlproxy.upstream.connector import Target
from rlproxy.upstream.password_probe import Probe

REPLIES = [
    (b"+PONG\r\n", False),
    (b"-NOAUTH Authentication required.\r\n", True),
    (b"-NOPERM this user has no permissions to run the 'ping' command\r\n", False),
    (b"-LOADING Redis is loading the dataset in memory\r\n", False),
    (b"-BUSY Redis is busy running a script.\r\n", False),
    (b"-MASTERDOWN Link with MASTER is down\r\n", False),
    (b"-DENIED Redis is running in protected mode\r\n", None),
    (b"-ERR max number of clients reached\r\n", None),
    (b"HTTP/1.1 400 Bad Request\r\n", None),
    (b"", None),
    (b"$4\r\nPONG\r\n", False),
    (b":1\r\n", None),
]


class Wire(asyncio.Transport):
    """A connection to a server that sends `reply` and closes."""

    def __init__(self, protocol: asyncio.Protocol, reply: bytes) -> None:
        super().__init__()
        self.protocol = protocol
        self.reply = reply

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data == b"*1\r\n$4\r\nPING\r\n"
        if self.reply:
            self.protocol.data_received(self.reply)
        self.protocol.connection_lost(None)

    def abort(self) -> None:
        pass


class OneReply:
    """A target whose servers send `reply`."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        wire = Wire(protocol(), self.reply)
        wire.protocol.connection_made(wire)
        return wire


@pytest.mark.parametrize(("reply", "expected"), REPLIES)
async def test_needs_password(reply: bytes, expected: bool | None) -> None:
    judged: list[bool] = []
    probe = Probe(cast(Target, OneReply(reply)), lambda: True, judged.append)
    task = asyncio.create_task(probe.run())
    await asyncio.wait_for(probe.settled.wait(), 10.0)
    task.cancel()
    assert judged == ([] if expected is None else [expected])
