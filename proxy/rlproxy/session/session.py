"""One client's session: where each command goes, and in which order replies leave. No I/O.

    client ──> receive() ──┬── hits of a plain, quiescent, known session ──> lane.submit()
                           ├── everything else, byte for byte ─────────────> to_upstream
                           └── hits in any other state, as EVAL in place ──> to_upstream

    to_client <── lane_answered()        replies to hits on the lane, in the order they were sent
    to_client <── upstream_received()    the private connection's replies, as they came

The order invariant: replies are never outstanding on the lane and on the private connection at
once. While the lane owes replies, all requests but hits wait here (`wait`). While the private
connection owes replies, hits go there too.

The private connection's replies are counted (see `reply_slots`). Once they cannot be counted, all
replies are passed on as they come, and hits still go as EVAL in their place.
"""

from __future__ import annotations

from typing import Final

from rlproxy.fairness.budget import CLIENT_WORK
from rlproxy.observability.counters import brief
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import HELP, NO_ROW, STATS, TOP, UNSEEN, other
from rlproxy.ratelimit.scripts import SOURCE
from rlproxy.ratelimit.wait_queue import Waiter, Where
from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.commands import Command
from rlproxy.resp.framing import (
    BODY,
    COMMAND,
    EMPTY,
    MALFORMED,
    MORE_NOTHING,
    NEED_MORE,
    OPEN,
    RequestFramer,
)
from rlproxy.session import command_policy, command_replies
from rlproxy.session import connection_state as s
from rlproxy.session.connection_state import Catch, ConnectionState, Identity, Slot
from rlproxy.session.context import (
    Call,
    Caller,
    Lane,
    WorkerContext,
    read,
    shared,
)
from rlproxy.session.deferred_handshake import DeferredHandshake
from rlproxy.session.reply_slots import ReplySlots
from rlproxy.session.timeouts import NEVER, NOTHING

REFRESH_S: Final = 0.5  # silence in seconds before a call refreshes the private connection
MAX_LANE_CALL: Final = 4096  # bytes of a call on a lane; a longer one takes the private connection
MAX_HELD: Final = 262144  # bytes of requests that wait here before the client is paused
LARGE: Final = 16384  # the same of a client that waits for its turn
MAX_SHARED: Final = 16384  # bytes of an ordinary command on a shared connection
PRIVATE_AFTER_LARGE: Final = 1000  # reads sent privately after one whose reply was large
MAX_EXPANDED: Final = 262144  # bytes of EVAL text that the requests of one client add per turn
SMALL: Final = 1024  # bytes; clients with more buffered must queue once the tick's budget is spent
# Work units per tick of the event loop; see Budget. A forwarded request is one.
WORK_OF_OURS: Final = 16  # extra units of an RL command
WORK_TO_TELL: Final = 500  # extra units of RL.HELP, RL.STATS, RL.TOP; they sum up all workers
WORK_TO_FOLLOW: Final = 8  # extra units of a command that changes its connection's state
WORK_OF_BYTES: Final = 7  # a unit is also 2 to this power bytes

UPSTREAM_NONE: Final = 0
UPSTREAM_OPENING: Final = 1
UPSTREAM_OPEN: Final = 2
UPSTREAM_LOST: Final = 3

# The event that the unread requests wait for.
WAIT_NOTHING: Final = 0
WAIT_LANE: Final = 1  # room among this client's calls on the lane
WAIT_LANE_EMPTY: Final = 2  # the last reply of the lane
WAIT_UPSTREAM: Final = 3  # the private connection, until it is open
WAIT_BASE: Final = 4  # the reply that decides about the database of --upstream
WAIT_ROOM: Final = 5  # its next turn, behind others: the budget is spent, or to_upstream is large
WAIT_QUIET: Final = 6  # the last reply of the private connection: for a hit with WAIT, or AUTH
WAIT_TURN: Final = 7  # the reply to a held hit
WAIT_ANSWERS: Final = 8  # room among this client's hits on the private connection
WAIT_PACE: Final = 9  # the next ms: the client leaves its replies unread
WAIT_GREETED: Final = 10  # replies to the deferred handshake

_DONE: Final = 0  # all unread hits went to the lane
_FULL: Final = 1  # the rest must wait for the lane
_HOLD: Final = 3  # the next hit must go alone; all before it went to the lane
_OTHER: Final = 2  # an unread command is not for a lane; nothing was taken

# A write that is replicated and leaves its key as it was. It returns 0 where the key has no time to
# live. It needs only rights that hits need.
_REWRITE_SCRIPT: Final = (
    b"local k,t=KEYS[1],redis.call('PTTL',KEYS[1])"
    b"if t==-1 then return 0 elseif t>=0 then redis.call('PEXPIRE',k,t+(t==0 and 1 or 0))"
    b"else redis.call('SET',k,'')redis.call('DEL',k)end return 1"
)
REWRITE: Final = b"*4\r\n" + r.bulks(b"EVAL", _REWRITE_SCRIPT, b"1").partition(b"\r\n")[2]
_REWRITTEN: Final = b":1\r\n"
_EMPTY: Final = b"*0\r\n"  # Redis reads it, runs nothing and sends no reply
_MALFORMED: Final = b"*1\r\n$-1\r\n"
_NOTHING_OURS: Final = r.bulks(b"RL.HIT")  # sent in place of an RL command that is too long


def _nothing() -> None:
    return


def not_covered(name: bytes) -> bytes:
    """Return the error for a WAIT or WAITAOF (`name`) whose number might be too high."""
    return r.error(
        f"ERR {name.decode()} can't cover this connection's earlier writes here: they went over a "
        "shared connection of rlproxy. Send it outside of MULTI, SUBSCRIBE and CLIENT TRACKING; "
        "with --share, send WAIT 0 0 before the first write, too"
    )


class Session(Caller):
    """The state of one client. See the module's docstring.

    The owner of a session moves the bytes in `to_client` and `to_upstream`. It opens the private
    connection when `upstream` is UPSTREAM_OPENING, and passes the end of file on when `wants_eof`
    is set. When `closed` is set, it sends the bytes in `to_client` and closes the client.
    """

    __slots__ = (
        "_answers",
        "_asked",
        "_call_count",
        "_call_head",
        "_call_tail",
        "_closing",
        "_deciding",
        "_backlogged",
        "_discarding",
        "_expanded",
        "_failing",
        "_failing_left",
        "_failing_multi",
        "_greeting",
        "_heard",
        "_hits",
        "_eof",
        "_judged",
        "_kept_at",
        "_lane",
        "_lane_wrote",
        "_last_hit",
        "_last_private",
        "_piped",
        "_question",
        "_question_at",
        "_read_lane",
        "_requests",
        "_settings",
        "_share_not",
        "_stats",
        "_under_way",
        "_unsent_at",
        "_unshared",
        "_waiter",
        "_watched",
        "_write_lane",
        "client_slow",
        "closed",
        "state",
        "to_client",
        "to_upstream",
        "upstream",
        "wait",
        "wants_eof",
    )

    def __init__(self, settings: WorkerContext) -> None:
        super().__init__()
        self._settings = settings
        self._stats = settings.stats
        # For the owner to read.
        self.to_client: list[bytes] = []
        self.to_upstream: list[bytes] = []
        self.upstream: int = UPSTREAM_NONE
        self.wants_eof = False
        self.closed = False
        # For the owner to set.
        self.client_slow = False  # the client leaves its replies unread
        # Requests.
        self.state = ConnectionState(settings.base_db)
        self._requests = RequestFramer()
        self.wait: int = WAIT_NOTHING  # the event that unread requests wait for
        self._piped = False  # requests are not framed any more
        self._judged = False  # of malformed input, only the mistake is forwarded
        self._expanded: int = 0  # see MAX_EXPANDED
        self._discarding = False  # the open command is not forwarded
        self._eof = False
        self._closing = False  # no further request of the client is taken
        self._backlogged = False  # more hits are buffered than may be unanswered
        self._failing: bytes = b""  # error for the unread requests,
        self._failing_left: int = 0  # for this number of bytes,
        self._failing_multi = False  # and whether the first of them may be inside MULTI
        # The private connection.
        self._answers = ReplySlots(self.state, self.to_client, self._stats)
        self._deciding = False  # database or transaction depend on a reply that is owed
        self._last_private: float = 0.0  # time of its latest bytes
        self._kept_at: float = 0.0  # time of the latest empty request
        # Lanes.
        self._hits = False  # the client has sent an RL command
        self._lane: Lane | None = None
        self._read_lane: Lane | None = None  # for ordinary commands
        self._write_lane: Lane | None = None
        self._share_not: int = 0  # reads that still go to the private connection
        self._lane_wrote = False  # WAIT on the private connection does not cover this: see _cover()
        self._last_hit: bytes = b""  # the key of the latest hit that Redis accepted, as a bulk
        self._unshared = False  # the client uses WAIT: its ordinary commands are not shared
        self._call_head: Call | None = None
        self._call_tail: Call | None = None
        self._call_count: int = 0
        self._under_way: int = 0  # calls on a lane, without those of a held hit
        self._waiter: Waiter | None = None  # of the held hit
        self._asked: Call | None = None  # call of the waiter, just answered
        self._question: Call | None = None  # the same, while the private connection owes its reply
        self._question_at: float = 0.0
        # While Redis does not answer.
        self._watched = False  # HitTimeouts looks at this session
        self._unsent_at: float = 0.0  # time since which requests wait for the private connection
        self._heard = False  # the private connection has received bytes
        self._greeting: DeferredHandshake | None = None  # commands that Redis has not accepted yet

    # -- the client's side ------------------------------------------------------------------------

    def use(self, commands: dict[bytes, Command]) -> None:
        """Set the commands that the client may send from now on; see command_policy.table()."""
        self._requests.use(commands)

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._stats.client_in += len(data)
        if self._closing:
            return
        if self._piped:
            if self._judged:
                data = self._requests.more_of_line(data, self._requests.more)
            if data:
                self.to_upstream.append(data)
            return
        self._requests.feed(data)
        if self.wait == WAIT_NOTHING:
            if len(data) > SMALL and self._settings.budget.spent():
                self.wait = WAIT_ROOM
            else:
                self._route()
        elif self.wait != WAIT_ROOM and self._settings.circuit.open:
            self._go_without()

    def leaves_unread(self) -> None:
        """Record that the client leaves its replies unread; see `client_slow`."""
        self.client_slow = True
        # Redis' replies are not read until the client reads: these waits might not end.
        if self.wait in (WAIT_ANSWERS, WAIT_QUIET):
            self.wait = WAIT_PACE

    def receive_eof(self) -> None:
        """Take the client's end of file."""
        self._eof = True
        if self._waiter is not None and not self._waiter.last_word():
            self.abandon()  # as Redis does with a client that blocks
        elif self.wait == WAIT_QUIET:
            self._route()  # after the end of file, no request waits for replies
        self._finish_eof()

    def held(self) -> int:
        """Return the number of bytes that wait here."""
        return self._requests.unread()

    def full(self) -> bool:
        """Return whether the owner must stop reading the client, as too many bytes wait here."""
        # Few bytes suffice for a client that waits for its turn. Large pieces delay other clients.
        return self._requests.unread() > (LARGE if self.wait == WAIT_ROOM else MAX_HELD)

    def outstanding(self) -> bool:
        """Return whether the client is owed a reply."""
        if self._answers.owing():
            return True
        return self._call_count > 0 or (self.wait != WAIT_NOTHING and self.held() > 0)

    def answers_alone(self) -> bool:
        """Return whether some requests of the client are answered without Redis."""
        return self.upstream != UPSTREAM_OPEN or self._settings.circuit.open

    def idle(self) -> bool:
        """Return whether no reply is owed and Redis will send no data unrequested."""
        return not self.gets_unasked() and not self.outstanding()

    def gets_unasked(self) -> bool:
        """Return whether Redis may send data that the client has not requested."""
        return self.state.level < s.COUNTED

    def abandon(self) -> None:
        """End the session of a client that is gone; further replies are discarded."""
        self._stop_waiting()
        self._take_no_more()
        self.closed = True

    def let_go(self) -> None:
        """Release the credentials, and all objects that refer to this session."""
        self.flush = _nothing
        self.state.identity = Identity(None, None, 0)
        self._greeting = None
        self._answers.forget()
        # The edits of its slots refer to this session.
        self._answers = ReplySlots(self.state, self.to_client, self._stats)
        self._lane = self._read_lane = self._write_lane = None
        self._requests = RequestFramer()

    def _finish_eof(self) -> None:
        if not self._eof or self._closing or self.wait != WAIT_NOTHING or self._call_count > 0:
            return
        if self.upstream == UPSTREAM_OPEN:
            self.wants_eof = True
        elif self.upstream == UPSTREAM_NONE:
            self._close()

    def _close(self) -> None:
        self._take_no_more()
        if self._call_count == 0:
            self.closed = True

    def _take_no_more(self) -> None:
        """Take no further request, and release the client's share of the unanswered hits."""
        self._closing = True
        self.wait = WAIT_NOTHING
        self._set_backlogged(False)

    # -- routing ----------------------------------------------------------------------------------

    def _route(self) -> None:
        """Send the unread requests to their destinations, as far as possible now."""
        self.wait = WAIT_NOTHING
        circuit = self._settings.circuit
        if circuit.open and not circuit.tries(self.now):
            if self._call_count > 0:
                self.wait = WAIT_LANE_EMPTY  # these calls will soon be late
                return
            self._go_without()
            if self.wait == WAIT_ROOM:
                return
        budget = self._settings.budget
        begun = budget.work
        if self._settings.share_of is not None and self._call_count == 0 and self._share():
            return
        while self._call_count > 0 or self._may_use_lane():
            lane = self._lane
            head = self._call_head
            sharing = head is not None and head.shared != c.PRIVATE
            if sharing:
                self.wait = WAIT_LANE_EMPTY
                return
            if lane is None or not lane.ready or self._room(lane) <= 0:
                self.wait = WAIT_LANE
                if self._requests.unread() > 0:
                    self._set_backlogged(True)
                return
            if budget.work - begun >= CLIENT_WORK:
                self.wait = WAIT_ROOM
                return
            found = _OTHER if self.client_slow else self._route_to_lane(lane)
            if found == _DONE:
                self._set_backlogged(False)
                self._requests.release()
                self._finish_eof()
                return
            if found != _FULL:  # what follows must not overtake the lane's calls
                if self._call_count > 0:
                    self.wait = WAIT_LANE_EMPTY
                    return
                break
        self._route_to_upstream()
        self._finish_eof()

    def _may_leave(self) -> bool:
        """Whether a call need not take the private connection: plain, known and quiescent."""
        return (
            self.upstream == UPSTREAM_OPEN
            and self._answers.quiescent()
            and self.state.plain()
            and not self.client_slow
            and not self._requests.in_command()
        )

    def _keep_alive(self, silent_s: float) -> None:
        """Keep Redis from closing the private connection as idle, if it was silent for `silent_s`.

        Redis' `timeout` is at least 1 s, and may change at any time. The connection of a client
        that makes calls more often than that is never silent for as long.
        """
        silent = self.now - max(self._last_private, self._kept_at) >= silent_s
        if silent and self.upstream == UPSTREAM_OPEN and self._settings.ignores_empty:
            self._kept_at = self.now
            self.to_upstream.append(_EMPTY)

    def _may_use_lane(self) -> bool:
        """Whether a hit may go by lane. Without hits, no lane is opened."""
        if not self._hits or not self._may_leave():
            return False
        lane = self._lane
        if lane is None or lane.retired:
            lane = self._settings.lane_of(self.state.identity)
            if lane is None:
                return False
            self._lane = lane
        if not lane.ready:
            lane.wake()
            return False
        return lane.room > 0

    def _room(self, lane: Lane) -> int:
        """The number of further calls that this client may have on the lane."""
        return min(self._most() - self._call_count, lane.room)

    def _most(self) -> int:
        """The number of unanswered calls that this client may have."""
        return self._settings.budget.hits(self._backlogged)

    def _set_backlogged(self, deep: bool) -> None:
        if deep != self._backlogged:
            self._backlogged = deep
            self._settings.budget.backlogged += 1 if deep else -1

    def _share(self) -> bool:
        """Send the unread bytes by a shared connection, if they are one small ordinary command.

        Returns whether they were sent.
        """
        if not self._may_leave() or self._eof or self._unshared:
            return False
        requests = self._requests
        requests.release()  # else next() might join buffers and move `start`
        start = requests.pos
        code = requests.next()
        if code == NEED_MORE:
            return False
        command = requests.command
        how = command.shared if code == COMMAND else c.PRIVATE
        if how == c.SHARED_READ and self._share_not > 0:
            self._share_not -= 1
            how = c.PRIVATE
        size = requests.pos - requests.start
        if size > MAX_SHARED or requests.lenient or requests.pos < len(requests.buf):
            how = c.PRIVATE
        written = requests.buf[requests.start : requests.pos] if how != c.PRIVATE else b""
        if requests.argc > 3 and command.name.upper() == b"SET" and b"\nGET" in written.upper():
            how = c.PRIVATE  # its reply may be large
        lane = self._lane_for(how) if how != c.PRIVATE else None
        if lane is None or not lane.ready:
            if lane is not None:
                lane.wake()
            requests.rewind(start)
            return False
        requests.release()
        self._keep_alive(REFRESH_S)
        self._stats.commands += 1
        call = shared(self, how, written)
        self._call_head = self._call_tail = call
        self._call_count = self._under_way = 1
        if not command.reads:
            self.fenced = True
            self._lane_wrote = True
        lane.submit(call)
        return True

    def _lane_for(self, how: int) -> Lane | None:
        """The lane for ordinary commands that read or write."""
        lane = self._read_lane if how == c.SHARED_READ else self._write_lane
        share_of = self._settings.share_of
        if share_of is not None and (lane is None or lane.retired):
            lane = share_of(self.state.identity, self.state.protocol, how)
            if how == c.SHARED_READ:
                self._read_lane = lane
            else:
                self._write_lane = lane
        return lane

    def _route_to_lane(self, lane: Lane) -> int:
        """Submit the unread hits, if there are no other commands."""
        requests = self._requests
        requests.gather()  # else next() might join buffers and move `start`
        start = requests.pos
        calls: list[Call] = []
        room = self._room(lane)
        found = _DONE
        empty = 0
        while True:
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == EMPTY:
                empty += 1
                if empty < CLIENT_WORK:
                    continue
                found = _FULL
                break
            ours = code == COMMAND and requests.command.ours and requests.command.ban is None
            short = requests.end - requests.start <= MAX_LANE_CALL
            call = self._call() if ours and short else None
            if call is None or (call.rule.script is None and not call.reply):
                requests.rewind(start)
                return _OTHER
            before = calls[-1] if calls else self._call_tail
            follows = True
            if before is not None and before.rule is not call.rule:
                follows = lane.may_follow(before.rule, call.rule)
            if call.rule.waits or not follows:
                requests.rewind(requests.start)
                found = _HOLD
                break
            calls.append(call)
            if len(calls) >= room:
                found = _FULL
                break
        self._settings.budget.work += empty + len(calls) * (WORK_OF_OURS + 1)
        if calls:
            self._keep_alive(REFRESH_S)
        for call in calls:
            self._call_count += 1
            tail = self._call_tail
            if tail is None:
                self._call_head = call
            else:
                tail.next = call
            self._call_tail = call
            if not call.reply:
                call.reply = lane.submit(call)
                if call.reply:
                    call.row = NO_ROW  # counted by DenialCache.harvest()
                else:
                    self._under_way += 1
                    self._writes_by_lane(call)
        self._emit_calls()
        return found

    def _call(self) -> Call | None:
        """The call of the framer's command; None if it is not for a lane."""
        call = read(self, self._requests, self._settings)
        crowded = self._settings.waiting.count > 0
        if crowded and call is not None and call.rule.takes and not call.rule.waits:
            self._fall_in(call)
        return call

    def _fall_in(self, call: Call) -> None:
        """Reduce a hit to a look if others wait on its key, so that it does not overtake them."""
        if self._settings.waiting.blocks((self.state.identity.db, call.key)):
            call.behind = call.rule
            call.rule = call.rule.look()  # counted as the hit

    def _edited(self, call: Call, reply: bytes) -> bytes:
        """The client's reply to a call that concerns the hits waiting on its key."""
        waiting = self._settings.waiting
        db = self.state.identity.db
        if not reply.startswith((b"*", b":")):
            return r.clean_error(reply)
        if call.rule.frees:
            for key in [call.key, *(call.others or [])]:
                waiting.freed((db, key))
        rule = call.behind
        found = r.integers(reply) if rule is not None else []
        if rule is None or not found:
            return reply
        return waiting.overtaking((db, call.key), rule, found)

    def _route_to_upstream(self) -> None:
        """Send all unread requests to the private connection."""
        requests = self._requests
        out = self.to_upstream
        run = -1  # start of the bytes that are forwarded unchanged
        self._expanded = 0
        work = 0
        passed = 0
        while True:
            work += 1
            if work > CLIENT_WORK or self._expanded > MAX_EXPANDED:
                self.wait = WAIT_ROOM
                break
            code = requests.next()
            if code == NEED_MORE:
                break
            if self._discarding and code not in (COMMAND, OPEN, EMPTY, MALFORMED):
                self._discarding = code == BODY
                continue
            if self.upstream != UPSTREAM_OPEN:
                if code == EMPTY:
                    continue
                if code == MALFORMED and self._discarding:
                    self._close()
                    break
                requests.rewind(requests.start)
                self.wait = WAIT_UPSTREAM
                self._unsent_at = self.now
                self._watch()
                if self.upstream == UPSTREAM_NONE:
                    self.upstream = UPSTREAM_OPENING
                    self._heard = False
                break
            if code == MALFORMED:
                run = self._send_run(run)
                self._stats.error("protocol")
                # No bytes that may contain a denied command are forwarded without framing.
                self._judged = requests.strict or requests.overlong()
                rest = requests.mistake() if self._judged else requests.rest()
                if self._discarding:
                    requests.more = MORE_NOTHING
                # Redis has not received the broken command: another broken one makes it reply.
                out.append(_MALFORMED if self._discarding else rest)
                self._answers.expect(Slot(s.S_RAW))
                self.state.lower(s.RAW)
                self._piped = True
                break
            if code in (COMMAND, OPEN):
                command = requests.command
                if command.ban is not None:
                    error = self._denied(code)
                    work += WORK_OF_OURS
                    if error:
                        run = self._send_run(run)
                        if self._greeting is not None:
                            self._not_let_in(error)
                            break
                        self._deny(code, error)
                        continue
                if not command.reads:
                    self.fenced = True
                if command.ours and not self._settings.leaves(command.name):
                    run = self._send_run(run)
                    if not self._may_call():
                        requests.rewind(requests.start)
                        break
                    work += WORK_OF_OURS + ((requests.end - requests.start) >> WORK_OF_BYTES)
                    if command.name != c.RL_HIT and command.name in c.TOLD:
                        work += WORK_TO_TELL
                    self._call_in_place(code)
                    if self.wait != WAIT_NOTHING:
                        break
                    continue
                if command.kind == c.PASS or command.ours:
                    self.state.asking = False
                    sharing = command.shared != c.PRIVATE and self._settings.share_of is not None
                    if sharing and not self.state.probed and not self.state.probing:
                        self.state.probing = self._answers.counting()
                        self._answers.expect(Slot(s.S_PROBE))
                    else:
                        self._answers.expect_one()
                elif command.kind == c.INTROSPECT:
                    run = self._introspect(code, run)
                elif self._waits_to_authenticate():
                    run = self._send_run(run)
                    requests.rewind(requests.start)
                    self.wait = WAIT_QUIET
                    break
                else:
                    if command.kind == c.WAIT:
                        self._unshared = True
                        if self._lane_wrote:
                            run = self._send_run(run)
                            self._cover(code)
                            continue
                    work += WORK_TO_FOLLOW + ((requests.end - requests.start) >> WORK_OF_BYTES)
                    self._follow(code)
                passed += 1
            if run < 0:
                run = requests.start
            if self.wait != WAIT_NOTHING or self._closing:
                break
        self._stats.commands += passed
        if run >= 0:
            if run == 0 and requests.pos == len(requests.buf):
                out.append(requests.buf)
            else:
                out.append(requests.buf[run : requests.pos])
        self._settings.budget.work += work
        if self.wait == WAIT_NOTHING:
            self._set_backlogged(False)
        wait = self.wait
        if wait != WAIT_ROOM and wait != WAIT_ANSWERS and wait != WAIT_PACE:
            requests.release()  # else each turn would copy all remaining bytes

    def _may_call(self) -> bool:
        """Whether one more hit may go to the private connection; if not, sets `wait`."""
        if self.client_slow:
            # Slowed down, not stopped: the client may read only after it has written all requests,
            # which Redis itself would accept.
            budget = self._settings.budget
            if budget.slow_hits <= 0:
                self.wait = WAIT_PACE
                return False
            budget.slow_hits -= 1
            return True
        answers = self._answers
        if self.state.asking or answers.ours < self._most() or not answers.can_count():
            return True
        self._set_backlogged(True)
        self.wait = WAIT_ANSWERS
        return False

    def _cover(self, code: int) -> None:
        """Forward a WAIT or WAITAOF that must cover the writes of lanes for this client.

        Redis counts the replicas that have the latest write of the connection that sends WAIT. So
        the private connection rewrites the key of the latest accepted hit first. Where that fails,
        or where replies cannot be counted, the client gets an error. It never gets a number that is
        too high.
        """
        requests = self._requests
        answers = self._answers
        error = not_covered(requests.command.name)
        if not self._last_hit or code != COMMAND or not answers.can_count():
            self._deny(code, error)
            return
        self.state.asking = False
        self.fenced = True
        self._stats.commands += 1
        self.to_upstream += [REWRITE, self._last_hit]
        answers.expect(Catch(self._covered, s.S_DROP))
        self.to_upstream.append(requests.buf[requests.start : requests.pos])

        def judged(reply: bytes) -> bytes:
            return error if self._lane_wrote and not reply.startswith(b"-") else reply

        answers.expect(Catch(judged))

    def _writes_by_lane(self, call: Call) -> None:
        if call.rule.takes or call.rule.frees:
            self._lane_wrote = True

    def _covered(self, reply: bytes) -> bytes:
        """Read the reply to REWRITE, which the client does not get."""
        if reply == _REWRITTEN:
            self._lane_wrote = False
        return b""

    def _send_run(self, run: int) -> int:
        """Forward the bytes from `run` to the framer's command unchanged. Returns -1: no run."""
        if run >= 0:
            self.to_upstream.append(self._requests.buf[run : self._requests.start])
        return -1

    def _follow(self, code: int) -> None:
        """Forward a command that may change the state of its connection."""
        requests = self._requests
        command = requests.command
        if self._auth_error_may_be_lost():
            slot: Slot | None = self.state.sent_unsure()
        else:
            args = requests.arguments() if command.whole else []
            slot = self.state.sent(command, args, code == COMMAND and not requests.oversize)
        if self._greeting is not None:
            self._greeting.unsent -= 1
            if self._greeting.unsent == 0:
                self.wait = WAIT_GREETED
        if command.kind == c.HTTP:
            self._answers.hushed = True
        if (
            self._settings.base_db
            and (self.state.level == s.RAW or not self._answers.counting())
            and self.state.leaves_base(command)
        ):
            self._close()  # no connection is better than one to another database
            return
        if slot is None:
            self._answers.expect_one()
            return
        if slot.kind in (s.S_SELECT, s.S_RESET, s.S_EXEC, s.S_DISCARD):
            self._deciding = True
        self._answers.expect(slot)
        if not self._settings.base_db or not self._answers.counting() or code != COMMAND:
            return
        if slot.kind == s.S_RESET or (
            slot.kind in (s.S_AUTH, s.S_HELLO, s.S_MULTI) and self.state.base_owed
        ):
            self._answers.decided = False
            self.wait = WAIT_BASE  # the reply decides whether the proxy's SELECT is next

    def _authenticates(self) -> bool:
        """Whether the framer's command is AUTH, or a HELLO that may contain it."""
        requests = self._requests
        kind = requests.command.kind
        return kind == c.AUTH or (kind == c.HELLO and requests.argc > 2)

    def _waits_to_authenticate(self) -> bool:
        """Whether the framer's command waits until the private connection owes nothing.

        Redis from 7.2 leaves out the error of an AUTH while it has other replies to write.
        """
        answers = self._answers
        if not self._authenticates() or not answers.counting() or answers.quiescent():
            return False
        if self.state.base_owed or self._greeting is not None:
            return True  # no command that blocks or has a large reply can be ahead
        # No wait after the end of file: a command that blocks must receive it. No wait for a client
        # that leaves its replies unread: it may never read, and Redis would take all its requests.
        return not self._eof and not self.client_slow

    def _auth_error_may_be_lost(self) -> bool:
        """Whether Redis may leave out the error of the framer's command, an AUTH sent now."""
        answers = self._answers
        if not self._authenticates() or not answers.counting():
            return False
        return self.state.writes_before_auth() or not answers.quiescent()

    def _introspect(self, code: int, run: int) -> int:
        """Forward COMMAND. If the place of its reply is certain, RL commands are added to it.

        Returns `run`, or the result of _send_run().
        """
        requests = self._requests
        answers = self._answers
        self.state.asking = False
        plan: command_replies.Plan | None = None
        short = requests.end - requests.start <= command_replies.MAX_EDITED
        if code == COMMAND and short and not requests.oversize and answers.can_count():
            plan = command_replies.plan(requests.arguments(), self._settings.native_throttle)
        if plan is None:
            answers.expect_one()
            return run
        if plan.asked is not None:
            run = self._send_run(run)
            self.to_upstream.append(command_replies.FORM_CALL)
            answers.expect(plan.asked)
        answers.expect(plan.slot)
        return run

    def _select_base(self) -> None:
        self.to_upstream.append(r.bulks(b"SELECT", b"%d" % self._settings.base_db))
        self._answers.expect(Slot(s.S_BASE))

    def _call_in_place(self, code: int) -> None:
        """Send an RL command on the private connection."""
        requests = self._requests
        state = self.state
        self._hits = True
        asking = state.asking  # it applies to this command only, which then cannot be delayed
        state.asking = False
        if code == OPEN:
            self._discarding = True
            self._reject(r.TOO_LONG, _NOTHING_OURS)
            return
        call = self._call()
        if call is None:
            self._tell()
            return
        if call.reply:
            self._reject(call.reply, requests.buf[requests.start : requests.end])
            return
        crowded = call.rule.waits or self._settings.waiting.count > 0
        if crowded and not asking and self._must_be_quiet(call):
            requests.rewind(requests.start)
            self.wait = WAIT_QUIET
            return
        quiet = self._answers.quiescent()  # may be False after the client's end of file
        may_hold = quiet and self._answers.can_count() and not state.quitting and not asking
        if call.rule.waits and may_hold:
            self._hold(call)
            return
        self._send_in_place(call)

    def _tell(self) -> None:
        """Answer RL.HELP, RL.STATS or RL.TOP by a script that returns the reply.

        So Redis refuses it to a client that has no right to make hits.
        """
        requests = self._requests
        name = requests.command.name
        if self.state.multi:
            self._reject(
                r.error(f"ERR {name.decode()} is not allowed in transactions"),
                requests.buf[requests.start : requests.end],
            )
            return
        if name == c.RL_HELP:
            said = self._settings.grammar.help_call
        else:
            said = self._settings.tell(name, requests.arguments())
        of = HELP if name == c.RL_HELP else STATS if name == c.RL_STATS else TOP
        self._stats.answered(other(of), b"", b"")
        self.to_upstream.append(said)
        self._expanded += len(said)
        self._answers.expect_one()

    def _send_in_place(self, call: Call) -> None:
        if call.behind is not None and not self._answers.can_count():
            call.rule = call.behind  # its reply cannot be edited: send it as any hit
            call.behind = None
        self._put_in_place(call)
        counted = self._answers.can_count()
        if self._concerns_others(call) and counted:
            slot: Slot = Catch(lambda reply: self._edited(call, reply), s.S_HIT)
        else:
            slot = Slot(s.S_HIT)
        if counted:
            slot.limit = call.rule.limit if call.behind is None else call.behind.limit
            slot.sent_at = self.now
            slot.row = call.row
            slot.data = brief(call.key)
            self._watch()
        else:
            self._stats.unanswered(call.row, UNSEEN)
        call.row = NO_ROW  # the slot counts it
        self._answers.expect(slot)

    def _put_in_place(self, call: Call) -> None:
        head = call.rule.words(SOURCE, self._settings.knows_ro)
        self.to_upstream += [head, call.key, call.rule.tail]
        self._expanded += len(head)
        self.fenced = True
        better = not self._last_hit or not self.state.probed
        # The bound applies as the key is stored for as long as the client is connected.
        if better and call.rule.takes and len(call.key) <= MAX_LANE_CALL:
            self._last_hit = call.key

    def _concerns_others(self, call: Call) -> bool:
        """Whether the reply to `call` matters to the hits waiting on its key."""
        return call.behind is not None or (call.rule.frees and self._settings.waiting.count > 0)

    def _reject(self, error: bytes, written: bytes) -> None:
        """Answer a wrong RL command with its error, here if the place of the reply is certain.

        Otherwise Redis gets the command, rejects it as unknown, and aborts a transaction it is in.
        """
        self._stats.error("syntax")
        self._answer_in_place(error, written)

    def _answer_in_place(self, error: bytes, written: bytes) -> None:
        if self._answers.can_count() and not self.client_slow:
            self._answers.local(error)
        else:
            self.to_upstream.append(written)
            self._answers.expect(Slot(s.S_WRONG, error))

    def _denied(self, code: int) -> bytes:
        """The error for the framer's command if its client must not send it. Counts the error."""
        requests = self._requests
        ban = requests.command.ban
        if ban is None:
            return b""
        args = requests.arguments() if requests.command.whole or requests.oversize else []
        error = ban.error(args, code == COMMAND and not requests.oversize)
        if error:
            self._stats.error("denied")
        return error

    def _deny(self, code: int, error: bytes) -> None:
        """Treat a command that must not reach Redis as a wrong RL command."""
        if code == OPEN:
            self._discarding = True
        asking = self.state.asking  # ASKING applied to this command
        self.state.asking = False
        instead = command_policy.instead_of(self._requests.command)
        if asking:
            self.to_upstream.append(instead)
            self._answers.expect(Slot(s.S_WRONG, error))
        else:
            self._answer_in_place(error, instead)

    # -- held hits --------------------------------------------------------------------------------

    def _must_be_quiet(self, call: Call) -> bool:
        """Whether a hit waits for the replies before it.

        That is so if it may be held, or if these replies decide on its queue or its transaction.
        """
        answers = self._answers
        rule = call.behind or call.rule
        # A late reply may never come. settled() ignores it, and the hit is sent as if without WAIT.
        if not rule.takes or answers.settled() or not answers.counting() or self._eof:
            return False
        return self._deciding or (rule.waits and answers.can_count())

    def _hold(self, call: Call) -> None:
        """Hold a hit: its client gets the reply in its turn, or when its time is over."""

        def ask(rule: Rule) -> None:
            self._ask(Call(self, rule, call.key))

        def finish(reply: bytes) -> None:
            self._waiter = None
            call.reply = reply
            self._emit_calls()
            if not self._closing:
                self._route()

        def keep() -> None:
            self.now = max(self.now, self._settings.waiting.clock())
            self._keep_alive(0.0)

        where: Where = (self.state.identity.db, call.key)
        waiter = self._settings.waiting.join(where, call.rule, ask, finish, self.flush, keep)
        if waiter is None:
            self._fall_in(call)  # the wait queues are full
            self._send_in_place(call)
            return
        if self._eof:
            waiter.expire()  # see receive_eof()
        self._waiter = waiter
        self._call_head = self._call_tail = call
        self._call_count = 1
        self._set_backlogged(False)  # while held, it sends no hits and needs no share
        self.wait = WAIT_TURN
        waiter.start()

    def _ask(self, call: Call) -> None:
        """Send a call of the waiter, by lane or privately. It has no other one unanswered."""
        waiter = self._waiter
        if waiter is None:
            return
        call.waiter = waiter
        self.now = max(self.now, self._settings.waiting.clock())
        if self._may_use_lane():
            lane = self._lane
            assert lane is not None
            self._keep_alive(REFRESH_S / 2)  # the waiter's timer starts again
            self._writes_by_lane(call)
            reply = lane.submit(call)
            assert not reply  # the denial cache never answers waiters' calls
            return
        self._put_in_place(call)
        self._answers.expect(Catch(lambda reply: self._caught(call, reply), s.S_ASKED))
        self._question = call
        self._question_at = self.now
        self._watch()

    def _caught(self, call: Call, reply: bytes) -> bytes:
        self._asked = call
        if self._question is call:
            self._question = None
        call.reply = reply
        return b""

    def _asked_answered(self, call: Call) -> None:
        """Pass the private connection's reply on to the waiter."""
        self._asked = None
        if call.reply.startswith(b"*"):
            self.state.probed = True
        if call.waiter is not None:
            call.waiter.answered(r.clean_error(call.reply))

    def _stop_waiting(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter.cancel()

    # -- the lane's side --------------------------------------------------------------------------

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """See Caller.lane_answered()."""
        # An array shows that Redis gave the call access to its key.
        if reply[0] == 42 and (call.rule.takes or call.rule.frees):
            self._last_hit = call.key
        if call.waiter is not None:
            call.waiter.answered(reply)
            return
        self._off_lane()
        if self._concerns_others(call):
            reply = self._edited(call, reply)
        call.reply = reply
        if call is self._call_head:
            self._emit_calls()

    def _off_lane(self) -> None:
        """Count a call that left the lane."""
        self._under_way -= 1

    def lane_returned(self, call: Call) -> None:
        """See Caller.lane_returned(). The call, and all behind it, go to the private connection."""
        if call.waiter is not None:
            call.waiter.unsent()
            return
        self._off_lane()
        if call.reply:
            return
        before: Call | None = None
        at = self._call_head
        while at is not None and at is not call:
            before = at
            at = at.next
        if at is None:
            return  # it was returned with a call before it
        if self.upstream != UPSTREAM_OPEN:
            if call.shared != c.PRIVATE:
                self._end()  # as after a loss of the private connection
            else:
                self._answer_without(call, r.LOST, "lost")
            return
        if before is None:
            self._call_head = None
        else:
            before.next = None
        self._call_tail = before
        while at is not None:
            self._call_count -= 1
            if at.reply:
                self._count(at)
                self._answers.local(at.reply)
            elif at.shared != c.PRIVATE:
                self._send_privately(at)
            else:
                self._send_in_place(at)
            at = at.next

    def lane_lost(self, call: Call) -> None:
        """See Caller.lane_lost()."""
        if call.waiter is not None or call.shared == c.PRIVATE:
            self.lane_answered(call, r.LOST)
        elif call.shared == c.SHARED_READ:
            self._share_not = PRIVATE_AFTER_LARGE  # this read may be the cause of the loss
            self.lane_returned(call)  # a read may be sent twice
        else:
            self._off_lane()
            self._end()  # as after a loss of the private connection

    def lane_late(self, call: Call) -> None:
        """Answer a late `call` without Redis; see Caller.lane_late().

        The requests behind it go on, though Redis may still run it.
        """
        waiter = call.waiter
        if waiter is not None:
            call.waiter = None
            waiter.unanswered(self._waited_in_vain)
            return
        self._off_lane()
        if self.closed:
            self._stats.unanswered(call.row, UNSEEN)  # the client is gone
            call.row = NO_ROW
        elif not call.reply:
            self._answer_without(call, self._settings.too_late(), "late")

    def lane_declined(self, call: Call) -> None:
        """Send the read `call`, whose reply is large, again on the private connection.

        There the reply streams as fast as the client reads.
        """
        self._share_not = PRIVATE_AFTER_LARGE
        if call is self._call_head:
            self.lane_returned(call)
        else:
            self._off_lane()

    def _send_privately(self, call: Call) -> None:
        self.to_upstream.append(call.key)
        self._answers.expect_one()

    def _end(self) -> None:
        self._end_calls()
        self._close()

    def _end_calls(self) -> None:
        call = self._call_head
        while call is not None:
            self._stats.unanswered(call.row, UNSEEN)
            call.row = NO_ROW
            call = call.next
        self._call_head = self._call_tail = None
        self._call_count = 0

    def _emit_calls(self) -> None:
        """Pass on the replies that have come, in order."""
        if self._answers.mid():
            return
        call = self._call_head
        while call is not None and call.reply:
            self.to_client.append(call.reply)
            if call.row != NO_ROW or call.rule.error:
                self._count(call)
            self._call_count -= 1
            call = call.next
        self._call_head = call
        if call is None:
            self._call_tail = None
            if self._closing:
                self.closed = True

    def _count(self, call: Call) -> None:
        """Count the outcome of `call`, whose reply goes to the client."""
        row = call.row
        if row != NO_ROW:
            call.row = NO_ROW
            self._stats.answered(row, call.reply, call.key)
        elif call.rule.error:
            self._stats.error("syntax")

    def resume(self) -> None:
        """See Caller.resume()."""
        if self._closing:
            return
        wait = self.wait
        if self._call_count == 0:
            quiet = wait == WAIT_QUIET and (self._answers.quiescent() or self._answers.raw)
            room = wait == WAIT_ANSWERS and (
                self._answers.ours <= self._most() // 2 or not self._answers.can_count()
            )
            if quiet or room or wait in (WAIT_LANE, WAIT_LANE_EMPTY):
                self._route_in_turn()
        elif wait == WAIT_LANE and self._call_count <= self._most() // 2:
            self._route_in_turn()
        if self._eof:
            self._finish_eof()

    def _route_in_turn(self) -> None:
        """Send the unread requests, now or in the client's turn."""
        if self._settings.budget.spent() and self._requests.unread() > SMALL:
            self.wait = WAIT_ROOM
        else:
            self._route()

    # -- while Redis does not answer --------------------------------------------------------------

    def _watch(self) -> None:
        """Watch for late replies."""
        if not self._watched and self._settings.timeouts.timeout_s > 0.0:
            self._watched = True
            self._settings.timeouts.watch(self.overdue)

    def overdue(self, now: float) -> float:
        """Answer the late hits; see HitTimeouts.watch()."""
        settings = self._settings
        timeout_s = settings.timeouts.timeout_s
        if self._closing or timeout_s <= 0.0:
            self._watched = False
            return NOTHING
        self.now = now
        before = now - timeout_s
        number = self._answers.late(before, self._last_private, self._late)
        oldest = self._answers.oldest
        since = self._answers.late_since
        question = self._question
        if question is not None:
            oldest = max(self._question_at, self._last_private)
            if oldest <= before:
                number += 1
                since = oldest
                oldest = NEVER
                self._question = None
                self._answers.forget_asked()
                self.lane_late(question)
        silent = number == 0 and self._is_unanswered()
        if silent:
            oldest = self._last_private if oldest == NOTHING else min(oldest, self._last_private)
            silent = self._last_private <= before
            if silent:
                since = self._last_private
                oldest = NEVER
        if self.wait in (WAIT_UPSTREAM, WAIT_BASE, WAIT_GREETED):
            oldest = NEVER if oldest == NOTHING else oldest
            if number == 0 and self._unsent_at <= before:
                since = self._unsent_at
                number = self._fail_hits(settings.too_late(), "late")
        if number > 0 or silent:
            settings.circuit.timed_out(number, since, now, timeout_s)
            if self.wait == WAIT_QUIET or self.wait == WAIT_ANSWERS:
                self._route()
            if oldest == NOTHING:
                oldest = NEVER  # the requests behind may have been sent
        if number > 0 or self.to_client:
            self.flush()
        self._watched = oldest != NOTHING
        return oldest

    def _late(self, slot: Slot) -> bytes:
        """The client's reply to a late hit on the private connection."""
        return self._settings.without(slot.limit, slot.row, self._settings.too_late(), "late")

    def _waited_in_vain(self) -> bytes:
        """The client's reply to a hit with WAIT, if Redis does not answer its waiter."""
        call = self._call_head
        if call is None:
            return b""
        row, call.row = call.row, NO_ROW
        return self._settings.without(call.rule.limit, row, self._settings.too_late(), "late")

    def _answer_without(self, call: Call, error: bytes, kind: str) -> None:
        rule = call.rule if call.behind is None else call.behind
        call.reply = self._settings.without(rule.limit, call.row, error, kind)
        call.row = NO_ROW
        if call is self._call_head:
            self._emit_calls()

    def _go_without(self) -> None:
        """Answer the unread hits that come first, while Redis is not queried."""
        settings = self._settings
        in_turn = self.wait == WAIT_NOTHING or self.wait == WAIT_UPSTREAM
        most = CLIENT_WORK if in_turn else 0
        error = r.unreachable(settings.where, settings.circuit.why)
        if self._fail_hits(error, "unreachable", most) < 0:
            self.wait = WAIT_ROOM

    def _fail_hits(self, error: bytes, kind: str, most: int = 0) -> int:
        """Answer the unread hits that come first without Redis, and return their number.

        Hits are answered only where no reply is owed before them and their meaning is certain.
        most: bound of the work units; the result is -1 if it was reached. 0: no bound.
        """
        answers = self._answers
        requests = self._requests
        state = self.state
        if self._call_count > 0 or not answers.settled() or not answers.can_count():
            return 0
        if state.asking or state.quitting or self._discarding or requests.in_command():
            return 0
        number = work = 0
        while True:
            if work >= most > 0:
                number = -1
                break
            work += 1
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == EMPTY:
                continue
            work += WORK_OF_OURS
            ours = code == COMMAND and requests.command.ours
            denied = self._denied(code) if code == COMMAND else b""
            if denied:
                self.to_client.append(denied)
                continue
            call = read(self, requests, self._settings) if ours else None
            if call is None:
                greeted = self._taken_on_trust(code)
                if greeted:
                    self.to_client.append(greeted)
                    continue
                requests.rewind(requests.start)
                break
            if not call.reply:
                call.reply = self._settings.without(call.rule.limit, call.row, error, kind)
                number += 1
            else:
                self._count(call)
            self._hits = True
            self.to_client.append(call.reply)
        self._settings.budget.work += work
        if number >= 0:
            requests.release()
        return number

    def _is_unanswered(self) -> bool:
        """Whether Redis has sent nothing at all on the private connection, and owes a reply.

        A Redis that hangs is noticed so, where all clients begin with a handshake and not with a
        hit. These clients wait. The circuit opens, and later ones get their hits answered.
        """
        return self.upstream == UPSTREAM_OPEN and not self._heard and not self._answers.quiescent()

    # -- clients that connect during an outage: see deferred_handshake ----------------------------

    def _taken_on_trust(self, code: int) -> bytes:
        """The reply to the framer's command if it is part of a handshake; Redis gets it later.

        b"" if it is not, or if hits get errors during an outage.
        """
        unopened = self.upstream in (UPSTREAM_NONE, UPSTREAM_OPENING)
        if not unopened or not self._settings.answers_hits():
            return b""
        greeting = self._greeting or DeferredHandshake()
        reply = self._take(greeting, code)
        if reply and not greeting.empty():
            self._greeting = greeting
        return reply

    def _take(self, greeting: DeferredHandshake, code: int) -> bytes:
        requests = self._requests
        command = requests.command
        if code != COMMAND or command.kind not in c.GREETS or requests.oversize:
            return b""
        if command.ban is not None and command.ban.error(requests.arguments(), True):
            return b""
        return greeting.take(requests, self._settings.server, self._settings.server_version)

    # -- the private connection's side ------------------------------------------------------------

    def go_on(self) -> None:
        """Continue in this client's turn (WAIT_ROOM, WAIT_PACE)."""
        if self._closing or (self.wait != WAIT_ROOM and self.wait != WAIT_PACE):
            return
        if self._failing:
            self._fail_on()
        else:
            self._route()

    def upstream_opened(self) -> None:
        """Take the private connection, which is open now."""
        self.upstream = UPSTREAM_OPEN
        self._last_private = self.now
        if self._greeting is not None:
            self._requests.again(self._greeting.begin())
            self._answers.out = self._greeting.replies
        elif self._settings.answers_hits():
            self._watch()
        if self._settings.base_db:
            self._answers.decided = False
            self.wait = WAIT_BASE
            self._select_base()
        else:
            self._route_in_turn()

    def upstream_failed(self, why: str) -> None:
        """Answer the requests that wait for the private connection, which could not be opened."""
        self._fail_all(r.unreachable(self._settings.where, why))

    def _fail_all(self, error: bytes) -> None:
        self.upstream = UPSTREAM_NONE
        self._failing = error
        self._failing_left = self._requests.unread()
        self._failing_multi = False
        if self._settings.budget.spent() and self._failing_left > SMALL:
            self.wait = WAIT_ROOM
        else:
            self._fail_on()

    def _fail_on(self) -> None:
        """Send the error of _fail_all() to some more of the requests."""
        error = self._failing
        self._failing = b""
        self.wait = WAIT_NOTHING
        requests = self._requests
        multi = self._failing_multi  # inside MULTI, every command gets the error that MULTI got
        before = requests.unread()
        work = 0
        while not self._closing:
            if work >= CLIENT_WORK:
                self._settings.budget.work += work
                self._failing_left -= before - requests.unread()
                if self._failing_left > 0:  # later requests are for the next connection
                    self._failing = error
                    self._failing_multi = multi
                self.wait = WAIT_ROOM
                return
            work += 1
            code = requests.next()
            if code == NEED_MORE:
                break
            if code == MALFORMED:
                self.to_client.append(error)
                self._close()
            elif code in (COMMAND, OPEN):
                work += WORK_OF_OURS
                denied = self._denied(code)
                reply = denied or error
                if code == OPEN:
                    self._discarding = True
                elif denied:
                    pass
                elif requests.command.kind == c.QUIT:
                    reply = b"+OK\r\n"
                    self._close()
                elif requests.command.ours:
                    call = read(self, requests, self._settings)
                    if call is not None and call.reply:
                        reply = call.reply
                        self._count(call)
                    elif call is not None:
                        limit = 0 if multi else call.rule.limit
                        reply = self._settings.without(limit, call.row, error, "unreachable")
                elif not multi and requests.command.kind in c.GREETS:
                    reply = self._taken_on_trust(code) or error
                elif requests.command.kind == c.MULTI:
                    multi = True
                elif requests.command.kind in (c.EXEC, c.DISCARD):
                    multi = False
                self.to_client.append(reply)
            elif self._discarding:
                self._discarding = code == BODY
        self._settings.budget.work += work
        requests.release()
        self._finish_eof()

    def upstream_received(self, data: bytes) -> None:
        """Take bytes of the private connection."""
        self._stats.upstream_in += len(data)
        self._last_private = self.now
        self._settings.circuit.heard(self.now)
        self._heard = True
        answers = self._answers
        if answers.raw:
            self.to_client.append(data)
            return
        answers.feed(data)
        if self._call_head is not None:
            # A push that began before the lane's replies came goes before them.
            answers.pass_pushes()
            self._emit_calls()
        answers.answer()
        if self._greeting is not None and not self._greeted(self._greeting):
            return
        if answers.quiescent():
            self._deciding = False
        if self._asked is not None:
            self._asked_answered(self._asked)
        if answers.read_only:
            answers.read_only = False
            self._settings.read_only()
        if answers.identity_moved:
            answers.identity_moved = False
            self._lane = self._read_lane = self._write_lane = None
        if self.wait == WAIT_BASE:
            if answers.raw:
                self._close()  # the deciding reply cannot be recognized any more
            elif answers.decided:
                self._base_decided()
        elif self.wait == WAIT_GREETED and self._greeting is None:
            self._route_in_turn()
        elif self._call_head is None and (self.wait != WAIT_NOTHING or self._eof):
            self.resume()

    def _greeted(self, greeting: DeferredHandshake) -> bool:
        """Read Redis' replies to the deferred handshake. Returns whether the client stays.

        A client that Redis refuses gets the refusal as the reply to its next request.
        """
        refusal = greeting.heard()
        if refusal or self._answers.raw:
            self._not_let_in(refusal)
            return False
        if greeting.over():
            self._greeting = None
            self._answers.out = self.to_client
        return True

    def _not_let_in(self, refusal: bytes) -> None:
        self._greeting = None
        self.wait = WAIT_NOTHING
        if refusal and self._requests.unread() > 0:
            self.to_client.append(refusal)
        self._close()

    def _begin_anew(self) -> None:
        """Discard the state of a lost private connection, on which no command took effect."""
        greeting = self._greeting
        while greeting is not None and greeting.unsent > 0:
            self._requests.next()
            greeting.unsent -= 1
        self.state = ConnectionState(self._settings.base_db)
        self._answers = ReplySlots(self.state, self.to_client, self._stats)
        self._lane = self._read_lane = self._write_lane = None
        self._deciding = False
        self.to_upstream.clear()

    def upstream_lost(self) -> None:
        """Handle the end of the private connection, then close.

        The RL commands whose place among the replies is certain are answered first.
        """
        if self._closing:
            return
        if self._greeting is not None:
            self._begin_anew()
            self._fail_all(r.unreachable(self._settings.where, "connection lost"))
            return
        self.upstream = UPSTREAM_LOST
        self.wait = WAIT_NOTHING
        if self._waiter is not None and self._call_head is not None:
            self._call_head.reply = r.LOST
            self._stop_waiting()
        if self._answers.lost():
            # A push was passed on in part: further replies would be read as its rest.
            self._end_calls()
        self._emit_calls()
        self._close()

    def _base_decided(self) -> None:
        """Act on the reply that decides about the database of --upstream."""
        answers = self._answers
        answers.decided = False
        kind = answers.decided_kind
        line = answers.decided_line
        refused = line.startswith(b"-")
        if kind == s.S_BASE and refused and not line.startswith(b"-NOAUTH"):
            # A client without access to that database gets the error and is closed. No connection
            # is better than one to another database.
            self.to_client.append(line)
            self._close()
        elif (
            kind not in (s.S_BASE, s.S_MULTI)
            and (not refused or kind == s.S_HELLO)  # its AUTH may have succeeded nevertheless
            and self.state.base_owed
        ):
            self._select_base()
        else:
            self._route()
