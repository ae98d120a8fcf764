"""A hit by EVALSHA on a private connection whose script Redis does not have. A lane sends it again.
No I/O.

    client ── GET a, RL.HIT k, GET b ──> private connection ── GET a, EVALSHA k, GET b ──> Redis
    $1 A                                        <── $1 A
    (waits)                                     <── -NOSCRIPT    the script was flushed
    (waits)     <── lane: EVALSHA, and SCRIPT LOAD before it ──> *5
    *5, $1 B

The hit keeps its place among the replies. It runs behind the commands that were pipelined after it.
So a command that might meet its key, or change the connection, is not sent before its reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.session.call import Call, Caller, Lane
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.parts import SessionParts
from rlproxy.session.reply_slots import ReplySlots

MAX_BY_SHA: Final = 32  # unanswered hits of one client: each is compared with each command


def waits_for_hits(requests: ClientRequests, slots: ReplySlots, whole: bool) -> bool:
    """Return whether the framer's request waits for the replies to hits by EVALSHA.

    The requests that don't wait are hits, and commands that neither change the connection's state
    nor name the key of such a hit. Inline commands and those that are not whole wait: their keys
    can't be found as bulks.
    """
    if requests.eof:
        return False
    command = requests.command
    if slots.awaits_lane() or slots.unanswered_by_sha >= MAX_BY_SHA:
        return True
    if command.ours:
        return False  # the router decides
    if command.kind != c.PASS or command.ban is not None:
        return True
    if not whole or requests.lenient or requests.words is not None:
        return True
    return slots.touches(requests.buf, requests.start, requests.pos)


def send_again(parts: SessionParts, resume: Callable[[], None]) -> None:
    """Send hits that Redis has not run again, one at a time.

    resume: goes on with the replies and requests that waited.
    """
    private, lanes = parts.private, parts.lanes
    while private.slots.missing is not None:
        call, private.slots.missing = private.slots.missing, None
        if private.identity_moved():
            lanes.forget_lanes()
        lane = lanes.lane_for_hits(private.state.identity)
        hit = MissingHit(parts, resume)
        if lane is not None:
            hit.send(call, lane)
            return
        hit.lane_returned(call)


class MissingHit(Caller):
    """The sender of one such hit, as a lane sees it. For its arguments see send_again()."""

    __slots__ = ("_failure", "_owner", "_private", "_resume")

    def __init__(self, parts: SessionParts, resume: Callable[[], None]) -> None:
        super().__init__()
        self.flush = parts.flush
        self.fenced = True  # no remembered refusal: the client may have written the key
        self._owner: Caller = parts
        self._failure = parts.context.failure
        self._private = parts.private
        self._resume = resume

    def send(self, missing: Call, lane: Lane) -> None:
        """Send the hit by `lane`."""
        call = Call(self, missing.rule, missing.key)
        lane.submit(call)
        self._private.cover.sent(call)

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """See Caller.lane_answered()."""
        private = self._private
        private.cover.answered(call, reply)
        private.slots.lane_replied(reply)

    def lane_returned(self, call: Call) -> None:
        """See Caller.lane_returned()."""
        self._give_up(r.LOST, "lost")

    def lane_lost(self, call: Call) -> None:
        """See Caller.lane_lost()."""
        self._private.slots.lane_replied(r.LOST)

    def lane_late(self, call: Call) -> None:
        """See Caller.lane_late()."""
        self._give_up(self._failure.too_late(), "late")

    def lane_down(self, call: Call, error: bytes) -> None:
        """See Caller.lane_down()."""
        self._give_up(error, "unreachable")

    def _give_up(self, error: bytes, kind: str) -> None:
        """Answer the hit without Redis."""
        slots = self._private.slots
        slot = slots.head
        if slot is not None and slot.call is not None and slots.awaits_lane():
            slots.lane_replied(self._failure.reply(slot.call, error, kind))

    def resume(self) -> None:
        """See Caller.resume()."""
        self._owner.now = self.now
        self._owner.fenced = True  # commands behind the hit may not have run yet
        self._resume()
