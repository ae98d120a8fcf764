"""slots: the queue of owed replies, and what it counts."""

from __future__ import annotations

from rlproxy.resp import commands
from rlproxy.session.call import Caller
from rlproxy.session.slots import S_DROP, S_HIT, S_LOCAL, S_PASS, OwedReplies, Slot

from tests.unit.session.bench import call_of


def hit(by_sha: bool = False) -> Slot:
    slot = Slot(S_HIT)
    slot.call = call_of(Caller())
    slot.by_sha = by_sha
    return slot


def owed(*slots: Slot) -> OwedReplies:
    made = OwedReplies()
    for slot in slots:
        made.append(slot)
    return made


def listed(owed: OwedReplies) -> list[Slot]:
    """The slots in order. The last one must be the tail, and `count` their number."""
    found: list[Slot] = []
    slot = owed.head
    while slot is not None:
        found.append(slot)
        slot = slot.next
    assert owed.tail is (found[-1] if found else None)
    assert owed.count == len(found)
    return found


def test_the_first_slot_leaves_with_its_reply() -> None:
    first, second = Slot(commands.AUTH), Slot(commands.AUTH)
    replies = owed(first, second)
    replies.remove_reply(first)
    assert listed(replies) == [second]
    replies.remove_reply(second)
    assert listed(replies) == []


def test_a_slot_stays_while_a_run_is_behind_it() -> None:
    slot = Slot(commands.AUTH)
    slot.passed = 1
    replies = owed(slot)
    replies.remove_reply(slot)
    assert listed(replies) == [slot]
    assert slot.kind == S_PASS
    slot.passed = 0
    replies.remove_reply(slot)
    assert listed(replies) == []


def test_hits_and_replies_of_the_proxy_are_bounded() -> None:
    slots = [hit(), hit(by_sha=True), Slot(S_LOCAL), Slot(commands.AUTH)]
    replies = owed(*slots)
    assert (replies.bounded, replies.unanswered_by_sha) == (3, 1)
    replies.set_kind(slots[1], S_DROP)
    replies.set_kind(slots[1], S_DROP)
    assert slots[1].call is None  # its outcome is counted
    assert (replies.bounded, replies.unanswered_by_sha) == (2, 0)
    for slot in slots:
        replies.remove_reply(slot)
    assert listed(replies) == []
    assert (replies.bounded, replies.unanswered_by_sha) == (0, 0)
