"""TLS for the tests: certificates, a server with TLS, and a client socket that can close one
direction alone.
"""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import trustme

from tests import harness
from tests.harness import Raw, RedisServer

NAMES = ("localhost", "127.0.0.1")


class Certificates:
    """An authority's files in a directory: `ca`, and pairs of a certificate and its key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.cert, self.key = self.issue("server", *NAMES)

    def issue(
        self, file: str, *names: str, expired: bool = False, lasts_s: float = 0
    ) -> tuple[str, str]:
        """Create the files of a certificate for `names` and of its key; replaces older ones.

        lasts_s: seconds until it expires; 0: it does not.
        """
        cert, key = self.directory / f"{file}.pem", self.directory / f"{file}.key"
        now, until = datetime.datetime.now(datetime.UTC), None
        if expired or lasts_s:
            until = now + datetime.timedelta(seconds=lasts_s, days=-1 if expired else 0)
        made = self.authority.issue_cert(*names, not_after=until)
        cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return str(cert), str(key)

    def server_args(self) -> list[str]:
        """The proxy's options for a listener with TLS."""
        return ["--tls-cert", self.cert, "--tls-key", self.key]

    def client(self, cert: tuple[str, str] | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority and presents `cert`."""
        made = ssl.create_default_context(cafile=self.ca)
        if cert is not None:
            made.load_cert_chain(*cert)
        return made


@cache
def tls_engine() -> str:
    """The name of an installed server with TLS; empty if there is none."""
    for name, executable in harness.engines().items():
        refused = subprocess.run(
            [executable, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/nothing"],
            capture_output=True,
            timeout=20,
        )
        if b"Failed to configure TLS" in refused.stdout + refused.stderr:
            return name
    return ""


@contextlib.contextmanager
def tls_server(certificates: Certificates, *args: str) -> Iterator[tuple[RedisServer, int]]:
    """Run a server; return it and its TLS port. It requires no client certificate by default."""
    port = harness.free_port()
    names = ("--tls-port", "--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file")
    values = (str(port), certificates.cert, certificates.key, certificates.ca)
    words = [word for pair in zip(names, values, strict=True) for word in pair]
    if "--tls-auth-clients" not in args:
        words += ["--tls-auth-clients", "no"]
    with harness.server(tls_engine(), *words, *args) as made:
        yield made, port


@contextlib.contextmanager
def tls_relay(certificates: Certificates, port: int) -> Iterator[int]:
    """The port of a relay that puts TLS in front of a server without it, and requires a client
    certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED

    def relay(client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(client, server_side=True) as near,
            socket.create_connection(("127.0.0.1", port)) as far,
        ):
            open_ends: list[socket.socket] = [near, far]
            while far in open_ends:
                ready = [near] if near.pending() else select.select(open_ends, [], [])[0]
                for each in ready:
                    data = each.recv(1 << 16)
                    if data:
                        (far if each is near else near).sendall(data)
                        continue
                    open_ends.remove(each)
                    far.shutdown(socket.SHUT_WR)

    def accepted(client: socket.socket) -> None:
        threading.Thread(target=relay, args=[client], daemon=True).start()

    with harness.accepting(accepted) as listening:
        yield listening


class TlsSocket:
    """TLS over a connected socket, for Raw: shutdown() ends the sending direction, and reading
    continues.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                data = sock.recv(65536)
                if not data:
                    raise ConnectionResetError("closed in the handshake") from None
                self._incoming.write(data)
            except ssl.SSLError:
                self._flush()  # sends the alert with the reason
                raise
            else:
                break
        self._flush()

    def _flush(self) -> None:
        self._sock.sendall(self._outgoing.read())

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self.tls.write(view) :]
        self._flush()

    def recv(self, size: int) -> bytes:
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                data = self._sock.recv(size)
                if not data:
                    return b""
                self._incoming.write(data)

    def shutdown(self, _how: int) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self._flush()

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def setsockopt(self, *args: int) -> None:
        self._sock.setsockopt(*args)

    def getsockname(self) -> object:
        return self._sock.getsockname()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def secure(raw: Raw, context: ssl.SSLContext, name: str = "localhost") -> Raw:
    """Put TLS on `raw`, which has not sent anything yet."""
    raw.sock = cast("socket.socket", TlsSocket(raw.sock, context, name))
    return raw


@contextlib.contextmanager
def tls_proxy(
    certificates: Certificates, upstream: str, *args: str
) -> Iterator[tuple[harness.Proxy, int]]:
    """Run a proxy; return it and its TLS port, which its raw() uses."""
    port = harness.free_port()
    words = ["--listen", f"tls:127.0.0.1:{port}", *certificates.server_args(), *args]
    if upstream.startswith("rediss:"):
        words += ["--upstream-tls-ca", certificates.ca]
    with harness.proxy(upstream, *words) as made:
        made.port = port
        made.wrap = lambda raw: secure(raw, certificates.client())
        yield made, port
