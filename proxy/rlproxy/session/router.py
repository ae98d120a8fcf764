"""The router: where each request of a client goes. No I/O.

    unread requests ──┬── hits of a plain, quiescent, known session ──> lanes
                      ├── one small stateless command (--share) ──────> lanes
                      ├── a hit with WAIT ────────────────────────────> held, by the session
                      ├── a wrong RL command, a denied command ───────> its error, in its place
                      └── everything else, and hits in any other state ───────────> private stream

The order invariant: replies are never outstanding on lanes and on the private connection at once.
So commands run, and their replies leave, in the order of the requests: both ways append replies to
the same list.
While the lanes owe replies, all requests but hits wait here. While the private connection owes
replies, hits go there, too. The exception: a hit that a lane sends again, see `missing_script`.
"""

from __future__ import annotations

from typing import Final

from rlproxy.fairness.budget import (
    CLIENT_WORK,
    WORK_BYTES_SHIFT,
    WORK_OF_OURS,
    WORK_OF_REPORT,
    WORK_OF_STATE,
)
from rlproxy.resp import commands
from rlproxy.resp.requests import BROKEN_BULK, COMMAND, EMPTY, MALFORMED, NEED_MORE, OPEN
from rlproxy.session import overtaking, waits
from rlproxy.session.call import Call, Lane
from rlproxy.session.connection_state import RAW
from rlproxy.session.fail_open import FailOpen
from rlproxy.session.missing_script import waits_for_hits
from rlproxy.session.parts import SessionBase, SessionPart
from rlproxy.session.private_stream import MAX_LANE_CALL, PRIVATE_OPEN
from rlproxy.session.sharing import Sharing

MAX_EXPANDED: Final = 262144  # bytes of EVAL text that the requests of one client add per tick

# Results of Router._send_hits().
_DONE: Final = 0  # all unread hits went to the lane
_FULL: Final = 1  # the rest must wait, for the lane or for the next tick
_OTHER: Final = 2  # the rest is not for this lane now

_FORWARD: Final = -1  # result of Router._special() in place of a wait


class Router(SessionPart):
    """The routing of one client's requests.

    fail_open: the answers to requests without Redis.
    piped: requests are not framed any more.
    sharing: ordinary commands on command lanes; None without --share.
    """

    def __init__(self, session: SessionBase) -> None:
        super().__init__(session)
        self.fail_open = FailOpen(session)
        self.sharing = Sharing(session) if session.context.shares else None
        self.sends_hits = False  # until the client sends an RL command: no lane is opened before
        self.piped = False
        self._drops = False  # of malformed input, only the mistake is forwarded
        self.backlogged = False  # more hits are in hand than may be unanswered
        # The client has sent hits and other commands together. Its hits take no lane until it sends
        # hits alone: else the router would frame those before each other command twice.
        self._mixes = False
        self._work: int = 0  # units of the present _to_private()
        self._run: int = -1  # start of the bytes that are forwarded unchanged; -1: none

    # -- decisions --------------------------------------------------------------------------------

    def route(self) -> int:
        """Send the unread requests to their destinations, as far as possible now.

        Returns what the rest waits for.
        """
        lanes, budget = self._lanes, self._context.budget
        sharing = self.sharing
        if sharing is not None and lanes.count == 0 and self._may_use_lanes() and sharing.send():
            return waits.NOTHING
        if lanes.batch is not None:
            return waits.EMPTY
        begun = budget.work
        while self.sends_hits and (lanes.count > 0 or self._may_send_hits()):
            lane = lanes.hit_lane()
            room = min(self.max_calls() - lanes.count, lane.room) if lane is not None else 0
            if lane is None or room <= 0:
                if self._requests.unread() > 0:
                    self.set_backlogged(True)
                return waits.ROOM
            if budget.work - begun >= CLIENT_WORK:
                return waits.TICK
            found = self._send_hits(lane, room)
            if found == _DONE:
                self.set_backlogged(False)
                self._requests.release()
                return waits.NOTHING
            if found == _OTHER:  # what follows must not overtake the lane's calls
                if lanes.count > 0:
                    return waits.EMPTY
                break
        return self._to_private()

    def pipe(self, data: bytes) -> None:
        """Forward bytes of a client whose requests are not framed any more."""
        if not self._drops:
            self._private.to_redis.append(data)

    def max_calls(self) -> int:
        """Return the number of unanswered calls that this client may have."""
        return self._context.budget.hits(self.backlogged)

    def set_backlogged(self, backlogged: bool) -> None:
        """Record whether the client has more hits in hand than it may have unanswered."""
        if backlogged != self.backlogged:
            self.backlogged = backlogged
            self._context.budget.backlogged += 1 if backlogged else -1

    def unblocked(self, wait: int) -> bool:
        """Return whether `wait`, one of ENDED_BY_REPLIES, may be over."""
        count, slots = self._lanes.count, self._private.slots
        if wait == waits.ROOM:
            return count + slots.bounded <= self.max_calls() // 2 or not slots.can_insert()
        return count == 0  # what the private connection owes may not matter: route() decides

    def _may_send_hits(self) -> bool:
        if self._mixes or not self._may_use_lanes():
            return False
        lane = self._lanes.lane_for(commands.HIT)
        return lane is not None and lane.room > 0

    def _may_use_lanes(self) -> bool:
        return self._private.may_use_lanes() and not self._requests.in_command()

    # -- hits by lane -----------------------------------------------------------------------------

    def _send_hits(self, lane: Lane, most: int) -> int:
        """Submit at most `most` of the unread hits, if there are no other commands among them."""
        requests = self._requests
        requests.gather()  # else next() might join buffers and move `start`
        start = requests.pos
        calls: list[Call] = []
        found = _DONE
        empty = 0
        while found == _DONE:
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == EMPTY:
                empty += 1
                if empty >= CLIENT_WORK:
                    found = _FULL
                continue
            call = self._lane_call(code)
            if call is None:
                self._mixes = len(calls) > 0
                requests.rewind(start)
                return _OTHER
            if call.rule.waits:
                requests.rewind(requests.start)
                found = _OTHER
            else:
                calls.append(call)
                if len(calls) >= most:
                    found = _FULL
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
        call = requests.call(self._private.caller, self._context)
        if call is None or (call.rule.script is None and not call.reply):
            return None
        waiting = self._context.waiting
        if waiting.count > 0 and not call.rule.waits:
            overtaking.peek_if_queued(call, waiting, self._private.state.identity.db)
        return call

    def _submit(self, lane: Lane, calls: list[Call]) -> None:
        self._private.keep_alive()
        lanes = self._lanes
        for call in calls:
            lanes.append(call)
            if len(call.reply) == 0:
                call.reply = lane.submit(call)
                if len(call.reply) > 0:
                    call.take_row()  # DenialCache.harvest() counts it
                else:
                    self._private.cover.sent(call)
        if not self._private.slots.mid():
            lanes.emit()

    # -- the private connection -------------------------------------------------------------------

    def _to_private(self) -> int:
        """Send all unread requests to the private connection. Returns what the rest waits for."""
        requests, private = self._requests, self._private
        private.expanded = 0
        self._work = passed = 0
        wait: int = waits.NOTHING
        while wait == waits.NOTHING:
            self._work += 1
            if self._work > CLIENT_WORK or private.expanded > MAX_EXPANDED:
                wait = waits.TICK
                break
            code = requests.next()
            if code == NEED_MORE:
                break
            if requests.discarding and requests.drops(code):
                continue
            if private.status != PRIVATE_OPEN:
                self._work += WORK_OF_OURS
                wait = self.fail_open.unopened(code)
                continue
            if code == MALFORMED:
                self._malformed()
                break
            if code in (COMMAND, OPEN):
                command = requests.command
                if not command.reads:
                    private.caller.fenced = True
                passes = command.kind == commands.PASS and command.ban is None
                if passes and private.slots.unanswered_by_sha == 0:
                    private.expect(command)
                else:
                    wait = self._special()
                    if wait != _FORWARD:
                        continue
                    wait = waits.NOTHING
                passed += 1
            if self._run < 0:
                self._run = requests.start
        self._mixes = self._mixes and passed > 0
        self._context.stats.commands += passed
        self._flush(wait)
        return wait

    def _flush(self, wait: int) -> None:
        """Send the bytes that are forwarded, and release what was read."""
        self._context.budget.work += self._work
        self._send_run(self._requests.pos)
        if wait == waits.NOTHING:
            self.set_backlogged(False)
            self._private.unopened = 0
        if wait not in (waits.TICK, waits.ROOM):
            self._requests.release()  # else each tick would copy all remaining bytes

    def _send_run(self, end: int) -> None:
        """Forward the bytes of the run, up to `end`, unchanged."""
        run = self._run
        if run < 0:
            return
        self._run = -1
        buf = self._requests.buf
        self._private.to_redis.append(buf if run == 0 and end == len(buf) else buf[run:end])

    def _malformed(self) -> None:
        """Forward what Redis needs to see the mistake, and frame no further requests."""
        requests, private = self._requests, self._private
        self._send_run(requests.start)
        self._context.stats.error("protocol")
        rest = requests.rest()
        # No bytes that may contain a denied command are forwarded without framing.
        self._drops = requests.commands.strict or requests.discarding
        if requests.discarding:
            rest = BROKEN_BULK  # Redis has not received the broken command
        elif requests.commands.strict:
            rest = requests.mistake
        private.to_redis.append(rest)
        private.state.lower(RAW)
        self.piped = True

    def _special(self) -> int:
        """Treat an RL command, a denied one, or one that changes the connection's state.

        Returns _FORWARD if its bytes are to be forwarded unchanged, else what the requests behind
        it wait for.
        """
        requests, private = self._requests, self._private
        command, slots = requests.command, private.slots
        kind = command.kind
        if command.ban is not None:
            error = requests.denied(self._context.stats)
            self._work += WORK_OF_OURS
            if error:
                self._send_run(requests.start)
                private.deny(error, requests)
                return waits.NOTHING
        by_sha = slots.unanswered_by_sha > 0 and waits_for_hits(requests, slots)
        if by_sha or private.must_wait(requests):
            return self._leave(waits.EMPTY)
        if command.ours and not self._context.server.implements(command.name):
            self._send_run(requests.start)
            return self._rl_command()
        if kind in (commands.BLOCKS, commands.WAIT):
            slots.may_block = True
        if self.sharing is not None:
            self.sharing.note()
        if kind == commands.WAIT and private.cover.lane_wrote:
            self._send_run(requests.start)
            private.cover_wait(requests)
            return waits.NOTHING
        if kind in (commands.PASS, commands.BLOCKS, commands.WAIT) or command.ours:
            private.expect(command)
        elif kind == commands.INTROSPECT:
            private.expect_introspection(requests)
        else:
            self._work += WORK_OF_STATE + (requests.size() >> WORK_BYTES_SHIFT)
            private.follow(requests)
        return _FORWARD

    def _leave(self, wait: int) -> int:
        """Leave the framer's request unread, as it waits. Returns `wait`."""
        self._requests.rewind(self._requests.start)
        return wait

    # -- RL commands in place ---------------------------------------------------------------------

    def _rl_command(self) -> int:
        """Answer an RL command, or send it to the private connection.

        Returns what the requests behind it wait for.
        """
        requests, private = self._requests, self._private
        if not self._has_room():
            return self._leave(waits.ROOM)
        self._work += WORK_OF_OURS + (requests.size() >> WORK_BYTES_SHIFT)
        self.sends_hits = True
        call = requests.call(private.caller, self._context)
        # Of reports, Redis gets a request thousands of times as large: one of a client at a time.
        alone = call is None or call.rule.waits
        if (alone or self._context.waiting.count > 0) and self._waits_for_replies(alone):
            return self._leave(waits.EMPTY)
        if call is None:
            self._work += WORK_OF_REPORT
            private.answer_report(requests)
        elif call.reply:
            private.reject(call.reply, requests)
        elif not private.answer_node_down(call):
            return self._hit(call)
        return waits.NOTHING

    def _hit(self, call: Call) -> int:
        """Hold `call`, or send it to the private connection. Returns as _rl_command()."""
        private, waiting = self._private, self._context.waiting
        slots = private.slots
        if slots.can_insert():
            # Not quiescent only after the client's end of file.
            if call.rule.waits and slots.quiescent() and not waiting.full():
                self._lanes.append(call)  # the only one: HeldHit takes it from there
                return waits.HELD
            if waiting.count > 0:
                overtaking.peek_if_queued(call, waiting, private.state.identity.db)
        by_sha = self._goes_by_sha(call)
        if not by_sha and slots.unanswered_by_sha > 0:
            return self._leave(waits.EMPTY)
        private.hit(call, by_sha)
        return waits.NOTHING

    def _goes_by_sha(self, call: Call) -> bool:
        """Whether `call` may go by EVALSHA: a lane would send it again if its script is missing."""
        private = self._private
        state = private.state
        if not state.allows_lanes() or state.deciding > 0 or private.slots.may_block:
            return False
        if not private.slots.can_insert() or call.original_rule is not None:
            return False
        lane = self._lanes.hit_lane()
        return lane is not None and lane.by_sha(call.rule)

    def _has_room(self) -> bool:
        """Whether one more hit may go to the private connection.

        At the end of file it may: Redis must see that behind the client's last command, also while
        it blocks and replies nothing. At most MAX_UNREAD bytes of commands are left then.
        """
        slots = self._private.slots
        if slots.bounded < self.max_calls() or not slots.can_insert() or self._requests.eof:
            return True
        self.set_backlogged(True)
        return False

    def _waits_for_replies(self, alone: bool) -> bool:
        """Whether an RL command waits for the replies before it.

        That is so if they decide on its queue or its transaction, or if it is to be sent alone.
        """
        slots = self._private.slots
        # A late reply may never come. settled() ignores it, and the hit is sent as if without WAIT.
        if slots.settled() or slots.uncounted() or self._requests.eof:
            return False
        return self._private.state.deciding > 0 or (alone and slots.can_insert())
