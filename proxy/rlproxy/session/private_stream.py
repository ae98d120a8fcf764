"""One private connection of a client: what Redis holds for it, which replies it owes, and what is
sent on it. No I/O.

    client's requests ──┬── unchanged, by the router: expect(), follow() ──┬──> to_redis ──> Redis
                        └── hit(), query(), answer_report() ... ───────────┘
    client <── to_client <── slots <── received() <── Redis

`state` follows the commands that change the connection's state. `slots` counts the replies that are
owed. Every request sent here gets a slot, and every slot its reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.observability.counters import brief
from rlproxy.ratelimit import help_text
from rlproxy.ratelimit.outcomes import HELP, POLICIES, STATS, TOP, UNSEEN, other, shadow
from rlproxy.ratelimit.scripts import LOADED, SHADOW, SOURCE
from rlproxy.resp import commands, encoding
from rlproxy.resp.commands import Command
from rlproxy.session import command_policy, command_replies, overtaking
from rlproxy.session.call import NO_CALLER, Call, Caller
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.connection_state import COUNTED, RAW, ConnectionState
from rlproxy.session.context import WorkerContext
from rlproxy.session.deferred_handshake import DeferredHandshake
from rlproxy.session.identity import ANONYMOUS
from rlproxy.session.reply_slots import ReplySlots
from rlproxy.session.slots import S_DROP, S_EDITED, S_HIT, S_PROBE, Slot
from rlproxy.session.wait_cover import REWRITE, WaitCover, not_covered, refusal

REFRESH_S: Final = 0.25  # silence in seconds before a call refreshes the private connection
MAX_LANE_CALL: Final = 4096  # bytes of a call on a lane; a longer one takes the private connection
_NOTHING_OURS: Final = encoding.bulks(commands.RL_HIT)  # in place of a part of an RL command
_REPORTS: Final = {
    commands.RL_HELP: HELP,
    commands.RL_STATS: STATS,
    commands.RL_TOP: TOP,
    commands.RL_POLICIES: POLICIES,
}

_ANSWERED: Final = -1  # in place of the kind of a command

# Values of PrivateStream.status.
PRIVATE_NONE: Final = 0  # no connection
PRIVATE_OPENING: Final = 1  # the owner opens it, then the deferred handshake is sent
PRIVATE_OPEN: Final = 2
PRIVATE_LOST: Final = 3


class PrivateStream:
    """The private connection of one client.

    For the owner of the session: `to_redis` is what to send; it opens the connection when
    `status` is PRIVATE_OPENING.

    caller: the session, until it has let go.
    to_client: the list that replies leave by.
    """

    def __init__(self, context: WorkerContext, caller: Caller, to_client: list[bytes]) -> None:
        self._context = context
        self.caller = caller
        self.to_client = to_client
        self.to_redis: list[bytes] = []
        self.status: int = PRIVATE_NONE
        self.error: bytes = b""  # why it could not be opened
        self.unopened: int = 0  # bytes of the requests that get this error, as they waited for it
        self.state = ConnectionState(context.server.in_cluster)
        self.slots = ReplySlots(self.state, to_client, context.failure)
        self.cover = WaitCover(context.server.in_cluster)
        self.handshake: DeferredHandshake | None = None  # commands that Redis has not accepted yet
        self.first: int = _ANSWERED  # kind of the first command, until Redis has sent bytes
        self.expanded: int = 0  # bytes of EVAL text added; the router resets it
        self.received_at: float = 0.0  # time of its latest bytes, or when it was read again
        self._kept_at: float = 0.0  # time of the latest empty request

    # -- the connection ---------------------------------------------------------------------------

    def may_use_lanes(self) -> bool:
        """Return whether the client is plain, known and quiescent, so that lanes may take calls."""
        return self.slots.quiescent() and self.state.allows_lanes()

    def never_answered(self) -> bool:
        """Return whether Redis owes a reply here, and has sent nothing at all yet.

        A Redis that hangs is noticed so where all clients begin with a handshake and not with a
        hit. The circuit opens, and the hits of later clients are answered.
        """
        return self.first != _ANSWERED and not self.slots.quiescent()

    def open(self, first: int) -> None:
        """Ask the owner to open the connection. first: the kind of its first command."""
        self.status = PRIVATE_OPENING
        self.first = first

    def log_in(self) -> None:
        """Send the next command of the deferred handshake. Behind the last one, be open."""
        handshake = self.handshake
        if handshake is None or not handshake.unsent:
            self.handshake = None
            self.status = PRIVATE_OPEN
            return
        command, args, written = handshake.unsent.pop(0)
        slot = self.state.sent(command, args, True) or Slot(S_DROP)
        if command.kind != commands.CLIENT:
            slot.edit = handshake.answered
        self.slots.expect(slot)
        self.to_redis.append(written)
        self._context.stats.commands += 1

    def failed(self, error: bytes, unread: int) -> None:
        """Give up opening the connection: the next `unread` bytes of requests get `error`."""
        self.status = PRIVATE_NONE
        self.error = error
        self.unopened = unread

    def received(self, data: bytes) -> None:
        """Take bytes of Redis, which `slots` is to pass on."""
        now = self._context.clock()
        self._context.stats.upstream_in += len(data)
        self._context.circuit.replied(now)
        self.received_at = now
        if self.first != _ANSWERED:
            self.first = _ANSWERED
            if data.startswith(encoding.NO_ROOM):
                self._context.server.on_refused()
        self.slots.feed(data)

    def keep_alive(self) -> None:
        """Keep Redis from closing the connection as idle, while the client makes calls elsewhere.

        Redis' `timeout` is at least 1 s, and may change at any time. The connection of a client
        that makes calls more often than that is never silent for as long. A held hit calls this
        again every KEEP_S.
        """
        now = self._context.clock()
        silent = now - max(self.received_at, self._kept_at) >= REFRESH_S
        if silent and self._context.server.found.ignores_empty:
            self._kept_at = now
            self.to_redis.append(encoding.EMPTY_REQUEST)

    def let_go(self) -> None:
        """Release the credentials, and all objects that refer to the session."""
        self.caller = NO_CALLER
        self.state.identity = ANONYMOUS
        self.handshake = None
        self.slots.forget()

    # -- commands of the client -------------------------------------------------------------------

    def expect(self, command: Command) -> None:
        """Expect the reply of a command that changes no state. The caller forwards its bytes."""
        sharing = command.shared != commands.PRIVATE and self._context.shares
        if sharing and not self.state.probed and not self.state.probing:
            self.state.probing = True
            self.slots.expect(Slot(S_PROBE))
        else:
            self.slots.expect_one()

    def follow(self, requests: ClientRequests) -> None:
        """Record a command that may change the connection's state, and expect its reply.

        The caller forwards its bytes.
        """
        command = requests.command
        state, slots = self.state, self.slots
        slot: Slot | None = None
        # Redis may leave out the error of an AUTH while it has bytes to write: owed replies, the
        # head of EXEC's array, or a push.
        pushes = state.level == COUNTED and state.protocol != 2
        if _authenticates(requests) and (state.multi or pushes or not slots.quiescent()):
            state.lower(RAW)
        else:
            args = requests.arguments() if command.whole else []
            slot = state.sent(command, args, not requests.oversize)
        if slot is None:
            slots.expect_one()
        else:
            slots.expect(slot)

    def must_wait(self, requests: ClientRequests) -> bool:
        """Return whether the framer's command waits until nothing is owed here.

        COMMAND, and a WAIT that covers writes of lanes: the replies before it decide whether its
        reply can be edited. AUTH: Redis from 7.2 leaves out its error while it has other replies to
        write.
        """
        slots, kind = self.slots, requests.command.kind
        covers = kind == commands.WAIT and self.cover.lane_wrote
        is_edited = covers or kind == commands.INTROSPECT
        if slots.uncounted() or slots.quiescent() or requests.eof:
            return False
        if is_edited:
            # The reply to EXEC decides, or the error of a command that Redis does not know.
            return not slots.can_insert()
        return _authenticates(requests)

    def expect_introspection(self, requests: ClientRequests) -> None:
        """Expect the reply to COMMAND. The caller forwards its bytes.

        RL commands are added to the reply if its place is certain.
        """
        slots, state = self.slots, self.state
        short = requests.size() <= command_replies.MAX_EDITED
        if requests.in_command() or not short or not slots.can_insert():
            slots.expect_one()
            return
        args, native = requests.arguments(), self._context.server.found.has_throttle
        edited = command_replies.edited
        slot = Slot(S_EDITED, edit=lambda reply: edited(reply, args, native, state.protocol == 3))
        slots.expect(slot)

    def cover_wait(self, requests: ClientRequests) -> None:
        """Forward a WAIT or WAITAOF that must cover writes of lanes; see WaitCover."""
        slots, cover = self.slots, self.cover
        whole = not requests.in_command()
        if slots.uncounted() and whole:
            self.to_redis.append(refusal(requests.command.name))
            return
        if not cover.can_rewrite() or not whole or not slots.can_insert():
            self.deny(not_covered(requests.command.name), requests)
            return
        self.caller.fenced = True
        self._context.stats.commands += 1
        self.to_redis += [REWRITE, cover.last_hit]
        slots.expect(Slot(S_DROP, edit=cover.rewritten))
        self.to_redis.append(requests.written())
        slots.expect(Slot(S_EDITED, edit=cover.judge(requests.command.name)))

    # -- RL commands in place ---------------------------------------------------------------------

    def answer_node_down(self, call: Call) -> bool:
        """Answer `call` in its place if the circuit of its node is open. Returns whether it has.

        Where its place is uncertain, the node gets it.
        """
        error = self._context.circuit.error_of_node(call)
        if not error or not self.slots.can_insert():
            return False
        self.slots.local(self._context.failure.reply(call, error, "unreachable"))
        return True

    def hit(self, call: Call, by_sha: bool = False) -> None:
        """Send `call` in its place among the client's commands.

        by_sha: it goes by EVALSHA, and a lane sends it again if its script is missing.
        """
        slots = self.slots
        certain = slots.can_insert()  # the place of its reply
        way = LOADED if by_sha else SOURCE
        self.put(call, way if certain or not shadow(call.row) else SHADOW)
        slot = Slot(S_HIT)
        if certain:
            slot.call = call
            slot.by_sha = by_sha
            slot.sent_at = self._context.clock()
            if overtaking.must_edit(call):
                waiting, db = self._context.waiting, self.state.identity.db
                slot.edit = lambda reply: overtaking.edited(call, reply, waiting, db)
            elif not by_sha:
                call.key = brief(call.key)  # its reply may be owed for long
            self.caller.watch()
        else:
            self._context.stats.unanswered(call.take_row(), UNSEEN)  # its reply can't be edited
        slots.expect(slot)

    def query(self, call: Call, answered: Callable[[bytes], bytes]) -> None:
        """Send a call of a held hit. The client does not get its reply."""
        self.put(call, SOURCE)
        self.slots.expect(Slot(S_DROP, edit=answered))
        self.caller.watch()

    def put(self, call: Call, way: int) -> None:
        """Send `call`; for `way` see Rule.words()."""
        head = call.rule.words(way)
        self.to_redis += [head, call.key, call.rule.tail]
        self.expanded += len(head)
        self.caller.fenced = True
        if call.rule.takes and len(call.key) <= MAX_LANE_CALL:  # the cover keeps the key
            self.cover.sent_privately(call.key, self.state.probed)

    def answer_report(self, requests: ClientRequests) -> None:
        """Answer a command of commands.REPORTS by a script that returns the reply.

        So Redis refuses it to a client that has no right to make hits.
        """
        context = self._context
        name = requests.command.name
        if self.state.multi:
            error = encoding.error(f"ERR {name.decode()} is not allowed in transactions")
            self.reject(error, requests)
            return
        if name == commands.RL_HELP:
            request = help_text.REQUEST
        else:
            request = context.report_request(name, requests.arguments())
        context.stats.answered(other(_REPORTS[name]), b"", b"")
        self.to_redis.append(request)
        self.expanded += len(request)
        self.slots.expect_one()

    def reject(self, error: bytes, requests: ClientRequests) -> None:
        """Answer a wrong RL command with its error, here if the place of the reply is certain.

        Otherwise Redis gets it, rejects it as unknown, and aborts a transaction it is in.
        """
        self._context.stats.error("syntax")
        part = requests.in_command()
        self._answer(error, requests, _NOTHING_OURS if part else requests.written())

    def deny(self, error: bytes, requests: ClientRequests) -> None:
        """Answer a command that must not reach Redis with `error`."""
        instead = encoding.bulks(command_policy.INSTEAD, requests.command.name)
        self._answer(error, requests, instead)

    def _answer(self, error: bytes, requests: ClientRequests, instead: bytes) -> None:
        """Answer the framer's command with `error` in its place, and drop its further parts.

        instead: what Redis gets to reject, where the place of the reply is not certain.
        """
        requests.discarding = requests.in_command()
        if self.slots.can_insert():
            self.slots.local(error)
            return

        def replaced(reply: bytes) -> bytes:
            return error if reply.startswith(b"-ERR unknown command") else reply

        self.to_redis.append(instead)
        self.slots.expect(Slot(S_EDITED, edit=replaced))


def _authenticates(requests: ClientRequests) -> bool:
    """Whether the framer's command is AUTH, or a HELLO that may contain it."""
    kind = requests.command.kind
    return kind == commands.AUTH or (kind == commands.HELLO and requests.argc > 2)
