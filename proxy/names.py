"""How bytes that anybody may choose are shown to people, and put into labels: nothing of it moves a
cursor, turns the direction of text or breaks a line.
"""

from __future__ import annotations


def shown(name: bytes) -> str:
    r"""`name` as UTF-8; what is none, or can't be printed, as \\xHH."""
    text = name.decode(errors="backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
