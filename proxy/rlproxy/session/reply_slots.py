"""The replies that one private connection owes: one slot for each, in request order. No I/O.

    to_client <── answer() <── feed() <── Redis
                    |
                 slot -> slot -> slot        expect() puts one there for each request

Most slots are runs of replies that are passed on unseen. Some are looked at first (a hit's error
loses the script's name, AUTH's +OK makes an identity), some are no reply of Redis' at all (the
error of a wrong hit, sent when its turn comes), some are dropped (of commands that we put in), some
are edited: small ones whole (Catch), large ones value by value as they stream past (Unfold). What
is looked at is told to the ConnectionState. Once replies can't be counted, all is passed on as it
comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.outcomes import NO_ROW, UNSEEN
from rlproxy.resp import encoding as r
from rlproxy.resp.framing import ReplyFramer
from rlproxy.session import connection_state as s
from rlproxy.session.connection_state import NOT_LATE, Catch, ConnectionState, Slot, Unfold
from rlproxy.session.timeouts import NEVER, NOTHING

MAX_SLOTS: Final = 65536  # replies followed one by one; beyond, the stream is passed on uncounted
LAST_REPLY: Final = 24  # bytes by which a protocol error is known

# Replies to commands of our own.
_NOT_THE_CLIENTS: Final = (s.S_DROP, s.S_BASE, s.S_ASKED)
_REFUSED_SUBSCRIBED: Final = b"-ERR Can't execute '"


class ReplySlots:
    """What a private connection owes, and what of it goes to the client (into `out`)."""

    __slots__ = (
        "_counting",
        "_head",
        "_last_reply",
        "_names",
        "_replies",
        "_slots",
        "_state",
        "_stats",
        "_tail",
        "decided",
        "decided_kind",
        "decided_line",
        "hushed",
        "identity_moved",
        "late_since",
        "oldest",
        "ours",
        "out",
        "raw",
        "read_only",
    )

    def __init__(
        self, state: ConnectionState, out: list[bytes], stats: Counters | None = None
    ) -> None:
        self._state = state
        self._stats = stats or Counters()
        self.out = out  # what goes to the client; perhaps, for a time, nowhere
        self._replies = ReplyFramer()
        self._head: Slot | None = None
        self._tail: Slot | None = None
        self._slots: int = 0
        self.ours: int = 0  # of these for hits that may be late, or for replies of our own
        self._counting = True  # requests still get slots
        self._names: dict[bytes, bytes] | None = None  # subscribed: see remember_name()
        self._last_reply: bytes = b""  # how the latest one begins, while more are owed
        self.raw = False  # everything is passed on as it comes
        self.hushed = False  # Redis will close without a word
        self.oldest: float = NOTHING  # see late()
        self.late_since: float = 0.0
        # What the latest look has brought: for the caller to read, and to clear.
        self.identity_moved = False  # a reply that may have changed user or database
        self.read_only = False  # a hit was told that the server is a replica
        self.decided = False  # the last slot of all was looked at: its kind, how its reply begins
        self.decided_kind: int = s.S_PASS
        self.decided_line: bytes = b""

    # -- what is owed -----------------------------------------------------------------------------

    def owing(self) -> bool:
        """Whether any reply is owed that the client may be waiting for."""
        slot = self._first_of_client()
        return slot is not None and slot.kind not in (s.S_FRAMED, s.S_RAW)

    def _first_of_client(self) -> Slot | None:
        """The first slot that is not for a reply to be dropped."""
        slot = self._head
        while slot is not None and (slot.kind == s.S_DROP or slot.kind == s.S_BASE):
            slot = slot.next
        return slot

    def owed_to_commands(self) -> int:
        """How many replies are owed to commands of the client's that are not of the family."""
        number = 0
        slot = self._head
        while slot is not None:
            kind = slot.kind
            if kind not in (s.S_HIT, s.S_LOCAL) and kind not in _NOT_THE_CLIENTS:
                number += slot.count if kind == s.S_PASS else 1
            slot = slot.next
        return number

    def settled(self) -> bool:
        """Whether the client is owed nothing: what is said to it now is in its place."""
        return self._first_of_client() is None and not self._replies.mid

    def quiescent(self) -> bool:
        """Whether nothing at all is owed, and no frame is half passed on."""
        return self._head is None and not self._replies.mid

    def mid(self) -> bool:
        """Whether a frame is half passed on."""
        return self._replies.mid

    def counting(self) -> bool:
        """Whether replies to what is sent now will be told apart."""
        return self._counting

    def can_count(self) -> bool:
        """Whether a slot of our own may be put among those of the client's commands."""
        return self._state.countable() and self._counting and self._slots < MAX_SLOTS - 2

    def expect_one(self) -> None:
        """One more reply that is passed on without a look."""
        tail = self._tail
        if tail is not None and tail.kind == s.S_PASS:
            if self._counting:
                tail.count += 1
            return
        self.expect(Slot(s.S_PASS))

    def expect(self, slot: Slot) -> None:
        """One more reply, to be treated as `slot` says."""
        if not self._counting:
            if slot.kind == s.S_RAW:
                self._names = None  # frames can't be told any more either
            return
        if self._slots >= MAX_SLOTS and slot.kind != s.S_RAW:
            self._state.lower(s.RAW)
            slot = Slot(s.S_RAW)
        if slot.kind == s.S_RAW:
            self._counting = False
        elif slot.kind == s.S_FRAMED:
            self._counting = False
            self._names = {}
        if self._tail is None:
            self._head = slot
        else:
            self._tail.next = slot
        self._tail = slot
        self._slots += 1
        if slot.kind == s.S_LOCAL or slot.limit != NOT_LATE:
            self.ours += 1

    def local(self, reply: bytes) -> None:
        """A reply of our own, when its turn comes: behind QUIT it never does."""
        if self._state.quitting:
            return
        if self.settled():
            self.out.append(reply)
        else:
            self.expect(Slot(s.S_LOCAL, reply))

    def remember_name(self, sent_as: bytes, name: bytes) -> None:
        """A command `name` of ours goes as `sent_as`: should it be refused in a subscribed session,
        the error is to tell its own name.
        """
        names = self._names
        if names is not None and names.get(sent_as, name) != b"":
            names[sent_as] = name.lower()

    def own_name(self, name: bytes) -> None:
        """The client itself uses a command that ours go as: then its errors keep their text."""
        names = self._names
        if names is not None and (name == b"EVAL" or name == b"DEL"):
            names[name.lower()] = b""

    # -- what comes -------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Bytes of Redis; answer() passes them on."""
        self._replies.feed(data)

    def pass_pushes(self) -> None:
        """Pass on the rest of a push that is half passed on, and pushes behind it."""
        replies = self._replies
        start = replies.pos
        replies.skip(0)
        self._pass_on(replies.buf, start)

    def answer(self) -> None:
        """Pass on what has come, slot by slot."""
        replies = self._replies
        data = replies.buf
        size = len(data)
        start = replies.pos  # of what goes as it came
        while True:
            slot = self._head
            if slot is None:
                replies.skip(0)  # pushes come any time
                if replies.pos < size and not replies.mid and not replies.at_push():
                    self._go_raw()  # nobody asked for this
                break
            kind = slot.kind
            if kind == s.S_PASS or kind == s.S_VALUES:
                # (a push behind the last value would come before what is ours in that reply)
                slot.count -= replies.skip(slot.count, kind == s.S_PASS)
                if replies.broken:
                    self._go_raw()
                    break
                if slot.count > 0:
                    break
                self._pop()
                continue
            if kind == s.S_INSIDE:
                self._pass_on(data, start)
                start = replies.pos
                self.out.append(slot.data)
                self._pop()
                continue
            if replies.mid or replies.at_push():
                replies.skip(0)
                if replies.mid or replies.at_push():
                    break
            if kind == s.S_LOCAL:
                self._pass_on(data, start)
                start = replies.pos
                if not self._state.quitting:
                    self.out.append(slot.data)
                self._pop()
                continue
            if kind == s.S_RAW:
                self._go_raw()
                break
            if kind == s.S_FRAMED:
                start = self._framed(start)
                break
            line = replies.line()
            if not line:
                break
            if isinstance(slot, Catch):
                before = replies.pos
                frame = replies.frame()
                if not frame:
                    if replies.broken:
                        self._go_raw()
                    break
                if before > start:
                    self.out.append(data[start:before])
                edited = slot.edit(frame)
                if slot.row != NO_ROW:
                    self._stats.answered(slot.row, edited or frame, slot.data)
                if edited:
                    self.out.append(edited)
                start = replies.pos
                self._pop()
                continue
            if isinstance(slot, Unfold):
                inside = slot.unfold(line)
                if inside:
                    self._pass_on(data, start)
                    replies.open()
                    start = replies.pos
                    self._replace(inside)
                else:
                    slot.kind = s.S_PASS
                continue
            instead = _instead(slot, line)
            counted = slot.row != NO_ROW
            if instead is None and not counted:
                self._look(slot, line)
                slot.kind = s.S_PASS
                slot.count = 1
                continue
            before = replies.pos
            frame = replies.frame()
            if not frame:
                if replies.broken:
                    self._go_raw()
                break
            if counted:
                self._stats.answered(slot.row, frame, slot.data)
                slot.row = NO_ROW
            if instead is not None:
                if before > start:
                    self.out.append(data[start:before])
                if instead:
                    self.out.append(instead)
                start = replies.pos
            self._look(slot, line)
            self._pop()
        self._pass_on(data, start)
        self._remember_last(data)

    def lost(self) -> bool:
        """The connection ended: answer what certainly was ours, in order, up to the first reply
        that the client's own command is owed. True if half a push was passed on.
        """
        replies = self._replies
        slot = self._head
        mid = replies.mid
        if not self.raw:
            broken_off = mid
            if slot is None or slot.kind not in _NOT_THE_CLIENTS:
                left = replies.rest()
                edited = isinstance(slot, (Catch, Unfold))  # half of that helps nobody
                hit = slot is not None and slot.kind == s.S_HIT
                if left and not (hit and slot is not None and (edited or slot.row != NO_ROW)):
                    broken_off = True
                    if not edited:
                        self.out.append(left)
            if (
                self.hushed
                or self._state.quitting
                or self._last_reply.startswith(b"-ERR Protocol error")
            ):
                broken_off = True  # Redis closed on purpose, and has said what it had to say
            while slot is not None and not broken_off:
                if slot.kind == s.S_HIT:
                    self._stats.answered(slot.row, r.LOST, slot.data)
                    slot.row = NO_ROW
                    self.out.append(r.LOST)
                elif slot.kind == s.S_LOCAL:
                    self.out.append(slot.data)
                elif slot.kind not in _NOT_THE_CLIENTS:
                    break
                slot = slot.next
        self.forget()
        self._head = self._tail = None
        self.ours = 0
        self._replies = ReplyFramer()
        return mid

    def forget(self) -> None:
        """Nobody is told any more what is owed: what becomes of its hits is not seen."""
        slot = self._head
        while slot is not None:
            self._stats.unanswered(slot.row, UNSEEN)
            slot.row = NO_ROW
            slot = slot.next

    def late(self, before: float, heard_at: float, instead: Callable[[Slot], bytes]) -> int:
        """Give the client `instead`, called with its slot, of every hit that is
        unanswered since `before` or longer: since it was sent, or since all before it had been
        answered. The replies to these are dropped when they come. Returns how many these were.

        `late_since` is since when the first of them was unanswered, `oldest` since when the first
        of the others is: NEVER if something comes before it that takes as long as it takes,
        NOTHING if there is none.
        """
        number = 0
        self.oldest = NOTHING
        slot = self._head
        ahead: Slot | None = None
        while slot is not None and not self._replies.mid:
            kind = slot.kind
            if kind == s.S_HIT and slot.limit != NOT_LATE:
                since = max(heard_at, slot.sent_at)
                if since > before:
                    self.oldest = since
                    return number
                self.out.append(instead(slot))
                self._drop(slot)
                if number == 0:
                    self.late_since = since
                number += 1
            elif kind == s.S_LOCAL and ahead is not None:
                self.out.append(slot.data)
                ahead.next = slot.next
                self._slots -= 1
                self.ours -= 1
                if slot.next is None:
                    self._tail = ahead
                slot = slot.next
                continue
            elif kind != s.S_DROP and kind != s.S_BASE:
                break
            ahead = slot
            slot = slot.next
        while slot is not None:
            if slot.kind == s.S_HIT and slot.limit != NOT_LATE:
                self.oldest = NEVER
                break
            slot = slot.next
        return number

    def turned_away(self, reply: Callable[[], bytes], instead: Callable[[Slot], bytes]) -> bool:
        """Redis has read none of the requests: give the client a `reply` for each, or `instead`
        for a hit. Whether there was a reply for each.
        """
        slot = self._head
        self._head = self._tail = None
        self.ours = 0
        while slot is not None:
            kind = slot.kind
            if kind in (s.S_RAW, s.S_FRAMED):
                self.out.append(reply())
                return False
            if kind == s.S_LOCAL:
                self.out.append(slot.data)
            elif kind == s.S_HIT and slot.limit != NOT_LATE:
                self.out.append(instead(slot))
            elif kind not in _NOT_THE_CLIENTS:
                self.out += [reply() for _ in range(slot.count if kind == s.S_PASS else 1)]
            slot = slot.next
        return True

    def forget_asked(self) -> None:
        """The question that is owed an answer is nobody's any more."""
        slot = self._head
        while slot is not None:
            if slot.kind == s.S_ASKED:
                slot.kind = s.S_DROP
            slot = slot.next

    def _drop(self, slot: Slot) -> None:
        slot.kind = s.S_DROP
        slot.row = NO_ROW
        slot.limit = NOT_LATE
        self.ours -= 1
        if isinstance(slot, Catch):
            slot.edit = _silent(slot.edit)

    def _look(self, slot: Slot, line: bytes) -> None:
        self._state.answered(slot, line)
        if slot.kind == s.S_HIT and line.startswith(b"-") and line.find(b"-READONLY ") >= 0:
            self.read_only = True
        if slot.kind in (s.S_AUTH, s.S_HELLO, s.S_PROTOCOL, s.S_SELECT, s.S_RESET):
            self.identity_moved = True
        if slot.next is None:
            self.decided = True
            self.decided_kind = slot.kind
            self.decided_line = line

    def _pass_on(self, data: bytes, start: int) -> None:
        end = self._replies.pos
        if end > start:
            self.out.append(data if start == 0 and end == len(data) else data[start:end])

    def _remember_last(self, data: bytes) -> None:
        replies = self._replies
        if self.raw:
            left = replies.rest()
            if left:
                self.out.append(left)
            return
        if self._head is None:
            self._last_reply = b""
        elif replies.last >= 0:
            self._last_reply = data[replies.last : replies.last + LAST_REPLY]
        elif len(self._last_reply) < LAST_REPLY:
            self._last_reply += data[: LAST_REPLY - len(self._last_reply)]
        replies.release()

    def _pop(self) -> None:
        slot = self._head
        assert slot is not None
        self._head = slot.next
        self._slots -= 1
        if slot.kind == s.S_LOCAL or slot.limit != NOT_LATE:
            self.ours -= 1
        if slot.next is None:
            self._tail = None

    def _replace(self, slots: list[Slot]) -> None:
        """Put `slots` in the place of the first one."""
        head = self._head
        assert head is not None
        self._head = slots[0]
        last = slots[0]
        for slot in slots[1:]:
            last.next = slot
            last = slot
        last.next = head.next
        if last.next is None:
            self._tail = last
        self._slots += len(slots) - 1

    def _go_raw(self) -> None:
        """From here on replies are passed on as they come."""
        self.raw = True
        self._counting = False
        self.forget()
        self._head = self._tail = None
        self.ours = 0
        self._state.lower(s.RAW)

    def _framed(self, start: int) -> int:
        """Subscribed: pass frames on, but let an error about our EVAL name what the client sent.

        Returns where the bytes begin that were not passed on here.
        """
        replies = self._replies
        data = replies.buf
        size = len(data)
        while replies.pos < size:
            names = self._names
            if names is None:
                self._go_raw()
                break
            if not replies.mid and data[replies.pos] == 45:  # an error
                if size - replies.pos < len(_REFUSED_SUBSCRIBED):
                    if _REFUSED_SUBSCRIBED.startswith(data[replies.pos :]):
                        break
                elif data.startswith(_REFUSED_SUBSCRIBED, replies.pos):
                    line = replies.line()
                    if not line:
                        break
                    sent_as = line[len(_REFUSED_SUBSCRIBED) :].partition(b"'")[0]
                    name = names.get(sent_as, b"")
                    if name:
                        self._pass_on(data, start)
                        replies.frame()
                        start = replies.pos
                        self.out.append(line.replace(b"'" + sent_as + b"'", b"'" + name + b"'", 1))
                        continue
            before = replies.pos
            replies.skip(1)
            if replies.broken:
                self._go_raw()
                break
            if replies.pos == before:
                break
        return start


def _silent(edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """`edit`, with nothing left for the client."""

    def silent(reply: bytes) -> bytes:
        edit(reply)
        return b""

    return silent


def _instead(slot: Slot, line: bytes) -> bytes | None:
    """What the client gets instead of the reply that begins with `line`; None: the reply itself."""
    kind = slot.kind
    if kind in (s.S_DROP, s.S_BASE):
        return b""
    if kind == s.S_WRONG and line.startswith(b"-ERR unknown command"):
        return slot.data
    if kind == s.S_HIT and line.startswith(b"-"):
        cleaned = r.clean_error(line)
        if cleaned != line:
            return cleaned
    return None
