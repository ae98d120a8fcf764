"""Replies taken apart."""

from __future__ import annotations

from rlproxy.resp.replies import ReplyFramer


def split(reply: bytes) -> tuple[bytes, list[bytes]]:
    """The first line of an aggregate, and its values."""
    line, end, rest = reply.partition(b"\r\n")
    framer = ReplyFramer()
    framer.feed(rest)
    values = []
    while framer.pos < len(rest):
        value = framer.frame()
        assert value, rest[framer.pos :]
        values.append(value)
    return line + end, values
