"""connection_setup: whether a client has logged in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.connection_setup import ConnectionSetup
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

HOME = Address("h", 1)
NOAUTH = b"-NOAUTH Authentication required.\r\n"


class Client:
    """A client of one node, which is its home."""

    def __init__(self) -> None:
        shard = Shard("1", HOME)
        cluster = SimpleNamespace(map=slot_map({shard: [(0, 16383)]}), home=lambda _failed: HOME)
        self.exchange = Exchange(cast("Cluster", cluster), {})
        self.link = self.exchange.links.by_address[HOME] = Link(self.exchange, HOME)
        self.setup = ConnectionSetup(self.exchange, Face("h", 1))

    def answered(self, frame: bytes) -> bytes | None:
        """Answer the PING, and return what login_error() then does."""
        self.exchange.replied(self.link, self.link.owed.popleft(), frame)
        return self.setup.login_error()


@pytest.mark.parametrize(
    ("frame", "error"), [(b"+PONG\r\n", b""), (b"-NOPERM no ping\r\n", b""), (NOAUTH, NOAUTH)]
)
async def test_a_ping_finds_out_about_the_login(frame: bytes, error: bytes) -> None:
    client = Client()
    assert client.setup.login_error() is None
    assert client.setup.login_error() is None
    assert client.answered(frame) == error
    assert client.exchange.out == []


async def test_a_lost_ping_refuses_nothing() -> None:
    client = Client()
    assert client.setup.login_error() is None
    client.exchange.lost(client.link, b"-UPSTREAMDOWN lost\r\n")
    assert client.setup.login_error() == b""
