"""The replies to RL commands: a hit's five integers, from a script and for a client. No I/O."""

from __future__ import annotations

import re
from typing import Final

from rlproxy.resp.encoding import error

TOO_LONG: Final = error("ERR RL command longer than 65536 bytes")
_INTEGERS: Final = re.compile(rb"\*[56]\r\n:[01]\r\n(?::-?[0-9]{1,19}\r\n){4,5}")


def five(limited: int, limit: int, remaining: int, retry_after: int, reset_after: int) -> bytes:
    """Return the reply to RL.HIT: five integers in redis-cell's order."""
    return b"*5\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        limited,
        limit,
        remaining,
        retry_after,
        reset_after,
    )


def admitted(reply: bytes) -> bytes:
    """Return the reply to a hit as an admission: limited 0, retry_after -1, the rest as it is."""
    lines = reply.split(b"\r\n")
    lines[1], lines[4] = b":0", b":-1"
    return b"\r\n".join(lines)


def integers(frame: bytes) -> list[int]:
    """Return the integers of a script's reply to a hit: five or six, the first of them 0 or 1.

    Empty for any other reply: the upstream may not be Redis, or may run another script.
    """
    if _INTEGERS.fullmatch(frame) is None:
        return []
    found = [int(word) for word in frame.replace(b":", b"").split(b"\r\n")[1:-1]]
    return found if len(found) == frame[1] - 48 else []


def rounded(found: list[int], unit_us: int) -> bytes:
    """Return the reply for a client, with times rounded up.

    found: integers of a script's reply, times in microseconds.
    unit_us: unit of the client's reply, microseconds.
    """
    retry_us = found[3]
    retry = -1 if retry_us < 0 else -(-retry_us // unit_us)
    return five(found[0], found[1], found[2], retry, -(-found[4] // unit_us))
