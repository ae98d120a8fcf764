"""Handshakes answered without Redis, and what follows if Redis refuses them."""

from __future__ import annotations

import hiredis
import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, RequestFramer
from rlproxy.session.deferred_handshake import MAX_BYTES, MAX_COMMANDS, DeferredHandshake

OK = b"+OK\r\n"


def take(handshake: DeferredHandshake, written: bytes) -> bytes:
    requests = RequestFramer()
    requests.feed(written)
    assert requests.next() == COMMAND
    return handshake.take(requests, b"valkey", b"9.1.0")


def words(text: str) -> bytes:
    return bulks(*text.encode().split(b" "))


@pytest.mark.parametrize(
    "written",
    [
        *("GET k", "PING", "AUTH", "AUTH a b c", "SELECT", "SELECT -1", "SELECT x"),
        *("SELECT 1000000", "HELLO 4", "HELLO 3 AUTH bob", "HELLO 3 WHAT", "CLIENT"),
        *("CLIENT NO-EVICT on", "CLIENT REPLY OFF"),
    ],
)
def test_commands_that_are_not_answered(written: str) -> None:
    handshake = DeferredHandshake()
    assert take(handshake, words(written)) == b""
    assert not handshake.unsent


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_reply_to_hello_has_the_fields_of_redis(protocol: int) -> None:
    handshake = DeferredHandshake()
    reader = hiredis.Reader()
    reader.feed(take(handshake, words(f"HELLO {protocol} AUTH bob pw SETNAME me")))
    found = reader.gets()
    if protocol == 2:
        assert isinstance(found, list)
        found = dict(zip(found[::2], found[1::2], strict=True))
    assert found == {
        b"server": b"valkey",
        b"version": b"9.1.0",
        b"proto": protocol,
        b"id": 0,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }
    assert reader.gets() is False
    # without a number the reply is in the protocol that was agreed on
    assert take(handshake, words("HELLO")).startswith(b"%" if protocol == 3 else b"*14")


def test_what_most_servers_do_not_know_either() -> None:
    handshake = DeferredHandshake()
    maintenance = words("CLIENT maint_notifications ON moving-endpoint-type internal-ip")
    assert take(handshake, maintenance).startswith(b"-ERR unknown subcommand")
    assert not handshake.unsent


def test_bounded() -> None:
    handshake = DeferredHandshake()
    for _ in range(MAX_COMMANDS):
        assert take(handshake, words("SELECT 3")) == OK
    assert take(handshake, words("SELECT 3")) == b""
    handshake = DeferredHandshake()
    assert take(handshake, words("AUTH " + "x" * MAX_BYTES)) == b""
    assert take(handshake, words("AUTH " + "x" * (MAX_BYTES // 2))) == OK
    assert take(handshake, words("AUTH " + "x" * (MAX_BYTES // 2))) == b""
