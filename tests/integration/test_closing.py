"""Connections that the proxy closes: the replies before that arrive, whatever the client sends."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

import pytest

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, command, wait_until
from tests.integration.started import private
from tests.tlsparts import Certificates, tls_proxy

HITS = 40_000
HIT = command("RL.HIT", "k", 1_000_000, 3600, "ALGO", "FIXED")
FIVE = re.compile(rb"\*5\r\n(?::-?\d+\r\n){5}")


def everything(raw: Raw) -> bytes:
    """All that comes until the proxy closes."""
    parts = []
    while not raw.closed:
        parts.append(raw.quiet(harness.DEADLINE_S))
    return b"".join(parts)


def counted(server: RedisServer) -> int:
    """How many hits Redis has counted."""
    with harness.proxy(server) as other, other.raw() as raw:
        found = raw.ask("RL.PEEK", "k", 1_000_000, 3600, "ALGO", "FIXED")
        assert isinstance(found, list)
        return 1_000_000 - int(found[2])


def sends_in_the_background(raw: Raw, data: bytes) -> threading.Thread:
    thread = threading.Thread(target=raw.send, args=(data,))
    thread.start()
    return thread


def stops_under_way(server: RedisServer, proxy: Proxy, raw: Raw) -> None:
    """A client sends many hits, the proxy is stopped meanwhile, and the client reads late."""
    sending = sends_in_the_background(raw, HIT * HITS)

    def under_way() -> bool:
        with server.raw() as admin:
            text = admin.ask("INFO", "commandstats")
            assert isinstance(text, bytes)
            return sum(map(int, re.findall(rb"cmdstat_eval(?:sha)?:calls=(\d+)", text))) > 500

    wait_until(under_way, "hits are counted")
    proxy.terminate()
    time.sleep(1.5)  # (the fault: replies that are not read by now were lost)
    got = everything(raw)
    sending.join()
    proxy.wait()
    assert FIVE.sub(b"", got) == b""
    assert len(FIVE.findall(got)) == counted(server)


def test_replies_that_are_owed_arrive_when_the_proxy_stops(own_server: RedisServer) -> None:
    with harness.proxy(own_server, "--drain-timeout", "8") as proxy, proxy.raw() as raw:
        stops_under_way(own_server, proxy, raw)


def test_replies_by_tls_arrive_too(own_server: RedisServer, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    url = f"redis://127.0.0.1:{own_server.port}"
    with tls_proxy(certificates, url, "--drain-timeout", "8") as (proxy, _), proxy.raw() as raw:
        stops_under_way(own_server, proxy, raw)


LAST = {
    "QUIT": (command("QUIT"), b"+OK\r\n"),
    "a malformed request": (b"*1\r\n$x\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
    "a killed connection": (b"", b""),
}


@pytest.mark.parametrize("last", LAST)
def test_what_comes_before_the_end_arrives(redis_server: RedisServer, last: str) -> None:
    """Though the client reads late, and sends more when the proxy closes the connection."""
    words, reply = LAST[last]
    value = b"x" * 200_000
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
        time.sleep(0.2)  # (the fault: the proxy closes its socket)
        sending = sends_in_the_background(raw, command("PING") * 200_000)
        time.sleep(0.5)  # (and what its kernel holds is lost)
        got = everything(raw)
        sending.join()
    assert got[: len(got_value)] == got_value
    assert got[len(got_value) :] == reply


def unsent(server: RedisServer, admin: Raw) -> int:
    """Bytes of replies that Redis holds for clients' connections."""
    return sum(int(row["omem"]) + int(row["obl"]) for row in private(server, admin))


def test_a_client_that_never_closes_is_closed(proxy: Proxy) -> None:
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


def test_a_client_that_is_turned_away_reads_why(redis_server: RedisServer) -> None:
    with harness.proxy(redis_server, "--max-clients", "1") as proxy, proxy.raw() as first:
        assert first.ask("PING") == "PONG"
        for _ in range(20):
            with proxy.raw() as second:
                second.send(command("PING") * 2000)
                got = everything(second)
                assert got == b"-ERR max number of clients reached\r\n"
        assert first.ask("PING") == "PONG"
