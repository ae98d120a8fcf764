"""connection_setup: whether a client has logged in."""

from __future__ import annotations

import pytest
from rlproxy.upstream.cluster.connection_setup import ConnectionSetup
from rlproxy.upstream.cluster.face import Face

from tests.unit.upstream.cluster.test_exchange import Client

NOAUTH = b"-NOAUTH Authentication required.\r\n"


@pytest.mark.parametrize(
    ("frame", "error"), [(b"+PONG\r\n", b""), (b"-NOPERM no ping\r\n", b""), (NOAUTH, NOAUTH)]
)
async def test_a_ping_finds_out_about_the_login(frame: bytes, error: bytes) -> None:
    client = Client()
    setup = ConnectionSetup(client.exchange, Face("h", 1))
    assert setup.login_error() is None
    assert setup.login_error() is None
    client.nodes[0].reply(frame)
    assert setup.login_error() == error
    assert client.got() == b""


async def test_a_lost_ping_refuses_nothing() -> None:
    client = Client()
    setup = ConnectionSetup(client.exchange, Face("h", 1))
    assert setup.login_error() is None
    client.exchange.lost(client.nodes[0].link, b"-UPSTREAMDOWN lost\r\n")
    assert setup.login_error() == b""
