"""A hit with WAIT that is held until it is admitted, or until its time is over. No I/O.

    start() ──> WaitQueues ──_send()─> a lane, or the private connection
                 │  ^                                     │
       _end() <──┘  └── lane_answered(), _take_reply() ───┘

Its queue decides when to query Redis, and which reply the client gets.
"""

from __future__ import annotations

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.wait_queue import Waiter
from rlproxy.resp import commands, encoding
from rlproxy.session.call import Call
from rlproxy.session.parts import OwnCalls, SessionBase


class HeldHit(OwnCalls):
    """One held hit of a client, and the sender of its calls.

    owed_since: time in seconds since which the private connection owes a reply; None: it owes none.
    """

    def __init__(self, session: SessionBase, hit: Call) -> None:
        super().__init__(session)
        self._hit = hit
        self._waiter: Waiter | None = None  # while it is in its queue
        self._reply: bytes = b""  # of the private connection, which the waiter has not got yet
        self.owed_since: float | None = None

    def start(self) -> None:
        """Join the queue of the key, which is not full, and send the first request."""
        session, hit = self._session, self._hit
        waiting, where = session.context.waiting, (session.private.state.identity.db, hit.key)
        keep = session.private.keep_alive
        self._waiter = waiter = Waiter(
            waiting, where, hit.rule, self._send, self._end, self.flush, keep
        )
        if session.requests.eof:
            waiter.expire()  # it waits for one reply at most
        waiter.start()

    def cancel(self) -> None:
        """Leave the queue without a reply."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.leave(b"")
        self._hit.take_row()  # the queue has counted it
        self._session.lanes.abandon()  # it is the only call

    def end_of_file(self) -> bool:
        """End the wait because the client sends no more. Returns whether a reply will come."""
        return self._waiter is None or self._waiter.end_of_file()

    def fail(self, error: bytes, kind: str) -> None:
        """End the wait without Redis; see FailurePolicy.reply()."""
        self.owed_since = None
        if self._waiter is not None:
            self._waiter.leave(self._session.context.failure.reply(self._hit, error, kind))

    def pass_reply(self) -> None:
        """Pass a reply of the private connection on to the queue."""
        reply, self._reply = self._reply, b""
        if reply.startswith(b"*"):
            self._session.private.state.probed = True
        if reply and self._waiter is not None:
            self._waiter.answered(encoding.clean_error(reply))

    # -- as a lane sees it ------------------------------------------------------------------------

    def lane_answered(self, call: Call, reply: bytes) -> None:
        self._session.private.cover.answered(call, reply)
        if self._waiter is not None:
            self._waiter.answered(reply)

    def lane_returned(self, call: Call) -> None:
        if self._waiter is not None:
            self._waiter.unsent()

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        self.fail(error, kind)

    # -- as its queue sees it ---------------------------------------------------------------------

    def _end(self, reply: bytes) -> None:
        self._waiter = None
        self._hit.reply = reply
        self._session.held_finished()

    def _send(self, rule: Rule) -> None:
        """Send a call of the waiter, by lane or privately. It has no other one unanswered."""
        session = self._session
        call = Call(self, rule, self._hit.key)
        private = session.private
        lane = None
        if private.may_use_lanes():
            lane = session.lanes.lane_for(commands.HIT)
        if lane is not None and lane.room > 0:
            private.keep_alive()
            private.cover.sent(call)
            reply = lane.submit(call)
            assert not reply  # the denial cache never answers waiters' calls
            return
        self.owed_since = session.context.clock()
        private.query(call, self._take_reply)

    def _take_reply(self, reply: bytes) -> bytes:
        """Keep the reply for pass_reply(): the slots are being answered, and the queue may send."""
        self.owed_since = None
        self._reply = reply
        return b""
