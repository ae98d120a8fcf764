"""Lanes: multiplexed connections that carry the calls of many clients of one identity.

    session ──submit()──┐                          ┌── inflight, in order of sending ──┐
    session ──submit()──┼─> unsent ─(once a turn)─>┤ one write                         ├─> Redis
    session ──submit()──┘                          └── one read, frame by frame <──────┘

The order invariant: Redis answers in the order of the bytes, so the n-th frame that comes back
belongs to the n-th call in `inflight`. What is not written yet can still go another way when the
connection is lost; what is written can't: nothing is sent twice whose outcome is unknown. A
-NOSCRIPT is an outcome that is known (nothing was counted): the lane writes nothing more until all
of its calls are answered and the scripts are loaded (see loading), and then sends again, first and
in their order, the calls that were not run. So no call overtakes another one of its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from random import random
from typing import Final

from rlproxy.fairness.concurrency_limit import ConcurrencyLimit
from rlproxy.net.tls_stream import last_words
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit import denial_cache as d
from rlproxy.ratelimit.denial_cache import Denial, DenialCache
from rlproxy.resp import commands as c
from rlproxy.resp import encoding
from rlproxy.resp.framing import ReplyFramer
from rlproxy.session.circuit_breaker import Backoff, CircuitBreaker
from rlproxy.session.connection_state import Identity
from rlproxy.session.context import MAX_LANE_HITS, Call, Caller, Lane
from rlproxy.session.timeouts import NEVER, NOTHING, HitTimeouts
from rlproxy.upstream.connector import Target, hello, lacks, reason
from rlproxy.upstream.script_calls import ScriptCalls
from rlproxy.upstream.script_loading import ScriptLoading

log = logging.getLogger("rlproxy")

# What a lane carries. Reads and writes keep apart: only reads may be large, only writes are paused,
# and a lost lane ends none but those who write.
HITS: Final = c.PRIVATE
READS: Final = c.SHARED_READ
WRITES: Final = c.SHARED_WRITE
MAX_SHARED_REPLY: Final = 65536  # a larger one to an ordinary command is asked for elsewhere
MAX_KEPT_KEY: Final = 512  # bytes of a key's bulk: no refusal is remembered of a longer one
MAX_LANES: Final = 256
MAX_LANES_PER_USER: Final = 32
IDLE_S: Final = 60.0  # a lane without calls for so long is closed
RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 1.0
DEAF_S: Final = (
    0.5  # or the hit timeout: silent for longer, while Redis is heard elsewhere, is dead
)

# (Not NOLOOP: Redis 7 and Valkey 9 then don't tell what they evict while the lane's calls run.)
_TRACK: Final = encoding.bulks(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
# ... when the key of the next call is touched.
_TELL_ME: Final = encoding.bulks(b"CLIENT", b"CACHING", b"YES")
_INVALIDATE: Final = b">2\r\n$10\r\ninvalidate\r\n"
_OK: Final = b"+OK\r\n"

# An identity, what the lane carries, in which protocol.
_Key = tuple[bytes | None, bytes | None, int, int, int]

_CLOSED: Final = 0
_OPENING: Final = 1
_READY: Final = 2
_DEAD: Final = 3  # Redis does not accept this identity any more


class SharedLane(Lane):
    """One identity's lane: a connection that is opened when wanted, and again when lost."""

    def __init__(self, pool: LanePool, identity: Identity, carries: int, protocol: int) -> None:
        super().__init__()
        self.key: _Key = (*identity.key(), carries, protocol)
        self._carries = carries
        self._protocol = protocol
        self._declining = False  # the frame that is coming is for nobody
        self._pool = pool
        self._loop = pool.loop
        self.identity = identity
        self.used_at: float = pool.loop.time()
        self._state: int = _CLOSED
        self._transport: asyncio.Transport | None = None
        self._replies = ReplyFramer()
        self._greetings: int = 0  # replies of the handshake still to come
        self._unsent: list[Call] = []
        self._inflight: deque[Call] = deque()
        self._again: list[Call] = []  # not run: they go before the unsent ones
        self._again_at: float = 0.0  # since when there are some
        self._missing = False  # a script that EVALSHA named
        self._scheduled = False
        self._loading = pool.loading
        self._early = False  # it could be ready, but the first attempt to load is not over
        self._ways = ScriptCalls()
        self._ran = [False, False]  # a call by EVALSHA, by EVALSHA_RO
        self.mixes_ro = False
        self._retry_at: float = 0.0
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random)
        self.room = pool.max_lane_hits
        # calls are numbered as they are written, to tell those that are late: see overdue()
        self._timeouts = pool.timeouts
        self._circuit = pool.timeouts.circuit
        self._watched = False
        self._sent: int = 0  # calls written on this connection
        self._late: int = 0  # all before this one are answered or late
        self._marks: deque[tuple[float, int]] = deque()  # at a time: how many were written by then
        self._late_since: float = 0.0
        self._flush_soon: Callable[[], None] = self._flush
        self._stats = pool.stats
        self._clock = pool.clock
        self._timed: int = 0  # the call whose round trip is timed, by its number, and when it was
        self._timed_at: float = 0.0  # written; 0: none is
        self._denial_cache = pool.denial_cache if carries == HITS else None
        self._scope = b""  # of its entries there
        self._tracks = False  # Redis tells when a key is touched: refusals may be remembered

    # -- calls ------------------------------------------------------------------------------------

    def submit(self, call: Call) -> bytes:
        """See calls.Lane. Only while `ready`."""
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
        """The unsent calls as Redis gets them."""
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
        """Bytes of Redis."""
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
                self._abort()  # nobody asked for this
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
                self._ran[call.rule.by_ro] = True
                self.mixes_ro = all(self._ran)
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
            if self._carries == HITS:
                self._pool.concurrency_limit.took(took_s, now)
        self.room = self._pool.max_lane_hits - self.unanswered()
        if self._missing or not inflight:
            self._mend()
        if touched:
            self.used_at = now
            self._settle(touched, now)

    # -- late calls -------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._carries == HITS and self._timeouts.timeout_s > 0.0:
            self._watched = True
            self._marks.append((self._loop.time(), self._sent))
            self._timeouts.watch(self.overdue)

    def overdue(self, now: float) -> float:
        """Tell the callers of calls that are late; see HitTimeouts.watch().

        A mark is put down at each look, so that one number of calls tells for many when they were
        written, and nothing is noted call by call.
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
        """Whether this connection is silent, calls being late, though Redis answers others."""
        circuit = self._circuit
        if circuit.open or circuit.heard_at < self._late_since:
            return False
        return now - max(self._late_since, circuit.since) >= max(DEAF_S, self._timeouts.timeout_s)

    def _dropped(self, call: Call, frame: bytes) -> None:
        """The reply to a call that is late: nobody gets it, but it tells of its key."""
        if frame.startswith(b"-NOSCRIPT"):
            self._missing = True  # (it was not counted, and its client has its answer)
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
        """The entry of the very hit that `call` is, before it is sent. One of another hit on the
        key does not outlast it, if it may write.
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
        """The reply to `call` if its refusal is remembered, else nothing. What it may do to the
        entry of its key is seen to.
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
        """The reply to a call that was to open an entry: what its client gets."""
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
        """The reply to any other call: what it tells of the entry of its key."""
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
        """Redis says that a key was touched, or that all may have been."""
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
        """Whether Redis tells; what was remembered is forgotten."""
        self._tracks = tracks
        if self._denial_cache is not None:
            self._scope = self._denial_cache.scope()

    # -- calls that Redis has not run -------------------------------------------------------------

    def _goes_again(self, call: Call, error: bytes) -> bool:
        """Whether Redis has not run `call` for a reason that another way of sending it mends."""
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
            self._entry(call)  # what was sent behind it runs first
        if not self._again:
            self._again_at = self._loop.time()
        self._again.append(call)
        return True

    def _mend(self) -> None:
        """All that has come is read: mend what is missing, once no call is under way."""
        if self._missing:
            self._missing = False
            self._pool.wait()
            self._loading.load()
        elif self._loading.held and not self._inflight:
            self._loading.look()
        if self._again and not self._loading.held:
            self.go_on()

    def go_on(self) -> None:
        """The pause for loading the scripts is over: send what Redis has not run, and the rest."""
        self.ready = self.ready or self._early
        self._early = False
        if self._inflight or self._transport is None:
            return
        again, self._again = self._again, []
        if again:
            self._choose()
            self._unsent = again + self._unsent
            # They are late by the time that they have waited already, see overdue().
            if self._timeouts.timeout_s > 0.0:
                self._marks.append((self._again_at, self._sent + len(again)))
        self._flush()

    def _give_up_again(self, now: float) -> None:
        """Redis has not run these, and they are late: they are never sent."""
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
        """See calls.Lane."""
        if self._state == _CLOSED and self._loop.time() >= self._retry_at:
            self._state = _OPENING
            self._pool.open(self)

    async def connect(self, target: Target) -> None:
        """Open the connection. Never raises: a failure is tried again when next woken."""
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
        """A reply of the handshake; whether it goes on."""
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
        """The connection is gone."""
        self.ready = self._early = False
        self._transport = None
        self._closed()
        self._replies = ReplyFramer()
        self._greetings = 0
        self._declining = False
        self._track(False)
        self._missing = False
        self._ways = ScriptCalls()
        self._ran = [False, False]
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
        """What it carries, for people."""
        return "hits" if self._carries == HITS else "reads" if self._carries == READS else "writes"

    def unanswered(self) -> int:
        """How many calls are on their way."""
        return len(self._inflight) + len(self._again) + len(self._unsent)

    def drained(self) -> bool:
        """Whether it has no call of the family under way."""
        return self._carries != HITS or not self._inflight

    def idle(self, since: float) -> bool:
        """Whether nothing was called after `since`, and nothing is owed."""
        return self.used_at < since and self.unanswered() == 0

    def retire(self) -> None:
        """Close for good; sessions ask for another one."""
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
    """The lanes of one process, by identity; their number is bounded in all and per user."""

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
        concurrency_limit: ConcurrencyLimit | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock or loop.time  # in seconds, as fine as round trips are
        self.concurrency_limit = concurrency_limit or ConcurrencyLimit(0)
        self.stats = stats or Counters()
        self.timeouts = timeouts or HitTimeouts(CircuitBreaker())
        self.max_lane_hits = max_lane_hits  # unanswered ones on one lane
        self.denial_cache = denial_cache  # None: no refusal is remembered
        self.loading = loading
        loading.drained = self._drained
        self._waits = False  # go_on() follows
        self.read_only = read_only  # the server says that it is a replica
        self.knows_ro = False  # the server has EVALSHA_RO and EVAL_RO
        self._target = target
        self._lanes: dict[_Key, SharedLane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def lane_of(self, identity: Identity) -> Lane | None:
        """The lane of `identity` for hits, made if need be; None if it may not have one more."""
        return self._lane(identity, HITS, 3)

    def share_of(self, identity: Identity, protocol: int, carries: int) -> Lane | None:
        """Its lane for READS or WRITES, likewise; their replies are written in `protocol`."""
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
        """Some lane goes on when the scripts are loaded, or can't be."""
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
        """Those that there are, opened or not."""
        return list(self._lanes.values())

    def open(self, lane: SharedLane) -> None:
        """Begin connecting `lane`."""
        task = self.loop.create_task(lane.connect(self._target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, lane: SharedLane) -> None:
        """`lane` will not be ready again."""
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def close_idle(self, idle_s: float) -> None:
        """Close what was not called for `idle_s` seconds."""
        since = self.loop.time() - idle_s
        for lane in list(self._lanes.values()):
            if lane.idle(since):
                self.forget(lane)
                lane.retire()

    def renew(self) -> None:
        """Close all lanes; sessions get new ones, which connect to where the target is now."""
        for lane in list(self._lanes.values()):
            self.forget(lane)
            lane.retire()

    def close(self) -> None:
        """Close all."""
        for task in self._tasks:
            task.cancel()
        self.renew()
