"""Entries of a server's own in each form, and replies taken apart."""

from __future__ import annotations

from rlproxy.resp.replies import ReplyFramer

GET_7 = b"*7\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@read\r\n"
PING_10 = b"*10\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*0\r\n"
PING_SETS = PING_10.replace(b"*1\r\n", b"~1\r\n").replace(b"*0", b"~0")


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
