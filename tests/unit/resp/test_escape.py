"""How bytes chosen by clients are shown."""

from __future__ import annotations

import pytest
from rlproxy.resp.escape import MAX_QUOTED, quoted, shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"user:1", "user:1"),
        ("größe:ключ".encode(), "größe:ключ"),
        (b"a\xff\x00b", r"a\xff\x00b"),
        (b"\x1b[2J", r"\x1b[2J"),
        (b"one\r\ntwo\t", r"one\x0d\x0atwo\x09"),
        ("\u202eabc\u200b".encode(), r"\xe2\x80\xaeabc\xe2\x80\x8b"),  # turns, and hides
        ("a\u2028b".encode(), r"a\xe2\x80\xa8b"),  # breaks a line
        (b"", ""),
    ],
)
def test_shown(name: bytes, text: str) -> None:
    assert shown(name) == text


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"", "''"),
        (b"COST", "'COST'"),
        (b"x" * MAX_QUOTED, f"'{'x' * MAX_QUOTED}'"),
        (b"x" * (MAX_QUOTED + 1), f"'{'x' * MAX_QUOTED}...'"),
        (b"x" * (MAX_QUOTED - 1) + "ß".encode(), rf"'{'x' * (MAX_QUOTED - 1)}\xc3...'"),
        (b"one\r\n-ERR two", r"'one\x0d\x0a-ERR two'"),
    ],
)
def test_quoted(word: bytes, text: str) -> None:
    assert quoted(word) == text
