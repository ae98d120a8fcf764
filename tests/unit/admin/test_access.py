"""The access of actions: the file of the token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rlproxy.admin.access import read_token
from rlproxy.config.config import ConfigError

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
