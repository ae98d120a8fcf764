"""Inline requests: the words of one line, by the quoting rules of Redis' sdssplitargs."""

from __future__ import annotations

import re
from typing import Final

_NOT_PLAIN: Final = (b'"', b"'", b"\x0b", b"\x0c")
# Blanks, then a word: unquoted bytes, and a quoted part that ends it. Vertical tabs and form feeds
# are blanks, but do not end an unquoted word.
_WORD: Final = re.compile(
    rb"""\s*+([^ \t\n\r"']*+)(?:"((?:[^"\\]++|\\.)*+)"|'((?:[^'\\]++|\\'?)*+)')?(?=\s|\Z)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_inline(line: bytes) -> list[bytes] | None:
    """Split an inline request into words.

    line: without its line end.
    Returns None if a quote is unbalanced, or is followed by anything but a blank, and for a line
    with a NUL: it ends a C string, so some servers do not find the line's end.
    """
    if b"\0" in line:
        return None
    if not any(byte in line for byte in _NOT_PLAIN):
        return line.split()
    words: list[bytes] = []
    pos = 0
    while pos < len(line):
        found = _WORD.match(line, pos)
        if found is None:
            return None
        if not found[0].strip():
            break
        plain, double, single = found.groups(b"")
        words.append(plain + _ESCAPE.sub(_unescaped, double) + single.replace(b"\\'", b"'"))
        pos = found.end()
    return words


def _unescaped(found: re.Match[bytes]) -> bytes:
    code, byte = found.groups(b"")
    return bytes.fromhex(code.decode()) if code else _ESCAPES.get(byte, byte)
