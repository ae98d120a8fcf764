"""lane_calls: the calls of one client in request order, and the lanes it uses."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import NO_ROW, UNSEEN
from rlproxy.resp import commands
from rlproxy.session.call import Call
from rlproxy.session.identity import Identity

from tests.unit.session.bench import ARITY, FIVE, KnowingLane, call_of
from tests.unit.session.parts import Parts

USER = Identity(b"bob", b"pw", 3)


def numbered(parts: Parts, count: int) -> list[Call]:
    """Append `count` calls."""
    calls = [call_of(parts.caller, b"%d" % number) for number in range(count)]
    for call in calls:
        parts.lanes.append(call)
    return calls


def linked(parts: Parts) -> list[Call]:
    """Return the calls of `parts` from first to last."""
    found = []
    call = parts.lanes.head
    while call is not None:
        found.append(call)
        call = call.next
    assert len(found) == parts.lanes.count
    assert parts.lanes.tail is (found[-1] if found else None)
    return found


def test_a_wrong_hit_is_counted_as_an_error() -> None:
    parts = Parts()
    parts.lanes.append(Call(parts.caller, Rule(ARITY), b""))
    parts.lanes.emit()
    assert parts.down() == ARITY
    assert parts.context.stats.errors == {"syntax": 1}


def test_a_dropped_call_lets_those_behind_it_go_on() -> None:
    parts = Parts()
    first, second = numbered(parts, 2)
    parts.lanes.answered(second, FIVE)
    parts.lanes.drop(first)
    assert parts.lanes.head is None
    assert sum(parts.context.stats.hits) == 2


def test_abandoned_calls_are_counted_as_unseen() -> None:
    parts = Parts()
    calls = numbered(parts, 3)
    row = calls[0].row
    calls[1].take_row()
    parts.lanes.abandon()
    assert linked(parts) == []
    assert parts.lanes.head is None
    assert parts.context.stats.hits[row + UNSEEN] == 2
    assert [call.row for call in calls] == [NO_ROW] * 3


def test_the_lane_for_hits_is_kept_until_it_retires() -> None:
    parts = Parts()
    assert parts.lanes.hit_lane() is None
    first = parts.lane
    assert parts.lanes.lane_for(commands.HIT) is first
    parts.lane = KnowingLane()
    assert parts.lanes.lane_for(commands.HIT) is first
    assert parts.lanes.hit_lane() is first
    first.retired = True
    assert parts.lanes.lane_for(commands.HIT) is parts.lane


def test_an_identity_without_a_lane() -> None:
    parts = Parts()
    parts.allowed = False
    assert parts.lanes.lane_for(commands.HIT) is None
    assert parts.lanes.hit_lane() is None


def test_a_lane_that_is_not_ready_is_woken() -> None:
    parts = Parts(share=True)
    for lane in (parts.lane, parts.shared_lane):
        lane.ready = False
    assert parts.lanes.lane_for(commands.HIT) is None
    assert parts.lanes.lane_for(commands.SHARED_READ) is None
    assert (parts.lane.woken, parts.shared_lane.woken) == (1, 1)
    assert parts.lanes.hit_lane() is None
    assert parts.lane.woken == 1


@pytest.mark.parametrize(("name", "value"), [("identity", USER), ("protocol", 3)])
def test_another_identity_or_protocol_has_other_lanes(name: str, value: object) -> None:
    parts = Parts(share=True)
    parts.lanes.lane_for(commands.HIT)
    parts.lanes.lane_for(commands.SHARED_READ)
    setattr(parts.private.state, name, value)
    assert parts.lanes.hit_lane() is None
    parts.lane = KnowingLane()
    assert parts.lanes.lane_for(commands.HIT) is parts.lane
    parts.lanes.lane_for(commands.SHARED_READ)
    assert len(parts.asked) == 2
