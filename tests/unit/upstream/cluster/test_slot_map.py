"""slot_map: owners of slots, and what a redirect changes."""

from __future__ import annotations

import pytest
from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.slot_map import NO_MAP, Shard, SlotMap, slot_map

A, B, C = (Address("10.0.0.1", port) for port in (7001, 7002, 7003))
MAP = slot_map({Shard("b", B): [(100, 16383)], Shard("a", A): [(0, 99)]})


def owners(found: SlotMap) -> list[Address | None]:
    return [found.owner(at) for at in range(200)]


def test_masters_are_sorted_by_id() -> None:
    assert [shard.id for shard in MAP.shards] == ["a", "b"]
    assert owners(MAP) == [A] * 100 + [B] * 100


@pytest.mark.parametrize("slot", [0, 50, 99])
def test_a_slot_moves(slot: int) -> None:
    after = MAP.with_owner(slot, B)
    assert owners(after) == [B if at >= 100 or at == slot else A for at in range(200)]
    assert owners(MAP) == [A] * 100 + [B] * 100
    assert MAP.lost(after) == {A: {slot}} and after.lost(MAP) == {B: {slot}}
    assert MAP.lost(MAP) == {}
    assert MAP.mark() != after.mark() and MAP.mark() == after.with_owner(slot, A).mark()


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
        marks = [thirds.with_owner(slot, owner).mark() for owner in (A, B, C)]
        assert len(set(marks)) == 3 and thirds.mark() in marks


def test_a_slot_moves_to_an_unknown_node() -> None:
    after = MAP.with_owner(7, C)
    assert after.owner(7) == C
    assert len(after.shards) == 3


def test_all_slots_of_a_master_leave() -> None:
    after = slot_map({Shard("b", B): [(0, 16383)]})
    assert MAP.lost(after) == {A: set(range(100))}
    assert MAP.lost(NO_MAP) == {A: set(range(100)), B: set(range(100, 16384))}
    assert NO_MAP.lost(MAP) == {}
