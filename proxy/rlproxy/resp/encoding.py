"""RESP encoding: values to bytes; bulk strings; Redis' errors without script names and digests."""

from __future__ import annotations

import re
from typing import Any, Final

from mypy_extensions import i64

_SUFFIX: Final = re.compile(
    rb" script: (?:[0-9a-f]{40}, )?on (?:@user_script|@?f_[0-9a-f]{40}):\d+\."
)
_PREFIX: Final = re.compile(
    rb"^-(?:ERR Error running script \(call to f_[0-9a-f]{40}\): )?(?:@user_script:\s?\d+: )+-?"
)
_NO_EVAL: Final = re.compile(rb"^(-ERR unknown command ['`]EVAL(?:SHA)?(?:_RO)?['`]), with args.*")
_NO_RIGHT: Final = re.compile(
    rb"-NOPERM .* run the '(eval(?:sha)?)' command", re.DOTALL | re.IGNORECASE
)
_UNKNOWN: Final = re.compile(rb"-ERR unknown command ['`](eval(?:sha)?)['`]", re.IGNORECASE)
_RUNTIME: Final = b"-user_script:"  # begins an error of Lua itself in a group of hits
_CODED: Final = re.compile(rb"^[A-Z]{2,} ")
_CR: Final = 13


def error(text: str) -> bytes:
    """Return an error reply; line ends in `text` become blanks.

    text: error code and message.
    """
    return (
        b"-" + text.encode("utf-8", "replace").replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"
    )


def bulks(*words: bytes) -> bytes:
    """Return an array of bulk strings: a request or a reply."""
    return b"".join([b"*%d\r\n" % len(words), *[bulk(word) for word in words]])


def bulk(word: bytes) -> bytes:
    """Return a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def encoded(value: Any, resp3: bool) -> bytes:
    """Return a value, with all that it contains, as a reply.

    value: bytes are a bulk string, a str is a simple string, a tuple is a set, and a dict is a map.
        In RESP2 a set is an array, and a map is an array of names and values in turn.
    """
    if isinstance(value, bytes):
        return bulk(value)
    if isinstance(value, str):
        return b"+%b\r\n" % value.encode()
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, dict):
        parts = [part for pair in value.items() for part in pair]
        head = b"%%%d\r\n" % len(value) if resp3 else b"*%d\r\n" % len(parts)
    else:
        parts = list(value)
        head = (b"~%d\r\n" if resp3 and isinstance(value, tuple) else b"*%d\r\n") % len(parts)
    return head + b"".join([encoded(part, resp3) for part in parts])


def content(data: bytes, pos: i64 = 0) -> tuple[i64, i64]:
    """Return where the content of the whole bulk string at `pos` begins, and where it ends."""
    at: i64 = pos + 1
    size: i64 = 0
    while data[at] != _CR:
        size = 10 * size + data[at] - 48
        at += 1
    return at + 2, at + 2 + size


def same(word: bytes, data: bytes, start: i64, end: i64) -> bool:
    """Return whether `word` is the part of `data` from `start` to `end`. Its end differs first."""
    at: i64 = len(word)
    if at != end - start:
        return False
    while at > 0 and word[at - 1] == data[start + at - 1]:
        at -= 1
    return at == 0


def clean_error(line: bytes) -> bytes:
    """Remove the script's name, digest, line number and text from an error.

    Redis 7 and Valkey append them, Redis 6.2 puts them before the message. A server without EVAL
    quotes the script; that part is replaced with a hint.
    line: first line of a reply; returned unchanged if it is not an error.
    """
    if not line.startswith(b"-"):
        return line
    line = _SUFFIX.sub(b"", _NO_EVAL.sub(rb"\1: RL commands need it on the server\r", line))
    bare = _PREFIX.sub(b"", line)
    if bare != line:
        line = b"-" + bare if _CODED.match(bare) else b"-ERR " + bare
    return b"-ERR " + line[1:] if line.startswith(_RUNTIME) else line


def refused_eval(error: bytes) -> bytes:
    """Return the command that Redis refuses in `error`: EVAL, EVALSHA, or b"" if neither.

    It does not know the command, or this user has no right to it.
    """
    found = _UNKNOWN.match(error) or _NO_RIGHT.match(error)
    return b"" if found is None else found[1].upper()


def unreachable(where: str, why: str) -> bytes:
    """Return the error for a command whose server cannot be reached.

    where: address of the server.
    why: reason.
    """
    return UNREACHABLE + error(f"{where}: {why}")[1:]


def late(limit_s: float) -> bytes:
    """Return the error for a call that Redis did not answer in time.

    limit_s: hit timeout, seconds.
    """
    return error(f"UPSTREAMDOWN no answer from Redis within {limit_s * 1000:g} ms")


OK: Final = b"+OK\r\n"
NILS: Final = (b"$-1\r\n", b"_\r\n", b"*-1\r\n")  # RESP2, RESP3, an array in RESP2
NO_ROOM: Final = b"-ERR max number of clients"  # begins the error of a server at its `maxclients`
INVALIDATE: Final = b">2\r\n$10\r\ninvalidate\r\n"  # begins a push about touched keys
EMPTY_REQUEST: Final = b"*0\r\n"  # Redis reads it, runs nothing and sends no reply
UNREACHABLE: Final = b"-UPSTREAMDOWN cannot reach Redis at "  # begins the errors of unreachable()
LOST: Final = error("UPSTREAMDOWN the connection to Redis was lost before it answered")
