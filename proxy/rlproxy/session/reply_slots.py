"""The replies that one private connection owes: slots for them, in request order. No I/O.

    to_client <── answer() <── feed() <── Redis
                    |
                 slot -> slot -> slot        expect(), expect_one() add what a request is owed

A slot is one reply, and the run of replies behind it, which are passed on without a look. The one
reply is:

- looked at first: a hit's error loses the script's name, AUTH's +OK makes an identity;
- of a hit by EVALSHA whose script is missing: a lane sends it again, all further replies wait;
- no reply of Redis: the error of a wrong hit, sent in its turn;
- dropped: the replies to commands of the proxy's own;
- edited: awaited whole.

The ConnectionState records each reply that is looked at. At its level RAW, commands sent get no
slot: behind the last slot, all bytes are passed on as they come.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rlproxy.observability.counters import brief
from rlproxy.ratelimit.outcomes import UNSEEN
from rlproxy.resp import encoding
from rlproxy.resp.replies import ReplyFramer
from rlproxy.session.call import Call
from rlproxy.session.connection_state import PLAIN, RAW, ConnectionState
from rlproxy.session.context import FailurePolicy
from rlproxy.session.slots import (
    S_DROP,
    S_HIT,
    S_LOCAL,
    S_MISSING,
    S_PASS,
    OwedReplies,
    Slot,
)

MAX_SLOTS: Final = 65536  # replies counted one by one; beyond, the stream is passed on uncounted

_ERROR: Final = 45  # the first byte of an error


class ReplySlots(OwedReplies):
    """The replies that a private connection owes. Those for the client go into `to_client`."""

    def __init__(
        self, state: ConnectionState, to_client: list[bytes], failure: FailurePolicy
    ) -> None:
        super().__init__()
        self._state = state
        self._failure = failure
        self.to_client = to_client
        self._framer = ReplyFramer()
        self._start: int = 0  # of the bytes that answer() passes on unchanged
        # A hit that Redis has not run, for the caller to read and to clear; see lane_replied().
        self.missing: Call | None = None

    # -- what is owed -----------------------------------------------------------------------------

    def owed(self) -> int:
        """Return the number of counted replies that the client is owed; 2 if there may be more."""
        slot = self.head
        while slot is not None and slot.kind in (S_DROP, S_PASS) and slot.passed == 0:
            slot = slot.next
        if slot is None:
            return 0
        return 2 if slot.next is not None else (slot.kind not in (S_PASS, S_DROP)) + slot.passed

    def settled(self) -> bool:
        """Return whether the client is owed nothing, so that a reply sent now is in its place."""
        return self.owed() == 0 and not self._framer.mid

    def quiescent(self) -> bool:
        """Return whether no reply is owed, and no frame is passed on in part."""
        return self.head is None and not self._framer.mid

    def mid(self) -> bool:
        """Return whether a frame is passed on in part."""
        return self._framer.mid

    def uncounted(self) -> bool:
        """Return whether replies to commands sent now are not counted: they get no slots.

        Then Redis may also send what the client has not requested.
        """
        return self._state.level == RAW

    def can_insert(self) -> bool:
        """Return whether the proxy may send or change a reply behind those that are owed now.

        The place of such a reply must be certain, and slots for it must be left.
        """
        state = self._state
        certain = state.level == PLAIN and not state.multi
        return certain and self.count < MAX_SLOTS - 2  # cover_wait() adds two

    def expect_one(self) -> None:
        """Expect one more reply that is passed on without a look."""
        if self.tail is None:
            self.expect(Slot(S_PASS))
        if self.tail is not None and not self.uncounted():
            self.tail.passed += 1

    def expect(self, slot: Slot) -> None:
        """Expect one more reply, to be treated as `slot` describes."""
        if self.count >= MAX_SLOTS:
            self._state.lower(RAW)
        if not self.uncounted():
            self.append(slot)

    def local(self, reply: bytes) -> None:
        """Send a reply of the proxy in its turn."""
        if self.settled():
            self.to_client.append(reply)
        else:
            self.expect(Slot(S_LOCAL, reply))

    # -- what comes -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Add bytes of Redis; answer() passes them on."""
        self._framer.feed(data)

    def pass_pushes(self) -> None:
        """Pass on the rest of a push that is passed on in part, and the pushes behind it."""
        framer = self._framer
        start = framer.pos
        framer.skip(0)
        self._pass_on(framer.buf, start)

    def answer(self) -> None:
        """Pass on the bytes that have come, slot by slot."""
        framer = self._framer
        data = framer.buf
        self._start = framer.pos
        while True:
            slot = self.head
            if slot is None:
                if framer.pos < len(data):
                    self._unrequested()
                break
            kind = slot.kind
            if kind == S_PASS:
                # The next slot decides on pushes behind the run.
                slot.passed -= framer.skip(slot.passed, slot.next is None)
                if framer.broken:
                    self._stop_counting()
                    break
                if slot.passed > 0:
                    break
                self.remove_reply(slot)
            elif not self._answer_slot(slot, kind):
                break
        self._pass_on(data, self._start)
        framer.release()

    def _unrequested(self) -> None:
        """Pass on what comes while no reply is owed: pushes, or what cannot be counted."""
        framer = self._framer
        if self.uncounted():
            framer.skip_all()
            return
        framer.skip(0)
        if framer.pos < len(framer.buf) and not framer.mid and not framer.at_push():
            self._stop_counting()

    def _answer_slot(self, slot: Slot, kind: int) -> bool:
        """Treat the first slot, which is no run of replies. Returns whether to go on."""
        framer = self._framer
        if kind == S_MISSING:
            return False
        if kind == S_LOCAL:
            if framer.mid:
                framer.skip(0, False)  # the pushes behind it may answer later commands
            if framer.mid:
                return False
            self._put(framer.pos, slot.data)
            self.remove_reply(slot)
            return True
        if framer.mid or framer.at_push():
            framer.skip(0)
            if framer.mid or framer.at_push():
                return False
        if slot.call is None and slot.edit is None and kind != S_DROP:
            line = framer.line()
            if not line:
                return False
            if kind != S_HIT or line[0] != _ERROR:
                self._state.answered(slot, line)
                slot.kind = S_PASS
                slot.passed += 1
                return True
        return self._take_frame(slot)

    def touches(self, buf: bytes, pos: i64, end: i64) -> bool:
        """Return whether a command names the key of a hit that may have to be sent again.

        pos, end: offsets in `buf` of the header of its first argument, and of its end.
        """
        while pos < end:
            after = encoding.content(buf, pos)[1] + 2
            slot = self.head
            while slot is not None:
                call = slot.call
                if slot.by_sha and call is not None and encoding.same(call.key, buf, pos, after):
                    return True
                slot = slot.next
            pos = after
        return False

    def awaits_lane(self) -> bool:
        """Return whether further replies wait for that to a hit which is sent again."""
        return self.head is not None and self.head.kind == S_MISSING

    def lane_replied(self, reply: bytes) -> None:
        """Pass on `reply` to a hit that Redis had not run, and the replies that wait behind it."""
        slot = self.head
        if slot is None or slot.kind != S_MISSING:
            return
        if slot.edit is not None:
            reply = slot.edit(reply)
        if slot.call is not None:
            reply = self._counted(slot.call, reply)
        self.to_client.append(reply)
        self.remove_reply(slot)
        self.answer()

    def answer_late(self, before: float, last_reply_at: float) -> float:
        """Answer the hits that are unanswered since `before` or longer, and the proxy's own replies
        between them and behind them. The replies of Redis are dropped when they come.

        before: time in seconds.
        last_reply_at: time of the latest reply. A hit is unanswered since that time, or since it
            was sent, whichever is later.

        Returns the time since which the first of them was unanswered; 0 if there is none.
        """
        failure = self._failure
        first: float = 0.0
        slot = self.head
        while slot is not None and not self._framer.mid:
            if slot.kind == S_HIT and slot.call is not None:
                since = max(last_reply_at, slot.sent_at)
                if since > before:
                    break
                self.to_client.append(failure.reply(slot.call, failure.too_late(), "late"))
                self.set_kind(slot, S_DROP)
                first = first or since
            elif slot.kind == S_LOCAL:
                self.to_client.append(slot.data)
                self.set_kind(slot, S_PASS)
            if slot.kind not in (S_DROP, S_PASS) or slot.passed > 0:
                break
            slot = slot.next
        return first

    def _take_frame(self, slot: Slot) -> bool:
        """Pass on, or replace, the whole reply of `slot`. Returns whether to go on."""
        framer = self._framer
        before = framer.pos
        frame = framer.frame()
        if not frame:
            if framer.broken:
                self._stop_counting()
            return False
        if slot.by_sha and frame[0] == _ERROR and _not_run(frame):
            self._put(before, b"")
            self._failure.stats.noscript += 1
            slot.kind = S_MISSING
            self.missing = slot.call
            return False
        edit = slot.edit
        reply = edit(frame) if edit is not None else frame
        if slot.kind == S_DROP:
            reply = b""
        elif slot.kind == S_HIT and frame[0] == _ERROR:
            reply = encoding.clean_error(frame)
            if slot.call is None and reply.startswith(b"-READONLY"):
                self._failure.server.on_read_only()
        if slot.call is not None:
            reply = self._counted(slot.call, reply)
        if reply is not frame:
            self._put(before, reply)
        self._state.answered(slot, frame)
        self.remove_reply(slot)
        return True

    def _counted(self, call: Call, reply: bytes) -> bytes:
        """Count the outcome of `call` by its reply. Returns the reply for the client."""
        call.key = brief(call.key)  # counters collect keys; one of a private call may have 64 KB
        return self._failure.answered(call, reply)

    def _put(self, end: int, reply: bytes) -> None:
        """Pass on the bytes up to `end`, and `reply` in place of the frame behind them."""
        if end > self._start:
            self.to_client.append(self._framer.buf[self._start : end])
        self._start = self._framer.pos
        if reply:
            self.to_client.append(reply)

    def lost(self) -> bool:
        """Handle the end of the connection, and so of the client: no reply that is owed will come.

        Returns True if a frame was passed on in part; with calls on a lane, that is a push.
        """
        framer = self._framer
        mid = framer.mid
        slot = self.head
        if slot is None or slot.kind == S_PASS:
            left = framer.rest()
            if left:
                self.to_client.append(left)
        while slot is not None:
            if slot.call is not None:
                self._counted(slot.call, encoding.LOST)
            slot = slot.next
        return mid

    def forget(self) -> None:
        """Remove all slots. Their hits count as unseen: their outcome will not be observed."""
        slot = self.head
        while slot is not None:
            if slot.call is not None:
                self._failure.stats.unanswered(slot.call.take_row(), UNSEEN)
            slot = slot.next
        self.clear()
        self.missing = None

    def _pass_on(self, data: bytes, start: int) -> None:
        end = self._framer.pos
        if end > start:
            self.to_client.append(data if start == 0 and end == len(data) else data[start:end])

    def _stop_counting(self) -> None:
        """Pass on all bytes as they come from here on."""
        self._framer.skip_all()
        self.forget()
        self._state.lower(RAW)


def _not_run(error: bytes) -> bool:
    """Whether Redis has not run a hit by EVALSHA that gets `error`. EVAL might run it."""
    if error.startswith(b"-NOSCRIPT "):
        return True
    return encoding.refused_eval(error) == b"EVALSHA"
