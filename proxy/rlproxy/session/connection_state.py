"""The state that Redis holds for one private connection, as far as it is certain.

Pure bookkeeping: `sent()` is told of each command as it goes upstream and says what must be watched
for in its reply, `answered()` is told that reply's first line. Nothing here sees a socket, and
nothing here decides where a command goes: it only answers whether the connection is *plain* (no
state that a hit could notice), *known* (whose it is, and in which database) and *probed* (Redis
itself let a hit of it pass).

    level     PLAIN    every command was of the table, every reply is one frame
              COUNTED  something unknown was sent: private until RESET is answered +RESET
              FRAMED   replies are frames but can't be counted (subscriptions): private for good
              RAW      nothing is certain of the replies: private for good

Levels fall when a command is *sent*, and rise only when its reply is *seen* at its own place. Every
flag that a later request could have set again carries the count of such requests (`_gen`), and a
reply lifts it only if nothing has happened since its request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.ratelimit.outcomes import NO_ROW
from rlproxy.resp import commands as c
from rlproxy.resp.commands import Command

RAW: Final = 0
FRAMED: Final = 1
COUNTED: Final = 2
PLAIN: Final = 3

# What a reply is waited for. PASS frames are passed on without a look; the others are looked at.
S_PASS: Final = 0
S_LOCAL: Final = 1  # no reply of the server's: `data` goes to the client when its turn comes
S_DROP: Final = 2  # the reply of a command of our own
S_HIT: Final = 3  # the reply of a hit
S_WRONG: Final = 4  # Redis' rejection of a wrong hit, to be replaced by `data`
S_RAW: Final = 5  # no counting from here on
S_FRAMED: Final = 6  # frames, but not countable, from here on
S_AUTH: Final = 7
S_SELECT: Final = 8
S_RESET: Final = 9
S_EXEC: Final = 10
S_DISCARD: Final = 11
S_UNWATCH: Final = 12
S_QUIT: Final = 13
S_IF_REFUSED: Final = 14  # leaves state on the connection unless it is refused
S_BASE: Final = 15  # our own SELECT of the database of --upstream, dropped
S_MULTI: Final = 17
S_HELLO: Final = 16  # with AUTH in it: unlike AUTH's, its error may hide a success
S_CAUGHT: Final = 18  # a Catch
S_ASKED: Final = 19  # a Catch of a reply to a command of our own, of which nothing is passed on
S_UNFOLDED: Final = 20  # an Unfold, and what may stand in its place:
S_INSIDE: Final = 21  # `data` of our own within a reply
S_VALUES: Final = 22  # `count` values of a reply, passed on without a look
S_PROTOCOL: Final = 23  # HELLO without AUTH: which protocol its connection speaks then
S_PROBE: Final = 24  # whether Redis lets the client do anything at all


MAX_CREDENTIAL_BYTES: Final = 512  # kept while Redis looks at them; longer ones are not followed


class Identity:
    """What Redis knows a connection by. `user` and `password` are None before any AUTH."""

    __slots__ = ("db", "password", "user")

    def __init__(self, user: bytes | None, password: bytes | None, db: int) -> None:
        self.user = user
        self.password = password
        self.db = db

    def key(self) -> tuple[bytes | None, bytes | None, int]:
        """What lanes are told apart by."""
        return (self.user, self.password, self.db)


NOT_LATE: Final = -1  # of a reply that is waited for, however long it takes


class Slot:
    """One reply that the private connection owes, in the order of the requests."""

    __slots__ = (
        "count",
        "data",
        "gen",
        "identity",
        "kind",
        "limit",
        "next",
        "protocol",
        "row",
        "sent_at",
        "watch_gen",
    )

    def __init__(self, kind: int, data: bytes = b"") -> None:
        self.kind = kind
        self.count = 1  # of a PASS: how many in a row
        self.data = data
        self.gen = 0
        self.watch_gen = 0
        self.protocol = 0  # that a HELLO asks for
        self.identity: Identity | None = None
        self.limit: int = NOT_LATE  # of a hit: what is told as its limit if Redis is late
        self.row: int = NO_ROW  # where it is counted; its key is `data`
        self.sent_at: float = 0.0  # and when it was sent, in seconds
        self.next: Slot | None = None


class Catch(Slot):
    """A reply that is small by nature and is awaited whole: the client gets what `edit` makes of it
    (of its bytes; empty: nothing).
    """

    __slots__ = ("edit",)

    def __init__(self, edit: Callable[[bytes], bytes], kind: int = S_CAUGHT) -> None:
        super().__init__(kind)
        self.edit = edit


class Unfold(Slot):
    """A reply that may be large and whose values are treated one by one.

    `unfold` is given its first line and returns the slots that take its place (INSIDE, VALUES and
    Catch; the first line itself is dropped), or nothing: then it is passed on as it is.
    """

    __slots__ = ("unfold",)

    def __init__(self, unfold: Callable[[bytes], list[Slot]]) -> None:
        super().__init__(S_UNFOLDED)
        self.unfold = unfold


class ConnectionState:
    """The state of one private connection. See the head of this module."""

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
        self.probing = False  # a reply is owed that tells
        self.protocol = 2  # of its replies; 0: not known
        self.multi = False  # perhaps inside MULTI
        self.watching = False  # perhaps keys are watched
        self.asking = False  # the next command follows ASKING
        self.quitting = False  # QUIT was answered +OK
        self.chosen_db = False  # the client itself chose its database
        self.base_owed = base_db != 0  # our SELECT has not succeeded yet
        self._level_gen: int = 0
        self._multi_gen: int = 0
        self._watch_gen: int = 0

    def plain(self) -> bool:
        """Whether a hit may travel elsewhere without anybody being able to tell."""
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
        """Whether a reply of our own can be put at its place among the server's."""
        return self.level == PLAIN and not self.multi

    def leaves_base(self, command: Command) -> bool:
        """Whether `command` may end in another database than that of --upstream, unless our own
        SELECT follows it.
        """
        return command.kind == c.RESET or (
            self.base_owed and command.kind in (c.AUTH, c.HELLO) and self.level < COUNTED
        )

    def lower(self, level: int) -> None:
        """Trust no more than `level` from this request on."""
        self._level_gen += 1
        self.level = min(self.level, level)

    # -- requests ---------------------------------------------------------------------------------

    def sent(self, command: Command, args: list[bytes], complete: bool) -> Slot | None:
        """A command goes upstream now. The slot to wait for its reply, or None for a plain one.

        `args` are its arguments without the name, if the command's row asks for them; `complete`
        tells whether these are all, or whether the rest was too long to be looked at.
        """
        kind = command.kind
        self.asking = kind == c.ASKING
        if kind in (c.PASS, c.ASKING, c.WAIT, c.INTROSPECT):
            return None
        if self.level < PLAIN:
            return self._sent_private(kind)
        if kind == c.MULTI:
            slot = Slot(S_MULTI)
            slot.count = 1 if self.multi else 0
            self.multi = True
            self._multi_gen += 1
            slot.gen = self._multi_gen
            return slot
        if kind == c.EXEC:
            return self._transaction_slot(S_EXEC)
        if kind == c.DISCARD:
            return self._transaction_slot(S_DISCARD)
        if kind == c.WATCH:
            self.watching = True
            self._watch_gen += 1
            return None
        if kind == c.UNWATCH:
            return self._transaction_slot(S_UNWATCH)
        if kind == c.QUIT:
            return Slot(S_QUIT)
        if kind == c.RESET:
            return self._reset_slot()
        if kind == c.PUBSUB:
            if self.multi:  # EXEC's length will lie
                return self._fall(RAW)
            return self._fall(FRAMED)
        if kind in (c.STREAM, c.HTTP):
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
        """Whether Redis may have bytes to write when it runs an AUTH, though it owes no reply: the
        head of EXEC's array, or a push.
        """
        return self.multi or (self.level == COUNTED and self.protocol != 2)

    def sent_unsure(self) -> Slot | None:
        """A command goes upstream now that may get no reply at all."""
        self.asking = False
        return self._fall(RAW)

    def _sent_private(self, kind: int) -> Slot | None:
        if self.level == COUNTED:
            if kind == c.RESET:
                return self._reset_slot()
            if kind in (c.MULTI, c.STREAM, c.HTTP, c.CLIENT, c.SCRIPT):
                return self._fall(RAW)
            if kind == c.PUBSUB:
                return self._fall(FRAMED)
            if kind in (c.AUTH, c.HELLO):
                self._level_gen += 1
                return Slot(S_AUTH if kind == c.AUTH else S_HELLO)
            if kind == c.QUIT:
                return Slot(S_QUIT)
        elif self.level == FRAMED and kind in (c.MULTI, c.STREAM, c.HTTP, c.CLIENT, c.SCRIPT):
            return self._fall(RAW)
        self._level_gen += 1
        return None

    def _fall(self, level: int) -> Slot | None:
        self.lower(level)
        if self.level == RAW:
            return Slot(S_RAW)
        if self.level == FRAMED:
            return Slot(S_FRAMED)
        return None

    def _transaction_slot(self, kind: int) -> Slot:
        slot = Slot(kind)
        slot.gen = self._multi_gen
        slot.watch_gen = self._watch_gen
        return slot

    def _reset_slot(self) -> Slot:
        slot = Slot(S_RESET)
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
            return Slot(S_IF_REFUSED)
        return self._fall(COUNTED)

    def _sent_select(self, args: list[bytes]) -> Slot | None:
        slot = Slot(S_SELECT)
        number = database(args[0]) if len(args) == 1 else -1
        if number >= 0:
            slot.identity = Identity(None, None, number)
        return slot

    def _sent_auth(self, args: list[bytes]) -> Slot | None:
        slot = Slot(S_AUTH)
        if len(args) == 1:
            slot.identity = _credential(b"default", args[0])
        elif len(args) == 2:
            slot.identity = _credential(args[0], args[1])
        return slot

    def _sent_hello(self, args: list[bytes]) -> Slot | None:
        if not args:
            return None
        slot = Slot(S_HELLO)
        slot.protocol = int(args[0]) if args[0] in (b"2", b"3") else 0
        index = 1
        while index < len(args):
            # Redis compares these words as C strings, so a NUL ends them.
            word = args[index].upper().partition(b"\0")[0]
            if word == b"AUTH" and index + 2 < len(args):
                slot.identity = _credential(args[index + 1], args[index + 2])
                if slot.identity is None:
                    return slot
                index += 3
            elif word == b"SETNAME" and index + 1 < len(args):
                index += 2
            else:
                slot.identity = None
                return slot  # whatever it does, whose connection it is then is not known
        if slot.identity is None:
            slot.kind = S_PROTOCOL
        return slot

    # -- replies ----------------------------------------------------------------------------------

    def answered(self, slot: Slot, line: bytes) -> None:
        """The reply that `slot` waited for begins with `line`."""
        kind = slot.kind
        refused = line.startswith(b"-")
        if kind in (S_AUTH, S_HELLO):
            self._answered_auth(slot, refused)
            if kind == S_HELLO:
                self.protocol = 0 if refused else slot.protocol
        elif kind == S_PROTOCOL:
            if not refused:
                self.protocol = slot.protocol
        elif kind == S_PROBE:
            self.probing = False
            if not refused:
                self.probed = True
        elif kind == S_SELECT:
            if not refused:
                self.chosen_db = True
                if slot.identity is None or line != b"+OK\r\n":
                    self.lower(COUNTED)
                else:
                    old = self.identity
                    self.identity = Identity(old.user, old.password, slot.identity.db)
        elif kind == S_RESET:
            self._answered_reset(slot, line)
        elif kind == S_MULTI:
            nested = slot.count > 0 or line.startswith(b"-ERR MULTI calls can not be nested")
            if refused and not nested:
                self._no_transaction(slot)
        elif kind == S_EXEC:
            if not refused or line.startswith(b"-EXECABORT"):
                self._transaction_over(slot)
            elif line.startswith(b"-ERR EXEC without MULTI"):
                self._no_transaction(slot)
        elif kind == S_DISCARD:
            if line == b"+OK\r\n":
                self._transaction_over(slot)
            elif line.startswith(b"-ERR DISCARD without MULTI"):
                self._no_transaction(slot)
        elif kind == S_UNWATCH:
            if line == b"+OK\r\n" and slot.watch_gen == self._watch_gen:
                self.watching = False
        elif kind == S_QUIT:
            if not refused:
                self.quitting = True
        elif kind == S_IF_REFUSED:
            if not refused:
                self.lower(COUNTED)
        elif kind == S_BASE:
            if line == b"+OK\r\n":
                self.base_owed = False
        elif kind == S_HIT and line.startswith(b"*"):
            self.probed = True

    def _answered_auth(self, slot: Slot, refused: bool) -> None:
        if refused and slot.kind == S_AUTH:
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


def database(word: bytes) -> int:
    """The number that SELECT takes `word` for; -1 if it is none, or has ten digits or more."""
    written_so = word.isdigit() and len(word) < 10 and (word == b"0" or word[:1] != b"0")
    return int(word) if written_so else -1


def _credential(user: bytes, password: bytes) -> Identity | None:
    if len(user) + len(password) > MAX_CREDENTIAL_BYTES:
        return None
    return Identity(user, password, 0)
