"""The slot map of a Redis Cluster: which master owns each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final
from zlib import crc32

from rlproxy.config.urls import Address
from rlproxy.resp.key_slot import SLOTS

MARKS: Final = 256  # values of SlotMap.mark()
_WEIGHTS: Final = range(1, 2 * SLOTS, 2)  # of the slots in a mark
MAX_NODES: Final = 1 << 13  # numbers of nodes are below this


@dataclass(frozen=True)
class Shard:
    """One master; `id` is its node id in the cluster."""

    id: str
    address: Address


class SlotMap:
    """The owners of all slots. They do not change: another owner makes another map.

    shards: the masters with slots, sorted by id; one that only a redirect has named is the last.
    owners: for each slot the index of its master in `shards`; -1 for a slot without an owner.
    index: by the address of a master its index in `shards`.
    numbers: by the address of a master its number in ids of clients.
    """

    def __init__(self, shards: tuple[Shard, ...], owners: list[int]) -> None:
        self.shards = shards
        self.owners = owners
        self.index = {shard.address: at for at, shard in enumerate(shards)}
        self.numbers = _numbered(shards)
        self._mark: int = -1

    def mark(self) -> int:
        """Return a digest of the owners, from 0 to 255, equal in all processes.

        The move of one slot changes it, with fewer than 256 masters: the weights are odd numbers.
        """
        if self._mark < 0:
            ids = crc32(" ".join([shard.id for shard in self.shards]).encode())
            self._mark = (ids + sum(map(mul, self.owners, _WEIGHTS))) % MARKS
        return self._mark

    def owner(self, slot: int) -> Address | None:
        """Return the address of the master of `slot`; None if it has none."""
        index = self.owners[slot]
        return self.shards[index].address if index >= 0 else None

    def owned(self) -> int:
        """Return the number of slots that have an owner."""
        return SLOTS - self.owners.count(-1)

    def with_owner(self, slot: int, address: Address) -> SlotMap:
        """Return the map after `slot` has moved to the node at `address`.

        A node that is not in the map has its address as id. One without a slot stays in the map.
        """
        index, shards = self.index.get(address), self.shards
        if index is None:
            index, shards = len(shards), (*shards, Shard(str(address), address))
        owners = self.owners.copy()
        owners[slot] = index
        return SlotMap(shards, owners)

    def lost(self, after: SlotMap) -> dict[Address, set[int]]:
        """Return the slots that each master owns by this map and not by the map `after`."""
        places = [after.index.get(shard.address, -2) for shard in self.shards]
        found: dict[Address, set[int]] = {}
        for slot, (one, other) in enumerate(zip(self.owners, after.owners, strict=True)):
            if one >= 0 and places[one] != other:
                found.setdefault(self.shards[one].address, set()).add(slot)
        return found


def slot_map(ranges: Mapping[Shard, Sequence[tuple[int, int]]]) -> SlotMap:
    """Return the map by the ranges of slots, first and last included, of each master."""
    shards = tuple(sorted(ranges, key=lambda shard: shard.id))
    owners = [-1] * SLOTS
    for index, shard in enumerate(shards):
        for first, last in ranges[shard]:
            owners[first : last + 1] = [index] * (last - first + 1)
    return SlotMap(shards, owners)


def _numbered(shards: tuple[Shard, ...]) -> dict[Address, int]:
    """Return the numbers of masters: each from its own id, or the next that is free.

    shards: sorted, so that all processes with the same nodes number them alike.
    """
    found: dict[int, Address] = {}
    for shard in shards:
        number = crc32(shard.id.encode()) % MAX_NODES
        while number in found:
            number = (number + 1) % MAX_NODES
        found[number] = shard.address
    return {address: number for number, address in found.items()}


NO_MAP: Final = slot_map({})
