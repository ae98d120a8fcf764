"""The access of actions: the file of the token, and what the parent hands to the admin process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rlproxy.admin.access import Access, access_of, read_token
from rlproxy.config.config import Config, ConfigError
from rlproxy.config.urls import Address, Upstream

TOKEN = "0123456789abcdef"


def written(tmp_path: Path, data: bytes, mode: int = 0o600) -> str:
    path = tmp_path / "token"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("data", [TOKEN, f"{TOKEN}\n", f" {TOKEN}\r\nsecond line\n"])
def test_token_is_the_first_line(tmp_path: Path, data: str) -> None:
    for mode in (0o600, 0o400, 0o640):
        assert read_token(written(tmp_path, data.encode(), mode)) == TOKEN.encode()
        (tmp_path / "token").unlink()


@pytest.mark.parametrize(
    ("data", "mode", "why"),
    [
        (b"", 0o600, "its first line is no token: expected 16 to 1024 printable ASCII"),
        (b"\n0123456789abcdef\n", 0o600, "its first line is no token"),
        (b"SECRET-56789abc\n", 0o600, "its first line is no token"),
        (b"SECRET 7890abcdef", 0o600, "its first line is no token"),
        (TOKEN.encode(), 0o644, "other users can read or change it; "),
        (TOKEN.encode(), 0o602, "other users can read or change it; "),
    ],
)
def test_unusable_token_is_a_mistake(tmp_path: Path, data: bytes, mode: int, why: str) -> None:
    path = written(tmp_path, data, mode)
    with pytest.raises(ConfigError) as caught:
        read_token(path)
    (line,) = caught.value.mistakes
    assert line.startswith(f"--admin-token-file {path}: {why}")
    assert "SECRET" not in line


def test_file_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, why in (
        (tmp_path / "nothing", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (fifo, "it is not a regular file"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_token(str(path))


@pytest.mark.parametrize(
    ("listening", "address"),
    [
        ([Address("0.0.0.0", 7), Address(path="/s")], Address("127.0.0.1", 7)),
        ([Address("::", 7)], Address("::1", 7)),
        ([Address("10.0.0.5", 7, tls=True), Address(path="/s")], Address(path="/s")),
        ([Address("10.0.0.5", 7, tls=True)], Address("10.0.0.5", 7, tls=True)),
    ],
)
def test_first_usable_address(listening: list[Address], address: Address) -> None:
    upstream = Upstream(Address("h", 6379), user="bob", password="secret")
    config = Config(upstream=upstream, admin_actions=True, admin_token_file="t")
    assert access_of(config, listening) == Access(address, "bob", "secret", "t")
    assert access_of(Config(upstream=upstream), listening) is None


def test_addresses_with_a_header_or_a_certificate_are_left_out() -> None:
    tcp, tls, unix = Address("h", 7), Address("h", 8, tls=True), Address(path="/s")
    more = {"admin_actions": True, "tls_client_ca": "ca"}
    for settings, address in (
        ({}, tcp),
        ({"proxy_protocol": True}, unix),
    ):
        found = access_of(Config(**more, **settings), [tls, tcp, unix])  # type: ignore[arg-type]
        assert found is not None
        assert found.address == address
    optional = access_of(Config(**more, tls_client_auth="optional"), [tls])  # type: ignore[arg-type]
    assert optional is not None
    assert optional.address == tls
