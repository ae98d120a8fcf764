"""Memory: a value of 512 MB in each direction, and thousands of idle clients, cost the proxy
little.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
import zlib
from collections.abc import Iterator

import pytest

from tests import harness
from tests.harness import Proxy, RedisServer, command
from tests.processes import forget_peak, peak

MB = 1 << 20
VALUE = 512 * MB
CHUNK = bytes(range(256)) * 4096 + b"prime"  # not a divisor of the value, nor of any buffer
IDLE = 5000

pytestmark = pytest.mark.heavy


def warmed_up(proxy: Proxy, sock: socket.socket) -> int:
    """The proxy's memory after a first value of some size."""
    sock.sendall(command("SET", "small", b"x" * 300_000) + command("GET", "small"))
    left = len(b"+OK\r\n$300000\r\n") + 300_002
    while left:
        left -= len(sock.recv(left))
    forget_peak(proxy.pid)
    return proxy.memory()


def pieces() -> Iterator[bytes]:
    """The value, in pieces."""
    left = VALUE
    while left:
        yield (piece := CHUNK[:left])
        left -= len(piece)


def receive_value(sock: socket.socket, pause_s: float) -> int:
    """The checksum of the received value; stops reading for a while in the middle."""
    head = b""
    while not head.endswith(b"\r\n"):
        head += sock.recv(1)
    assert head == b"$%d\r\n" % VALUE
    buffer = memoryview(bytearray(MB))
    left, crc, paused = VALUE, 0, False
    while left:
        got = sock.recv_into(buffer[: min(left, MB)])
        assert got, "closed in the middle"
        crc = zlib.crc32(buffer[:got], crc)
        left -= got
        if left < VALUE // 2 and not paused:
            paused = True
            time.sleep(pause_s)  # a reader that stops: this tests the time without reading
    assert sock.recv(2, socket.MSG_WAITALL) == b"\r\n"
    return crc


def test_value_of_512_mb_passes_in_bounded_memory(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy, proxy.raw() as raw:
        sock = raw.sock
        before = warmed_up(proxy, sock)
        crc = 0
        sock.sendall(b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n" % VALUE)
        for piece in pieces():
            crc = zlib.crc32(piece, crc)
            sock.sendall(piece)
        sock.sendall(b"\r\n")
        sock.settimeout(60)
        assert sock.recv(5, socket.MSG_WAITALL) == b"+OK\r\n"
        into = peak(proxy.pid) - before
        assert raw.ask("STRLEN", "big") == VALUE
        forget_peak(proxy.pid)
        now = proxy.memory()
        sock.sendall(command("GET", "big"))
        assert receive_value(sock, 0.5) == crc
        out_of = peak(proxy.pid) - now
        print(f"512 MB in: {into / MB:.1f} MB more, out: {out_of / MB:.1f} MB more")
        assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
        assert into < 32 * MB
        assert out_of < 32 * MB


def test_unread_replies_fill_the_server_and_not_the_proxy(
    own_server: RedisServer,
) -> None:
    """A pipeline of large replies that the client does not read: they stay in Redis, whose limits
    apply.
    """
    with harness.proxy(own_server) as proxy, proxy.raw() as raw, proxy.raw() as other:
        before = warmed_up(proxy, raw.sock)
        assert other.ask("SET", "mb", b"x" * MB) == "OK"
        raw.send(command("GET", "mb") * 200)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert other.ask("RL.HIT", "k", 1_000_000, 60) is not None  # no other client is held up
        more = peak(proxy.pid) - before
        print(f"200 MB of replies unread: {more / MB:.1f} MB more")
        assert more < 32 * MB
        left = 200 * (MB + len(b"$1048576\r\n\r\n"))
        while left:
            got = len(raw.sock.recv(min(left, 4 * MB)))
            assert got
            left -= got
        assert raw.ask("PING") == "PONG"


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """Raise the limit of open files for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"the limit of open files is {hard}, and this needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_five_thousand_idle_clients_use_little_memory(one_engine: str) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(many_files(2 * IDLE + 500))
        server = stack.enter_context(harness.server(one_engine, "--maxclients", "10000"))
        proxy = stack.enter_context(harness.proxy(server))
        raw = stack.enter_context(proxy.raw())
        assert raw.ask("PING") == "PONG"
        before = proxy.memory()
        forget_peak(proxy.pid)
        socks = []
        for first in range(0, IDLE, 250):
            batch = []
            for _ in range(250):
                sock = socket.create_connection(("127.0.0.1", proxy.port), 20)
                stack.callback(sock.close)
                sock.sendall(command("PING"))
                batch.append(sock)
            for sock in batch:
                assert sock.recv(7, socket.MSG_WAITALL) == b"+PONG\r\n", f"after {first}"
            socks += batch
        cost = proxy.memory() - before
        at_most = peak(proxy.pid) - before
        print(
            f"{IDLE} idle clients: {cost / MB:.1f} MB ({cost / IDLE:.0f} bytes each), "
            f"at most {at_most / MB:.1f} MB"
        )
        assert cost < 40 * MB
        assert at_most < 40 * MB
        for sock in socks[:: IDLE // 50]:  # all are still connected
            sock.sendall(command("RL.HIT", "k", 1000, 60))
            assert sock.recv(4, socket.MSG_WAITALL) == b"*5\r\n"
