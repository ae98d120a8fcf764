"""Gathering: the replies of several nodes, joined into the one reply that a client gets.

All functions take complete frames, in the order of the nodes and home's first, and return one
frame. They work for RESP2 and RESP3 alike: the first frame decides the type of the result. Values
are not decoded. Where a node replied with an error, the first error is the result, except in
`one_succeeded`. A frame of a type that the command never returns counts as an error too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.resp.encoding import error
from rlproxy.upstream.cluster import routes as r

Fold = Callable[[int, int], int]  # of two nodes' integers

_MINUS: Final = 45
_BLOB_ERROR: Final = 33
_BULK_TYPES: Final = b"$=!"
_AGGREGATES: Final = b"*~>"
_NILS: Final = (b"$-1\r\n", b"_\r\n", b"*-1\r\n")
UNEXPECTED: Final = error("ERR a node of the cluster replied in an unknown form")


def is_error(frame: bytes) -> bool:
    """Return whether a reply is an error, of RESP2 or RESP3."""
    return frame[0] == _MINUS or frame[0] == _BLOB_ERROR


def first_error(replies: list[bytes]) -> bytes:
    """Return the first error among `replies`; empty if there is none."""
    for frame in replies:
        if is_error(frame):
            return frame
    return b""


def first(replies: list[bytes]) -> bytes:
    """Return the first error, else home's reply."""
    return first_error(replies) or replies[0]


def one_succeeded(replies: list[bytes]) -> bytes:
    """Return the first reply that is no error, else the most specific error.

    NOTBUSY means that the node runs no script. An error of a node that runs one is more specific.
    """
    for frame in replies:
        if not is_error(frame):
            return frame
    for frame in replies:
        if not frame.startswith(b"-NOTBUSY"):
            return frame
    return replies[0]


def first_not_nil(replies: list[bytes]) -> bytes:
    """Return the first error, else the first reply that is not nil, else nil."""
    failed = first_error(replies)
    if failed:
        return failed
    for frame in replies:
        if frame not in _NILS:
            return frame
    return replies[0]


def summed(replies: list[bytes]) -> bytes:
    """Return the sum of integer replies."""
    total = 0
    for frame in replies:
        if frame[:1] != b":":
            return first_error(replies) or UNEXPECTED
        total += int(frame[1:-2])
    return b":%d\r\n" % total


def concatenated(replies: list[bytes]) -> bytes:
    """Return one array (or set, or push) with the elements of all of them, of any type."""
    count = 0
    parts = [b""]
    for frame in replies:
        if frame in _NILS:
            continue
        if frame[0] not in _AGGREGATES:
            return first_error(replies) or UNEXPECTED
        end = frame.find(b"\r\n")
        count += int(frame[1:end])
        parts.append(frame[end + 2 :])
    kind = replies[0][:1]
    parts[0] = b"%b%d\r\n" % (kind if kind in b"*~>" else b"*", count)
    return b"".join(parts)


def union(replies: list[bytes]) -> bytes:
    """Return one array with the strings of all of them, each one once."""
    failed = first_error(replies)
    found: dict[bytes, None] = {}
    for frame in replies:
        listed = elements(frame)
        if failed or listed is None:
            return failed or UNEXPECTED
        found.update(dict.fromkeys(listed))
    return b"%b%d\r\n%b" % (replies[0][:1], len(found), b"".join(found))


def conjunction(replies: list[bytes]) -> bytes:
    """Return an array of 0 and 1, each 1 where it is 1 in all replies."""
    return _folded(replies, _both, 1, 0)


def least(replies: list[bytes]) -> bytes:
    """Return the least integer; for arrays of integers, the least ones by position."""
    if replies[0][:1] == b"*":
        return _folded(replies, min, 1, 0)
    numbers = [int(frame[1:-2]) for frame in replies if frame[:1] == b":"]
    if len(numbers) < len(replies):
        return first_error(replies) or UNEXPECTED
    return b":%d\r\n" % min(numbers)


def pairs(replies: list[bytes]) -> bytes:
    """Return home's array of names and integers in turn, with the integers of all replies added."""
    return _folded(replies, _plus, 2, 1)


def _both(one: int, other: int) -> int:
    return one & other


def _plus(one: int, other: int) -> int:
    return one + other


def _folded(replies: list[bytes], fold: Fold, step: int, begin: int) -> bytes:
    """Fold the integers at every `step`-th place of arrays, from `begin`."""
    failed = first_error(replies)
    if failed:
        return failed
    out = elements(replies[0])
    if out is None:
        return UNEXPECTED
    for frame in replies[1:]:
        listed = elements(frame)
        if listed is None or len(listed) != len(out):
            return UNEXPECTED
        for at in range(begin, len(out), step):
            if out[at][:1] != b":" or listed[at][:1] != b":":
                return UNEXPECTED
            out[at] = b":%d\r\n" % fold(int(out[at][1:-2]), int(listed[at][1:-2]))
    return b"*%d\r\n%b" % (len(out), b"".join(out))


def placed(places: list[list[int]], replies: list[bytes]) -> bytes:
    """Return the reply to an MGET that was split.

    places: for each reply the positions of its keys in the client's command.
    """
    failed = first_error(replies)
    if failed:
        return failed
    found: dict[int, bytes] = {}
    for positions, frame in zip(places, replies, strict=True):
        listed = elements(frame)
        if listed is None or len(listed) != len(positions):
            return UNEXPECTED
        found.update(zip(positions, listed, strict=True))
    return b"*%d\r\n%b" % (len(found), b"".join([found[at] for at in range(len(found))]))


def elements(frame: bytes) -> list[bytes] | None:
    """Return the frames in an array, set or push of scalars.

    None if it is of another type, or contains arrays.
    """
    if frame[0] not in _AGGREGATES:
        return None
    end = frame.find(b"\r\n") + 2
    size = len(frame)
    found: list[bytes] = []
    while end < size:
        begin = end
        kind = frame[begin]
        if kind in b"*~>%|":
            return None
        end = frame.find(b"\r\n", begin) + 2
        if kind in _BULK_TYPES and frame[begin + 1] != _MINUS:
            end += int(frame[begin + 1 : end - 2]) + 2
        found.append(frame[begin:end])
    return found


def text(replies: list[bytes]) -> bytes:
    """Return one text of all replies: bulk strings, or verbatim strings in RESP3."""
    failed = first_error(replies)
    texts = [text_of(frame) for frame in replies]
    if failed or any(each is None for each in texts):
        return failed or UNEXPECTED
    return as_text(b"".join([each for each in texts if each is not None]), replies[0])


def text_of(frame: bytes) -> bytes | None:
    """Return the text of a bulk or verbatim string; None for another type and for nil."""
    begin = frame.find(b"\r\n") + 2
    if frame[0] not in b"$=" or frame[1] == _MINUS:
        return None
    return frame[begin + 4 if frame[:1] == b"=" else begin : -2]


def as_text(data: bytes, like: bytes) -> bytes:
    """Return `data` as a string of the type of the frame `like`."""
    if like[:1] == b"=":
        kind = like[like.find(b"\r\n") + 2 :][:4]
        return b"=%d\r\n%b%b\r\n" % (len(data) + 4, kind, data)
    return b"$%d\r\n%b\r\n" % (len(data), data)


# How the replies to a command are joined, by its route. SPLIT_ARRAY, SCAN and INFO are not here.
JOINED: Final[dict[int, Callable[[list[bytes]], bytes]]] = {
    r.SPLIT_SUM: summed,
    r.SPLIT_OK: first,
    r.ALL_SUM: summed,
    r.ALL_CONCAT: concatenated,
    r.ALL_UNION: union,
    r.ALL_PAIRS: pairs,
    r.ALL_AND: conjunction,
    r.ALL_ONE: one_succeeded,
    r.ALL_ANY: first_not_nil,
    r.ALL_FIRST: first,
    r.ALL_TEXT: text,
    r.WAIT: least,
}
