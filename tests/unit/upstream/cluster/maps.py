"""Maps of slots that differ by one slot."""

from __future__ import annotations

from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.slot_map import SlotMap


def with_owner(found: SlotMap, slot: int, address: Address) -> SlotMap:
    """Return the map `found` after `slot` has moved to the master at `address`."""
    owners = found.owners.copy()
    owners[slot] = found.index[address]
    return SlotMap(found.shards, owners)
