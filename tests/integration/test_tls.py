"""TLS on both sides of the proxy, with real clients and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import select
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import uvloop
from rlproxy.config.urls import Address
from rlproxy.health import alive
from rlproxy.net.tls_contexts import ClientSide, TlsFailure
from rlproxy.upstream.connector import Target
from rlproxy.upstream.query_connection import QueryConnection

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.integration.started import children, client_list
from tests.processes import paused
from tests.tlsparts import Certificates, TlsSocket, secure, tls_proxy, tls_relay

# Which of the two depends on the part of the chain that the peer sends.
UNTRUSTED = (
    "certificate verify failed: "
    "(unable to get local issuer certificate|self-signed certificate in certificate chain)"
)
FIVE = [[0, 5, left, -1, 60] for left in (4, 3, 2, 1, 0)]
MB = 1_000_000


@pytest.fixture(scope="module")
def tls_port(certificates: Certificates, one_server: RedisServer) -> Iterator[int]:
    """The TLS port of the module's server, which requires a client certificate."""
    with tls_relay(certificates, one_server.port) as made:
        yield made


def upstream_args(certificates: Certificates) -> list[str]:
    cert, key = certificates.issue("proxy", "proxy")
    return ["--upstream-tls-ca", certificates.ca, "--upstream-tls-cert", cert] + [
        "--upstream-tls-key",
        key,
    ]


@pytest.fixture(scope="module")
def both(certificates: Certificates, tls_port: int) -> Iterator[Proxy]:
    """A proxy with TLS to its clients, and to Redis, which requires its certificate."""
    url = f"rediss://localhost:{tls_port}"
    with tls_proxy(certificates, url, *upstream_args(certificates)[2:]) as (made, _):
        yield made


@pytest.fixture
def empty(one_server: RedisServer) -> RedisServer:
    one_server.ask("FLUSHALL")
    return one_server


# -- clients ---------------------------------------------------------------------------------------


def test_redis_py_through_tls(both: Proxy, certificates: Certificates, empty: RedisServer) -> None:
    with redis.Redis(
        host="localhost",
        port=both.port,
        ssl=True,
        ssl_ca_certs=certificates.ca,
        decode_responses=True,
    ) as client:
        assert [client.execute_command("RL.HIT", "limit", 5, 60) for _ in range(5)] == FIVE
        assert client.execute_command("RL.HIT", "limit", 5, 60)[0] == 1
        pipe = client.pipeline(transaction=True)
        pipe.set("a", "1").execute_command("RL.HIT", "other", 5, 60)
        assert pipe.execute() == [True, FIVE[0]]
        assert client.blpop("nothing", timeout=0.05) is None
        value = "x" * (3 * MB)
        assert client.set("large", value)
        assert client.get("large") == value


# -- handshakes that fail --------------------------------------------------------------------------


@contextlib.contextmanager
def strict(
    certificates: Certificates, one_server: RedisServer, *args: str
) -> Iterator[tuple[Proxy, int]]:
    """A proxy that requires client certificates."""
    words = ("--tls-client-ca", certificates.ca, *args)
    with tls_proxy(certificates, one_server.url, *words) as made:
        yield made


def refused(made: Proxy, context: ssl.SSLContext, name: str = "localhost") -> None:
    """Fail if the proxy serves such a client."""
    with Raw(made.port) as raw, contextlib.suppress(ssl.SSLError, ConnectionResetError):
        wrapped = TlsSocket(raw.sock, context, name)
        wrapped.sendall(command("PING"))
        assert wrapped.recv(100) == b""


def logged(made: Proxy, pattern: str) -> None:
    wait_until(lambda: re.search(pattern, made.read_log()), f"{pattern} in {made.read_log()}")


def test_required_client_certificates(
    certificates: Certificates, one_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Certificates(tmp_path / "other")
    good = certificates.issue("client", "client")
    expired = certificates.issue("expired", "client", expired=True)
    foreign = stranger.issue("client", "client")
    with strict(certificates, one_server) as (made, _):
        served = secure(Raw(made.port), certificates.client(good))
        assert served.ask("PING") == "PONG"
        failed = "WARNING TLS handshakes failed: 1; "
        where = r" \(the latest: 127\.0\.0\.1:\d+\)"
        for shown, why in (
            (None, "peer did not return a certificate"),
            (expired, "certificate verify failed: certificate has expired"),
            (foreign, UNTRUSTED),
        ):
            refused(made, certificates.client(shown))
            logged(made, f"{failed}{why}{where}\n")
        refused(made, stranger.client(good))  # a client that does not trust the proxy
        logged(made, f"{failed}tlsv1 alert unknown ca{where}\n")
        assert served.ask("PING") == "PONG"
        served.close()
    with strict(certificates, one_server, "--tls-client-auth", "optional") as (made, _):
        for shown in (None, good):
            with secure(Raw(made.port), certificates.client(shown)) as raw:
                assert raw.ask("PING") == "PONG"
        refused(made, certificates.client(foreign))


@pytest.mark.parametrize("tickets", [True, False])
def test_resumed_session_does_not_outlive_the_certificate(
    certificates: Certificates, one_server: RedisServer, tickets: bool
) -> None:
    """TLS 1.2 resumes by a ticket, or by the session's id at the server."""

    def served(port: int, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        """The session of a connection that resumes `session`; None if it is not served."""
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost", session=session) as client,
        ):
            client.sendall(command("PING"))
            if client.recv(100):
                assert client.session_reused is (session is not None)
                found = client.session
                client.unwrap()  # else OpenSSL forgets the session
                return found
        return None

    with strict(certificates, one_server) as (made, port):
        context = certificates.client(certificates.issue("brief", "client", lasts_s=3))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        if not tickets:
            context.options |= ssl.OP_NO_TICKET
        first = served(port, None)
        assert first is not None
        wait_until(lambda: served(port, first) is None, "it is refused")
        logged(made, "failed: 1; certificate verify failed: certificate has expired")


def test_older_tls_versions_are_refused(
    certificates: Certificates, one_server: RedisServer
) -> None:
    url = one_server.url
    for least, refuses in (("1.3", True), ("1.2", False)):
        with tls_proxy(certificates, url, "--tls-min-version", least) as (made, _):
            context = certificates.client()
            with secure(Raw(made.port), context) as raw:
                assert raw.ask("PING") == "PONG"
                assert isinstance(raw.sock, TlsSocket)
                assert raw.sock.tls.version() == "TLSv1.3"
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            if refuses:
                refused(made, context)
                logged(made, "failed: 1; unsupported protocol")
            else:
                with secure(Raw(made.port), context) as raw:
                    assert raw.ask("PING") == "PONG"


def test_failed_handshakes_are_closed_and_logged_once(
    certificates: Certificates, one_server: RedisServer
) -> None:
    """Plain text, an aborted handshake, one that takes too long, and silence: each ends with one
    line in the log, regardless of their number.
    """
    url = one_server.url
    with tls_proxy(certificates, url, "--handshake-timeout", "0.5") as (made, _):
        served = made.raw()
        for _ in range(20):
            with Raw(made.port) as raw:
                raw.send(command("PING"))
                assert raw.closes()
        with Raw(made.port) as raw:
            raw.send(b"\x16\x03\x01\x02\x00")
            raw.finish()
            assert raw.closes()
        for start in (b"", b"\x16\x03\x01\x02\x00"):
            with Raw(made.port) as raw:
                raw.send(start)
                assert raw.closes()
        for _ in range(3):  # a port check
            Raw(made.port).close()
        logged(made, "failed: 1; no TLS handshake within 0.5 s")
        log = made.read_log()
        assert log.count("no TLS was spoken") == 1, log
        assert log.count("the connection was closed during the handshake") == 1, log
        assert served.ask("PING") == "PONG"
        served.close()


# -- reload ----------------------------------------------------------------------------------------


def serial(raw: Raw) -> object:
    assert isinstance(raw.sock, TlsSocket)
    found = raw.sock.tls.getpeercert()
    assert found is not None
    return found["serialNumber"]


def test_sighup_loads_new_certificates(one_server: RedisServer, tmp_path: Path) -> None:
    mine = Certificates(tmp_path)
    upstream = one_server.url
    with tls_proxy(mine, upstream, "--workers", "2") as (made, _):
        old = made.raw()
        assert old.ask("PING") == "PONG"
        mine.issue("server", "localhost")
        with made.raw() as raw:
            assert serial(raw) == serial(old)
        os.kill(made.pid, signal.SIGHUP)
        logged(
            made, "INFO SIGHUP: settings and certificates were read again; options changed: none\n"
        )

        def is_new() -> bool:
            with made.raw() as raw:
                assert raw.ask("PING") == "PONG"
                return serial(raw) != serial(old)

        wait_until(lambda: all(is_new() for _ in range(6)), "every worker shows the new one")
        assert old.ask("PING") == "PONG"
        cert = Path(mine.cert).read_bytes()
        Path(mine.cert).write_text("nothing\n")
        os.kill(made.pid, signal.SIGHUP)
        logged(
            made,
            rf"ERROR SIGHUP: --tls-cert {mine.cert}: no certificate in it \(PEM\); "
            "all stays as it was\n",
        )
        assert is_new()
        Path(mine.cert).write_bytes(cert)
        old.close()


def test_all_workers_show_the_certificate_that_was_read_at_sighup(
    one_server: RedisServer, tmp_path: Path
) -> None:
    """One worker sees SIGHUP once the file is damaged, and another one starts then."""
    mine = Certificates(tmp_path)
    upstream = one_server.url
    with tls_proxy(mine, upstream, "--workers", "2") as (made, _):

        def shown() -> set[object]:
            with contextlib.ExitStack() as clients:  # some for each worker
                raws = [clients.enter_context(made.raw()) for _ in range(4)]
                assert [raw.ask("PING") for raw in raws] == ["PONG"] * 4
                return {serial(raw) for raw in raws}

        old, (first, second) = shown(), children(made.pid)
        mine.issue("server", "localhost")
        with paused(first):
            os.kill(made.pid, signal.SIGHUP)
            logged(made, "INFO SIGHUP: settings and certificates were read again")
            Path(mine.cert).write_text("nothing\n")
        wait_until(lambda: not shown() & old, "both workers show the new one")
        os.kill(second, signal.SIGKILL)
        logged(made, r"worker \d \(process \d+\) serves")
        assert len(shown()) == 1
        assert "ERROR" not in made.read_log()


# -- Redis' side -----------------------------------------------------------------------------------


PLAIN = "; if that port has no TLS, write redis:// instead of rediss:// in --upstream"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("foreign",), UNTRUSTED),
        (
            ("--upstream-tls-name", "redis.example"),
            "Hostname mismatch, certificate is not valid for 'redis.example'",
        ),
        (("plain",), f"no TLS was spoken{PLAIN}"),
        pytest.param(
            ("anonymous",),
            "tlsv13 alert certificate required",
            marks=pytest.mark.flaky(
                reason="a server that closes with unread bytes sends a reset, which can overtake "
                "its alert"
            ),
        ),
    ],
)
def test_untrusted_server_is_an_error(
    certificates: Certificates,
    tls_port: int,
    tmp_path: Path,
    args: tuple[str, ...],
    why: str,
) -> None:
    own = upstream_args(certificates)
    words, port = [*own, *args], tls_port
    listener: socket.socket | None = None
    if args == ("foreign",):
        words = ["--upstream-tls-ca", Certificates(tmp_path).ca, *own[2:]]
    elif args == ("plain",):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        threading.Thread(target=answer_plainly, args=(listener,), daemon=True).start()
        words = own
    elif args == ("anonymous",):
        words = own[:2]
    with harness.proxy(f"rediss://localhost:{port}", *words) as made, made.raw() as raw:
        line = rf"WARNING .*Redis at localhost:{port}.*{why}.*\n"
        logged(made, line)
        if args != ("anonymous",):  # a private connection reports it only after the handshake
            for words_ in (("PING",), ("RL.HIT", "k", 5, 60)) * 3:
                answer = raw.ask(*words_)
                assert isinstance(answer, ReplyError)
                assert str(answer).startswith("UPSTREAMDOWN")
                assert re.search(why, str(answer))
        assert len(re.findall(line, made.read_log())) == 1
    if listener is not None:
        listener.close()


def answer_plainly(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"-ERR Protocol error: unbalanced quotes in request\r\n")


def test_sni_and_a_hung_handshake(certificates: Certificates) -> None:
    """The name sent for SNI, and the reason when the server sends nothing."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.settimeout(5)
                with contextlib.suppress(ssl.SSLError), context.wrap_socket(sock, server_side=True):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"rediss://127.0.0.1:{listener.getsockname()[1]}"
    words = ("--upstream-tls-ca", certificates.ca, "--upstream-tls-name", "localhost")
    with harness.proxy(url, *words):
        wait_until(lambda: names, "a handshake")
    assert names[0] == "localhost"
    listener.close()
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
    with harness.proxy(url, *words, "--connect-timeout", "0.2") as made, made.raw() as raw:
        assert f"no TLS handshake within 0.2 s{PLAIN}" in str(raw.ask("PING"))
    silent.close()


def test_server_that_wants_a_certificate_is_an_outage(
    certificates: Certificates, tls_port: int
) -> None:
    """In TLS 1.3 it refuses the proxy behind the handshake."""
    words = ("--upstream-tls-ca", certificates.ca, "--on-upstream-failure", "allow")
    with harness.proxy(f"rediss://localhost:{tls_port}", *words) as made, made.raw() as raw:
        logged(made, r"does not answer \(.*certificate required")
        assert raw.ask("RL.HIT", "k", 5, 60) == [0, 5, 5, -1, 0]


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_refusal_behind_the_handshake_is_read_after_a_failed_write(
    certificates: Certificates, tls_port: int, runner: Callable[..., None]
) -> None:
    """A failed write ends the connection before the alert with the reason is read."""

    async def refused() -> None:
        target = Target(Address("localhost", tls_port), 5, ClientSide(certificates.client(), ""))
        connection = QueryConnection()
        transport = await target.connect(lambda: connection)
        transport.pause_reading()
        ended = select.poll()
        ended.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        assert ended.poll(harness.DEADLINE_S * 1000)
        connection.send(b"PING\r\n")  # causes a reset if the first bytes have not
        with pytest.raises(TlsFailure, match="certificate required"):
            await connection.query(b"PING")

    runner(refused())


def test_sighup_loads_a_new_authority(
    certificates: Certificates, tls_port: int, tmp_path: Path
) -> None:
    ca = tmp_path / "trusted.pem"
    (tmp_path / "other").mkdir()
    shutil.copy(Certificates(tmp_path / "other").ca, ca)
    words = ["--upstream-tls-ca", str(ca), *upstream_args(certificates)[2:]]
    with (
        harness.proxy(f"rediss://localhost:{tls_port}", *words) as made,
        made.raw() as raw,
    ):
        assert isinstance(raw.ask("PING"), ReplyError)
        shutil.copy(certificates.ca, ca)
        os.kill(made.pid, signal.SIGHUP)
        logged(made, "is back")
        assert raw.ask("PING") == "PONG"


# -- flow ------------------------------------------------------------------------------------------


def test_large_values_and_slow_readers_cost_no_memory(both: Proxy, empty: RedisServer) -> None:
    """Megabytes pass both ways; a client that does not read costs no memory."""
    value = os.urandom(4 * MB)
    with both.raw() as raw:
        assert raw.ask("SET", "v", value) == "OK"
        assert raw.ask("GET", "v") == value
        before = both.memory()
        raw.send(command("GET", "v") * 10)
        with both.raw() as other:  # other clients are served, and time passes
            for _ in range(200):
                assert other.ask("PING") == "PONG"
        assert both.memory() - before < 12 * MB
        digest = hashlib.sha256(value).digest()
        for _ in range(10):
            found = raw.reply()
            assert isinstance(found, bytes)
            assert hashlib.sha256(found).digest() == digest


def test_half_closed_connection_gets_its_replies(both: Proxy, empty: RedisServer) -> None:
    """A client that sends TLS' close_notify still gets its outstanding replies and the proxy's
    close_notify. A client that disconnects during a blocking command consumes no element.
    """
    with both.raw() as raw:
        raw.send(command("SET", "a", "1") + command("RL.HIT", "k", 5, 60) + command("GET", "a"))
        raw.finish()
        assert raw.reply() == "OK"
        assert raw.reply() == FIVE[0]
        assert raw.reply() == b"1"
        assert raw.closes()
    raw = both.raw()
    raw.send(command("BLPOP", "list", 0))

    def blocked() -> bool:
        return any(row["cmd"] == "blpop" for row in client_list(empty))

    wait_until(blocked, "it blocks")
    raw.close()
    wait_until(lambda: not blocked(), "it is gone")


# -- several processes -----------------------------------------------------------------------------


def test_workers_hand_over_tls_connections(
    certificates: Certificates, one_server: RedisServer
) -> None:
    words = ("--workers", "3")
    with tls_proxy(certificates, one_server.url, *words) as (made, port):
        text = re.search(
            r"listening on +127\.0\.0\.1:(\d+), tls:127\.0\.0\.1:(\d+)", made.read_log()
        )
        assert text is not None
        assert int(text[2]) == port
        with contextlib.ExitStack() as stack:
            for _ in range(12):
                tls = stack.enter_context(made.raw())
                bare = stack.enter_context(Raw(int(text[1])))
                assert tls.ask("PING") == "PONG"
                assert bare.ask("PING") == "PONG"
        for _ in range(5):  # each was counted, and is no longer
            with Raw(port) as raw:
                raw.send(b"PING\r\n")
                assert raw.closes()
        with contextlib.ExitStack() as stack:
            for _ in range(6):
                assert stack.enter_context(made.raw()).ask("PING") == "PONG"


def test_liveness_check_with_tls(certificates: Certificates, one_server: RedisServer) -> None:
    with strict(certificates, one_server, "--proxy-protocol") as (made, port):
        assert alive(f"tls:127.0.0.1:{port}", header=True) == ""
        assert alive(f"tls:127.0.0.1:{port}") != ""
        logged(made, "peer did not return a certificate")


def test_drain_does_not_wait_for_handshakes(
    certificates: Certificates, one_server: RedisServer
) -> None:
    url = one_server.url
    with tls_proxy(certificates, url) as (made, port):
        idle, silent = made.raw(), Raw(port)
        assert idle.ask("PING") == "PONG"
        made.terminate()
        assert idle.closes()
        assert made.wait(5) == 0
        assert silent.closes()
        assert "WARNING" not in made.read_log()
