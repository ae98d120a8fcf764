"""The state that Redis holds for one private connection, as far as it is certain.

Pure bookkeeping, without sockets and without decisions on routes. `sent()` gets each command as it
goes upstream and returns the slot for its reply. `answered()` gets the first line of that reply.
The state answers three questions about the connection. It is *plain* if it has no state that a hit
could notice. It is *known* if its identity is certain. It is *probed* if Redis itself let a hit of
it pass.

    level     PLAIN    every command was in the table, every reply is one frame
              COUNTED  an unknown command was sent: private until RESET is answered +RESET
              RAW      replies cannot be counted (subscriptions, MONITOR): private for good

Levels fall when a command is *sent*, and rise only when its reply is *seen* at its own place. A
flag that a later request may set again has a count of such requests (`_gen`). A reply clears the
flag only if the count has not changed since its request.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands as c
from rlproxy.resp.commands import Command
from rlproxy.session import slots as s
from rlproxy.session.identity import Identity, credential, database
from rlproxy.session.slots import Slot

RAW: Final = 0
COUNTED: Final = 1
PLAIN: Final = 2


class ConnectionState:
    """The state of one private connection. See the module's docstring."""

    __slots__ = (
        "_level_gen",
        "_multi_gen",
        "_watch_gen",
        "asking",
        "base_db",
        "base_owed",
        "chosen_db",
        "identity",
        "known",
        "level",
        "multi",
        "probed",
        "probing",
        "protocol",
        "quitting",
        "watching",
    )

    def __init__(self, base_db: int) -> None:
        self.base_db = base_db  # the database of --upstream
        self.level: int = PLAIN
        self.identity = Identity(None, None, base_db)
        self.known = True
        self.probed = False
        self.probing = False  # a reply is owed that decides on `probed`
        self.protocol = 2  # of its replies; 0: not certain
        self.multi = False  # it may be inside MULTI
        self.watching = False  # keys may be watched
        self.asking = False  # the next command follows ASKING
        self.quitting = False  # QUIT was answered +OK
        self.chosen_db = False  # the client itself selected its database
        self.base_owed = base_db != 0  # SELECT of base_db has not succeeded yet
        self._level_gen: int = 0
        self._multi_gen: int = 0
        self._watch_gen: int = 0

    def plain(self) -> bool:
        """Return whether a hit may go by lane without a difference that the client can observe."""
        return (
            self.level == PLAIN
            and self.known
            and self.probed
            and not self.multi
            and not self.watching
            and not self.asking
            and not self.quitting
            and (self.chosen_db or not self.base_owed)
        )

    def countable(self) -> bool:
        """Return whether a reply of the proxy can be put at its place among the server's."""
        return self.level == PLAIN and not self.multi

    def leaves_base(self, command: Command) -> bool:
        """Return whether the proxy's SELECT must follow `command` to stay in its database."""
        return command.kind == c.RESET or (
            self.base_owed and command.kind in (c.AUTH, c.HELLO) and self.level < COUNTED
        )

    def lower(self, level: int) -> None:
        """Trust no more than `level` from this request on."""
        self._level_gen += 1
        self.level = min(self.level, level)

    # -- requests ---------------------------------------------------------------------------------

    def sent(self, command: Command, args: list[bytes], complete: bool) -> Slot | None:
        """Record a command that goes upstream now. Return the slot for its reply; None: PASS.

        args: its arguments without the name, if its row in the table requires them.
        complete: `args` is complete; False if the rest was too long to be looked at.
        """
        kind = command.kind
        self.asking = kind == c.ASKING
        if kind in (c.PASS, c.ASKING, c.WAIT, c.INTROSPECT):
            return None
        if self.level < PLAIN:
            return self._sent_private(kind)
        if kind == c.MULTI:
            slot = Slot(s.S_MULTI)
            slot.count = 1 if self.multi else 0
            self.multi = True
            self._multi_gen += 1
            slot.gen = self._multi_gen
            return slot
        if kind == c.EXEC:
            return self._transaction_slot(s.S_EXEC)
        if kind == c.DISCARD:
            return self._transaction_slot(s.S_DISCARD)
        if kind == c.WATCH:
            self.watching = True
            self._watch_gen += 1
            return None
        if kind == c.UNWATCH:
            return self._transaction_slot(s.S_UNWATCH)
        if kind == c.QUIT:
            return Slot(s.S_QUIT)
        if kind == c.RESET:
            return self._reset_slot()
        if kind in (c.PUBSUB, c.STREAM, c.HTTP):
            return self._fall(RAW)
        if kind == c.SCRIPT:
            if args and args[0].upper() in c.SCRIPT_STATELESS:
                return None
            return self._fall(RAW)  # SCRIPT DEBUG puts the connection under a debugger
        if kind == c.CLIENT:
            return self._sent_client(args)
        if self.multi or not complete or kind == c.UNKNOWN:
            return self._fall(COUNTED)
        if kind == c.SELECT:
            return self._sent_select(args)
        if kind == c.AUTH:
            return self._sent_auth(args)
        return self._sent_hello(args)

    def writes_before_auth(self) -> bool:
        """Return whether Redis may have bytes to write when it runs an AUTH.

        These are the head of EXEC's array or a push, while no reply is owed.
        """
        return self.multi or (self.level == COUNTED and self.protocol != 2)

    def sent_unsure(self) -> Slot | None:
        """Record a command that goes upstream now and may get no reply."""
        self.asking = False
        return self._fall(RAW)

    def _sent_private(self, kind: int) -> Slot | None:
        if self.level == COUNTED:
            if kind == c.RESET:
                return self._reset_slot()
            if kind in (c.MULTI, c.PUBSUB, c.STREAM, c.HTTP, c.CLIENT, c.SCRIPT):
                return self._fall(RAW)
            if kind in (c.AUTH, c.HELLO):
                self._level_gen += 1
                return Slot(s.S_AUTH if kind == c.AUTH else s.S_HELLO)
            if kind == c.QUIT:
                return Slot(s.S_QUIT)
        self._level_gen += 1
        return None

    def _fall(self, level: int) -> Slot | None:
        self.lower(level)
        return Slot(s.S_RAW) if self.level == RAW else None

    def _transaction_slot(self, kind: int) -> Slot:
        slot = Slot(kind)
        slot.gen = self._multi_gen
        slot.watch_gen = self._watch_gen
        return slot

    def _reset_slot(self) -> Slot:
        slot = Slot(s.S_RESET)
        slot.gen = self._level_gen
        slot.watch_gen = self._multi_gen + self._watch_gen
        return slot

    def _sent_client(self, args: list[bytes]) -> Slot | None:
        word = args[0].upper().partition(b"\0")[0] if args else b""
        if word in c.CLIENT_STATELESS:
            return None
        if word == b"REPLY" or not args:
            return self._fall(RAW)
        if word in c.CLIENT_IF_REFUSED and not self.multi:
            return Slot(s.S_IF_REFUSED)
        return self._fall(COUNTED)

    def _sent_select(self, args: list[bytes]) -> Slot | None:
        slot = Slot(s.S_SELECT)
        number = database(args[0]) if len(args) == 1 else -1
        if number >= 0:
            slot.identity = Identity(None, None, number)
        return slot

    def _sent_auth(self, args: list[bytes]) -> Slot | None:
        slot = Slot(s.S_AUTH)
        if len(args) == 1:
            slot.identity = credential(b"default", args[0])
        elif len(args) == 2:
            slot.identity = credential(args[0], args[1])
        return slot

    def _sent_hello(self, args: list[bytes]) -> Slot | None:
        if not args:
            return None
        slot = Slot(s.S_HELLO)
        slot.protocol = int(args[0]) if args[0] in (b"2", b"3") else 0
        index = 1
        while index < len(args):
            # Redis compares these words as C strings, so a NUL ends them.
            word = args[index].upper().partition(b"\0")[0]
            if word == b"AUTH" and index + 2 < len(args):
                slot.identity = credential(args[index + 1], args[index + 2])
                if slot.identity is None:
                    return slot
                index += 3
            elif word == b"SETNAME" and index + 1 < len(args):
                index += 2
            else:
                slot.identity = None
                return slot  # unfamiliar option: the identity is uncertain afterwards
        if slot.identity is None:
            slot.kind = s.S_PROTOCOL
        return slot

    # -- replies ----------------------------------------------------------------------------------

    def answered(self, slot: Slot, line: bytes) -> None:
        """Record the first line of the reply for `slot`."""
        kind = slot.kind
        refused = line.startswith(b"-")
        if kind in (s.S_AUTH, s.S_HELLO):
            self._answered_auth(slot, refused)
            if kind == s.S_HELLO:
                self.protocol = 0 if refused else slot.protocol
        elif kind == s.S_PROTOCOL:
            if not refused:
                self.protocol = slot.protocol
        elif kind == s.S_PROBE:
            self.probing = False
            if not refused:
                self.probed = True
        elif kind == s.S_SELECT:
            if not refused:
                self.chosen_db = True
                if slot.identity is None or line != b"+OK\r\n":
                    self.lower(COUNTED)
                else:
                    old = self.identity
                    self.identity = Identity(old.user, old.password, slot.identity.db)
        elif kind == s.S_RESET:
            self._answered_reset(slot, line)
        elif kind == s.S_MULTI:
            nested = slot.count > 0 or line.startswith(b"-ERR MULTI calls can not be nested")
            if refused and not nested:
                self._no_transaction(slot)
        elif kind == s.S_EXEC:
            if not refused or line.startswith(b"-EXECABORT"):
                self._transaction_over(slot)
            elif line.startswith(b"-ERR EXEC without MULTI"):
                self._no_transaction(slot)
        elif kind == s.S_DISCARD:
            if line == b"+OK\r\n":
                self._transaction_over(slot)
            elif line.startswith(b"-ERR DISCARD without MULTI"):
                self._no_transaction(slot)
        elif kind == s.S_UNWATCH:
            if line == b"+OK\r\n" and slot.watch_gen == self._watch_gen:
                self.watching = False
        elif kind == s.S_QUIT:
            if not refused:
                self.quitting = True
        elif kind == s.S_IF_REFUSED:
            if not refused:
                self.lower(COUNTED)
        elif kind == s.S_BASE:
            if line == b"+OK\r\n":
                self.base_owed = False
        elif kind == s.S_HIT and line.startswith(b"*"):
            self.probed = True

    def _answered_auth(self, slot: Slot, refused: bool) -> None:
        if refused and slot.kind == s.S_AUTH:
            return
        if slot.identity is None or refused:
            self.known = False
        else:
            found = slot.identity
            self.identity = Identity(found.user, found.password, self.identity.db)
            self.known = True
        self.probed = False

    def _answered_reset(self, slot: Slot, line: bytes) -> None:
        if line != b"+RESET\r\n":
            if not line.startswith(b"-"):
                self.lower(RAW)
            return
        if slot.gen == self._level_gen:
            self.level = PLAIN
        if slot.watch_gen == self._multi_gen + self._watch_gen:
            self.multi = False
            self.watching = False
        self.identity = Identity(None, None, self.base_db)
        self.known = True
        self.probed = False
        self.protocol = 2
        self.chosen_db = False
        self.base_owed = self.base_db != 0

    def _no_transaction(self, slot: Slot) -> None:
        if slot.gen == self._multi_gen:
            self.multi = False

    def _transaction_over(self, slot: Slot) -> None:
        self._no_transaction(slot)
        if slot.watch_gen == self._watch_gen:
            self.watching = False
