"""inline: words and quotes, as Redis' sdssplitargs reads them."""

from __future__ import annotations

import pytest
from rlproxy.resp.inline import split_inline

SPLITS: list[tuple[bytes, list[bytes] | None]] = [
    (b"", []),
    (b" \t ", []),
    (b"a b", [b"a", b"b"]),
    (b"a\tb\rc", [b"a", b"b", b"c"]),
    (b"a\x0bb \x0bc\x0c d", [b"a\x0bb", b"c\x0c", b"d"]),
    (b"a b\x0b", [b"a", b"b\x0b"]),
    (b"a \x0b", [b"a"]),
    (b"'a'\x0bb", [b"a", b"b"]),
    (b'"a b" c', [b"a b", b"c"]),
    (b'"\\n\\r\\t\\b\\a\\\\\\"\\q"', [b'\n\r\t\b\a\\"q']),
    (b'"\\x41\\xfF\\x00"', [b"A\xff\0"]),
    (b'"\\xg1\\x4"', [b"xg1x4"]),
    (b"'\\\\'", None),
    (b'"a', None),
    (b"'a", None),
    (b'"a\\"', None),
    (b'x "', None),
]


@pytest.mark.parametrize(("line", "words"), SPLITS)
def test_split_inline(line: bytes, words: list[bytes] | None) -> None:
    assert split_inline(line) == words
