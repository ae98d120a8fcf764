"""The sender of one client's hits to the lane of its identity. No I/O."""

from __future__ import annotations

from typing import Final

from rlproxy.fairness.budget import CLIENT_WORK, WORK_OF_OURS
from rlproxy.resp.requests import COMMAND, EMPTY, NEED_MORE
from rlproxy.session import overtaking
from rlproxy.session.call import Call, Lane
from rlproxy.session.parts import SessionPart
from rlproxy.session.private_stream import MAX_LANE_CALL, REFRESH_S

# Results of LaneHits.send_hits().
DONE: Final = 0  # all unread hits went to the lane
FULL: Final = 1  # the rest must wait, for the lane or for the next tick
OTHER: Final = 2  # the rest is not for this lane now


class LaneHits(SessionPart):
    """The sending of one client's hits by lane. The base of Router."""

    def send_hits(self, lane: Lane, most: int) -> int:
        """Submit at most `most` of the unread hits, if there are no other commands among them."""
        requests = self._requests
        requests.gather()  # else next() might join buffers and move `start`
        start = requests.pos
        calls: list[Call] = []
        found = DONE
        empty = 0
        while found == DONE:
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == EMPTY:
                empty += 1
                if empty >= CLIENT_WORK:
                    found = FULL
                continue
            call = self._lane_call(code)
            if call is None:
                requests.rewind(start)
                return OTHER
            if call.rule.waits:
                requests.rewind(requests.start)
                found = OTHER
            else:
                calls.append(call)
                if len(calls) >= most:
                    found = FULL
        self._context.budget.work += empty + len(calls) * (WORK_OF_OURS + 1)
        if calls:
            self._submit(lane, calls)
        return found

    def _lane_call(self, code: int) -> Call | None:
        """The call of the framer's command if it may take a lane."""
        requests = self._requests
        command = requests.command
        if code != COMMAND or not command.ours or command.ban is not None:
            return None
        if requests.size() > MAX_LANE_CALL:
            return None
        db = self._private.state.identity.db
        call = overtaking.next_call(requests, self._caller, self._context, db)
        if call is None or (call.rule.script is None and not call.reply):
            return None
        return call

    def _submit(self, lane: Lane, calls: list[Call]) -> None:
        self._private.keep_alive(REFRESH_S)
        lanes = self._lanes
        for call in calls:
            lanes.append(call)
            if not call.reply:
                call.reply = lane.submit(call)
                if call.reply:
                    call.counted()  # by DenialCache.harvest()
                else:
                    self._private.cover.sent(call)
        if not self._private.slots.mid():
            lanes.emit()
