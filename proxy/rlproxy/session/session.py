"""One client's session: it takes the events of both sides and composes the parts. No I/O.

    client ──> receive() ──> Router ──┬── LaneCalls ─────> lane.submit()
                                      ├── Sharing ───────> lane.take()
                                      ├── PrivateStream ─> private.to_redis
                                      ├── HeldHit
                                      └── FailOpen, while Redis can't be reached
    to_client <──┬── lane_answered()      replies to calls on lanes
                 ├── resume()             those to a batch on lanes
                 └── upstream_received()  the private connection's replies

The router decides where a request goes, and what the requests behind it wait for: see `waits`. The
session keeps that wait, and routes on when an event ends it.
"""

from __future__ import annotations

from typing import Final

from rlproxy.fairness.budget import CLIENT_WORK, LARGE, SMALL
from rlproxy.resp import encoding
from rlproxy.session import waits
from rlproxy.session.call import Batch, Call, nothing
from rlproxy.session.context import WorkerContext
from rlproxy.session.deferred_handshake import DeferredHandshake
from rlproxy.session.held_hit import HeldHit
from rlproxy.session.missing_script import send_again
from rlproxy.session.parts import SessionBase
from rlproxy.session.private_stream import PRIVATE_LOST, PRIVATE_NONE, PRIVATE_OPEN
from rlproxy.session.router import Router

MAX_UNREAD: Final = 262144  # bytes of requests that wait here before the client is paused


class Session(SessionBase):
    """The state of one client. See the module's docstring.

    The owner of a session moves the bytes in `to_client` and `private.to_redis`. It opens the
    private connection if `private.status` is PRIVATE_OPENING. If `wants_eof` is set, it passes the
    end of file on. If `closed` is set, it sends the bytes in `to_client` and closes the client.
    """

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.slow = False  # the client leaves its replies unread
        self.wants_eof = False
        self.closed = False
        self._watched = False  # HitTimeouts looks at this session
        self.wait: int = waits.NOTHING  # what unread requests wait for; waits.CLOSE: none is taken
        self._router = Router(self)
        self._held: HeldHit | None = None
        self._unsent_at: float = 0.0  # time since which requests wait for the private connection

    # -- the client's side ------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""
        context = self.context
        context.stats.client_in += len(data)
        if self.wait == waits.CLOSE:
            return
        if self._router.piped:
            self._router.pipe(data)
            return
        self.requests.feed(data)
        if self.wait == waits.NOTHING or (self.wait == waits.OPEN and context.circuit.open):
            if len(data) > SMALL and context.budget.spent():
                self.wait = waits.TICK
            else:
                self._route()

    def stops_reading(self) -> None:
        """Hold the client's requests, as it leaves its replies unread; see reads_on()."""
        self.slow = True
        self._router.set_backlogged(False)  # it sends no hits and needs no share

    def reads_on(self) -> None:
        """Go on: the client reads its replies again."""
        self.slow = False
        # Redis was not read: the client's hits have the hit timeout anew.
        self.private.received_at = self.context.clock()
        if self.wait == waits.READ:
            self._route_in_turn()

    def receive_eof(self) -> None:
        """Take the client's end of file."""
        self.requests.eof = True
        if self._held is not None and not self._held.end_of_file():
            self.abandon()  # as Redis does with a client that blocks
        elif self.wait & waits.ENDED_BY_REPLIES:
            self._route()  # from now on it waits only for the replies to hits by EVALSHA
        self._finish_eof()

    def full(self) -> bool:
        """Return whether the owner must stop reading the client, as too many bytes wait here."""
        # Few bytes suffice for a client that waits for its turn. Large pieces delay other clients.
        return self.requests.unread() > (LARGE if self.wait == waits.TICK else MAX_UNREAD)

    def outstanding(self) -> bool:
        """Return whether the client is owed a reply, or may be, as replies are not counted."""
        slots, requests = self.private.slots, self.requests
        # The reply to a command that has not ended is not waited for.
        if slots.uncounted() or slots.owed() > requests.in_command() or self.lanes.count > 0:
            return True
        return self.wait != waits.NOTHING and requests.unread() > 0

    def abandon(self) -> None:
        """End the session of a client that is gone; further replies are discarded."""
        self._cancel_held()
        self._take_no_more()
        self.closed = True

    def _cancel_held(self) -> None:
        """Take the held hit from its queue, without a reply."""
        if self._held is not None:
            self._held.cancel()
            self._held = None

    def let_go(self) -> None:
        """Release the credentials, and all objects that refer to this session."""
        self.flush = nothing
        self.private.let_go()
        self.lanes.forget_former()
        self.lanes.take_batch()  # batch and calls refer to the session until their replies leave
        self.lanes.emit()
        self.requests.rest()

    def _finish_eof(self) -> None:
        """Pass the end of file on once nothing waits."""
        if self.wait != waits.NOTHING or self.lanes.count:
            return
        if self.private.status == PRIVATE_OPEN:
            self.wants_eof = True
        elif self.private.status == PRIVATE_NONE:
            self._close()

    def _close(self) -> None:
        """Close behind the lanes' replies."""
        self._take_no_more()
        if self.lanes.count == 0:
            self.closed = True

    def _take_no_more(self) -> None:
        """Take no further request, and release the client's share of the unanswered hits."""
        self.wait = waits.CLOSE
        self._router.set_backlogged(False)

    # -- routing ----------------------------------------------------------------------------------

    def _route(self) -> None:
        """Send the unread requests to their destinations, as far as possible now."""
        if self.slow and self.private.slots.can_insert() and self.requests.unread() > 0:
            self.wait = waits.READ
            return
        context = self.context
        if context.circuit.open:
            if self.lanes.count > 0:
                self.wait = waits.EMPTY  # these calls will soon be late
                return
            error = encoding.unreachable(context.server.where, context.circuit.why)
            if not self._router.fail_open.answer_hits(error, "unreachable", CLIENT_WORK):
                self.wait = waits.TICK
                return
        self._set_wait(self._router.route())

    def _route_in_turn(self) -> None:
        """Send the unread requests, now or in the client's turn, unless none is taken any more."""
        if self.wait == waits.CLOSE:
            return
        if self.context.budget.spent() and self.requests.unread() > SMALL:
            self.wait = waits.TICK
        else:
            self._route()

    def _set_wait(self, wait: int) -> None:
        """Record what the unread requests wait for, and begin that wait."""
        self.wait = wait
        if wait == waits.OPEN:
            self._unsent_at = self.context.clock()
            self.watch()
        elif wait == waits.HELD:
            self._hold()
        elif wait == waits.CLOSE:
            self._close()
        if self.requests.eof:
            self._finish_eof()

    def _hold(self) -> None:
        """Hold the hit that the router has left as the only call."""
        hit = self.lanes.head
        assert hit is not None
        self._held = held = HeldHit(self, hit)
        self._router.set_backlogged(False)  # while held, it sends no hits and needs no share
        held.start()

    def held_finished(self) -> None:
        self._held = None
        self._emit()
        self._route_in_turn()

    def take_turn(self) -> None:
        """Route the requests that waited for the next tick (waits.TICK)."""
        if self.wait == waits.TICK:
            self._route()

    # -- the lanes' side --------------------------------------------------------------------------

    def lane_answered(self, call: Call, reply: bytes) -> None:
        private = self.private
        private.cover.answered(call, reply)
        if self.lanes.answered(call, reply):
            self._emit()

    def lane_returned(self, call: Call) -> None:
        """See Caller.lane_returned(). The private connection gets it, and all behind it."""
        if self.private.status == PRIVATE_OPEN and not self.closed:
            self.lanes.move_to(self.private)
        else:
            self.lane_failed(call, encoding.LOST, "lost")

    def lane_failed(self, call: Call, error: bytes, kind: str) -> None:
        """See Caller.lane_failed(). The requests behind the call go on; Redis may still run it."""
        if self.closed:
            self.lanes.drop(call)
        elif not call.reply:
            call.reply = self.context.failure.reply(call, error, kind)
            self._emit()

    def resume(self) -> None:
        """Go on, as a lane or the private connection has replied."""
        private = self.private
        if self._held is not None:
            self._held.pass_reply()
        if private.slots.missing is not None:
            send_again(self)
        if self.lanes.batch is not None:
            self._emit()
        if self.wait & waits.ENDED_BY_REPLIES and self._router.unblocked(self.wait):
            self._route_in_turn()
        if self.requests.eof:
            self._finish_eof()

    def _emit(self) -> None:
        """Move the lanes' replies to `to_client`, up to the first unanswered call."""
        if self.private.slots.mid():
            return
        batch = self.lanes.take_batch()
        if batch is not None:
            self._emit_batch(batch)
        self.lanes.emit()
        if self.wait == waits.CLOSE and self.lanes.count == 0:
            self.closed = True

    def _emit_batch(self, batch: Batch) -> None:
        """Pass on the replies of `batch`, up to the first command that no lane has answered.

        From there on, the private connection gets the commands. Writes that have run keep their
        replies. Reads are all sent again: their replies then are not older than those before them.
        """
        private, again = self.private, False
        for part in batch.parts:
            command, reply = part.commands.pop(0), part.replies.pop(0)
            if len(reply) == 0 and not again:
                if not self._sends_again(batch):
                    return
                again = True
            if not again:
                self.to_client.append(reply)
            elif reply and batch.writes:
                private.slots.local(reply)
            else:
                private.to_redis.append(command)
                private.slots.expect_one()

    def _sends_again(self, batch: Batch) -> bool:
        """Return whether the commands of `batch` without a reply are sent again. If not, close."""
        if (batch.large and batch.writes) or self.private.status != PRIVATE_OPEN:
            self._close()  # as after a loss of the private connection
        elif batch.large and self._router.sharing is not None:
            self._router.sharing.had_large_reply()
        return self.wait != waits.CLOSE

    # -- while Redis does not answer --------------------------------------------------------------

    def watch(self) -> None:
        if not self._watched:
            self._watched = True
            self.context.timeouts.watch(self.overdue)

    def overdue(self, now: float) -> bool:
        """Answer the late hits; see HitTimeouts.watch()."""
        if self.wait == waits.CLOSE:
            self._watched = False
            return False
        if self.slow and self.wait != waits.HELD:
            return True  # the private connection is not read: Redis may have replied in time
        unsent_at = self._unsent_at if self.wait == waits.OPEN else None
        fail_open = self._router.fail_open
        late, more = fail_open.answer_late(now, unsent_at, self._held)
        if self.context.circuit.open and fail_open.awaits_handshake():
            self.context.stats.error("unanswered")
            self._close()
            self.flush()
            return False
        if late > 0 and self.wait & waits.ENDED_BY_REPLIES:
            self._route()
        if late > 0 or self.to_client:
            self.flush()
        self._watched = more or late > 0  # behind late hits, requests may have been sent now
        return self._watched

    # -- the private connection's side ------------------------------------------------------------

    def upstream_opened(self) -> None:
        """Take the private connection, which logs in first."""
        self.private.received_at = self.context.clock()
        self._log_in()

    def _log_in(self) -> None:
        """Go on with the deferred handshake, then with the requests that wait for its end."""
        self.private.log_in()
        if self.private.status == PRIVATE_OPEN:
            self._route_in_turn()

    def upstream_failed(self, why: str) -> None:
        """Answer the requests that wait for the private connection, which could not be opened."""
        error = encoding.unreachable(self.context.server.where, why)
        self.private.failed(error, self.requests.unread())
        self._route_in_turn()

    def upstream_received(self, data: bytes) -> None:
        """Take bytes of the private connection."""
        slots = self.private.slots
        self.private.received(data)
        if self.lanes.count > 0:
            # A push that began before the lane's replies came goes before them.
            slots.pass_pushes()
            self._emit()
        slots.answer()
        if self.private.handshake is None:
            self.resume()
        else:
            self._handshake_answered(self.private.handshake)

    def _handshake_answered(self, handshake: DeferredHandshake) -> None:
        """Go on with the deferred handshake. Close if Redis refuses it, or is no Redis."""
        slots = self.private.slots
        if handshake.refused or slots.uncounted():
            self.private.handshake = None
            # Redis may turn a client away before it has read a request.
            refused = handshake.refused or b"".join(self.to_client)
            self.to_client.clear()  # of bytes that are no replies
            if refused.startswith(b"-") and self.requests.unread() > 0:
                self.to_client.append(refused)  # the reply to the client's next request
            self._close()
        elif slots.quiescent():
            self._log_in()

    def upstream_lost(self) -> None:
        """Handle the end of the private connection: close behind the replies of lanes."""
        if self.wait == waits.CLOSE:
            return
        private = self.private
        if private.never_answered() and not private.slots.may_block:
            self.context.server.on_refused()
        private.status = PRIVATE_LOST
        self._cancel_held()
        if private.slots.lost():
            # A push was passed on in part: further replies would be read as its rest.
            self.lanes.abandon()
        self._emit()
        self._close()
