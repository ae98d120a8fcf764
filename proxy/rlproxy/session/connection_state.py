"""The state that Redis holds for one private connection, as far as it is certain.

Pure bookkeeping, without sockets and without decisions on routes. `sent()` gets each command as it
goes upstream and returns the slot for its reply. `answered()` gets the first line of that reply.
`allows_lanes()` puts three facts together. The connection is *plain* if it has no state that a hit
could notice. It is *known* if its identity is certain. It is *probed* if Redis itself let a hit of
it pass.

    level     PLAIN    every command was in the table, every reply is one frame
              COUNTED  an unknown command was sent: private until Redis reports that it does not
                       know it either, or RESET is answered +RESET. Behind QUIT: until Redis
                       refuses it
              RAW      replies cannot be counted (subscriptions, MONITOR): private for good

Levels fall when a command is *sent* (table `SENT`), and rise only when its reply is *seen* at its
own place (table `ANSWERED`). The flag `multi` follows the same rule. Requests that lower the level
or set the flag are numbered. A reply takes that back only if no such request was sent after its
own.

WATCH is no such state: a hit on a watched key makes EXEC fail by whichever connection it comes.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands
from rlproxy.resp.commands import Command
from rlproxy.resp.encoding import OK
from rlproxy.session import identity as ids
from rlproxy.session.identity import ANONYMOUS, Identity
from rlproxy.session.slots import S_HIT, S_PASS, S_PROBE, S_PROTOCOL, Slot

RAW: Final = 0
COUNTED: Final = 1
PLAIN: Final = 2

# What a command changes when it is sent: the level behind it, at most, and the kind of its slot.
_STATELESS: Final = (PLAIN, S_PASS)
_UNKNOWN: Final = (COUNTED, commands.UNKNOWN)
_QUIT: Final = (COUNTED, commands.QUIT)  # Redis answers nothing behind it, unless it refuses it
_COUNTED: Final = (COUNTED, S_PASS)
_ENDS: Final = (RAW, S_PASS)

_FOLLOWED: Final = (
    *(commands.MULTI, commands.EXEC, commands.DISCARD, commands.RESET),
    *(commands.SELECT, commands.AUTH, commands.HELLO),
)

# By the level before it and its kind. The others are _UNKNOWN or, below PLAIN, _COUNTED. At PLAIN,
# arguments may decide before the table does: see _plain_row().
SENT: Final[dict[int, dict[int, tuple[int, int]]]] = {
    PLAIN: {
        **{kind: (PLAIN, kind) for kind in _FOLLOWED},
        **dict.fromkeys((commands.PUBSUB, commands.STREAM), _ENDS),
        commands.QUIT: _QUIT,
    },
    COUNTED: {
        commands.RESET: (PLAIN, commands.RESET),
        **{kind: (COUNTED, kind) for kind in (commands.AUTH, commands.HELLO)},
        **dict.fromkeys((commands.PUBSUB, commands.STREAM), _ENDS),
        **dict.fromkeys((commands.MULTI, commands.CLIENT, commands.SCRIPT), _ENDS),
    },
    RAW: {},
}

# What a reply changes.
_IDENTITY: Final = 1  # user and password are those of the slot, uncertain if it has none
_PROTOCOL: Final = 2  # the protocol is that of the slot
_DATABASE: Final = 4  # the database is that of the slot, uncertain if it has none
_RESET: Final = 8  # all state is that of a new connection
_NO_MULTI: Final = 16
_LOWER: Final = 32  # replies are less certain from here on
_PROBED: Final = 64
_LOST: Final = 128  # the slot's identity and protocol are not certain
_NOT_RUN: Final = 256  # the command has left no state

# Kinds whose reply decides on the client's user, database, protocol, transaction or other state.
DECIDING: Final = (
    *(commands.AUTH, commands.SELECT, commands.RESET, commands.HELLO, S_PROTOCOL),
    *(commands.EXEC, commands.DISCARD, commands.CLIENT),
)

_ERROR: Final = b"-"
_ANY: Final = b""

# By the kind of its slot and the reply's beginning: the first that fits.
ANSWERED: Final[dict[int, tuple[tuple[bytes, int], ...]]] = {
    commands.AUTH: ((_ERROR, 0), (_ANY, _IDENTITY)),
    commands.HELLO: ((_ERROR, _LOST | _IDENTITY | _PROTOCOL), (_ANY, _IDENTITY | _PROTOCOL)),
    S_PROTOCOL: ((_ERROR, 0), (_ANY, _PROTOCOL)),
    commands.SELECT: ((OK, _DATABASE), (_ERROR, 0), (_ANY, _LOST | _DATABASE)),
    commands.RESET: ((b"+RESET\r\n", _RESET), (_ERROR, 0), (_ANY, _LOWER)),
    commands.MULTI: ((_ERROR, _NO_MULTI),),
    commands.EXEC: (
        (b"-EXECABORT", _NO_MULTI),
        (b"-ERR EXEC without MULTI", _NO_MULTI),
        (_ERROR, 0),
        (_ANY, _NO_MULTI),
    ),
    commands.DISCARD: ((OK, _NO_MULTI), (b"-ERR DISCARD without MULTI", _NO_MULTI)),
    commands.QUIT: ((_ERROR, _NOT_RUN),),
    commands.CLIENT: ((_ERROR, 0), (_ANY, _LOWER)),
    S_PROBE: ((_ERROR, 0), (_ANY, _PROBED)),
    commands.UNKNOWN: (
        (b"-ERR unknown command", _NOT_RUN),
        (b"-ERR This instance has cluster support disabled", _NOT_RUN),  # to READONLY, ASKING ...
    ),
}
# The same in front of a cluster, whose transaction EXEC and DISCARD end in any case.
IN_CLUSTER: Final[dict[int, tuple[tuple[bytes, int], ...]]] = {
    **ANSWERED,
    commands.EXEC: ((_ANY, _NO_MULTI),),
    commands.DISCARD: ((b"-ERR wrong number of arguments", 0), (_ANY, _NO_MULTI)),
}


class ConnectionState:
    """The state of one private connection. See the module's docstring.

    in_cluster: READONLY, READWRITE and ASKING leave no state; see ServerFacts.
    """

    def __init__(self, in_cluster: bool) -> None:
        self._in_cluster = in_cluster
        self.known = True
        self.probed = False
        self.probing = False  # a reply is owed that decides on `probed`
        self.multi = False  # it may be inside MULTI
        self.level: int = PLAIN
        self.identity = ANONYMOUS
        self.protocol = 2  # of its replies; 0: not certain
        self.deciding: int = 0  # number of owed replies whose kind is one of DECIDING
        self._number: int = 0  # that of the latest numbered request
        self._lowered_at: int = 0  # that of the latest request that lowered the level
        self._multi_at: int = 0  # that of the latest request that set `multi`

    def allows_lanes(self) -> bool:
        """Return whether a hit may go by lane without a difference that the client can observe."""
        return self.level == PLAIN and self.known and self.probed and not self.multi

    def lower(self, level: int) -> None:
        """Trust no more than `level` from this request on."""
        self._number += 1
        self._lowered_at = self._number
        self.level = min(self.level, level)

    def sent(self, command: Command, args: list[bytes], complete: bool) -> Slot | None:
        """Record a command that goes upstream now. Return the slot for its reply.

        None: the reply is passed on without a look.

        args: its arguments without the name, if its row in the table requires them.
        complete: `args` is complete; False if the rest was too long to be looked at.
        """
        kind = command.kind
        if kind == commands.OF_NODE and self._in_cluster:
            return None
        plain = self.level == PLAIN
        if plain:
            level, slot_kind = self._plain_row(kind, args, complete)
        else:
            level, slot_kind = SENT[self.level].get(kind, _COUNTED)
        if level < PLAIN:
            self.lower(level)
        if slot_kind == S_PASS:
            return None
        if slot_kind == commands.MULTI:
            self._number += 1
            self._multi_at = self._number
            if self.multi:
                return None  # whatever the reply, the MULTI before it counts
            self.multi = True
        slot = Slot(slot_kind)
        slot.number = self._number
        if plain:
            _expect_identity(slot, args)
        if slot.kind in DECIDING:
            self.deciding += 1
        return slot

    def _plain_row(self, kind: int, args: list[bytes], complete: bool) -> tuple[int, int]:
        """The row of a command that is sent at PLAIN."""
        if kind == commands.SCRIPT:
            return _STATELESS if args and args[0].upper() in commands.SCRIPT_STATELESS else _ENDS
        if kind == commands.CLIENT:
            word = args[0].upper().partition(b"\0")[0] if args else b""
            if word in commands.CLIENT_STATELESS:
                return _STATELESS
            return _ENDS if word == b"REPLY" or not args else (PLAIN, commands.CLIENT)
        if kind in (commands.SELECT, commands.AUTH, commands.HELLO):
            if self.multi or not complete:
                return _UNKNOWN
            if kind == commands.HELLO and not args:
                return _STATELESS
        return SENT[PLAIN].get(kind, _UNKNOWN)

    def answered(self, slot: Slot, line: bytes) -> None:
        """Record the first line of the reply for `slot`."""
        if slot.kind == S_HIT:  # without a lookup, because hits are many
            self.probed = self.probed or line.startswith(b"*")
            return
        if slot.kind == S_PROBE:
            self.probing = False
        elif slot.kind in DECIDING:
            self.deciding -= 1
        table = IN_CLUSTER if self._in_cluster else ANSWERED
        for beginning, change in table.get(slot.kind, ()):
            if line.startswith(beginning):
                if change != 0:
                    self._change(change, slot)
                return

    def _change(self, change: int, slot: Slot) -> None:
        if change & _LOST:
            slot.identity = None
            slot.protocol = 0
        if change & _IDENTITY:
            self._authenticated(slot.identity)
        if change & _PROTOCOL:
            self.protocol = slot.protocol
        if change & _DATABASE:
            self._selected(slot.identity)
        if change & _RESET:
            self._reset(slot)
        if change & _NO_MULTI and slot.number >= self._multi_at:
            self.multi = False
        if change & _NOT_RUN and slot.number >= self._lowered_at:
            self.level = PLAIN
        if change & _LOWER:
            self.lower(RAW if slot.kind == commands.RESET else COUNTED)
        if change & _PROBED:
            self.probed = True

    def _authenticated(self, found: Identity | None) -> None:
        self.probed = False
        self.known = found is not None
        if found is not None:
            self.identity = Identity(found.user, found.password, self.identity.db)

    def _selected(self, found: Identity | None) -> None:
        if found is None:
            self.lower(COUNTED)
        else:
            self.identity = Identity(self.identity.user, self.identity.password, found.db)

    def _reset(self, slot: Slot) -> None:
        if slot.number >= self._lowered_at:
            self.level = PLAIN
        if slot.number >= self._multi_at:
            self.multi = False
        self.identity = ANONYMOUS
        self.known = True
        self.probed = False
        self.protocol = 2


def _expect_identity(slot: Slot, args: list[bytes]) -> None:
    """Note in the slot of a SELECT, AUTH or HELLO what it may change."""
    kind = slot.kind
    if kind == commands.SELECT:
        slot.identity = ids.of_select(args)
    elif kind == commands.AUTH:
        slot.identity = ids.of_auth(args)
    elif kind == commands.HELLO:
        slot.protocol = int(args[0]) if args[0] in (b"2", b"3") else 0
        slot.identity, certain = ids.of_hello(args)
        if certain and slot.identity is None:
            slot.kind = S_PROTOCOL
