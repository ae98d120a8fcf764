"""Reply slots: the replies that a private connection owes, the kind of each, and their queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.call import Call
from rlproxy.session.identity import Identity

# Kinds of replies. They are looked at; those behind them, see Slot.passed, are not. The reply to a
# command that may change the connection's state has the kind of the command, in `commands`.
S_PASS: Final = 0  # as commands.PASS: no such reply, or no longer; only the run behind it is left
S_HIT: Final = 99  # the reply to a hit
S_LOCAL: Final = 100  # no reply of Redis: `data` goes to the client in its turn
S_DROP: Final = 101  # not for the client: of a command of the proxy's own, or of a late hit
S_MISSING: Final = 102  # a hit that Redis has not run: it is sent again by lane
S_EDITED: Final = 103  # the client gets the result of `edit`
S_PROTOCOL: Final = 104  # HELLO without AUTH: the reply decides the protocol
S_PROBE: Final = 105  # shows whether Redis lets the client run any command


class Slot:
    """One reply that the private connection owes, and the run of replies behind it.

    passed: length of the run, whose replies are passed on without a look.
    edit: returns what the client gets for the whole reply. b"": nothing.
    """

    def __init__(
        self, kind: int, data: bytes = b"", edit: Callable[[bytes], bytes] | None = None
    ) -> None:
        self.kind = kind
        self.passed = 0
        self.data = data
        self.edit = edit
        self.number = 0  # that of ConnectionState when its request was sent
        self.protocol = 0  # requested by a HELLO
        self.identity: Identity | None = None
        self.call: Call | None = None  # of a hit that may be late, whose outcome is counted
        self.sent_at: float = 0.0  # time of sending `call`, in seconds
        self.by_sha = False  # it went by EVALSHA: a lane can send `call` again
        self.next: Slot | None = None


class OwedReplies:
    """A linked list of slots.

    count: their number.
    bounded: number of slots of hits that may be late, and of replies of the proxy.
    unanswered_by_sha: number of hits by EVALSHA that a lane may have to send again.
    may_block: a command that may block was sent since the list was last empty.
    """

    def __init__(self) -> None:
        self.head: Slot | None = None
        self.tail: Slot | None = None
        self.count: int = 0
        self.bounded: int = 0
        self.unanswered_by_sha: int = 0
        self.may_block = False

    def append(self, slot: Slot) -> None:
        """Append `slot`."""
        if self.tail is None:
            self.head = slot
        else:
            self.tail.next = slot
        self.tail = slot
        self.count += 1
        if slot.kind == S_LOCAL or slot.call is not None:
            self.bounded += 1
        self.unanswered_by_sha += slot.by_sha

    def remove_reply(self, slot: Slot) -> None:
        """Remove the reply of the first slot, and the slot itself if no run is behind it."""
        self.set_kind(slot, S_PASS)
        if slot.passed > 0:
            return
        self.count -= 1
        self.head = slot.next
        if slot.next is None:
            self.tail = None
            self.may_block = False

    def set_kind(self, slot: Slot, kind: int) -> None:
        """Change the kind of `slot`, which counts in `bounded` and `unanswered_by_sha` no longer.

        kind: S_PASS, or S_DROP if the reply of Redis to a late hit has to be dropped. A slot of
            kind S_PASS without a run leaves once it is the first.
        """
        if slot.kind == S_LOCAL or slot.call is not None:
            self.bounded -= 1
        self.unanswered_by_sha -= slot.by_sha
        slot.kind = kind
        slot.by_sha = False
        slot.call = None

    def clear(self) -> None:
        """Remove all slots."""
        self.head = self.tail = None
        self.count = 0
        self.bounded = 0
        self.unanswered_by_sha = 0
        self.may_block = False
