"""The hash slot of a key in Redis Cluster: CRC16 (XMODEM) of its hash tag, or of all of it."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

SLOTS: Final = 16384
_BRACE: Final = 123


def key_slot(key: bytes) -> int:
    """Return the slot of `key`, from 0 to SLOTS - 1.

    Source: the Redis Cluster specification, "Hash tags". Keys with the same text between the first
    brace and the next closing one, if it isn't empty, share a slot.
    """
    if _BRACE in key:  # faster than find()
        opening = key.find(b"{")
        closing = key.find(b"}", opening + 1)
        if closing > opening + 1:
            key = key[opening + 1 : closing]
    return crc_hqx(key, 0) & (SLOTS - 1)
