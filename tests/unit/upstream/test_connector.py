"""connector: the addresses of a name are tried in their order."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest
import uvloop
from rlproxy.config.urls import Address
from rlproxy.upstream import connector
from rlproxy.upstream.connector import Target


@pytest.mark.parametrize("found", [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]])
async def test_the_next_address_is_tried_if_one_refuses(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    async def addresses(host: str) -> list[str]:
        assert host == "redis.example"
        return found

    monkeypatch.setattr(connector, "addresses", addresses)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        target = Target(Address("redis.example", port), 5.0)
        if "127.0.0.1" in found:
            transport = await target.connect(asyncio.Protocol)
            assert transport.get_extra_info("peername") == ("127.0.0.1", port)
            transport.abort()
        else:
            with pytest.raises(ConnectionRefusedError):
                await target.connect(asyncio.Protocol)


def test_a_connection_that_has_ended_before_it_is_returned() -> None:
    """As after a reset, whose handler has read the last bytes from the socket of uvloop."""

    class Ends(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert transport.get_extra_info("socket") is not None
            cast("asyncio.Transport", transport).abort()

    async def connected() -> asyncio.Transport:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            target = Target(Address(*listener.getsockname()), 5.0, keepalive_s=10)
            return await target.connect(Ends)

    assert uvloop.run(connected()).is_closing()
