"""Escaping: arbitrary bytes as text that is safe in logs, labels and terminals."""

from __future__ import annotations

import re
from typing import Final

MAX_QUOTED: Final = 32  # longest part of a word in an error, bytes
_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")


def shown(name: bytes) -> str:
    r"""Decode `name` as UTF-8; invalid bytes and unprintable characters become \xHH."""
    text = name.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def unescaped(text: str) -> bytes:
    r"""Return the bytes that `text` stands for: UTF-8, where \xHH is a byte.

    It is the inverse of shown(), except for bytes that contain such an escape themselves: their
    backslash is \x5c. Raises UnicodeEncodeError for half of a surrogate pair.
    """
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())


def quoted(word: bytes) -> str:
    """Return `word` in quotes, escaped by shown(), cut after MAX_QUOTED bytes."""
    more = "..." if len(word) > MAX_QUOTED else ""
    return f"'{shown(word[:MAX_QUOTED])}{more}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
