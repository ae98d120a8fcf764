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


@dataclass(frozen=True)
class Contexts:
    """The TLS settings toward clients and toward Redis; None where TLS is not used."""

    server: ssl.SSLContext | None
    client: ClientSide | None


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


def contexts(config: Config) -> Contexts:
    """Make the contexts of `config`, which has its files: see with_files().

    Raises ConfigError, which lists every mistake.
    """
    mistakes: list[str] = []
    server = client = None
    if any(address.tls for address in config.listen):
        server = _server(config, mistakes)
    if config.upstream.tls:
        client = _client(config, mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    return Contexts(server, client)


def _server(config: Config, mistakes: list[str]) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _common(made, config)
    # A resumed session would admit a client whose certificate has expired since the first one.
    made.num_tickets = 0
    _load_certificate(made, config, "--tls", config.tls_cert, config.tls_key, mistakes)
    if config.tls_client_ca:
        _trust(made, config, "--tls-client-ca", config.tls_client_ca, mistakes)
        required = config.tls_client_auth == "required"
        made.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return made


def _client(config: Config, mistakes: list[str]) -> ClientSide:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _common(made, config)
    if not config.upstream_tls_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if config.upstream_tls_ca:
        _trust(made, config, "--upstream-tls-ca", config.upstream_tls_ca, mistakes)
    else:
        made.load_default_certs()
    if config.upstream_tls_cert:
        cert, key = config.upstream_tls_cert, config.upstream_tls_key
        _load_certificate(made, config, "--upstream-tls", cert, key, mistakes)
    if config.upstream_tls_name:
        try:
            made.wrap_bio(
                ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=config.upstream_tls_name
            )
        except (ValueError, ssl.SSLError):
            mistakes.append(f"--upstream-tls-name {config.upstream_tls_name}: no name of a host")
    return ClientSide(made, config.upstream_tls_name)


def _common(made: ssl.SSLContext, config: Config) -> None:
    made.minimum_version = _VERSIONS[config.tls_min_version]
    made.options |= ssl.OP_NO_RENEGOTIATION


def _load_certificate(
    made: ssl.SSLContext, config: Config, option: str, cert: str, key: str, mistakes: list[str]
) -> None:
    """Load a certificate and its key into `made`; `option` begins the names of their options."""
    named = f"{option}-cert {cert}", f"{option}-key {key}"
    shown = _pem(config, "certificate", cert, named[0], mistakes)
    secret = _pem(config, "private key", key, named[1], mistakes)
    if not shown or not secret:
        return
    try:
        with _file(shown) as cert_file, _file(secret) as key_file:
            made.load_cert_chain(cert_file, key_file, _refuse)
    except _EncryptedError:
        mistakes.append(f"{named[1]}: the key is encrypted, and there is no passphrase")
    except OSError as error:
        reason = getattr(error, "reason", error.strerror) or _TORN
        mistakes.append(f"{', '.join(named)}: {_words(reason)}")


class _EncryptedError(Exception):
    """A key is encrypted with a pass phrase."""


def _refuse() -> NoReturn:
    """Raise instead of letting OpenSSL prompt for a pass phrase on the terminal."""
    raise _EncryptedError


def _trust(
    made: ssl.SSLContext, config: Config, option: str, path: str, mistakes: list[str]
) -> None:
    """Load the certificates in the file `path`, the value of `option`, into `made` as trusted."""
    named = f"{option} {path}"
    ca = _pem(config, "certificate", path, named, mistakes)
    if not ca:
        return
    try:
        with _file(ca) as ca_file:
            made.load_verify_locations(ca_file)
    except OSError:
        mistakes.append(f"{named}: damaged, or not PEM")


@contextlib.contextmanager
def _file(pem: bytes) -> Iterator[str]:
    """Yield a path to a file that contains `pem`: OpenSSL loads no key from memory."""
    in_memory = hasattr(os, "memfd_create")  # no key is written to a disk
    with open(os.memfd_create("rlproxy"), "wb") if in_memory else TemporaryFile() as made:
        made.write(pem)
        made.seek(0)  # also writes what is buffered
        yield f"/dev/fd/{made.fileno()}"


def _pem(config: Config, what: str, path: str, named: str, mistakes: list[str]) -> bytes:
    """Return the contents of a file; b"" without one of _MARKS, and a mistake is added."""
    found = config.pem[path]
    if isinstance(found, str):
        mistakes.append(f"{named}: {found}")
    elif _MARKS[what] not in found:
        mistakes.append(f"{named}: no {what} in it (PEM)")
    else:
        return found
    return b""


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
            _verify(_server(config, []), config)
        except ssl.SSLError as error:
            found.append(f"--tls-cert {config.tls_cert}: {why(error)}")
    return found


def _verify(server: ssl.SSLContext, config: Config) -> None:
    """Raise SSLError if a client that trusts this very certificate of the server refuses it."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(client, config, "--tls-cert", config.tls_cert, [])
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far, near):  # the client's hello; the certificate; its verification
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
