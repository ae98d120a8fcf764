"""peers: which addresses belong to this machine."""

from __future__ import annotations

import pytest
from rlproxy.net.peers import NOBODY, Peer, peer_of

LOCAL = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", ""]
REMOTE = ["10.0.0.1", "0.0.0.0", "::", "fe80::1%eth0", "::ffff:10.0.0.1", "128.0.0.1", "localhost"]


@pytest.mark.parametrize("host", LOCAL)
def test_local_addresses(host: str) -> None:
    assert Peer(host, 1).local


@pytest.mark.parametrize("host", REMOTE)
def test_remote_addresses(host: str) -> None:
    assert not Peer(host, 1).local


@pytest.mark.parametrize(
    ("name", "peer", "text"),
    [
        (("10.0.0.1", 5), Peer("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), Peer("::1", 5), "[::1]:5"),
        ("", NOBODY, "unix socket"),
        (b"\0abstract", NOBODY, "unix socket"),
        (None, NOBODY, "unix socket"),
    ],
)
def test_peer_of_a_socket(name: object, peer: Peer, text: str) -> None:
    assert peer_of(name) == peer
    assert str(peer) == text
