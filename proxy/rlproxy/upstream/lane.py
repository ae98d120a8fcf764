"""Lanes: multiplexed connections that carry the calls of many clients of one identity.

    session ──submit()──┐                          ┌── inflight, in order of sending ──┐
    session ──submit()──┼─> unsent ─(once a tick)─>┤ one write                         ├─> Redis
    session ──submit()──┘                          └── one read, frame by frame <──────┘

The order invariant: Redis answers in the order of the bytes, so the n-th frame that comes back
belongs to the n-th call in `inflight`.

When the connection is lost, calls that are not written yet go over other connections. Of the
written calls, only shared reads are sent again: the outcome of hits and writes is unknown.

A -NOSCRIPT is a known outcome: nothing was counted. The lane then writes nothing more until all of
its calls are answered and the scripts are loaded (see `script_loading`). After that it first sends
the calls that were not run, in their order. So no call overtakes another one of its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from random import random
from typing import Final

from rlproxy.net.tls_stream import last_words
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit import denial_cache as d
from rlproxy.ratelimit.denial_cache import Denial, DenialCache
from rlproxy.ratelimit.grammar import Rule
from rlproxy.resp import commands as c
from rlproxy.resp import encoding
from rlproxy.resp.replies import ReplyFramer
from rlproxy.session.call import MAX_LANE_HITS, Call, Caller, Lane
from rlproxy.session.circuit_breaker import Backoff, CircuitBreaker
from rlproxy.session.identity import Identity
from rlproxy.session.timeouts import NEVER, NOTHING, HitTimeouts
from rlproxy.upstream.connector import Target, hello, lacks, reason
from rlproxy.upstream.script_calls import ScriptCalls
from rlproxy.upstream.script_loading import ScriptLoading

log = logging.getLogger("rlproxy")

# The kinds of lanes. Reads and writes use separate lanes: only reads may have large replies, only
# writes are paused, and a lost lane ends only the clients with writes on it.
HITS: Final = c.PRIVATE
READS: Final = c.SHARED_READ
WRITES: Final = c.SHARED_WRITE
MAX_SHARED_REPLY: Final = 65536  # bytes of a read's reply; larger ones go over other connections
MAX_KEPT_KEY: Final = 512  # bytes of a key's bulk; refusals of longer keys are not remembered
MAX_LANES: Final = 256
MAX_LANES_PER_USER: Final = 32
IDLE_S: Final = 60.0  # seconds without calls after which a lane is closed
RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 1.0
# Seconds of silence after which a lane with late calls is dead, while Redis answers elsewhere. The
# hit timeout applies instead if it is longer.
DEAF_S: Final = 0.5

# Turns on tracking. With NOLOOP, Redis 7 and Valkey 9 would not report the keys that they evict
# while the lane's own calls run.
_TRACK: Final = encoding.bulks(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
# Requests a push when the key of the next call is touched.
_TELL_ME: Final = encoding.bulks(b"CLIENT", b"CACHING", b"YES")
_INVALIDATE: Final = b">2\r\n$10\r\ninvalidate\r\n"
_OK: Final = b"+OK\r\n"

# User, password, database, kind of the lane (HITS, READS or WRITES), RESP version (2 or 3).
_Key = tuple[bytes | None, bytes | None, int, int, int]

_CLOSED: Final = 0
_OPENING: Final = 1
_READY: Final = 2
_DEAD: Final = 3  # Redis does not accept this identity any more


class SharedLane(Lane):
    """The lane of one identity: a connection that is opened on demand, and again when lost.

    carries: HITS, READS or WRITES.
    protocol: the RESP version of the replies, 2 or 3.
    """

    def __init__(self, pool: LanePool, identity: Identity, carries: int, protocol: int) -> None:
        super().__init__()
        self.key: _Key = (*identity.key(), carries, protocol)
        self._carries = carries
        self._protocol = protocol
        self._declining = False  # whether the frame being received is skipped, as too large
        self._pool = pool
        self._loop = pool.loop
        self.identity = identity
        self.used_at: float = pool.loop.time()
        self._state: int = _CLOSED
        self._transport: asyncio.Transport | None = None
        self._replies = ReplyFramer()
        self._greetings: int = 0  # outstanding replies of the handshake
        self._unsent: list[Call] = []
        self._inflight: deque[Call] = deque()
        self._again: list[Call] = []  # calls that Redis did not run: sent before the unsent ones
        self._again_at: float = 0.0  # loop time of the first call in `_again`
        self._missing = False  # whether a call was answered NOSCRIPT
        self._scheduled = False
        self._loading = pool.loading
        self._early = False  # whether `ready` only waits for the first attempt to load the scripts
        self._ways = ScriptCalls()
        self._ran = False  # a call by EVALSHA ran
        self._ran_ro = False  # a call by EVALSHA_RO ran
        self.mixes_ro = False
        self._retry_at: float = 0.0
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random)
        self.room = pool.max_lane_hits
        # Calls are numbered as they are written, so that overdue() can find the late ones.
        self._timeouts = pool.timeouts
        self._circuit = pool.timeouts.circuit
        self._watched = False
        self._sent: int = 0  # calls written on this connection
        self._late: int = 0  # number of a call; all calls up to it are answered or late
        self._marks: deque[tuple[float, int]] = deque()  # loop time, calls written by then
        self._late_since: float = 0.0  # loop time when calls became late; 0 after any reply
        self._flush_soon: Callable[[], None] = self._flush
        self._stats = pool.stats
        self._clock = pool.clock
        self._timed: int = 0  # number of the call whose round trip is timed
        self._timed_at: float = 0.0  # time when it was written; 0 if no call is timed
        self._denial_cache = pool.denial_cache if carries == HITS else None
        self._scope = b""  # first part of the names of its entries in the denial cache
        self._tracks = False  # whether Redis reports touched keys, so refusals may be remembered

    # -- calls ------------------------------------------------------------------------------------

    def submit(self, call: Call) -> bytes:
        """Queue `call` for the next write, or return its remembered refusal; see Lane.submit().

        To be called only while `ready`.
        """
        if self._tracks:
            known = self._denied(call)
            if known:
                return known
        self._unsent.append(call)
        self.room -= 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_soon)
        return b""

    def _flush(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or not self._unsent or self._again:
            return
        if self._carries != HITS:
            out = [call.key for call in self._unsent]
        elif self._loading.held:
            self._pool.wait()
            return
        else:
            if not self._ways.loaded and not self._inflight:
                self._choose()
            out = self._requests()
        data = b"".join(out)
        transport.write(data)
        self._inflight.extend(self._unsent)
        calls = len(self._unsent)
        self._sent += calls
        self._unsent.clear()
        self._stats.upstream_out += len(data)
        self._stats.batch(calls)
        if self._timed_at == 0.0:
            self._timed = self._sent
            self._timed_at = self._clock()
        if not self._watched:
            self._watch()

    def _requests(self) -> list[bytes]:
        """Return the unsent calls as Redis commands."""
        out: list[bytes] = []
        ways, knows_ro = self._ways, self._pool.knows_ro
        for call in self._unsent:
            rule = call.rule
            if call.opens:
                rule = rule.final()
                out.append(_TELL_ME)
            out.append(ways.words(rule, knows_ro))
            out.append(call.key)
            out.append(rule.tail)
        return out

    def _choose(self) -> None:
        """See ScriptCalls.choose()."""
        self._ways.choose(self._loading.loaded, self._loop.time())
        self.mixes = self._ways.loaded

    def received(self, data: bytes) -> None:
        """Process bytes from Redis: handshake replies, pushes, and the replies to calls."""
        self._stats.upstream_in += len(data)
        framer = self._replies
        framer.feed(data)
        inflight = self._inflight
        touched: list[Caller] = []
        while True:
            if framer.at_push():
                push = framer.push()
                if not push:
                    break
                self._pushed(push)
                continue
            if self._declining:
                if framer.skip(1, False) == 0:
                    break
                self._declining = False
                call = inflight.popleft()
                call.caller.lane_declined(call)
                self._touch(call.caller, touched)
                continue
            frame = framer.frame()
            if not frame:
                large = len(framer.buf) - framer.pos > MAX_SHARED_REPLY
                if large and inflight and inflight[0].shared == c.SHARED_READ:
                    self._declining = True
                    continue
                break
            if self._greetings > 0:
                if not self._greeted(frame):
                    break
                continue
            if not inflight:
                self._abort()  # a reply without a call: replies cannot be matched any more
                break
            if inflight[0].expects_caching:
                inflight[0].expects_caching = False
                if frame != _OK:
                    self._track(False)
                continue
            call = inflight.popleft()
            if call.late:
                self._dropped(call, frame)
                continue
            caller = call.caller
            if self._carries != HITS:
                if frame[0] == 45:
                    self._refused(frame)
                caller.lane_answered(call, frame)
                self._touch(caller, touched)
                continue
            if frame[0] == 45:
                if self._goes_again(call, frame):
                    continue
                frame = encoding.clean_error(frame)
                self._refused(frame)
            elif not self.mixes_ro:
                self._note_run(call.rule)
            if call.opens:
                frame = self._heard(call, frame)
            elif self._tracks:
                self._judge(call, frame)
            caller.fenced = False
            caller.lane_answered(call, frame)
            self._touch(caller, touched)
        if framer.broken:
            self._abort()
        framer.release()
        now = self._loop.time()
        self._late_since = 0.0
        self._circuit.heard(now)
        if self._timed_at > 0.0 and self._sent - len(inflight) >= self._timed:
            took_s = self._clock() - self._timed_at
            self._timed_at = 0.0
            self._stats.round_trips.add(took_s)
        self.room = self._pool.max_lane_hits - self.unanswered()
        if self._missing or not inflight:
            self._mend()
        if touched:
            self.used_at = now
            self._settle(touched, now)

    def _note_run(self, rule: Rule) -> None:
        """Record that Redis ran a script call of `rule` instead of refusing its command."""
        if rule.by_ro:
            self._ran_ro = True
        elif rule.script is not None:
            self._ran = True
        self.mixes_ro = self._ran and self._ran_ro

    # -- late calls -------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._carries == HITS and self._timeouts.timeout_s > 0.0:
            self._watched = True
            self._marks.append((self._loop.time(), self._sent))
            self._timeouts.watch(self.overdue)

    def overdue(self, now: float) -> float:
        """Report late calls to their callers; see HitTimeouts.watch().

        Each look leaves a mark: the time, and the number of calls written by then. So the age of a
        call is known without a record for each call.
        """
        inflight = self._inflight
        marks = self._marks
        timeout_s = self._timeouts.timeout_s
        if self._again and now - self._again_at >= timeout_s > 0.0:
            self._give_up_again(now)
        if not inflight or timeout_s <= 0.0:
            self._watched = False
            marks.clear()
            return NOTHING
        answered = self._sent - len(inflight)
        due = answered
        since = now
        while marks and (marks[0][1] <= answered or marks[0][0] <= now - timeout_s):
            if marks[0][1] > answered:
                since = min(since, marks[0][0])
            due = max(due, marks.popleft()[1])
        first = max(answered, self._late)
        if due > first:
            self._late = due
            self._late_since = self._late_since or now
            self._circuit.timed_out(due - first, since, now, timeout_s)
            self._tell_late(list(islice(inflight, first - answered, due - answered)), now)
        if self._late > answered and self._deaf(now):
            self._abort()
        if not marks or marks[-1][1] < self._sent:
            marks.append((now, self._sent))
        return marks[0][0] if self._sent > self._late else NEVER

    def _tell_late(self, calls: list[Call], now: float) -> None:
        touched: list[Caller] = []
        for call in calls:
            call.late = True
            call.caller.lane_late(call)
            self._touch(call.caller, touched)
        self._settle(touched, now)

    def _deaf(self, now: float) -> bool:
        """Return whether this connection with late calls is silent while Redis answers others."""
        circuit = self._circuit
        if circuit.open or circuit.heard_at < self._late_since:
            return False
        return now - max(self._late_since, circuit.since) >= max(DEAF_S, self._timeouts.timeout_s)

    def _dropped(self, call: Call, frame: bytes) -> None:
        """Drop the reply to a late call, after updating the denial cache by it."""
        if frame.startswith(b"-NOSCRIPT"):
            # The call was not counted. It is not sent again, since its client has its answer.
            self._missing = True
            self._ways.missing(False, 0.0)
        if call.opens:
            self._heard(call, frame)
        elif self._tracks:
            self._judge(call, frame)

    def _refused(self, frame: bytes) -> None:
        read_only = self._pool.read_only
        if read_only is not None and frame.startswith(b"-READONLY"):
            read_only()

    # -- remembered refusals ----------------------------------------------------------------------

    def _entry(self, call: Call) -> Denial | None:
        """Find the denial cache entry of exactly this hit, before the hit is sent.

        An entry of another hit on the same key is dropped if `call` may write.
        """
        denial_cache = self._denial_cache
        assert denial_cache is not None
        denial = denial_cache.find(self._scope + call.key)
        if denial is None:
            return None
        if denial.rule is not call.rule:
            if not call.rule.reads:
                denial_cache.drop(denial)
            return None
        call.denial = denial
        return denial

    def _denied(self, call: Call) -> bytes:
        """Return the remembered refusal of `call`, or nothing.

        Updates the entry of its key: a marked entry makes `call` the one that opens it.
        """
        denial_cache = self._denial_cache
        assert denial_cache is not None
        denial = self._entry(call)
        if denial is None:
            return b""
        if denial.state == d.OPENING:
            return b""
        if denial.state == d.OPEN and (call.caller.fenced or self._again):
            return b""
        now = denial_cache.clock()
        if denial.state == d.OPEN:
            known = denial.answer(now)
            if known:
                denial_cache.answered(denial)
                return known
        denial.state = d.OPENING
        denial.sent_at = now
        denial_cache.used(denial)
        call.opens = call.expects_caching = True
        return b""

    def _heard(self, call: Call, frame: bytes) -> bytes:
        """Open or drop an entry by the reply to its call. Returns the reply for the client."""
        denial, denial_cache = call.denial, self._denial_cache
        assert denial is not None and denial_cache is not None
        found = encoding.integers(frame)
        if not found:
            denial_cache.drop(denial)
            return frame
        if found[0] == 1:
            denial.heard(found, denial_cache.clock())
        else:
            denial_cache.drop(denial)
        return encoding.rounded(found, call.rule.unit_us)

    def _judge(self, call: Call, frame: bytes) -> None:
        """Update the entry of the key by the reply to a call that does not open one."""
        denial_cache = self._denial_cache
        assert denial_cache is not None
        refused = len(frame) > 5 and frame[0] == 42 and frame[4] == 58 and frame[5] == 49
        if call.denial is not None:
            if not refused:
                denial_cache.drop(call.denial)
        elif refused and call.rule.denies and len(call.key) <= MAX_KEPT_KEY:
            name = self._scope + call.key
            if denial_cache.find(name) is None:
                denial_cache.mark(name, call.rule)

    def _pushed(self, push: bytes) -> None:
        """Drop the entry of a touched key, or all entries after a null push (FLUSHDB)."""
        denial_cache = self._denial_cache
        if denial_cache is None or not push.startswith(_INVALIDATE):
            return
        if push.startswith(b"*1\r\n", len(_INVALIDATE)):
            denial = denial_cache.find(self._scope + push[len(_INVALIDATE) + 4 :])
            if denial is not None:
                denial_cache.drop(denial)
        else:
            self._scope = denial_cache.scope()

    def _track(self, tracks: bool) -> None:
        """Record whether Redis reports touched keys, and forget all remembered refusals."""
        self._tracks = tracks
        if self._denial_cache is not None:
            self._scope = self._denial_cache.scope()

    # -- calls that Redis has not run -------------------------------------------------------------

    def _goes_again(self, call: Call, error: bytes) -> bool:
        """Queue `call` again if Redis did not run it and another way of sending it may work.

        Returns whether it was queued.
        """
        if error.startswith(b"-NOSCRIPT"):
            self._ways.missing(call.mended, self._loop.time())
            call.mended = self._missing = True
            self._stats.noscript += 1
        elif not self._ways.changes(error):
            return False
        denial = call.denial
        if call.opens and denial is not None and denial.state == d.OPENING:
            denial.state = d.MARKED
        call.opens = False
        if self._tracks:
            self._entry(call)  # calls that were sent behind this one now run before it
        if not self._again:
            self._again_at = self._loop.time()
        self._again.append(call)
        return True

    def _mend(self) -> None:
        """Have missing scripts loaded, or send calls again that need no loading.

        Called once all received bytes are processed.
        """
        if self._missing:
            self._missing = False
            self._pool.wait()
            self._loading.load()
        elif self._loading.held and not self._inflight:
            self._loading.look()
        if self._again and not self._loading.held:
            self.go_on()

    def go_on(self) -> None:
        """End the pause for loading the scripts: send the calls not run, then the unsent ones."""
        self.ready = self.ready or self._early
        self._early = False
        if self._inflight or self._transport is None:
            return
        again, self._again = self._again, []
        if again:
            self._choose()
            self._unsent = again + self._unsent
            # Their hit timeout counts from the NOSCRIPT, see overdue().
            if self._timeouts.timeout_s > 0.0:
                self._marks.append((self._again_at, self._sent + len(again)))
        self._flush()

    def _give_up_again(self, now: float) -> None:
        """Report the calls in `_again` as late. They are never sent."""
        again, self._again = self._again, []
        self._circuit.timed_out(len(again), self._again_at, now, self._timeouts.timeout_s)
        self._tell_late(again, now)
        self._flush()

    def _touch(self, caller: Caller, touched: list[Caller]) -> None:
        if not caller.dirty:
            caller.dirty = True
            touched.append(caller)

    def _settle(self, touched: list[Caller], now: float) -> None:
        for caller in touched:
            caller.dirty = False
            caller.now = now
            caller.resume()
            caller.flush()

    # -- the connection ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Open the connection if it is closed and the retry pause is over; see Lane.wake()."""
        if self._state == _CLOSED and self._loop.time() >= self._retry_at:
            self._state = _OPENING
            self._pool.open(self)

    async def connect(self, target: Target) -> None:
        """Open the connection. Never raises: the next wake() after a failure tries again."""
        try:
            transport = await target.connect(lambda: _Link(self))
        except OSError as error:
            self._circuit.connect_failed(self._loop.time(), reason(error), lacks(error))
            self._closed()
            return
        self._transport = transport
        if self.retired:
            self._abort()
            return
        identity = self.identity
        self._greetings = 1
        name = b"rlproxy-lane" if self._carries == HITS else b"rlproxy-share"
        words = hello(name, identity.user, identity.password)
        words[1] = b"%d" % self._protocol
        greeting = encoding.bulks(*words)
        if identity.db:
            self._greetings += 1
            greeting += encoding.bulks(b"SELECT", b"%d" % identity.db)
        if self._denial_cache is not None:
            self._greetings += 1
            greeting += _TRACK
        transport.write(greeting)

    def _greeted(self, frame: bytes) -> bool:
        """Process a reply of the handshake. Returns whether the connection is kept."""
        self._greetings -= 1
        if self._greetings == 0 and self._denial_cache is not None:
            self._track(frame == _OK)
        elif frame.startswith(b"-"):
            if not frame.startswith((b"-LOADING", b"-BUSY", b"-ERR max number of clients")):
                self._state = _DEAD
                self._pool.forget(self)
            self._abort()
            return False
        if self._greetings == 0 and self._state == _OPENING:
            self._state = _READY
            self._choose()
            self._early = self._carries == HITS and not self._loading.settled
            self.ready = not self._early
            if self._early:
                self._pool.wait()
            self._backoff.reset()
            self.used_at = self._loop.time()
        return True

    def _abort(self) -> None:
        self.ready = self._early = False
        if self._transport is not None:
            self._transport.abort()

    def _closed(self) -> None:
        if self._state != _DEAD:
            self._state = _CLOSED
            self._retry_at = self._loop.time() + self._backoff.pause_s()

    def lost(self) -> None:
        """Handle the loss of the connection.

        Callers get lane_lost() for calls that were written, and lane_returned() for the others.
        Late calls were reported already.
        """
        self.ready = self._early = False
        self._transport = None
        self._closed()
        self._replies = ReplyFramer()
        self._greetings = 0
        self._declining = False
        self._track(False)
        self._missing = False
        self._ways = ScriptCalls()
        self._ran = self._ran_ro = False
        self.mixes_ro = False
        inflight = list(self._inflight)
        unsent = self._again + self._unsent
        self._inflight.clear()
        self._again.clear()
        self._unsent.clear()
        self._marks.clear()
        self._sent = self._late = 0
        self._timed_at = 0.0
        self._late_since = 0.0
        self.room = self._pool.max_lane_hits
        inflight = [call for call in inflight if not call.late]
        touched: list[Caller] = []
        for call in inflight + unsent:
            self._touch(call.caller, touched)
        for call in inflight:
            call.caller.lane_lost(call)
        for call in unsent:
            call.caller.lane_returned(call)
        self._settle(touched, self._loop.time())
        self._loading.look()

    def carries(self) -> str:
        """Return the kind of this lane as a word for reports."""
        return "hits" if self._carries == HITS else "reads" if self._carries == READS else "writes"

    def unanswered(self) -> int:
        """Return the number of calls without a reply, unsent ones included."""
        return len(self._inflight) + len(self._again) + len(self._unsent)

    def drained(self) -> bool:
        """Return whether all hits written on it are answered."""
        return self._carries != HITS or not self._inflight

    def idle(self, since: float) -> bool:
        """Return whether it is unused since loop time `since`, and owes no reply."""
        return self.used_at < since and self.unanswered() == 0

    def retire(self) -> None:
        """Close for good. Sessions get another lane from the pool."""
        self.retired = True
        self._abort()


class _Link(asyncio.Protocol):
    """The protocol of one connection of a lane."""

    def __init__(self, lane: SharedLane) -> None:
        self._lane = lane
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._lane.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if exc is not None:
            left = last_words(self._transport)
            if left:
                self._lane.received(left)
        self._transport = None
        self._lane.lost()


class LanePool:
    """The lanes of one process, by identity. Their number is bounded in total and per user.

    denial_cache: None if no refusals are remembered.
    read_only: called when a reply shows that the server is a replica.
    max_lane_hits: the largest number of unanswered calls on one lane.
    clock: returns seconds, precise enough for round trips of microseconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        loading: ScriptLoading,
        denial_cache: DenialCache | None,
        read_only: Callable[[], None] | None = None,
        timeouts: HitTimeouts | None = None,
        max_lane_hits: int = MAX_LANE_HITS,
        stats: Counters | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock or loop.time
        self.stats = stats or Counters()
        self.timeouts = timeouts or HitTimeouts(CircuitBreaker())
        self.max_lane_hits = max_lane_hits
        self.denial_cache = denial_cache
        self.loading = loading
        loading.drained = self._drained
        self._waits = False  # whether _go_on() is registered for the end of the pause
        self.read_only = read_only
        self.knows_ro = False  # whether the server has EVALSHA_RO and EVAL_RO
        self._target = target
        self._lanes: dict[_Key, SharedLane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def lane_of(self, identity: Identity) -> Lane | None:
        """Return the lane of `identity` for hits, made if needed; None at a limit of lanes."""
        return self._lane(identity, HITS, 3)

    def share_of(self, identity: Identity, protocol: int, carries: int) -> Lane | None:
        """Return the lane of `identity` for ordinary commands, made if needed.

        protocol: the RESP version of the replies.
        carries: READS or WRITES.
        Returns None at a limit of lanes, or for another protocol than 2 and 3.
        """
        return self._lane(identity, carries, protocol) if protocol in (2, 3) else None

    def _lane(self, identity: Identity, carries: int, protocol: int) -> SharedLane | None:
        key = (*identity.key(), carries, protocol)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                return None
            if sum(1 for other in self._lanes if other[0] == key[0]) >= MAX_LANES_PER_USER:
                return None
            lane = self._lanes[key] = SharedLane(self, identity, carries, protocol)
        return lane

    def wait(self) -> None:
        """Have all lanes go on at the end of the pause for loading the scripts."""
        if not self._waits:
            self._waits = True
            self.loading.when_over(self._go_on)

    def _go_on(self) -> None:
        self._waits = False
        for lane in self.lanes():
            lane.go_on()

    def _drained(self) -> bool:
        return all(lane.drained() for lane in self._lanes.values())

    def lanes(self) -> list[SharedLane]:
        """Return all lanes, whether connected or not."""
        return list(self._lanes.values())

    def open(self, lane: SharedLane) -> None:
        """Start connecting `lane`."""
        task = self.loop.create_task(lane.connect(self._target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, lane: SharedLane) -> None:
        """Remove `lane`, which will not be ready again."""
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def close_idle(self, idle_s: float) -> None:
        """Close the lanes without calls for `idle_s` seconds."""
        since = self.loop.time() - idle_s
        for lane in list(self._lanes.values()):
            if lane.idle(since):
                self.forget(lane)
                lane.retire()

    def renew(self) -> None:
        """Close all lanes. Sessions get new ones, which connect to the target's present address."""
        for lane in list(self._lanes.values()):
            self.forget(lane)
            lane.retire()

    def close(self) -> None:
        """Close all lanes and cancel connection attempts."""
        for task in self._tasks:
            task.cancel()
        self.renew()
