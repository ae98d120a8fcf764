"""lane_calls: the calls of one client in request order, and the lanes it uses."""

from __future__ import annotations

from rlproxy.ratelimit.outcomes import NO_ROW, UNSEEN
from rlproxy.session.call import Call

from tests.unit.session.bench import call_of
from tests.unit.session.parts import Parts


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
