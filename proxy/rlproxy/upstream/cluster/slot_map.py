"""The slot map of a Redis Cluster: which master owns each slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from rlproxy.config.urls import Address
from rlproxy.resp.key_slot import SLOTS

MARKS: Final = 256  # values of SlotMap.mark
MAX_NODES: Final = 1 << 13  # numbers of nodes are below this


@dataclass(frozen=True)
class Shard:
    """One master and the slots that it owns.

    id: its node id in the cluster.
    slots: ranges of slots, first and last included.
    replicas: the addresses of its replicas.
    """

    id: str
    address: Address
    slots: tuple[tuple[int, int], ...]
    replicas: tuple[Address, ...] = field(default=(), compare=False)


class SlotMap:
    """The owners of all slots. It does not change; a refresh makes another one.

    shards: the masters with slots, sorted by id.
    index: by the address of a master its index in `shards`.
    owners: for each slot the index of its master in `shards`; -1 for a slot without an owner.
    mark: a digest of who owns what, from 0 to 255, equal in all processes with the same map.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(sorted(shards, key=lambda shard: shard.id))
        self.index = {shard.address: at for at, shard in enumerate(self.shards)}
        self._numbers: list[int] = []
        self.owners: list[int] = [-1] * SLOTS
        for index, shard in enumerate(self.shards):
            for first, last in shard.slots:
                self.owners[first : last + 1] = [index] * (last - first + 1)
        owned = [(shard.id, shard.slots) for shard in self.shards]
        self.mark: int = crc32(repr(owned).encode()) & 255

    def number(self, address: Address) -> int:
        """Return the number of the master at `address` in ids of clients; 0 if it is none."""
        at = self.index.get(address)
        if at is None:
            return 0
        if not self._numbers:
            self._numbers = node_numbers([shard.id for shard in self.shards])
        return self._numbers[at]

    def owner(self, slot: int) -> Shard | None:
        """Return the master of `slot`; None if it has none."""
        index = self.owners[slot]
        return self.shards[index] if index >= 0 else None

    def addresses(self) -> list[Address]:
        """Return the addresses of all masters, then those of their replicas."""
        masters = [shard.address for shard in self.shards]
        return masters + [address for shard in self.shards for address in shard.replicas]


def node_numbers(ids: Sequence[str]) -> list[int]:
    """Return the numbers of nodes, by their ids: each from its own id, or the next that is free.

    ids: sorted, so that all processes with the same nodes number them alike.
    """
    found: dict[int, str] = {}
    for each in ids:
        number = crc32(each.encode()) % MAX_NODES
        while number in found and len(found) < MAX_NODES:
            number = (number + 1) % MAX_NODES
        found[number] = each
    return list(found)
