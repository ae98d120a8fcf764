"""slot_map: owners of slots."""

from __future__ import annotations

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.slot_map import Shard, SlotMap, slot_map

from tests.unit.upstream.cluster.maps import with_owner

A, B, C = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
MAP = slot_map({Shard("b", B): [(100, 16383)], Shard("a", A): [(0, 99)]})


def owners(found: SlotMap) -> list[Address]:
    return [shard.address for at in range(200) if (shard := found.owner(at)) is not None]


def test_masters_are_sorted_by_id() -> None:
    assert [shard.id for shard in MAP.shards] == ["a", "b"]
    assert owners(MAP) == [A] * 100 + [B] * 100


@pytest.mark.parametrize("slot", [0, 50, 99])
def test_a_slot_moves(slot: int) -> None:
    after = with_owner(MAP, slot, B)
    assert owners(after) == [B if at >= 100 or at == slot else A for at in range(200)]
    assert owners(MAP) == [A] * 100 + [B] * 100
    assert MAP.mark() != after.mark() and MAP.mark() == with_owner(after, slot, A).mark()


@pytest.mark.heavy
def test_the_move_of_one_slot_changes_the_mark() -> None:
    thirds = slot_map(
        {
            Shard("a", A): [(0, 5460)],
            Shard("b", B): [(5461, 10922)],
            Shard("c", C): [(10923, 16383)],
        }
    )
    for slot in range(0, 16384, 37):
        marks = [with_owner(thirds, slot, owner).mark() for owner in (A, B, C)]
        assert len(set(marks)) == 3 and thirds.mark() in marks


def test_maps_of_one_cluster_have_a_node_in_common() -> None:
    a, b, c = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
    present = slot_map({Shard("a", a, (b,)): [(0, 16383)]})
    assert present.meets(slot_map({Shard("a", c): [(0, 16383)]}))  # it has another address
    assert present.meets(slot_map({Shard("b", b): [(0, 16383)]}))  # the replica was promoted
    assert not present.meets(slot_map({Shard("c", c): [(0, 16383)]}))
