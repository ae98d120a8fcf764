"""Gathering: the replies of several nodes, merged into the one reply that a client gets.

All functions take complete frames, in the order of the nodes and home's first, and return one
frame. They work for RESP2 and RESP3 alike: the first frame decides the type of the result. Values
are not decoded. Where a node replied with an error, the first error is the result, except in
`one_succeeded`. A frame of a type that the command never returns gives the error UNEXPECTED.
"""

from __future__ import annotations

from collections.abc import Callable
from random import shuffle
from typing import Final

from rlproxy.resp.encoding import NILS, error
from rlproxy.resp.replies import AGGREGATES, elements

Fold = Callable[[list[int]], int]  # of the nodes' integers
Merge = Callable[[list[bytes]], bytes]  # of the nodes' replies

_MINUS: Final = 45
_BLOB_ERROR: Final = 33
UNEXPECTED: Final = error("ERR a node of the cluster replied in an unknown form")


def is_error(frame: bytes) -> bool:
    """Return whether a reply is an error, of RESP2 or RESP3."""
    return frame[0] == _MINUS or frame[0] == _BLOB_ERROR


def first_error(replies: list[bytes]) -> bytes:
    """Return the first error among `replies`; empty if there is none."""
    return next(filter(is_error, replies), b"")


def _error_or(merge: Merge) -> Merge:
    """Return the merge whose result is the first error, if there is one."""
    return lambda replies: first_error(replies) or merge(replies)


@_error_or
def first(replies: list[bytes]) -> bytes:
    """Return home's reply."""
    return replies[0]


def one_succeeded(replies: list[bytes]) -> bytes:
    """Return the first reply that is no error, else the most specific error.

    NOTBUSY means that the node runs no script. An error of a node that runs one is more specific.
    """
    done = [frame for frame in replies if not is_error(frame)]
    specific = [frame for frame in replies if not frame.startswith(b"-NOTBUSY")]
    return (done or specific or replies)[0]


@_error_or
def one_not_nil(replies: list[bytes]) -> bytes:
    """Return one of the replies that are not nil, else nil."""
    found = [frame for frame in replies if frame not in NILS]
    shuffle(found)  # else RANDOMKEY would name home's keys only
    return (found or replies)[0]


@_error_or
def summed(replies: list[bytes]) -> bytes:
    """Return the sum of integer replies."""
    return _integer(replies, sum)


@_error_or
def concatenated(replies: list[bytes]) -> bytes:
    """Return one array (or set, or push) with the elements of all of them, of any type."""
    count = 0
    parts = [b""]
    for frame in replies:
        if frame in NILS:
            continue
        if frame[0] not in AGGREGATES:
            return UNEXPECTED
        end = frame.find(b"\r\n")
        count += int(frame[1:end])
        parts.append(frame[end + 2 :])
    kind = replies[0][:1]
    parts[0] = b"%b%d\r\n" % (kind if kind in AGGREGATES else b"*", count)
    return b"".join(parts)


@_error_or
def union(replies: list[bytes]) -> bytes:
    """Return one array with the strings of all of them, each one once."""
    listed = elements(replies)
    if listed is None:
        return UNEXPECTED
    found = dict.fromkeys(listed)
    return b"%b%d\r\n%b" % (replies[0][:1], len(found), b"".join(found))


@_error_or
def least(replies: list[bytes]) -> bytes:
    """Return the least integer; for arrays of integers, the least ones by position."""
    return _integers(replies, min, 0, 1) if replies[0][:1] == b"*" else _integer(replies, min)


@_error_or
def pairs(replies: list[bytes]) -> bytes:
    """Return home's array of names and integers in turn, with the integers of all replies added."""
    return _integers(replies, sum, 1, 2)


def _integer(replies: list[bytes], fold: Fold) -> bytes:
    """Fold integer replies."""
    if any(frame[:1] != b":" for frame in replies):
        return UNEXPECTED
    return b":%d\r\n" % fold([int(frame[1:-2]) for frame in replies])


def _integers(replies: list[bytes], fold: Fold, begin: int, step: int) -> bytes:
    """Fold the integers at every `step`-th place of arrays, from `begin`; the rest is home's."""
    arrays = [listed for frame in replies if (listed := elements([frame])) is not None]
    if len(arrays) < len(replies) or len(set(map(len, arrays))) > 1:
        return UNEXPECTED
    out = arrays[0]
    for at in range(begin, len(out), step):
        out[at] = _integer([listed[at] for listed in arrays], fold)
    return UNEXPECTED if UNEXPECTED in out else b"*%d\r\n%b" % (len(out), b"".join(out))


def placed(places: list[int], replies: list[bytes]) -> bytes:
    """Return the reply to an MGET by the replies to its parts.

    places: for each element of the replies, in their order, its index in the result.

    Clears `replies`: they may be large, and their elements are copies.
    """
    listed = elements(replies)
    if listed is None:
        return first_error(replies) or UNEXPECTED
    replies.clear()
    found = [b""] * len(places)
    for at, element in zip(places, listed, strict=True):
        found[at] = element
    return b"*%d\r\n%b" % (len(found), b"".join(found))


def text(replies: list[bytes], join: Merge = b"".join) -> bytes:
    """Return one text of all replies: bulk strings, or verbatim strings in RESP3."""
    texts = [found for found in map(text_of, replies) if found is not None]
    if len(texts) < len(replies):
        return first_error(replies) or UNEXPECTED
    return as_text(join(texts), replies[0])


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
