"""TLS contexts made from the settings: certificates, keys, trusted CAs; and the reason of a failed
handshake in OpenSSL's words.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NoReturn

from rlproxy.config.config import OPTIONS, Config, ConfigError
from rlproxy.config.options import PEM

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
NO_TLS: Final = "no TLS was spoken"
# What a file is for, and what it must contain.
_MARKS: Final = {"certificate": b"-----BEGIN CERTIFICATE-----", "private key": b"PRIVATE KEY-----"}
_TORN: Final = "PEM lib"  # OpenSSL's reason for a file that it can't read
# OpenSSL's reasons for first bytes that are not TLS.
_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_TOO_SMALL",
    "BAD_RECORD_TYPE",
    "UNEXPECTED_MESSAGE",
)


class TlsFailure(OSError):  # noqa: N818
    """A handshake or a TLS connection failed; the message is the reason in words."""


@dataclass(frozen=True)
class ClientSide:
    """The TLS settings of connections to Redis.

    name: the server name to request and verify; empty for the host of the address.
    """

    context: ssl.SSLContext
    name: str


def with_files(config: Config) -> Config:
    """Return `config` with the present contents of its files."""
    pem: dict[str, bytes | str] = {}
    for option in OPTIONS:
        path = getattr(config, option.field)
        if option.value is PEM and path:
            try:
                pem[path] = Path(path).read_bytes()
            except OSError as error:
                pem[path] = error.strerror or str(error)
    return replace(config, pem=pem)


def contexts(config: Config) -> tuple[ssl.SSLContext | None, ClientSide | None]:
    """Make the TLS settings toward clients and toward Redis; None where TLS is not used.

    config: with its files, see with_files().
    Raises ConfigError, which lists every mistake.
    """
    server = _server(config) if any(address.tls for address in config.listen) else None
    client = _client(config) if config.upstream.tls else None
    mistakes = [mistake for side in (server, client) if side for mistake in side.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    return (
        server.context if server else None,
        ClientSide(client.context, config.upstream_tls_name) if client else None,
    )


def _server(config: Config) -> _Side:
    made = _Side(ssl.PROTOCOL_TLS_SERVER, config)
    # A resumed session would admit a client whose certificate has expired since the first one.
    # This turns sessions of TLS 1.3 off; TlsStream checks those of TLS 1.2.
    made.context.num_tickets = 0
    made.load("--tls", config.tls_cert, config.tls_key)
    if config.tls_client_ca:
        made.trust("--tls-client-ca", config.tls_client_ca)
        required = config.tls_client_auth == "required"
        made.context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return made


def _client(config: Config) -> _Side:
    made = _Side(ssl.PROTOCOL_TLS_CLIENT, config)
    if not config.upstream_tls_verify:
        made.context.check_hostname = False
        made.context.verify_mode = ssl.CERT_NONE
    if config.upstream_tls_ca:
        made.trust("--upstream-tls-ca", config.upstream_tls_ca)
    else:
        made.context.load_default_certs()
    if config.upstream_tls_cert:
        made.load("--upstream-tls", config.upstream_tls_cert, config.upstream_tls_key)
    if name := config.upstream_tls_name:
        try:
            made.context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)
        except (ValueError, ssl.SSLError):
            made.mistakes.append(f"--upstream-tls-name {name}: no name of a host")
    return made


class _Side:
    """One context in the making, and the mistakes in what was loaded into it."""

    def __init__(self, protocol: int, config: Config) -> None:
        self.context = ssl.SSLContext(protocol)
        self.context.minimum_version = _VERSIONS[config.tls_min_version]
        self.context.options |= ssl.OP_NO_RENEGOTIATION
        self.mistakes: list[str] = []
        self._files = config.pem

    def load(self, option: str, cert: str, key: str) -> None:
        """Load a certificate and its key; `option` begins the names of their options."""
        named = f"{option}-cert {cert}", f"{option}-key {key}"
        shown = self._pem("certificate", cert, named[0])
        secret = self._pem("private key", key, named[1])
        if not shown or not secret:
            return
        try:
            with _file(shown) as cert_file, _file(secret) as key_file:
                self.context.load_cert_chain(cert_file, key_file, _refuse)
        except _EncryptedError:
            self.mistakes.append(f"{named[1]}: the key is encrypted, and there is no passphrase")
        except OSError as error:
            reason = getattr(error, "reason", error.strerror) or _TORN
            self.mistakes.append(f"{', '.join(named)}: {_words(reason)}")

    def trust(self, option: str, path: str) -> None:
        """Load the certificates in the file `path`, the value of `option`, as trusted."""
        named = f"{option} {path}"
        ca = self._pem("certificate", path, named)
        if ca:
            try:
                with _file(ca) as ca_file:
                    self.context.load_verify_locations(ca_file)
            except OSError:
                self.mistakes.append(f"{named}: damaged, or not PEM")

    def _pem(self, what: str, path: str, named: str) -> bytes:
        """Return the contents of a file; b"" without one of _MARKS, and a mistake is added."""
        found = self._files[path]
        if isinstance(found, str):
            self.mistakes.append(f"{named}: {found}")
        elif _MARKS[what] not in found:
            self.mistakes.append(f"{named}: no {what} in it (PEM)")
        else:
            return found
        return b""


class _EncryptedError(Exception):
    """A key is encrypted with a pass phrase."""


def _refuse() -> NoReturn:
    """Raise instead of letting OpenSSL prompt for a pass phrase on the terminal."""
    raise _EncryptedError


@contextlib.contextmanager
def _file(pem: bytes) -> Iterator[str]:
    """Yield a path to a file that contains `pem`: OpenSSL loads no key from memory."""
    in_memory = hasattr(os, "memfd_create")  # no key is written to a disk
    with open(os.memfd_create("rlproxy"), "wb") if in_memory else TemporaryFile() as made:
        made.write(pem)
        made.seek(0)  # also writes what is buffered
        yield f"/dev/fd/{made.fileno()}"


def why(error: BaseException) -> str:
    """Return the reason of a failed handshake or connection in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    reason = getattr(error, "reason", None)
    if not isinstance(error, ssl.SSLError) or not isinstance(reason, str):
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return " ".join(str(text).split())
    if reason in _NO_TLS:
        return NO_TLS
    return _words(reason)


def _words(reason: str) -> str:
    return "damaged, or not PEM" if reason == _TORN else reason.lower().replace("_", " ")


def warnings(config: Config) -> Sequence[str]:
    """Return warnings about settings that are allowed but unsafe, or that clients refuse."""
    found = []
    if config.upstream.tls and not config.upstream_tls_verify:
        found.append("Redis' certificate is not checked (--upstream-tls-verify no)")
    if any(address.tls for address in config.listen):
        try:
            _verify(_server(config).context, config)
        except ssl.SSLError as error:
            found.append(f"--tls-cert {config.tls_cert}: {why(error)}")
    return found


def _verify(server: ssl.SSLContext, config: Config) -> None:
    """Raise SSLError if a client that trusts this very certificate of the server refuses it."""
    side = _Side(ssl.PROTOCOL_TLS_CLIENT, config)
    side.trust("--tls-cert", config.tls_cert)
    client = side.context
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far, near):  # the client's hello; the certificate; its verification
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
