"""The hits on a private connection that Redis has not answered in time. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.session import slots as s
from rlproxy.session.call import Call
from rlproxy.session.reply_slots import ReplySlots
from rlproxy.session.slots import Catch, Slot
from rlproxy.session.timeouts import NEVER, NOTHING


class LateHits:
    """What answer() found.

    number: of late hits.
    since: time since which the first of them was unanswered, in seconds.
    oldest: that time of the first other hit. It is NEVER if a reply without a timeout comes before
        that hit, and NOTHING if there is no other hit.
    """

    __slots__ = ("number", "oldest", "since")

    def __init__(self) -> None:
        self.number: int = 0
        self.since: float = 0.0
        self.oldest: float = NOTHING


def answer(
    slots: ReplySlots, before: float, heard_at: float, instead: Callable[[Call], bytes]
) -> LateHits:
    """Answer the hits that are unanswered since `before` or longer.

    before: time in seconds.
    heard_at: time of the latest reply. A hit is unanswered since that time, or since it was sent,
        whichever is later.
    instead: returns the client's reply to a call. The reply of Redis is dropped when it comes.
    """
    found = LateHits()
    slot = slots.head
    ahead: Slot | None = None
    while slot is not None and not slots.mid():
        kind = slot.kind
        call = slot.call
        if kind == s.S_HIT and call is not None:
            since = max(heard_at, slot.sent_at)
            if since > before:
                found.oldest = since
                return found
            slots.out.append(instead(call))
            slots.drop(slot)
            if isinstance(slot, Catch):
                slot.edit = _silent(slot.edit)
            if found.number == 0:
                found.since = since
            found.number += 1
        elif kind == s.S_LOCAL and ahead is not None:
            slots.out.append(slot.data)
            slots.remove_behind(ahead)
            slot = slot.next
            continue
        elif kind != s.S_DROP:
            break
        ahead = slot
        slot = slot.next
    while slot is not None:
        if slot.kind == s.S_HIT and slot.call is not None:
            found.oldest = NEVER
            break
        slot = slot.next
    return found


def _silent(edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """`edit`, with an empty result."""

    def silent(reply: bytes) -> bytes:
        edit(reply)
        return b""

    return silent
