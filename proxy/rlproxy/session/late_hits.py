"""The answers to hits on a private connection that Redis has not answered in time. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.session import slots as s
from rlproxy.session.call import Call
from rlproxy.session.reply_slots import ReplySlots
from rlproxy.session.slots import Slot
from rlproxy.session.timeouts import NEVER, NOTHING


def answer(
    slots: ReplySlots, before: float, last_reply_at: float, instead: Callable[[Call], bytes]
) -> tuple[int, float, float]:
    """Answer the hits that are unanswered since `before` or longer.

    before: time in seconds.
    last_reply_at: time of the latest reply. A hit is unanswered since that time, or since it was
        sent, whichever is later.
    instead: returns the client's reply to a call. The reply of Redis is dropped when it comes.

    Returns the number of late hits, the time since which the first of them was unanswered, and that
    time of the first other hit. The last one is NEVER if a reply without a timeout comes before
    that hit, and NOTHING if there is no other hit.
    """
    number = 0
    first: float = 0.0
    slot = slots.head
    ahead: Slot | None = None
    while slot is not None and not slots.mid():
        kind = slot.kind
        call = slot.call
        if kind == s.S_HIT and call is not None:
            since = max(last_reply_at, slot.sent_at)
            if since > before:
                return number, first, since
            slots.out.append(instead(call))
            slots.drop(slot)
            if number == 0:
                first = since
            number += 1
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
            return number, first, NEVER
        slot = slot.next
    return number, first, NOTHING
