"""Requests that are answered without Redis, while it can't be reached or does not answer. No I/O.

    the circuit is open, or Redis is late ──> answer_hits(): the hits that come first
    hits without a reply in time          ──> answer_late()
    the connection is not open            ──> unopened(): requests wait, or get why it has failed

Hits get the reply that --on-upstream-failure sets, other requests get an error. In the modes allow
and deny, HELLO, AUTH and SELECT are answered, too, and sent to Redis later: see DeferredHandshake.
"""

from __future__ import annotations

from rlproxy.fairness.budget import WORK_OF_OURS
from rlproxy.resp import commands, encoding
from rlproxy.resp.requests import COMMAND, EMPTY, MALFORMED, NEED_MORE
from rlproxy.session import waits
from rlproxy.session.call import NO_CALLER
from rlproxy.session.deferred_handshake import DeferredHandshake
from rlproxy.session.held_hit import HeldHit
from rlproxy.session.parts import SessionPart
from rlproxy.session.private_stream import PRIVATE_NONE, PRIVATE_OPEN


class FailOpen(SessionPart):
    """The answers of one client that do not come from Redis."""

    # -- late hits --------------------------------------------------------------------------------

    def answer_late(
        self, now: float, unsent_at: float | None, held: HeldHit | None
    ) -> tuple[int, bool]:
        """Answer the hits that Redis has not answered in time, and report them to the circuit.

        unsent_at: time since which requests wait for the private connection; None: they do not.
        held: the client's held hit.

        Returns the number of late hits, and whether others may become late.
        """
        timeout_s, failure = self._context.timeouts.timeout_s, self._context.failure
        before = now - timeout_s
        private, circuit = self._private, self._context.circuit
        begun = circuit.counts.without
        number = 0
        more = True
        # While requests or a held hit wait, the private connection owes the client no other hit.
        if unsent_at is not None:
            since = unsent_at
            if since <= before:
                self.answer_hits(failure.too_late(), "late")
                number = circuit.counts.without - begun
        elif held is not None and held.owed_since is not None:
            since = max(held.owed_since, private.received_at)
            if since <= before:
                held.fail(failure.too_late(), "late")
                number = 1  # hits behind it have another reason
        else:
            since = private.slots.answer_late(before, private.received_at)
            number = circuit.counts.without - begun
            more = private.slots.bounded > 0
        hangs = False
        if private.never_answered():
            hangs = private.received_at <= before
            since = since if number > 0 else private.received_at
            # A Redis that hangs is reported once. A client that Session.overdue() may have to
            # close, see awaits_handshake(), is looked at again.
            more = more or not hangs or self.awaits_handshake()
        if number > 0 or hangs:
            circuit.timed_out(number, since, now, timeout_s, number)
        return number, more

    def awaits_handshake(self) -> bool:
        """Return whether the client waits for Redis only because it connected before the outage.

        Its handshake was sent to Redis. If it connects again, the handshake is answered here.
        """
        private = self._private
        unanswered = private.first in commands.HANDSHAKE and private.never_answered()
        return unanswered and self._context.failure.answers_hits()

    # -- the hits that come first -----------------------------------------------------------------

    def answer_hits(self, error: bytes, kind: str, most: int = 0) -> bool:
        """Answer the unread hits that come first without Redis.

        Hits are answered only where no reply is owed before them and their meaning is certain.
        most: bound of the work units; 0: no bound. Returns False if it was reached.
        """
        requests, slots = self._requests, self._private.slots
        if self._lanes.count > 0 or requests.in_command():
            return True
        if not slots.settled() or not slots.can_insert():
            return True
        work = 0
        while most == 0 or work < most:
            work += 1
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == EMPTY:
                continue
            work += WORK_OF_OURS
            reply = self._reply(error, kind) if code == COMMAND else b""
            if not reply:
                requests.rewind(requests.start)
                break
            self._private.to_client.append(reply)
        self._context.budget.work += work
        return most == 0 or work < most

    def _reply(self, error: bytes, kind: str) -> bytes:
        """The reply to the framer's command without Redis; b"" if there is none.

        It is the error of a denied or wrong command, or what the failure policy returns.
        """
        requests, context = self._requests, self._context
        denied = requests.denied(context.stats)
        if denied or requests.in_command():
            return denied
        if not requests.command.ours:
            return self._handshake_reply()
        call = requests.call(NO_CALLER, context)  # it is never sent
        if call is None:
            return error if requests.command.report else b""
        if call.reply:
            self._lanes.count_outcome(call)
            return call.reply
        return context.failure.reply(call, error, kind)

    def _handshake_reply(self) -> bytes:
        """The reply to the framer's command if it is part of a handshake; Redis gets it later.

        b"" if it is not, or if hits get errors during an outage.
        """
        private, requests, context = self._private, self._requests, self._context
        if private.status == PRIVATE_OPEN or not context.failure.answers_hits():
            return b""
        handshake = private.handshake or DeferredHandshake()
        found = context.server.found
        reply = handshake.take(requests, found.name.lower().encode(), found.version.encode())
        if handshake.unsent:
            private.handshake = handshake
        return reply

    # -- while the private connection is not open -------------------------------------------------

    def unopened(self, code: int) -> int:
        """Treat the framer's request: all but empty ones wait for the private connection.

        Those that waited when it could not be opened are answered. Of a command that arrives in
        parts, the further parts will be dropped. Later requests open the connection again.
        Returns what the rest waits for: waits.CLOSE behind the client's last reply.
        """
        requests, private = self._requests, self._private
        if code == EMPTY:
            return waits.NOTHING
        if code == MALFORMED and requests.discarding:
            return waits.CLOSE  # the command has its error already
        if private.unopened <= 0:  # of the last one, a part may have come later
            requests.rewind(requests.start)
            if private.status == PRIVATE_NONE:
                private.open(requests.command.kind)
            return waits.OPEN
        if code == MALFORMED:
            private.to_client.append(private.error)
            return waits.CLOSE
        requests.discarding = requests.in_command()
        private.unopened -= requests.size()
        reply = self._reply(private.error, "unreachable")
        if not reply and requests.command.kind == commands.QUIT:
            private.to_client.append(encoding.OK)
            return waits.CLOSE
        private.to_client.append(reply or private.error)
        return waits.NOTHING
