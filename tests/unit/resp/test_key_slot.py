"""key_slot: the slots that Redis itself computes (CLUSTER KEYSLOT of Redis 7.0)."""

from __future__ import annotations

from binascii import crc_hqx

import pytest
from rlproxy.resp.encoding import bulk
from rlproxy.resp.key_slot import SLOTS, key_slot, slot_of_bulk

KEYS = [
    (b"", 0),
    (b"123456789", 12739),
    (b"foo", 12182),
    (b"{foo}bar", 12182),
    (b"foo{}{bar}", 8363),
    (b"foo{{bar}}zap", 4015),
    (b"foo{bar}{zap}", 5061),
    (b"a{b", 13340),
]


@pytest.mark.parametrize(("key", "slot"), KEYS)
def test_slot_is_the_one_of_redis(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 999, 1000])
def test_the_slot_is_the_crc16_of_a_key_without_a_tag(size: int) -> None:
    every = bytes(range(256)).replace(b"{", b"") * 4
    for key in (b"k" * size, b"\r" * size, b"\n" * size, every[:size], every[::-1][:size]):
        assert key_slot(key) == slot_of_bulk(bulk(key)) == crc_hqx(key, 0) % SLOTS


@pytest.mark.parametrize(("key", "slot"), KEYS)
def test_the_slot_of_a_bulk_is_that_of_its_text(key: bytes, slot: int) -> None:
    assert slot_of_bulk(bulk(key)) == slot
    assert slot_of_bulk(b"{" + bulk(key) + b"}", 1) == slot
