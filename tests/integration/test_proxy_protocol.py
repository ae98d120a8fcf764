"""The PROXY protocol, plain and with TLS: client addresses, and clients that are rejected."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import struct
import time
from collections.abc import Iterator

import pytest
from rlproxy.config.urls import UNIX_CLIENT, Address
from rlproxy.downstream.handshake import MIN_HANDSHAKES, Handshakes
from rlproxy.observability.counters import Counters
from rlproxy.observability.log_throttle import LogThrottle

from tests import harness
from tests.harness import Proxy, Raw, command, wait_until
from tests.tlsparts import Certificates, secure, tls_proxy

VERSION_1 = b"PROXY TCP4 10.0.0.9 10.0.0.1 40000 6380\r\n"
VERSION_2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x11"
    + bytes([10, 0, 0, 9, 10, 0, 0, 1])
    + struct.pack(">HH", 40000, 6380)
    + b"\x04\x00\x02xx"
)
LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
LOOPBACK = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 6380\r\n"
PEER = Address("10.0.0.1", 5)


@pytest.fixture(scope="module")
def behind_balancer(one_engine: str, certificates: Certificates) -> Iterator[tuple[Proxy, int]]:
    """A proxy behind a load balancer, and its plain port."""
    with harness.server(one_engine) as server:
        url = server.url
        words = ("--proxy-protocol", "--handshake-timeout", "2", "--protected-mode", "no")
        with tls_proxy(certificates, url, *words) as (made, _):
            found = re.search(r"listening on +127\.0\.0\.1:(\d+)", made.read_log())
            assert found is not None
            yield made, int(found[1])


@pytest.mark.parametrize("header", [VERSION_1, VERSION_2, LOCAL, b"PROXY UNKNOWN\r\n"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("slow", [False, True], ids=["whole", "slow"])
def test_clients_with_a_header_are_served(
    behind_balancer: tuple[Proxy, int],
    certificates: Certificates,
    header: bytes,
    tls: bool,
    slow: bool,
) -> None:
    made, plain_port = behind_balancer
    with Raw(made.port if tls else plain_port) as raw:
        if slow:
            raw.send_slowly(header)
        if tls:
            if not slow:
                raw.send(header)
            secure(raw, certificates.client())
            raw.send(command("PING"))
        else:
            raw.send(command("PING") if slow else header + command("PING"))
        assert raw.reply() == "PONG"


def test_client_without_a_header_is_rejected(behind_balancer: tuple[Proxy, int]) -> None:
    made, plain_port = behind_balancer
    starts = (command("PING"), b"\x16\x03\x01", b"PROXY TCP9\r\n", b"PROXY TCP4 1.1")
    with contextlib.ExitStack() as stack:  # all at once: the last start is awaited for 2 s
        raws = [stack.enter_context(Raw(port)) for port in (plain_port, made.port) for _ in starts]
        for raw, start in zip(raws, starts * 2, strict=True):
            raw.send(start)
        assert all(raw.closes() for raw in raws)
    Raw(plain_port).close()

    def lines() -> list[str]:
        return re.findall(
            r"WARNING clients turned away: 1; (.*) \(the latest: 127\.0\.0\.1:\d+\)\n",
            made.read_log(),
        )

    wait_until(lambda: len(lines()) == 3, f"one line for each kind: {lines()}")
    assert lines() == [
        "no PROXY header (--proxy-protocol)",
        "a PROXY header with a protocol other than TCP4, TCP6 or UNKNOWN (--proxy-protocol)",
        "no PROXY header within 2 s",
    ]


def test_address_in_the_header_counts_as_remote(one_engine: str) -> None:
    with harness.server(one_engine) as server:
        url = server.url
        with harness.proxy(url, "--proxy-protocol") as made:
            for header, reply in ((VERSION_1, "-DENIED rlproxy is "), (LOOPBACK, "+PONG")):
                with Raw(made.port) as raw:
                    raw.send(header + command("PING"))
                    assert raw.line().decode().startswith(reply)


def test_log_names_the_client_and_not_the_load_balancer(behind_balancer: tuple[Proxy, int]) -> None:
    made, _ = behind_balancer
    with Raw(made.port) as raw:
        raw.send(VERSION_2 + command("PING"))
        assert raw.closes()
    line = "TLS handshakes failed: 1; no TLS was spoken (the latest: 10.0.0.9:40000)"
    wait_until(lambda: line in made.read_log(), line)


def no_log() -> LogThrottle:
    """A log throttle that discards its lines."""
    return LogThrottle(time.monotonic, lambda *_, **__: None)


async def test_loopback_address_in_a_remote_header_is_not_local() -> None:
    """The load balancer's loopback address is not this machine's."""

    class Transport(asyncio.Transport):
        def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
            pass

    peers: list[Address] = []

    def serve(peer: Address) -> asyncio.Protocol:
        peers.append(peer)
        return asyncio.Protocol()

    handshakes = Handshakes(asyncio.get_running_loop(), serve, True, 5.0, no_log(), Counters())
    for header in (LOOPBACK, VERSION_1):
        handshake = handshakes.protocol(False, PEER)
        handshake.connection_made(Transport())
        handshake.data_received(header)
    assert peers == [PEER, Address("10.0.0.9", 40000)]


async def test_silent_connections_keep_no_client_out() -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    handshakes = Handshakes(loop, lambda _: asyncio.Protocol(), True, 5.0, no_log(), Counters())
    handshakes.on_gone = gone.set
    handshakes.room = lambda: MIN_HANDSHAKES + 1
    server = await loop.create_server(lambda: handshakes.protocol(False, PEER), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    silent = [await asyncio.open_connection(*address) for _ in range(MIN_HANDSHAKES + 2)]
    await gone.wait()
    assert len(handshakes.under_way) == MIN_HANDSHAKES + 1
    (oldest, _), *others = silent
    with contextlib.suppress(ConnectionResetError):
        assert await oldest.read() == b""
    assert not any(reader.at_eof() for reader, _ in others)
    for _, writer in silent:
        writer.close()
    server.close()


async def test_unix_sockets_need_no_header_and_close_cuts(certificates: Certificates) -> None:
    loop = asyncio.get_running_loop()
    handshakes = Handshakes(loop, lambda _: asyncio.Protocol(), True, 5.0, no_log(), Counters())
    handshakes.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert type(handshakes.protocol(False, UNIX_CLIENT)) is asyncio.Protocol
    gone: list[int] = []
    handshakes.on_gone = lambda: gone.append(1)
    server = await loop.create_server(lambda: handshakes.protocol(True, PEER), "127.0.0.1", 0)
    for start in (b"", VERSION_1, VERSION_1 + b"\x16"):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(start)
        while not handshakes.under_way:
            await asyncio.sleep(0.001)
        handshakes.close()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert not handshakes.under_way
    assert len(gone) == 3
    server.close()
