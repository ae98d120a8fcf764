"""peers: which addresses belong to this machine."""

from __future__ import annotations

import pytest
from rlproxy.config.urls import UNIX_CLIENT, Address, peer_of

LOCAL = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", ""]
REMOTE = ["10.0.0.1", "0.0.0.0", "::", "fe80::1%eth0", "::ffff:10.0.0.1", "128.0.0.1", "localhost"]


@pytest.mark.parametrize("host", LOCAL)
def test_local_addresses(host: str) -> None:
    assert Address(host, 1).local


@pytest.mark.parametrize("host", REMOTE)
def test_remote_addresses(host: str) -> None:
    assert not Address(host, 1).local


@pytest.mark.parametrize(
    ("name", "peer", "text"),
    [
        (("10.0.0.1", 5), Address("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), Address("::1", 5), "[::1]:5"),
        ("", UNIX_CLIENT, "unix socket"),
        (b"\0abstract", UNIX_CLIENT, "unix socket"),
        (None, UNIX_CLIENT, "unix socket"),
    ],
)
def test_peer_of_a_socket(name: object, peer: Address, text: str) -> None:
    assert peer_of(name) == peer
    assert str(peer) == text
