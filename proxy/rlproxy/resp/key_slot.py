"""The hash slot of a key in Redis Cluster: CRC16 (XMODEM) of its hash tag, or of all of it."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

SLOTS: Final = 16384
_BRACE: Final = 123
_CR: Final = 13


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


def slot_of_bulk(key: bytes) -> int:
    """Return the slot of a key that is a bulk string."""
    if key[2] == _CR:  # `$5`, then `$15`: most keys, without a search
        return key_slot(key[4:-2])
    return key_slot(key[5:-2] if key[3] == _CR else key[key.index(b"\n") + 1 : -2])
