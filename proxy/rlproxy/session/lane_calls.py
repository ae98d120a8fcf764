"""The calls of one client on lanes, in request order, and their replies. No I/O.

The way of a call, up to the first that is unanswered:

    append() ──> lane ──> answered() ──> emit() ──> the client
"""

from __future__ import annotations

from rlproxy.ratelimit.outcomes import NO_ROW, UNSEEN
from rlproxy.resp import commands, encoding
from rlproxy.session import overtaking
from rlproxy.session.call import Batch, Call, Lane
from rlproxy.session.connection_state import ConnectionState
from rlproxy.session.context import WorkerContext
from rlproxy.session.identity import ANONYMOUS
from rlproxy.session.private_stream import PrivateStream


class LaneCalls:
    """The calls of one client, from the first whose reply has not left.

    to_client: the list that replies leave by.
    state: decides which lanes are the client's.
    batch: ordinary commands on lanes; then there are no calls.
    count: the number of calls, or 1 for the batch. A held hit is a call, though no lane has it.
    """

    def __init__(
        self, context: WorkerContext, to_client: list[bytes], state: ConnectionState
    ) -> None:
        self._context = context
        self._to_client = to_client
        self._state = state
        self._identity = ANONYMOUS  # of the lanes below
        self._protocol = 2
        self._lanes: list[Lane | None] = [None] * commands.LANE_KINDS
        self.batch: Batch | None = None
        self.head: Call | None = None
        self.tail: Call | None = None
        self.count: int = 0

    # -- lanes ------------------------------------------------------------------------------------

    def forget_former(self) -> None:
        """Forget the lanes if the client's identity or protocol is another one now."""
        state = self._state
        if state.identity is not self._identity or state.protocol != self._protocol:
            self._identity = state.identity
            self._protocol = state.protocol
            self._lanes = [None] * commands.LANE_KINDS

    def lane_for(self, kind: int) -> Lane | None:
        """Return the client's lane of `kind`, made if needed.

        None at a limit of lanes, and if the lane is not ready: then it is woken.
        kind: HIT, SHARED_READ or SHARED_WRITE.
        """
        self.forget_former()
        lane = self._lanes[kind]
        if lane is None or lane.retired:
            protocol = 3 if kind == commands.HIT else self._protocol
            lane = self._lanes[kind] = self._context.lane_of(self._identity, kind, protocol)
        if lane is not None and not lane.ready:
            lane.wake()
            return None
        return lane

    def hit_lane(self) -> Lane | None:
        """Return the lane of the client's latest hits if it is ready. Makes and wakes none."""
        self.forget_former()
        lane = self._lanes[commands.HIT]
        return lane if lane is not None and lane.ready else None

    # -- a batch ----------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        """Record `batch`, which lanes carry now."""
        self.batch = batch
        self.count = 1

    def take_batch(self) -> Batch | None:
        """Return the batch, and forget it, if all of its parts have ended."""
        batch = self.batch
        if batch is None or batch.open > 0:
            return None
        self.batch = None
        self.count = 0
        return batch

    # -- calls ------------------------------------------------------------------------------------

    def append(self, call: Call) -> None:
        """Append `call` behind those under way."""
        self.count += 1
        tail = self.tail
        if tail is None:
            self.head = call
        else:
            tail.next = call
        self.tail = call

    def answered(self, call: Call, reply: bytes) -> bool:
        """Record the reply of a lane. Returns whether it is the client's next one."""
        if overtaking.must_edit(call):
            waiting, db = self._context.waiting, self._state.identity.db
            reply = overtaking.edited(call, reply, waiting, db)
        call.reply = reply
        return call is self.head

    def emit(self) -> None:
        """Move the replies to `to_client`, up to the first unanswered call."""
        call = self.head
        while call is not None and len(call.reply) > 0:
            if call.row != NO_ROW or call.rule.error:
                self.count_outcome(call)
            self._to_client.append(call.reply)
            self.count -= 1
            call = call.next
        self.head = call
        if call is None:
            self.tail = None

    def move_to(self, private: PrivateStream) -> None:
        """Send all calls without a reply, which no lane has sent, on the private connection."""
        call = self.head
        self.head = self.tail = None
        self.count = 0
        while call is not None:
            if call.reply:
                self.count_outcome(call)
                private.slots.local(call.reply)
            else:
                private.hit(call)
            call = call.next

    def abandon(self) -> None:
        """Forget all calls, and count their hits as unseen."""
        call = self.head
        while call is not None:
            self._context.stats.unanswered(call.take_row(), UNSEEN)
            call = call.next
        self.batch = None
        self.head = self.tail = None
        self.count = 0

    def count_outcome(self, call: Call) -> None:
        """Count the outcome of `call`. Then `call.reply` is the reply for the client."""
        if call.row != NO_ROW:
            call.reply = self._context.failure.answered(call, call.reply)
        elif call.rule.error:
            self._context.stats.error("syntax")

    def drop(self, call: Call) -> None:
        """Discard `call` of a client that is gone: it gets no reply, or none that matters."""
        self._context.stats.unanswered(call.take_row(), UNSEEN)
        call.reply = encoding.LOST
        self.emit()
