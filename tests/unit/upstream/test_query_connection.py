"""Query connections: replies in order, and the ends of a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.connector import Target
from rlproxy.upstream.query_connection import MAX_UNREAD, Closed, NoRoom, QueryConnection, opened

from tests.unit.upstream.slow_server import slow_server


class Wire(asyncio.Transport):
    def __init__(self, connection: QueryConnection) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True


async def test_replies_come_in_order_and_in_pieces() -> None:
    seen: list[bool] = []
    connection = QueryConnection(lambda: seen.append(connection.answered))
    wire = Wire(connection)
    asking = asyncio.ensure_future(connection.query_all([(b"PING",), (b"GET", b"k")]))
    await asyncio.sleep(0)
    assert wire.written == b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
    for piece in (b"+PO", b"NG\r\n-ERR n", b"o\r\n:3\r\n"):
        connection.data_received(piece)
        await asyncio.sleep(0)
    pong, error = await asking
    assert pong == b"PONG"
    assert isinstance(error, hiredis.ReplyError) and str(error) == "ERR no"
    assert await connection.read() == [3]
    assert seen == [True] * 3


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", Closed, "connection closed by the server"),
        (b"+late", Closed, "connection closed by the server"),
        (b"-ERR max number of clients reached\r\n", NoRoom, "max number of clients reached"),
        (b"HTTP/1.1 400 Bad Request\r\n", OSError, "not a Redis server, but an HTTP server"),
        (b"\x15\x03\x01", OSError, "that port has TLS: write rediss://"),
        (b"hello\r\n", OSError, "not a Redis server: Protocol error"),
        (b"$%d\r\n" % (2 * MAX_UNREAD) + b"x" * MAX_UNREAD, OSError, "a reply is too large"),
    ],
)
async def test_the_reason_of_the_end(data: bytes, error: type[OSError], text: str) -> None:
    connection = QueryConnection()
    wire = Wire(connection)
    asking = asyncio.ensure_future(connection.query(b"PING"))
    await asyncio.sleep(0)
    if data:
        connection.data_received(data)
    assert wire.aborted == (error is OSError)
    connection.connection_lost(None)
    with pytest.raises(error, match=text):
        await asking
    assert connection.lost.is_set()
    before = wire.written
    with pytest.raises(OSError):
        await connection.query(b"PING")
    assert wire.written == before


async def test_a_node_may_give_a_name_that_no_host_has() -> None:
    with pytest.raises(OSError, match="the host is not valid"):
        await Target(Address("a..b", 1), 5.0).connect(QueryConnection)


@pytest.mark.parametrize(("delay_s", "comes"), [(0.8, True), (1.1, False)])
async def test_the_limit_is_that_of_each_query(
    monkeypatch: pytest.MonkeyPatch, delay_s: float, comes: bool
) -> None:
    exchanges = [(b"PING", b"+PONG\r\n")] * 3
    async with slow_server(monkeypatch, delay_s, exchanges) as at:
        target = Target(at, 60.0)
        async with opened(target, 1.0) as connection:
            for _ in range(3):
                if comes:
                    assert await connection.query(b"PING") == b"PONG"
                else:
                    with pytest.raises(TimeoutError):
                        await connection.query(b"PING")
                    break
