"""What lanes carry: a call, or a batch of ordinary commands; the interfaces of the sender (Caller)
and of a lane (Lane).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from rlproxy.ratelimit.denial_cache import Denial
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import NO_ROW
from rlproxy.resp.key_slot import slot_of_bulk

MAX_LANE_HITS: Final = 65536


def nothing() -> None:
    """Do nothing, as a callback that is not set yet."""


class Call:
    """One call on a lane or a private connection: what to send, and its reply once it has come."""

    def __init__(self, caller: Caller, rule: Rule, key: bytes) -> None:
        self.caller = caller
        self.rule = rule
        self.key = key  # as a bulk, header included
        self.reply: bytes = rule.error
        self.row: int = rule.row  # row of the counters for its outcome; NO_ROW once it is counted
        self.next: Call | None = None
        self.denial: Denial | None = None  # entry of the denial cache when it was sent
        self.opens = False  # it opens that entry: its reply is in microseconds
        self.asks = False  # it follows ASKING, each time it is sent to this node
        self.expects_ok = False  # the reply to CLIENT CACHING or ASKING comes before its own
        self.late = False  # its client has a reply already
        self.group_size: int = 1  # calls in its request
        self.original_rule: Rule | None = None  # of a hit sent as a peek; see `overtaking`
        self._hash_slot: int = -1  # of its key; -1 until needed
        self.since: float = 0.0  # loop time since which it waits for a node of a cluster; 0: never
        self.redirects: int = 0  # how often a node of a cluster could not run it

    def hash_slot(self) -> int:
        """Return the hash slot of its key."""
        if self._hash_slot < 0:
            self._hash_slot = slot_of_bulk(self.key)
        return self._hash_slot

    def take_row(self) -> int:
        """Return the row for its outcome; from the second time on NO_ROW, as that is counted."""
        row, self.row = self.row, NO_ROW
        return row


class Batch:
    """The ordinary commands that a client has sent together, on lanes of one kind.

    parts: the part that each command belongs to, in the order of the commands.
    open: parts that have not ended.
    large: a reply was too large for a lane, or may have been. In a batch that writes, the outcome
        of a command is unknown then.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.parts: list[Part] = []
        self.open: int = 0
        self.writes = False
        self.large = False

    def add(self, command: bytes, lane: Lane) -> None:
        """Append a command, as its client wrote it, which `lane` is to carry."""
        for part in self.parts:
            if part.lane is lane:
                break
        else:
            part = Part(self, lane)
            self.open += 1
        part.commands.append(command)
        self.parts.append(part)

    def send(self) -> None:
        """Give the lanes their parts."""
        for part in self.parts:
            lane = part.lane
            if lane is not None:
                part.lane = None
                lane.take(part)


class Part:
    """The commands of a batch that one lane carries, in order.

    batch: NO_BATCH once the part has ended.
    lane: None once it has taken the part.
    replies: those that have come; b"": no lane has answered the command.
    """

    def __init__(self, batch: Batch, lane: Lane) -> None:
        self.batch = batch
        self.lane: Lane | None = lane
        self.commands: list[bytes] = []
        self.replies: list[bytes] = []

    def lose(self, written: bool) -> None:
        """Expect no further replies.

        written: the connection is lost behind the commands; a large reply may be the cause.
        """
        self.replies += [b""] * (len(self.commands) - len(self.replies))
        if written:
            self.batch.large = True

    def end(self) -> Batch:
        """End: all replies have come, or are lost. Returns the batch."""
        batch, self.batch = self.batch, NO_BATCH  # they refer to each other
        batch.open -= 1
        return batch


class Caller:
    """The sender of calls and batches, as a lane sees it.

    `flush` moves the bytes that a reply has released. `dirty`: a lane has noted that it may go on,
    and resumes it once. `fenced`: it has written on its private connection, and no lane has
    answered it since. `trusts_at`: in a cluster, the time from which remembered refusals may answer
    it, by the clock of the denial cache.
    """

    def __init__(self) -> None:
        self.dirty = False
        self.fenced = False
        self.trusts_at: float = 0.0
        self.flush: Callable[[], None] = nothing

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """Take the reply to `call`; LOST if its lane was lost before, so its outcome is unknown."""
        raise NotImplementedError

    def lane_returned(self, call: Call) -> None:
        """Take back `call`, which was never sent; all calls before it are answered."""
        raise NotImplementedError

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        """Handle a `call` that is late, or whose node is down; no further method is called for it.

        error, kind: see FailurePolicy.reply().
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Continue after calls of lane_answered(), or as all parts of the batch have ended."""
        raise NotImplementedError

    def watch(self) -> None:
        """Look for late replies from now on; see HitTimeouts."""


NO_CALLER: Final = Caller()  # in the place of a session that has ended
NO_BATCH: Final = Batch(NO_CALLER)


@mypyc_attr(allow_interpreted_subclasses=True)
class Lane:
    """The interface of a lane for callers."""

    def __init__(self) -> None:
        self.room: int = MAX_LANE_HITS  # further calls that it accepts
        self.ready: bool = False  # calls submitted now are sent in this tick
        self.retired: bool = False  # callers must get another lane

    def by_sha(self, rule: Rule) -> bool:
        """Return whether calls of `rule` may go by EVALSHA on private connections as well."""
        return False

    def for_slot(self, slot: int) -> Lane | None:
        """Return the lane that may take() an ordinary command; None: it must be sent privately.

        slot: the hash slot of all its keys; NO_SLOT if it has none, or several, or without a
            cluster.
        """
        return self

    def submit(self, call: Call) -> bytes:
        """Send `call`, and return b""; lane_answered() of its caller gets the reply.

        If the reply is known already, nothing is sent, and the reply is returned.
        """
        raise NotImplementedError

    def take(self, part: Part) -> None:
        """Send the commands of `part`, which gets the replies."""
        raise NotImplementedError

    def wake(self) -> None:
        """Make the lane ready: a caller has calls for it."""
        raise NotImplementedError
