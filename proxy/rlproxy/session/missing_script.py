"""A hit by EVALSHA on a private connection whose script Redis does not have. A lane sends it again.
No I/O.

    client ── GET a, RL.HIT k, GET b ──> private connection ── GET a, EVALSHA k, GET b ──> Redis
    $1 A                                        <── $1 A
    (waits)                                     <── -NOSCRIPT    the script was flushed
    (waits)     <── lane: EVALSHA, then EVAL ──> *5
    *5, $1 B

The hit keeps its place among the replies. It runs behind the commands that were pipelined after it.
So a command that might meet its key, or change the connection, is not sent before its reply.

A hit behind a command that may block goes by EVAL, and such a command waits for hits by EVALSHA. So
what waits for such a hit, the client's end of file included, never waits for a command that blocks.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands, encoding
from rlproxy.session.call import Call
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.parts import OwnCalls, SessionBase
from rlproxy.session.reply_slots import ReplySlots

MAX_BY_SHA: Final = 32  # unanswered hits of one client: each is compared with each command


def waits_for_hits(requests: ClientRequests, slots: ReplySlots) -> bool:
    """Return whether the framer's request waits for the replies to hits by EVALSHA.

    The requests that don't wait are hits, and commands that neither block, nor change the
    connection's state, nor name the key of such a hit. Lenient commands, inline ones among them,
    and those that are not whole wait: their keys can't be found as bulks.
    """
    command = requests.command
    if slots.awaits_lane() or slots.unanswered_by_sha >= MAX_BY_SHA:
        return True
    if command.ours:
        return False  # the router decides
    if command.kind != commands.PASS or requests.in_command() or requests.lenient:
        return True
    return slots.touches(requests.buf, requests.start + requests.first, requests.pos)


def send_again(session: SessionBase) -> None:
    """Send hits that Redis has not run again, one at a time."""
    private, lanes = session.private, session.lanes
    while private.slots.missing is not None:
        call, private.slots.missing = private.slots.missing, None
        lane = lanes.lane_for(commands.HIT)
        hit = HitWithoutScript(session)
        if lane is not None:
            again = Call(hit, call.rule, call.key)
            lane.submit(again)
            private.cover.sent(again)
            return
        hit.lane_returned(call)


class HitWithoutScript(OwnCalls):
    """The sender of one such hit, as a lane sees it.

    The lane has a copy of the call. The outcome is counted for the call of the slot.
    """

    def lane_answered(self, call: Call, reply: bytes) -> None:
        private = self._session.private
        private.cover.answered(call, reply)
        private.slots.lane_replied(reply)

    def lane_returned(self, call: Call) -> None:
        self.lane_failed(call, encoding.LOST, "lost")

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        slots = self._session.private.slots
        slot = slots.head
        if slot is not None and slot.call is not None:
            failure = self._session.context.failure
            slots.lane_replied(failure.reply(slot.call, error, kind))
