"""Lanes: multiplexed connections that carry the calls of many clients of one identity.

    session ──submit()──┐                          ┌── inflight, in order of sending ──┐
    session ──submit()──┼─> unsent ─(once a tick)─>┤ one write                         ├─> Redis
    session ──submit()──┘   (or MAX_UNSENT)        └── one read, frame by frame <──────┘

The order invariant: Redis answers in the order of the bytes, so the n-th frame that comes back
belongs to the n-th call in `inflight`.

When the connection is lost, calls that are not written yet go over other connections. Of the
written calls, only shared reads are sent again: the outcome of hits and writes is unknown.

A -NOSCRIPT is a known outcome: nothing was counted. The lane then writes nothing more until all of
its calls by EVALSHA are answered. After that it first sends the calls that were not run, in their
order, by EVAL. So no call overtakes another one of its client; see `script_loading`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from random import random
from typing import Final, NamedTuple

from rlproxy.net.tls_stream import last_words
from rlproxy.observability.counters import Counters
from rlproxy.ratelimit.denial_cache import DenialCache
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.scripts import LOADED, SOURCE
from rlproxy.resp import commands as c
from rlproxy.resp import encoding
from rlproxy.resp.replies import ReplyFramer
from rlproxy.session.call import Call, Caller, Lane
from rlproxy.session.context import ServerFacts
from rlproxy.session.timeouts import NOTHING, HitTimeouts
from rlproxy.upstream.backoff import Backoff
from rlproxy.upstream.call_times import CallTimes
from rlproxy.upstream.connector import Target, hello, lacks, reason
from rlproxy.upstream.lane_denials import LaneDenials
from rlproxy.upstream.script_loading import ScriptLoading

# The kinds of lanes. Reads and writes use separate lanes: only reads may have large replies, only
# writes are paused, and a lost lane ends only the clients with writes on it.
_KINDS: Final = {c.HIT: "hits", c.SHARED_READ: "reads", c.SHARED_WRITE: "writes"}
# Calls that wait for the end of the tick. More are written at once: Redis begins with them.
MAX_UNSENT: Final = 16
MAX_SHARED_REPLY: Final = 65536  # bytes of a read's reply; larger ones go over other connections
RETRY_FIRST_S: Final = 0.05
MAX_RETRY_S: Final = 1.0

# Turns on tracking. With NOLOOP, Redis 7 and Valkey 9 would not report the keys that they evict
# while the lane's own calls run.
_TRACK: Final = encoding.bulks(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
_OK: Final = b"+OK\r\n"
# Requests a push when the key of the next call is touched.
_CACHING: Final = encoding.bulks(b"CLIENT", b"CACHING", b"YES")
# Lets a cluster node run the next call on a slot that it imports.
_ASKING: Final = encoding.bulks(b"ASKING")
# Refusals of a handshake that may pass.
_PASSING: Final = (b"-LOADING", b"-BUSY", b"-ERR max number of clients")


class LaneKey(NamedTuple):
    """What distinguishes one lane from another.

    kind: commands.HIT, SHARED_READ or SHARED_WRITE.
    protocol: the RESP version of its replies, 2 or 3.
    """

    user: bytes | None
    password: bytes | None
    db: int
    kind: int
    protocol: int

    def carries(self) -> str:
        """Return the kind of the lane as a word for reports."""
        return _KINDS[self.kind]


class PooledLane(Lane):
    """A lane that a pool keeps by its key.

    refused: Redis does not accept the identity any more.
    """

    def __init__(self, key: LaneKey) -> None:
        super().__init__()
        self.key = key
        self.refused = False

    def idle(self, since: float) -> bool:
        """Return whether it is unused since loop time `since`, and owes no reply."""
        raise NotImplementedError

    def retire(self) -> None:
        """Close for good. Sessions get another lane from the pool."""
        self.retired = True


@dataclass
class LaneContext:
    """What the lanes to one server have in common.

    denial_cache: None if no refusals are remembered.
    max_lane_hits: the largest number of unanswered calls on one lane.
    clock: returns seconds, precise enough for round trips of microseconds.
    """

    loop: asyncio.AbstractEventLoop
    target: Target
    loading: ScriptLoading
    server: ServerFacts
    denial_cache: DenialCache | None
    timeouts: HitTimeouts
    max_lane_hits: int
    counters: Counters
    clock: Callable[[], float]


class ServerLane(PooledLane):
    """The lane of one identity: a connection that is opened on demand, and again when lost."""

    def __init__(self, context: LaneContext, key: LaneKey) -> None:
        super().__init__(key)
        self._kind: int = key.kind
        self._context = context
        self.used_at: float = context.loop.time()
        self._open = False  # or being opened
        self._retry_at: float = 0.0
        self._backoff = Backoff(RETRY_FIRST_S, MAX_RETRY_S, random)
        self._task: asyncio.Task[None] | None = None  # opens the connection
        self._transport: asyncio.Transport | None = None  # None while it is lost or being closed
        self._replies = ReplyFramer()
        self._handshakes: int = 0  # outstanding replies of the handshake
        self._max_unsent: int = MAX_UNSENT
        self._unsent: list[Call] = []
        self._inflight: deque[Call] = deque()
        self._again: list[Call] = []  # calls that Redis did not run: sent before the unsent ones
        self._again_at: float = 0.0  # loop time of the first call in `_again`
        self._by_sha_until: int = 0  # number of the latest call by EVALSHA
        self._by_source = False  # whether this user can't use EVALSHA
        self._scheduled = False  # whether the unsent calls are written in this tick
        self._flush_soon: Callable[[], None] = self._tick_over
        self._declining = False  # whether the reply being received is skipped, as too large
        self._watched = False  # whether the hit timeout is checked
        self._times = CallTimes(context.timeouts, context.clock)
        cache = context.denial_cache if self._kind == c.HIT else None
        self._denials = LaneDenials(cache) if cache is not None else None
        self.room = context.max_lane_hits

    # -- calls ------------------------------------------------------------------------------------

    def by_sha(self, rule: Rule) -> bool:
        """See Lane.by_sha()."""
        return rule.script is not None and self._way() == LOADED

    def _way(self) -> int:
        """Return how calls name their scripts now: LOADED, by EVALSHA, or SOURCE, by EVAL."""
        return LOADED if self._context.loading.loaded and not self._by_source else SOURCE

    def submit(self, call: Call) -> bytes:
        """Queue `call` for the next write, or return its remembered refusal; see Lane.submit().

        To be called only while `ready`.
        """
        denials = self._denials
        if denials is not None and denials.tracks:
            known = denials.known(call, len(self._again) > 0)
            if known:
                return known
        self._queue(call)
        return b""

    def _queue(self, call: Call) -> None:
        self._unsent.append(call)
        self.room -= 1
        if len(self._unsent) >= self._max_unsent:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._context.loop.call_soon(self._flush_soon)

    def _tick_over(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._again or not self._context.loading.loaded:
            if not self.drained():
                return
            self._take_again()
        unsent = self._unsent
        if not unsent:
            return
        out = self._requests(unsent) if self._kind == c.HIT else [call.key for call in unsent]
        data = b"".join(out)
        transport.write(data)
        self._inflight.extend(unsent)
        calls = len(unsent)
        unsent.clear()
        self._context.counters.upstream_out += len(data)
        self._context.counters.batch(calls)
        self._times.written(calls)
        if not self._watched and self._kind == c.HIT and self._context.timeouts.timeout_s > 0.0:
            self._watched = True
            self._times.mark(self._context.loop.time())
            self._context.timeouts.watch(self.overdue)

    def _requests(self, calls: list[Call]) -> list[bytes]:
        """Return `calls` as Redis commands: by EVALSHA if possible, else by EVAL."""
        way = self._way()
        if way == LOADED:
            self._by_sha_until = self._times.sent + len(calls)
        out: list[bytes] = []
        for call in calls:
            rule = call.rule
            if call.expects_ok:
                if call.opens:
                    rule = rule.in_microseconds()
                    out.append(_CACHING)
                else:
                    out.append(_ASKING)
            out.append(rule.words(way))
            out.append(call.key)
            out.append(rule.tail)
        return out

    def _take_again(self) -> None:
        """Put the calls that were not run before the unsent ones."""
        again, self._again = self._again, []
        if not again:
            return
        self._unsent = again + self._unsent
        # Their hit timeout counts from the NOSCRIPT, see overdue().
        if self._context.timeouts.timeout_s > 0.0:
            self._times.mark(self._again_at, len(again))

    # -- replies ----------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Process bytes from Redis: handshake replies, pushes, and the replies to calls."""
        self._context.counters.upstream_in += len(data)
        framer, inflight = self._replies, self._inflight
        framer.feed(data)
        touched: list[Caller] = []
        while True:
            frame = b"" if self._declining else self._frame(framer)
            if not frame:
                if self._kind == c.SHARED_READ and self._declined(framer, touched):
                    continue
                break
            call = inflight.popleft()
            if call.expects_ok:
                call.expects_ok = False
                inflight.appendleft(call)
                if frame != _OK and self._denials is not None:
                    self._denials.track(False)
                continue
            if self._kind == c.HIT:
                frame = self._hit_reply(call, frame)
                if not frame:
                    continue
            elif frame[0] == 45 and self._hands_back_after(call, frame):
                touch(call.caller, touched)
                continue
            if frame[0] == 45 and frame.startswith(b"-READONLY"):
                self._context.server.read_only()
            caller = call.caller
            caller.lane_answered(call, frame)
            touch(caller, touched)
        if framer.broken:
            self._abort()
        framer.release()
        self._batch_over(touched)

    def _frame(self, framer: ReplyFramer) -> bytes:
        """Return the next reply to a call, or nothing if none is complete.

        Processes the pushes and the replies of the handshake before it.
        """
        while True:
            if framer.at_push():
                push = framer.push()
                if not push:
                    return b""
                if self._denials is not None:
                    self._denials.pushed(push)
                continue
            frame = framer.frame()
            if not frame:
                return b""
            if self._handshakes == 0:
                if self._inflight:
                    return frame
                self._abort()  # a reply without a call: replies cannot be matched any more
                return b""
            if not self._handshake_reply(frame):
                return b""

    def _declined(self, framer: ReplyFramer, touched: list[Caller]) -> bool:
        """Skip the reply to a read that is too large. Returns whether it was skipped to its end."""
        large = len(framer.buf) - framer.pos > MAX_SHARED_REPLY
        if not self._declining and (not large or not self._inflight):
            return False
        self._declining = framer.skip(1, False) == 0
        if self._declining:
            return False
        call = self._inflight.popleft()
        call.caller.lane_declined(call)
        touch(call.caller, touched)
        return True

    def _hit_reply(self, call: Call, frame: bytes) -> bytes:
        """Return the reply for the client, or nothing if the call is late or sent again."""
        denials = self._denials
        if call.late:
            if frame.startswith(b"-NOSCRIPT"):
                # The call was not counted. It is not sent again, since its client has its answer.
                self._context.loading.loaded = False
            if denials is not None:
                denials.judge(call, frame)
            return b""
        if frame[0] == 45:
            if self._goes_again(call, frame):
                return b""
            frame = encoding.clean_error(frame)
        if call.caller.fenced:
            self._unfence(call.caller)
        return denials.judge(call, frame) if denials is not None else frame

    def _unfence(self, caller: Caller) -> None:
        """Let remembered refusals answer `caller` again: Redis has answered it on this lane."""
        caller.fenced = False

    def _hands_back_after(self, call: Call, error: bytes) -> bool:
        """Act on the error for an ordinary command. Returns whether its caller sends it again."""
        return False

    def _batch_over(self, touched: list[Caller]) -> None:
        """Finish a batch of replies: time it, make room, and flush the callers in `touched`."""
        context, inflight = self._context, len(self._inflight)
        now = context.loop.time()
        context.timeouts.circuit.replied(now)
        took_s = self._times.received(inflight)
        if took_s >= 0.0:
            self._context.counters.round_trips.add(took_s)
        self.room = context.max_lane_hits - self.unanswered()
        if self._again or (self._unsent and not self._scheduled):  # they may have waited
            self._flush()
        if touched:
            self.used_at = now
            settle(touched)

    # -- late calls -------------------------------------------------------------------------------

    def overdue(self, now: float) -> float:
        """Report late calls to their callers; see HitTimeouts.watch()."""
        inflight, times = self._inflight, self._times
        timeout_s = self._context.timeouts.timeout_s
        if self._again and now - self._again_at >= timeout_s > 0.0:
            again, self._again = self._again, []  # these calls are never sent
            self._context.timeouts.circuit.timed_out(len(again), self._again_at, now, timeout_s)
            _report_late(again, timeout_s)
            self._flush()
        if not inflight or timeout_s <= 0.0:
            self._watched = False
            times.forget()
            return NOTHING
        answered = times.sent - len(inflight)
        late = times.due(len(inflight), now)
        if late > 0:
            end = times.late - answered
            _report_late(list(islice(inflight, end - late, end)), timeout_s)
        if times.late > answered and times.deaf(now):
            self._abort()
        return times.oldest(now)

    # -- calls that Redis has not run -------------------------------------------------------------

    def _goes_again(self, call: Call, error: bytes) -> bool:
        """Queue `call` again if Redis did not run it and another way of sending it may work.

        Returns whether it was queued.
        """
        if error.startswith(b"-NOSCRIPT"):
            self._context.loading.loaded = False
            self._context.counters.noscript += 1
        else:
            refused = encoding.refused_eval(error)
            if not refused:
                return False
            self._by_source = refused == b"EVALSHA"  # after an error for EVAL it may be allowed now
            if not self._by_source:
                return False
        if self._denials is not None:
            self._denials.reopen(call)
        if not self._again:
            self._again_at = self._context.loop.time()
        self._again.append(call)
        return True

    # -- the connection ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Open the connection if it is closed and the retry pause is over; see Lane.wake()."""
        if not (self._open or self.refused) and self._context.loop.time() >= self._retry_at:
            self._open = True
            self._task = self._context.loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Open the connection. Never raises: the next wake() after a failure tries again."""
        try:
            transport = await self._context.target.connect(lambda: _Link(self))
        except OSError as error:
            now = self._context.loop.time()
            self._context.timeouts.circuit.connect_failed(now, reason(error), lacks(error))
            self._closed()
            return
        finally:
            self._task = None
        self._transport = transport
        if self.retired:
            self._abort()
            return
        requests = _handshake(self.key, self._denials is not None)
        self._handshakes = len(requests)
        transport.write(b"".join(requests))

    def _handshake_reply(self, frame: bytes) -> bool:
        """Process a reply of the handshake. Returns whether the connection is kept."""
        self._handshakes -= 1
        if self._handshakes == 0 and self._denials is not None:
            self._denials.track(frame == _OK)
        elif frame.startswith(b"-"):
            if not frame.startswith(_PASSING):
                self.refused = True
            self._abort()
            return False
        if self._handshakes == 0:
            self.ready = True
            self._backoff.reset()
            self.used_at = self._context.loop.time()
        return True

    def _abort(self) -> None:
        self.ready = False
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def _closed(self) -> None:
        self._open = False
        self._retry_at = self._context.loop.time() + self._backoff.pause_s()

    def lost(self) -> None:
        """Handle the loss of the connection.

        Callers get lane_lost() for calls that were written, and lane_returned() for the others.
        Late calls were reported already.
        """
        written = [call for call in self._inflight if not call.late]
        unsent = self._again + self._unsent
        self.ready = self._declining = self._by_source = False
        self._by_sha_until = 0
        self.room = self._context.max_lane_hits
        self._transport = None
        self._replies = ReplyFramer()
        self._handshakes = 0
        self._times.reset()
        if self._denials is not None:
            self._denials.track(False)
        self._inflight.clear()
        self._again.clear()
        self._unsent.clear()
        self._closed()
        self._hand_back(written, unsent)

    def _hand_back(self, written: list[Call], unsent: list[Call]) -> None:
        """Report the loss of the connection to the callers of its calls."""
        _report_lost(written, unsent)

    def unanswered(self) -> int:
        """Return the number of calls without a reply, unsent ones included."""
        return len(self._inflight) + len(self._again) + len(self._unsent)

    def drained(self) -> bool:
        """Return whether all its calls by EVALSHA are answered."""
        return self._times.sent - len(self._inflight) >= self._by_sha_until

    def idle(self, since: float) -> bool:
        """See PooledLane.idle()."""
        return self.used_at < since and self.unanswered() == 0

    def retry(self) -> None:
        """Let the next wake() connect without a pause: the server answers again."""
        self._retry_at = 0.0

    def retire(self) -> None:
        """See PooledLane.retire()."""
        super().retire()
        self._abort()


def _report_late(calls: list[Call], timeout_s: float) -> None:
    error = encoding.late(timeout_s)
    touched: list[Caller] = []
    for call in calls:
        call.late = True
        call.caller.lane_failed(call, error, "late")
        touch(call.caller, touched)
    settle(touched)


def _report_lost(written: list[Call], unsent: list[Call]) -> None:
    touched: list[Caller] = []
    for call in written + unsent:
        touch(call.caller, touched)
    for call in written:
        call.caller.lane_lost(call)
    for call in unsent:
        call.caller.lane_returned(call)
    settle(touched)


def touch(caller: Caller, touched: list[Caller]) -> None:
    """Add `caller` to `touched`, the callers with replies in the present batch."""
    if not caller.dirty:
        caller.dirty = True
        touched.append(caller)


def settle(touched: list[Caller]) -> None:
    """Let the callers of a batch go on, and write what they have for their clients."""
    for caller in touched:
        caller.dirty = False
        caller.resume()
        caller.flush()


def _handshake(key: LaneKey, tracks: bool) -> list[bytes]:
    """Return the first requests of a lane.

    tracks: whether Redis shall report touched keys.
    """
    name = b"rlproxy-lane" if key.kind == c.HIT else b"rlproxy-share"
    words = hello(name, key.user, key.password)
    words[1] = b"%d" % key.protocol
    requests = [encoding.bulks(*words)]
    if key.db:
        requests.append(encoding.bulks(b"SELECT", b"%d" % key.db))
    if tracks:
        requests.append(_TRACK)
    return requests


class _Link(asyncio.Protocol):
    """The protocol of one connection of a lane."""

    def __init__(self, lane: ServerLane) -> None:
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
