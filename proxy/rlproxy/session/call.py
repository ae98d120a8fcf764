"""A call, and the interfaces of its sender (Caller) and of a lane (Lane)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from rlproxy.ratelimit.denial_cache import Denial
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import NO_ROW
from rlproxy.resp import commands
from rlproxy.resp.key_slot import slot_of_bulk

MAX_LANE_HITS: Final = 65536


def nothing() -> None:
    """Do nothing, as a callback that is not set yet."""


class Call:
    """One call on a lane or a private connection: what to send, and its reply once it has come."""

    __slots__ = (
        "_hash_slot",
        "behind",
        "caller",
        "denial",
        "expects_ok",
        "key",
        "kind",
        "late",
        "next",
        "opens",
        "others",
        "redirects",
        "reply",
        "returned",
        "row",
        "rule",
        "since",
    )

    def __init__(self, caller: Caller, rule: Rule, key: bytes) -> None:
        self.caller = caller
        self.rule = rule
        self.key = key  # as a bulk, header included
        self.others: list[bytes] | None = None  # further keys of an RL.RESET, while hits wait
        self.reply: bytes = rule.error
        self.row: int = rule.row  # row of the counters for its outcome; NO_ROW once it is counted
        self.next: Call | None = None
        self.kind: int = commands.HIT  # else `key` contains an ordinary command whole
        self.denial: Denial | None = None  # entry of the denial cache when it was sent
        self.opens = False  # it opens that entry: its reply is in microseconds
        self.expects_ok = False  # the reply to CLIENT CACHING or ASKING comes before its own
        self.returned = False  # its lane has given it back: it goes to the private connection
        self.late = False  # its client has a reply already
        self.behind: Rule | None = None  # rule of a hit that must not overtake; `rule` peeks
        self._hash_slot: int = -1  # of its key; -1 until needed
        self.since: float = 0.0  # loop time since which it waits for a node of a cluster; 0: never
        self.redirects: int = 0  # how often a node of a cluster could not run it

    def hash_slot(self) -> int:
        """Return the hash slot of its key."""
        if self._hash_slot < 0:
            self._hash_slot = slot_of_bulk(self.key)
        return self._hash_slot

    def counted(self) -> int:
        """Return the row for its outcome, which the caller counts now, or is counted already."""
        row, self.row = self.row, NO_ROW
        return row


class Caller:
    """The sender of calls, as a lane sees it.

    `flush` moves the bytes that a reply has released.
    `dirty` marks a caller in a lane's batch, to flush it once. `fenced`: it has written on its
    private connection, and no lane has answered it since. `trusts_at`: in a cluster, the time from
    which remembered refusals may answer it, by the clock of the denial cache.
    """

    __slots__ = ("dirty", "fenced", "flush", "trusts_at")

    def __init__(self) -> None:
        self.dirty = False
        self.fenced = False
        self.trusts_at: float = 0.0
        self.flush: Callable[[], None] = nothing

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """Take the reply to `call`."""
        raise NotImplementedError

    def lane_returned(self, call: Call) -> None:
        """Take back `call`, which was never sent; all calls before it are answered."""
        raise NotImplementedError

    def lane_lost(self, call: Call) -> None:
        """Handle a `call` whose lane was lost before the reply; its outcome is unknown."""
        raise NotImplementedError

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        """Handle a `call` that is late, or whose node is down; no further method is called for it.

        error, kind: see FailurePolicy.reply().
        """
        raise NotImplementedError

    def lane_declined(self, call: Call) -> None:
        """Handle a `call` whose reply is too large for a lane; the reply is discarded."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue with requests that waited for the lane, after calls of lane_answered()."""
        raise NotImplementedError

    def watch(self) -> None:
        """Look for late replies from now on; see HitTimeouts."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lane:
    """The interface of a lane for callers."""

    __slots__ = ("ready", "retired", "room")

    def __init__(self) -> None:
        self.room: int = MAX_LANE_HITS  # further calls that it accepts
        self.ready: bool = False  # calls submitted now are sent in this tick
        self.retired: bool = False  # callers must get another lane

    def by_sha(self, rule: Rule) -> bool:
        """Return whether calls of `rule` may go by EVALSHA on private connections as well."""
        return False

    def chosen(self, slot: int) -> Lane | None:
        """Return the lane for an ordinary command; None: it must be sent privately.

        slot: the hash slot of all its keys; NO_SLOT if it has none, or several, or without a
            cluster.
        """
        return self

    def submit(self, call: Call) -> bytes:
        """Send `call`, and return b""; lane_answered() of its caller gets the reply.

        If the reply is known already, nothing is sent, and the reply is returned.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """Make the lane ready: a caller has calls for it."""
        raise NotImplementedError


_AS_IT_IS: Final = Rule()  # adds nothing to `key`


def shared(caller: Caller, kind: int, written: bytes) -> Call:
    """Return the call of an ordinary command, as `written` by its client."""
    call = Call(caller, _AS_IT_IS, written)
    call.kind = kind
    return call
