"""The hash slot of a key in Redis Cluster: CRC16 (XMODEM) of its hash tag, or of all of it."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

from mypy_extensions import i64

from rlproxy.resp.encoding import content

SLOTS: Final = 16384
NO_SLOT: Final = -1  # of a command without keys
_BRACE: Final = 123
# The CRC of each byte: its high byte, and its low one.
_HIGHS: Final = bytes([crc_hqx(bytes([byte]), 0) >> 8 for byte in range(256)])
_LOWS: Final = bytes([crc_hqx(bytes([byte]), 0) & 255 for byte in range(256)])


def key_slot(key: bytes) -> int:
    """Return the slot of `key`, from 0 to SLOTS - 1.

    Source: the Redis Cluster specification, "Hash tags". Keys with the same text between the first
    brace and the next closing one, if it isn't empty, share a slot.
    """
    return _slot(key, 0, len(key))


def slot_of_bulk(data: bytes, pos: i64 = 0) -> int:
    """Return the slot of the key that is the whole bulk string at `pos` of `data`."""
    start, end = content(data, pos)
    return _slot(data, start, end)


def _slot(data: bytes, start: i64, end: i64) -> int:
    """Return the slot of the key from `start` to `end` of `data`.

    Compiled, the loop takes fewer instructions than crc_hqx() and a slice.
    """
    tag = False  # the first brace has been seen
    highs, lows = _HIGHS, _LOWS
    high: i64 = 0  # the bytes of the CRC
    low: i64 = 0
    at = start
    while at < end:
        byte: i64 = data[at]
        at += 1
        if byte == _BRACE and not tag:
            tag = True
            closing: i64 = data.find(b"}", at, end)
            if closing > at:
                end = closing
                high = low = 0
                continue
        byte ^= high
        high = low ^ highs[byte]
        low = lows[byte]
    return (high << 8 | low) & (SLOTS - 1)
