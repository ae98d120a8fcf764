"""key_slot: the slots that Redis itself computes (CLUSTER KEYSLOT of Redis 7.0)."""

from __future__ import annotations

import pytest
from rlproxy.resp.key_slot import key_slot

SLOTS = [
    (b"", 0),
    (b"123456789", 12739),
    (b"foo", 12182),
    (b"{foo}bar", 12182),
    (b"foo{}{bar}", 8363),
    (b"foo{{bar}}zap", 4015),
    (b"foo{bar}{zap}", 5061),
    (b"a{b", 13340),
]


@pytest.mark.parametrize(("key", "slot"), SLOTS)
def test_slot_is_the_one_of_redis(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot
