"""lane_calls: the calls of one client in request order, and the lanes it uses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import ADMITTED, NO_ROW, UNSEEN
from rlproxy.resp import commands
from rlproxy.session.call import Call
from rlproxy.session.identity import Identity

from tests.unit.session.bench import ARITY, FIVE, KnowingLane, in_place
from tests.unit.session.parts import Parts, call_of

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


# -- replies ---------------------------------------------------------------------------------------


def test_nothing_is_owed_at_first() -> None:
    parts = Parts()
    assert parts.lanes.head is None
    parts.lanes.emit()
    assert parts.to_client == []


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(6)))
def test_replies_leave_in_request_order(order: list[int]) -> None:
    parts = Parts()
    calls = numbered(parts, 6)
    for at, number in enumerate(order):
        calls[number].reply = b":%d\r\n" % number
        parts.lanes.emit()
        come = set(order[: at + 1])
        first_missing = next((n for n in range(6) if n not in come), 6)
        assert parts.to_client == [b":%d\r\n" % n for n in range(first_missing)]
        assert linked(parts) == calls[first_missing:]
    assert parts.lanes.head is None


def test_the_outcome_of_a_call_is_counted_once() -> None:
    parts = Parts()
    (call,) = numbered(parts, 1)
    row = call.row
    call.reply = FIVE
    parts.lanes.emit()
    parts.lanes.count_outcome(call)
    hits = parts.context.stats.hits
    assert hits[row + ADMITTED] == sum(hits) == 1
    assert call.row == NO_ROW


def test_a_wrong_hit_is_counted_as_an_error() -> None:
    parts = Parts()
    parts.lanes.append(Call(parts.caller, Rule(ARITY), b""))
    parts.lanes.emit()
    assert parts.down() == ARITY
    assert parts.context.stats.errors == {"syntax": 1}


def test_a_call_counted_elsewhere_is_not_counted_here() -> None:
    parts = Parts()
    (call,) = numbered(parts, 1)
    call.counted()
    call.reply = FIVE
    parts.lanes.emit()
    assert parts.down() == FIVE
    assert sum(parts.context.stats.hits) == 0


# -- calls that are moved, or forgotten -------------------------------------------------------


@pytest.mark.parametrize("first", range(4))
def test_a_call_is_moved_with_all_behind_it(first: int) -> None:
    parts = Parts()
    parts.opened()
    calls = numbered(parts, 4)
    calls[3].reply = ARITY
    parts.lanes.move_to(parts.private, calls[first])
    assert linked(parts) == calls[:first]
    sent = [in_place(b"%d" % number) for number in range(first, 3)]
    assert parts.up() == b"".join(sent)
    parts.lanes.move_to(parts.private, calls[3])  # moved already
    assert parts.up() == b""
    assert parts.answer(FIVE * len(sent)) == FIVE * len(sent) + ARITY
    later = call_of(parts.caller)
    parts.lanes.append(later)
    assert linked(parts) == [*calls[:first], later]


def test_the_reply_of_a_lane_leaves_if_it_is_next() -> None:
    parts = Parts()
    first, second = numbered(parts, 2)
    assert not parts.lanes.answered(second, b":2\r\n")
    assert parts.lanes.answered(first, b":1\r\n")
    parts.lanes.emit()
    assert parts.down() == b":1\r\n:2\r\n"


def test_the_reply_to_a_hit_that_must_not_overtake_is_edited() -> None:
    parts = Parts()
    (call,) = numbered(parts, 1)
    call.behind = call.rule
    assert parts.lanes.answered(call, b"-OOM no script: " + b"0" * 40 + b", on @user_script:1.\r\n")
    assert call.reply == b"-OOM no\r\n"


def test_the_reply_to_a_held_hit_is_set_on_the_first_call() -> None:
    parts = Parts()
    parts.lanes.answer_head(FIVE)
    assert parts.lanes.head is None
    numbered(parts, 1)
    parts.lanes.answer_head(FIVE)
    parts.lanes.emit()
    assert parts.down() == FIVE


def test_a_held_hit_is_removed_without_an_outcome() -> None:
    parts = Parts()
    numbered(parts, 1)
    parts.lanes.remove_held()
    assert linked(parts) == []
    assert parts.lanes.count == 0
    assert sum(parts.context.stats.hits) == 0


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
    calls[1].counted()
    parts.lanes.abandon()
    assert linked(parts) == []
    assert parts.lanes.head is None
    assert parts.context.stats.hits[row + UNSEEN] == 2
    assert [call.row for call in calls] == [NO_ROW] * 3


# -- lanes -----------------------------------------------------------------------------------------


def test_the_lane_for_hits_is_kept_until_it_retires() -> None:
    parts = Parts()
    assert parts.lanes.hit_lane() is None
    first = parts.lane
    assert parts.lanes.lane_for_hits() is first
    parts.lane = KnowingLane()
    assert parts.lanes.lane_for_hits() is first
    assert parts.lanes.hit_lane() is first
    first.retired = True
    assert parts.lanes.lane_for_hits() is parts.lane


def test_an_identity_without_a_lane() -> None:
    parts = Parts()
    parts.allowed = False
    assert parts.lanes.lane_for_hits() is None
    assert parts.lanes.hit_lane() is None


def test_a_lane_that_is_not_ready_is_woken() -> None:
    parts = Parts(share=True)
    for lane in (parts.lane, parts.shared_lane):
        lane.ready = False
    assert parts.lanes.lane_for_hits() is None
    assert parts.lanes.lane_for(commands.SHARED_READ) is None
    assert (parts.lane.woken, parts.shared_lane.woken) == (1, 1)
    assert parts.lanes.hit_lane() is None
    assert parts.lane.woken == 1


def test_reads_and_writes_have_a_lane_each() -> None:
    parts = Parts(share=True)
    parts.private.state.identity = USER
    parts.private.state.protocol = 3
    assert parts.lanes.lane_for(commands.SHARED_READ) is parts.shared_lane
    assert parts.lanes.lane_for(commands.SHARED_WRITE) is parts.shared_lane
    assert parts.asked == [
        (USER.key(), 3, commands.SHARED_READ),
        (USER.key(), 3, commands.SHARED_WRITE),
    ]
    parts.lanes.lane_for(commands.SHARED_READ)
    assert len(parts.asked) == 2
    parts.shared_lane.retired = True
    parts.lanes.lane_for(commands.SHARED_WRITE)
    assert len(parts.asked) == 3


def test_without_share_there_is_no_lane_for_ordinary_commands() -> None:
    assert Parts().lanes.lane_for(commands.SHARED_READ) is None


@pytest.mark.parametrize(("name", "value"), [("identity", USER), ("protocol", 3)])
def test_another_identity_or_protocol_has_other_lanes(name: str, value: object) -> None:
    parts = Parts(share=True)
    parts.lanes.lane_for_hits()
    parts.lanes.lane_for(commands.SHARED_READ)
    setattr(parts.private.state, name, value)
    assert parts.lanes.hit_lane() is None
    parts.lane = KnowingLane()
    assert parts.lanes.lane_for_hits() is parts.lane
    parts.lanes.lane_for(commands.SHARED_READ)
    assert len(parts.asked) == 2
