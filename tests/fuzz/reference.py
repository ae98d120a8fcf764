"""A simple RESP parser, independent of the framers, as the reference for fuzzing."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BULK = 512 * 1024 * 1024
INT_MAX = 2147483647
MAX_INLINE = 65536
_BLANKS = b" \t\n\r\x0b\x0c\0"
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class ProtocolError(Exception):
    """An error for which a server closes its client; its text is the reply's."""


class IncompleteError(Exception):
    """More bytes are needed."""


@dataclass(frozen=True)
class Request:
    """One command (without words: an empty one), and its end."""

    words: tuple[bytes, ...]
    end: int


def request(data: bytes, pos: int, max_bulk: int = MAX_BULK) -> Request:
    """The request at `pos`, as Redis 7 reads it. Raises IncompleteError and ProtocolError."""
    if data[pos : pos + 1] == b"*":
        return _multibulk(data, pos, max_bulk)
    end = data.find(b"\n", pos)
    nul = data.find(b"\0", pos)
    if end < 0 or 0 <= nul < end:  # a C string ends at the NUL
        if len(data) - pos > MAX_INLINE:
            raise ProtocolError("too big inline request")
        raise IncompleteError
    if end - pos > MAX_INLINE:  # Redis reads less than that at a time
        raise ProtocolError("too big inline request")
    line = data[pos:end]
    words = split(line[:-1] if line.endswith(b"\r") else line)
    if words is None:
        raise ProtocolError("unbalanced quotes in request")
    return Request(tuple(words), end + 1)


def _multibulk(data: bytes, pos: int, max_bulk: int) -> Request:
    line, pos = _header(data, pos, "invalid multibulk length")
    count = integer(line[1:])
    if count is None or count > INT_MAX:
        raise ProtocolError("invalid multibulk length")
    words: list[bytes] = []
    while len(words) < count:
        if pos >= len(data):
            raise IncompleteError
        first = chr(data[pos])
        line, pos = _header(data, pos, "invalid bulk length")
        if first != "$":
            raise ProtocolError(f"expected '$', got '{first}'")
        size = integer(line[1:])
        if size is None or not 0 <= size <= max_bulk:
            raise ProtocolError("invalid bulk length")
        if pos + size + 2 > len(data):
            raise IncompleteError
        words.append(data[pos : pos + size])
        pos += size + 2
    return Request(tuple(words), pos)


def _header(data: bytes, pos: int, error: str) -> tuple[bytes, int]:
    """The header at `pos`, and the offset behind its line end."""
    end = data.find(b"\r", pos)
    nul = data.find(b"\0", pos)
    if end < 0 or 0 <= nul < end:
        if len(data) - pos > MAX_INLINE:
            raise ProtocolError(error)
        raise IncompleteError
    if end + 1 >= len(data):
        raise IncompleteError
    return data[pos:end], end + 2


def integer(text: bytes) -> int | None:
    """`text` as Redis' string2ll parses it, except values that no server accepts in a header."""
    digits = text[1:] if text.startswith(b"-") else text
    if text == b"0":
        return 0
    if not digits.isdigit() or digits.startswith(b"0") or len(digits) > 18:
        return None
    return int(text)


def split(line: bytes) -> list[bytes] | None:
    """The words of an inline request (sdssplitargs); None if its quotes are wrong."""
    words: list[bytes] = []
    pos = 0
    while True:
        while pos < len(line) and line[pos] in _BLANKS:
            pos += 1
        if pos >= len(line):
            return words
        word = b""
        quote = b""
        while True:
            byte = line[pos : pos + 1]
            if not byte and quote:
                return None
            if not byte or (not quote and byte in (b" ", b"\n", b"\r", b"\t", b"\0")):
                break
            pos += 1
            if quote == b'"' and byte == b"\\" and pos < len(line):
                follows = line[pos : pos + 1]
                hexed = line[pos + 1 : pos + 3]
                if follows == b"x" and len(hexed) == 2 and _is_hex(hexed):
                    word += bytes([int(hexed, 16)])
                    pos += 3
                else:
                    word += _ESCAPES.get(follows, follows)
                    pos += 1
            elif quote == b"'" and byte == b"\\" and line[pos : pos + 1] == b"'":
                word += b"'"
                pos += 1
            elif byte == quote:
                if pos < len(line) and line[pos] not in _BLANKS:
                    return None
                break
            elif not quote and byte in (b'"', b"'"):
                quote = byte
            else:
                word += byte
        words.append(word)


def _is_hex(text: bytes) -> bool:
    return all(byte in b"0123456789abcdefABCDEF" for byte in text)


class BrokenError(Exception):
    """The bytes are not RESP."""


def frame(data: bytes, pos: int) -> int:
    """The end of the top-level frame at `pos`; an attribute belongs to the next frame. Raises
    IncompleteError and BrokenError.
    """
    return _value(data, pos, True)


def _value(data: bytes, pos: int, top: bool) -> int:
    if pos >= len(data):
        raise IncompleteError
    kind = data[pos : pos + 1]
    end = data.find(b"\r\n", pos)
    if kind in b"+-:_#,(":
        if end < 0:
            raise IncompleteError
        return end + 2
    if kind not in b"$=!*~>%|":
        raise BrokenError
    if end < 0:
        if len(data) - pos > 24:
            raise BrokenError
        raise IncompleteError
    text = data[pos + 1 : end]
    if text == b"-1":
        count = -1
    elif text.isdigit() and len(text) <= 18:
        count = int(text)
    else:
        raise BrokenError
    pos = end + 2
    if kind in b"$=!":
        if count < 0:
            return pos
        if pos + count + 2 > len(data):
            raise IncompleteError
        return pos + count + 2
    for _ in range(count * 2 if kind in b"%|" else count):
        pos = _value(data, pos, False)
    if kind == b"|" or (kind == b">" and not top):
        return _value(data, pos, False)  # not a value yet: the next one
    return pos
