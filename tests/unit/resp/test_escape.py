"""How bytes chosen by clients are shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlproxy.resp.escape import MAX_QUOTED, quoted, shown, unescaped


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"user:1", "user:1"),
        ("größe:ключ".encode(), "größe:ключ"),
        (b"a\xff\x00b", r"a\xff\x00b"),
        (b"\x1b[2J", r"\x1b[2J"),
        (b"one\r\ntwo\t", r"one\x0d\x0atwo\x09"),
        ("\u202eabc\u200b".encode(), r"\xe2\x80\xaeabc\xe2\x80\x8b"),  # turns, and hides
        (b"", ""),
    ],
)
def test_shown(name: bytes, text: str) -> None:
    assert shown(name) == text


# Of each kind, and what an escape consists of. Hypothesis takes seconds to prepare all characters.
CHARACTERS = "ax04fF\\'é中😀\0\n\x1b\x7f\x85\u200b\u202e\ufeff"


@given(st.binary() | st.text(CHARACTERS).map(str.encode))
def test_unescaped_is_the_inverse(name: bytes) -> None:
    if not re.search(rb"\\x[0-9a-fA-F]{2}", name):
        assert unescaped(shown(name)) == name


def test_unescaped() -> None:
    assert unescaped(r"\xFF\x5cx41\x4\n") == b"\xff\\x41\\x4\\n"
    with pytest.raises(UnicodeEncodeError):
        unescaped("\ud800")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (b"", "''"),
        (b"COST", "'COST'"),
        (b"x" * MAX_QUOTED, f"'{'x' * MAX_QUOTED}'"),
        (b"x" * (MAX_QUOTED + 1), f"'{'x' * MAX_QUOTED}...'"),
        (b"one\r\n-ERR two", r"'one\x0d\x0a-ERR two'"),
    ],
)
def test_quoted(word: bytes, text: str) -> None:
    assert quoted(word) == text
