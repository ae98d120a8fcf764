"""listeners: the options that accepted connections inherit."""

from __future__ import annotations

import contextlib
import socket

import pytest
from rlproxy.config.urls import Address
from rlproxy.net import listeners


def accepted(keepalive_s: int) -> socket.socket:
    """A connection to a listening socket, as its worker accepts it."""
    with contextlib.closing(
        listeners.Listeners([Address("127.0.0.1", 0)], keepalive_s=keepalive_s)
    ) as made:
        ((sock, _),) = made.sockets
        sock.settimeout(10)
        with socket.create_connection(sock.getsockname()):
            return sock.accept()[0]


def kept(sock: socket.socket) -> tuple[int, int, int]:
    """Whether it is kept alive, and with which times."""
    tcp = socket.IPPROTO_TCP
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        sock.getsockopt(tcp, socket.TCP_KEEPIDLE),
        sock.getsockopt(tcp, socket.TCP_KEEPINTVL),
    )


@pytest.mark.parametrize(("seconds", "expected"), [(30, (1, 30, 10)), (1, (1, 1, 1)), (0, None)])
def test_when_a_silent_client_is_probed(
    seconds: int, expected: tuple[int, int, int] | None
) -> None:
    with accepted(seconds) as client, socket.socket() as untouched:
        assert kept(client) == (expected or kept(untouched))
