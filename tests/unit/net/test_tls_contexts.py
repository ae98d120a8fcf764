"""TLS contexts from files: every error names its option and file, and reasons are readable."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from rlproxy.config.config import Config, ConfigError
from rlproxy.config.loader import load, parser
from rlproxy.net import tls_contexts

from tests.tlsparts import Certificates

LISTEN = ("--listen", "tls:127.0.0.1:0", "--upstream", "redis://h")
UPSTREAM = ("--upstream", "rediss://h")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def config(*args: str) -> Config:
    return tls_contexts.with_files(load(parser().parse_args(args), {}))


def mistakes(*args: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        tls_contexts.contexts(config(*args))
    return caught.value.mistakes


def test_no_context_without_tls_options() -> None:
    assert tls_contexts.contexts(config("--upstream", "redis://h")) == (None, None)


def test_server_context(made: Certificates) -> None:
    found, client = tls_contexts.contexts(config(*LISTEN, *made.server_args()))
    assert client is None
    assert found is not None
    assert found.verify_mode == ssl.CERT_NONE
    assert found.minimum_version == ssl.TLSVersion.TLSv1_2
    for auth, mode in (("required", ssl.CERT_REQUIRED), ("optional", ssl.CERT_OPTIONAL)):
        words = ("--tls-client-ca", made.ca, "--tls-client-auth", auth, "--tls-min-version", "1.3")
        found, _ = tls_contexts.contexts(config(*LISTEN, *made.server_args(), *words))
        assert found is not None
        assert found.verify_mode == mode
        assert found.minimum_version == ssl.TLSVersion.TLSv1_3


def test_client_context(made: Certificates) -> None:
    words = ("--upstream-tls-ca", made.ca, "--upstream-tls-name", "redis.example")
    own = ("--upstream-tls-cert", made.cert, "--upstream-tls-key", made.key)
    _, found = tls_contexts.contexts(config(*UPSTREAM, *words, *own, "--tls-min-version", "1.3"))
    assert found is not None
    assert found.name == "redis.example"
    assert found.context.verify_mode == ssl.CERT_REQUIRED
    assert found.context.check_hostname
    assert found.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert found.context.cert_store_stats()["x509_ca"] == 1
    trusting = config(*UPSTREAM, "--upstream-tls-verify", "no")
    _, found = tls_contexts.contexts(trusting)
    assert found is not None
    assert found.context.verify_mode == ssl.CERT_NONE
    assert tls_contexts.warnings(trusting) == [
        "Redis' certificate is not checked (--upstream-tls-verify no)"
    ]
    assert tls_contexts.warnings(config(*UPSTREAM)) == []


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_an_expired_certificate_is_warned_of(made: Certificates, version: str) -> None:
    more = ("--tls-min-version", version, "--tls-client-ca", made.ca)
    assert tls_contexts.warnings(config(*LISTEN, *made.server_args(), *more)) == []
    cert, key = made.issue("old", "localhost", expired=True)
    expired = config(*LISTEN, "--tls-cert", cert, "--tls-key", key, *more)
    assert tls_contexts.contexts(expired)[0] is not None
    reason = f"--tls-cert {cert}: certificate verify failed: certificate has expired"
    assert tls_contexts.warnings(expired) == [reason]


def test_every_error_names_option_and_file(made: Certificates, tmp_path: Path) -> None:
    def file(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    cert, key = Path(made.cert).read_bytes(), Path(made.key).read_bytes()
    _, other = made.issue("other", "other.example")
    nothing = str(tmp_path / "nothing")
    text = file("text", b"no certificate\n")
    torn = file("torn", cert[:200] + b"\n-----END CERTIFICATE-----\n")
    torn_key = file("torn.key", key[:100] + b"\n" + key.splitlines()[-1])
    locked = file(
        "locked.key",
        load_pem_private_key(key, None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pass")
        ),
    )
    missing = "No such file or directory"

    def server(of: str, its: str, *more: str) -> tuple[str, ...]:
        return mistakes(*LISTEN, "--tls-cert", of, "--tls-key", its, *more)

    assert server(nothing, str(tmp_path)) == (
        f"--tls-cert {nothing}: {missing}",
        f"--tls-key {tmp_path}: Is a directory",
    )
    assert server(text, text) == (
        f"--tls-cert {text}: no certificate in it (PEM)",
        f"--tls-key {text}: no private key in it (PEM)",
    )
    assert server(made.key, made.cert) == (
        f"--tls-cert {made.key}: no certificate in it (PEM)",
        f"--tls-key {made.cert}: no private key in it (PEM)",
    )
    assert server(torn, made.key) == (
        f"--tls-cert {torn}, --tls-key {made.key}: damaged, or not PEM",
    )
    assert server(made.cert, torn_key) == (
        f"--tls-cert {made.cert}, --tls-key {torn_key}: damaged, or not PEM",
    )
    assert server(made.cert, other) == (
        f"--tls-cert {made.cert}, --tls-key {other}: key values mismatch",
    )
    assert server(made.cert, locked) == (
        f"--tls-key {locked}: the key is encrypted, and there is no passphrase",
    )
    assert server(made.cert, made.key, "--tls-client-ca", torn) == (
        f"--tls-client-ca {torn}: damaged, or not PEM",
    )
    assert mistakes(
        *("--listen", "tls:127.0.0.1:0", "--tls-cert", nothing, "--tls-key", made.key),
        *UPSTREAM,
        *("--upstream-tls-ca", text, "--upstream-tls-cert", made.cert),
        *("--upstream-tls-key", locked, "--upstream-tls-name", "a..b"),
    ) == (
        f"--tls-cert {nothing}: {missing}",
        f"--upstream-tls-ca {text}: no certificate in it (PEM)",
        f"--upstream-tls-key {locked}: the key is encrypted, and there is no passphrase",
        "--upstream-tls-name a..b: no name of a host",
    )
    if os.geteuid():
        os.chmod(text, 0)
        assert mistakes(*UPSTREAM, "--upstream-tls-ca", text) == (
            f"--upstream-tls-ca {text}: Permission denied",
        )


def test_reasons_of_other_errors() -> None:
    assert tls_contexts.why(ConnectionResetError(104, "Connection reset by peer")) == (
        "Connection reset by peer"
    )
    assert tls_contexts.why(ConnectionAbortedError()) == "ConnectionAbortedError"
    assert tls_contexts.why(OSError("two\nlines")) == "two lines"
