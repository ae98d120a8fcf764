"""Connections that the proxy closes: earlier replies arrive, whatever the client sends."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time

import pytest

from tests import harness
from tests.harness import ON_ONE_ENGINE, Proxy, Raw, RedisServer, command, wait_until
from tests.info import calls
from tests.integration.started import private
from tests.tlsparts import Certificates, tls_proxy

HITS = 40_000
HIT = command("RL.HIT", "k", 1_000_000, 3600, "ALGO", "FIXED")
FIVE = re.compile(rb"\*5\r\n(?::-?\d+\r\n){5}")


def everything(raw: Raw) -> bytes:
    """All bytes that arrive until the proxy closes."""
    parts = []
    while not raw.closed:
        parts.append(raw.quiet(harness.DEADLINE_S))
    return b"".join(parts)


def counted(server: RedisServer) -> int:
    """The number of hits Redis has counted."""
    with harness.proxy(server) as other, other.raw() as raw:
        found = raw.ask("RL.PEEK", "k", 1_000_000, 3600, "ALGO", "FIXED")
        assert isinstance(found, list)
        return 1_000_000 - int(found[2])


def send_in_the_background(raw: Raw, data: bytes) -> threading.Thread:
    thread = threading.Thread(target=raw.send, args=(data,))
    thread.start()
    return thread


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_outstanding_replies_arrive_when_the_proxy_stops(
    own_server: RedisServer, certificates: Certificates, tls: bool
) -> None:
    """The client's hits are in flight, and it reads late."""
    url, drain = own_server.url, ("--drain-timeout", "8")
    with contextlib.ExitStack() as stack:
        if tls:
            proxy, _ = stack.enter_context(tls_proxy(certificates, url, *drain))
        else:
            proxy = stack.enter_context(harness.proxy(url, *drain))
        raw = stack.enter_context(proxy.raw())
        sending = send_in_the_background(raw, HIT * HITS)
        wait_until(lambda: calls(own_server, "set") > 500, "hits are counted")
        proxy.terminate()
        time.sleep(1.5)  # Unread replies must survive until now; a fault would have lost them.
        got = everything(raw)
        sending.join()
        raw.close()
        proxy.wait()
        assert FIVE.sub(b"", got) == b""
        assert len(FIVE.findall(got)) == counted(own_server)


LAST = {
    "QUIT": (command("QUIT"), b"+OK\r\n"),
    "a malformed request": (b"*1\r\n$x\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
    "a killed connection": (b"", b""),
}


@ON_ONE_ENGINE
@pytest.mark.parametrize("last", LAST)
def test_replies_before_a_close_arrive(redis_server: RedisServer, last: str) -> None:
    """The client reads late, and sends more when the proxy closes the connection."""
    words, reply = LAST[last]
    value = b"x" * 60_000
    got_value = b"$%d\r\n%b\r\n" % (len(value), value)
    with harness.proxy(redis_server) as proxy, proxy.raw() as raw, redis_server.raw() as admin:
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert raw.ask("SET", "value", value) == "OK"
        raw.send(command("GET", "value"))
        if not words:
            wait_until(lambda: not unsent(redis_server, admin), "Redis has sent all")
            time.sleep(0.2)  # by then the proxy has read it
            admin.ask("CLIENT", "KILL", "TYPE", "normal")
        raw.send(words)
        wait_until(lambda: not private(redis_server, admin), "Redis closes the connection")
        time.sleep(0.2)  # the fault: the proxy closes its socket
        sending = send_in_the_background(raw, command("PING") * 200_000)
        time.sleep(0.5)  # the fault: the kernel drops its send buffer
        got = everything(raw)
        sending.join()
    assert got[: len(got_value)] == got_value
    assert got[len(got_value) :] == reply


def unsent(server: RedisServer, admin: Raw) -> int:
    """Bytes of replies that Redis holds for clients' connections."""
    return sum(int(row["omem"]) + int(row["obl"]) for row in private(server, admin))


@ON_ONE_ENGINE
def test_client_that_never_closes_is_closed(proxy: Proxy) -> None:
    with proxy.raw() as raw:
        assert raw.ask("QUIT") == "OK"
        raw.sock.settimeout(harness.DEADLINE_S)
        assert raw.sock.recv(1) == b""

        def refused() -> bool:
            try:
                raw.sock.send(b"x")
            except OSError:
                return True
            return False

        wait_until(refused, "its connection is reset")


@ON_ONE_ENGINE
def test_rejected_client_reads_the_reason(redis_server: RedisServer) -> None:
    with harness.proxy(redis_server, "--max-clients", "1") as proxy, proxy.raw() as first:
        assert first.ask("PING") == "PONG"
        for _ in range(20):
            with proxy.raw() as second:
                second.send(command("PING") * 2000)
                got = everything(second)
                assert got == b"-ERR max number of clients reached\r\n"
        assert first.ask("PING") == "PONG"
