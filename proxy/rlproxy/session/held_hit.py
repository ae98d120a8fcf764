"""A hit with WAIT that is held until it is admitted, or until its time is over. No I/O.

    hold() ──> WaitQueues ──send()─> a lane, or the private connection
                   ^                       │
                   └───── answered() ──────┘    ... ──> the reply, and the session goes on

Its queue decides when to query Redis, and which reply the client gets.
"""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.wait_queue import Waiter, Where
from rlproxy.resp import encoding as r
from rlproxy.session import key_queue
from rlproxy.session.call import Call
from rlproxy.session.parts import SessionPart, SessionParts
from rlproxy.session.private_stream import REFRESH_S


class HeldHit(SessionPart):
    """One held hit of a client.

    finished: called once with the client's reply.
    """

    __slots__ = ("_finished", "_reply_to", "_waiter", "owed", "owed_since")

    def __init__(self, parts: SessionParts, finished: Callable[[bytes], None]) -> None:
        super().__init__(parts)
        self._finished = finished
        self._waiter: Waiter | None = None
        self._reply_to: Call | None = None  # call with a reply that the waiter has not got yet
        self.owed: Call | None = None  # call that the private connection owes a reply to
        self.owed_since: float = 0.0  # time of sending it, in seconds

    def hold(self, call: Call) -> bool:
        """Put `call` into the queue of its key.

        Returns False if the queues are full: then it was sent as a hit without WAIT.
        """
        db = self._private.state.identity.db
        where: Where = (db, call.key)
        flush = self._caller.flush
        waiter = self._context.waiting.join(
            where, call.rule, lambda rule: self._send(rule, call.key), self._end, flush, self._keep
        )
        if waiter is None:
            key_queue.fall_in(call, self._context.waiting, db)
            self._private.hit(call)
            return False
        if self._requests.eof:
            waiter.expire()  # it waits for one reply at most
        self._waiter = waiter
        self._lanes.append(call)
        return True

    def start(self) -> None:
        """Send the first request, after hold()."""
        if self._waiter is not None:
            self._waiter.start()

    def cancel(self) -> None:
        """Leave the queue without a reply."""
        self.owed = None
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter.cancel()

    def last_word(self) -> bool:
        """End the wait because the client sends no more. Returns whether a reply will come."""
        return self._waiter is None or self._waiter.last_word()

    def late(self, call: Call, reply: Callable[[], bytes]) -> None:
        """End the wait because Redis does not reply to `call` in time.

        reply: returns the client's reply; not called after the hit has left its queue.
        """
        if self.owed is call:
            self.owed = None
        waiter = call.waiter
        if waiter is not None:
            call.waiter = None
            waiter.unanswered(reply)

    def pass_reply(self) -> None:
        """Pass a reply of the private connection on to the queue."""
        call = self._reply_to
        if call is None:
            return
        self._reply_to = None
        if call.reply.startswith(b"*"):
            self._private.state.probed = True
        if call.waiter is not None:
            call.waiter.answered(r.clean_error(call.reply))

    def _end(self, reply: bytes) -> None:
        self._waiter = None
        self._finished(reply)

    def _keep(self) -> None:
        self._set_clock()
        self._private.keep_alive(0.0)

    def _set_clock(self) -> None:
        self._caller.now = max(self._caller.now, self._context.waiting.clock())

    def _send(self, rule: Rule, key: bytes) -> None:
        """Send a call of the waiter, by lane or privately. It has no other one unanswered."""
        waiter = self._waiter
        if waiter is None:
            return
        call = Call(self._caller, rule, key)
        call.waiter = waiter
        self._set_clock()
        private = self._private
        lane = None
        if private.may_leave():
            lane = self._lanes.lane_for_hits(private.state.identity)
        if lane is not None and lane.room > 0:
            private.keep_alive(REFRESH_S / 2)  # the waiter's timer starts again
            private.cover.sent(call)
            reply = lane.submit(call)
            assert not reply  # the denial cache never answers waiters' calls
            return
        self.owed = call
        self.owed_since = self._caller.now
        private.query(call, lambda reply: self._caught(call, reply))

    def _caught(self, call: Call, reply: bytes) -> bytes:
        if self.owed is call:
            self.owed = None
            self._reply_to = call
            call.reply = reply
        return b""
