"""Escaping: arbitrary bytes as text that is safe in logs, labels and terminals."""

from __future__ import annotations

from typing import Final

MAX_QUOTED: Final = 32  # longest part of a word in an error, bytes


def shown(name: bytes) -> str:
    r"""Decode `name` as UTF-8; invalid bytes and unprintable characters become \xHH."""
    text = name.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(word: bytes) -> str:
    """Return `word` in quotes, escaped by shown(), cut after MAX_QUOTED bytes."""
    more = "..." if len(word) > MAX_QUOTED else ""
    return f"'{shown(word[:MAX_QUOTED])}{more}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
