"""The lane of one identity for hits.

When the connection is lost, calls that are not written yet go over other connections. The outcome
of the written ones is unknown.

A -NOSCRIPT is a known outcome: nothing was counted. The lane then writes nothing more until all of
its calls by EVALSHA are answered. After that it first sends the calls that were not run, in their
order, by EVAL. The control connection loads the scripts when no lane has a call by EVALSHA under
way, so that no script appears between two calls. So no call overtakes another one of its client.

Hits without options that follow each other, by the same algorithm, are one request: a group. Redis
runs its script once for all of them, and returns the list of their replies. It refuses the whole
group if the user has no right to one of the keys, or if the server takes only keys of one slot. So
the handshake of a lane ends with a call on keys that such a user or server refuses: after an error
the lane sends each hit alone. Once it has sent groups, an error in place of the list means that no
hit of it has run. If it may concern one of them alone, because the rights of the user have changed,
they are sent again, behind the calls that are written by then, and all later ones alone.
"""

from __future__ import annotations

from typing import Any, Final

from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.scripts import LOADED, MAX_GROUP, SOURCE
from rlproxy.resp import encoding
from rlproxy.resp.replies import ReplyFramer, elements
from rlproxy.session.call import Call, Caller
from rlproxy.session.context import cannot_run
from rlproxy.upstream.lane import PASSING, LaneContext, LaneKey, ServerLane, resume_all, touch
from rlproxy.upstream.lane_denials import LaneDenials
from rlproxy.upstream.query_connection import error_in

# Calls that wait for the end of the tick. More are written at once: Redis begins with them.
MAX_UNSENT: Final = 16

# Turns on tracking. With NOLOOP, Redis 7 and Valkey 9 would not report the keys that they evict
# while the lane's own calls run.
_TRACK: Final = (b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
# Requests a push when the key of the next call is touched.
_CACHING: Final = encoding.bulks(b"CLIENT", b"CACHING", b"YES")
# Succeeds where a group may have any keys: an empty one, each of one byte, and a longer one.
# Patterns that leave out some keys, as `~a*` and `~[^a]*` do, do not match each of these.
_ANY: Final = (b"rlproxy:any-key", b"", *(bytes([byte]) for byte in range(256)))  # ACL LOG: the 1st
ANY_KEYS: Final = (b"EVAL", b"return 1", b"%d" % len(_ANY), *_ANY)
# Lets a cluster node run the next call on a slot that it imports.
_ASKING: Final = encoding.bulks(b"ASKING")


class HitLane(ServerLane):
    """The calls of hits on one lane, and the refusals that it remembers."""

    def __init__(self, context: LaneContext, key: LaneKey) -> None:
        super().__init__(context, key)
        self._unsent: list[Call] = []
        self._inflight: list[Call] = []
        self._again: list[Call] = []  # calls that Redis did not run: sent before the unsent ones
        self._by_sha_until: int = 0  # number of the latest call by EVALSHA
        self._by_source = False  # whether this user can't use EVALSHA
        self._watched = False  # whether the hit timeout is checked
        self._groups = False  # whether hits may be sent in groups
        self._distrusts_s: float = 0.0  # seconds; see Caller.trusts_at
        self._denials = LaneDenials(context.denial_cache)
        self._wishes: list[tuple[bytes, ...]] = []  # requests that Redis may refuse
        if context.denial_cache.most > 0:
            self._wishes.append(_TRACK)
        self._wishes.append(ANY_KEYS)

    # -- calls ------------------------------------------------------------------------------------

    def by_sha(self, rule: Rule) -> bool:
        return rule.script is not None and self._way() == LOADED

    def _way(self) -> int:
        """Return how calls name their scripts now: LOADED, by EVALSHA, or SOURCE, by EVAL."""
        return LOADED if self._context.server.loaded and not self._by_source else SOURCE

    def submit(self, call: Call) -> bytes:
        """Queue `call` for the next write, or return its remembered refusal; see Lane.submit().

        To be called only while `ready`.
        """
        if self._denials.entries:
            known = self._denials.known(call, len(self._again) > 0)
            if known:
                return known
        self._queue(call)
        return b""

    def _queue(self, call: Call) -> None:
        self._unsent.append(call)
        self.room -= 1
        self._schedule(len(self._unsent), MAX_UNSENT)

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if self._again or not self._context.server.loaded:
            if not self.drained():
                return
            self._unsent, self._again = self._again + self._unsent, []
        unsent = self._unsent
        if not unsent:
            return
        self._write(transport, self._requests(unsent), len(unsent))
        self._inflight.extend(unsent)
        unsent.clear()
        if not self._watched:
            self._watched = True
            self._times.mark(self._context.loop.time())
            self._context.timeouts.watch(self.overdue)

    def _requests(self, calls: list[Call]) -> list[bytes]:
        """Return `calls` as Redis commands: by EVALSHA if possible, else by EVAL."""
        way = self._way()
        most = 1
        if way == LOADED:
            self._by_sha_until = self._times.sent + len(calls)
            if self._groups:
                most = MAX_GROUP
        out: list[bytes] = []
        at = 0
        while at < len(calls):
            size = _group_size(calls, at, most)
            if size > 1:
                _append_group(out, calls[at : at + size])
            else:
                _append(out, calls[at], way)
            at += size
        return out

    # -- replies ----------------------------------------------------------------------------------

    def _answer(self, framer: ReplyFramer, touched: list[Caller]) -> None:
        answered = 0
        while len(frame := self._frame(framer)) > 0:
            call = self._inflight[answered]
            if call.expects_ok:
                call.expects_ok = False
                if frame.startswith(PASSING):
                    self._denials.not_tracked(call)
                elif frame != encoding.OK:
                    self._denials.track(False)
                continue
            if call.group_size == 1:
                self._answered(call, frame, touched)
                answered += 1
                continue
            group = self._inflight[answered : answered + call.group_size]
            replies = [frame] * len(group)
            if frame[0] != 45:
                replies = elements([frame]) or []
                if len(replies) != len(group):
                    self._abort()  # no reply of the script: what has run is unknown
                    break
                for one in group:
                    one.group_size = 1
            for one, reply in zip(group, replies, strict=True):
                self._answered(one, reply, touched)
            answered += len(group)
        del self._inflight[:answered]

    def _answered(self, call: Call, frame: bytes, touched: list[Caller]) -> None:
        """Pass on the reply to `call`."""
        self._times.answered += 1
        frame = self._hit_reply(call, frame)
        if len(frame) == 0:
            return
        caller = call.caller
        caller.lane_answered(call, frame)
        touch(caller, touched)

    def _pushed(self, push: bytes) -> None:
        self._denials.pushed(push)

    def _hit_reply(self, call: Call, frame: bytes) -> bytes:
        """Return the reply for the client, or nothing if the call is late or sent again."""
        if call.late:
            if frame.startswith(b"-NOSCRIPT"):
                # The call was not counted. It is not sent again, since its client has its answer.
                self._context.server.loaded = False
            self._denials.judge(call, frame)
            return b""
        if frame[0] == 45:
            if self._queue_again(call, frame):
                return b""
            frame = encoding.clean_error(frame)
        caller = call.caller
        if caller.fenced:  # remembered refusals may answer it again: Redis has, on this lane
            caller.fenced = False
            caller.trusts_at = self._context.denial_cache.clock() + self._distrusts_s
        return self._denials.judge(call, frame)

    # -- late calls -------------------------------------------------------------------------------

    def overdue(self, now: float) -> bool:
        """Report late calls to their callers; see HitTimeouts.watch()."""
        inflight, times = self._inflight, self._times
        late = times.due(now)
        if late > 0:
            end = times.late_until - times.answered
            # The calls to send again are older than those, whose replies they wait for.
            again, self._again = self._again, []
            self._context.timeouts.circuit.counts.timeouts += len(again)
            _report_late(again + inflight[end - late : end], self._context.timeouts.timeout_s)
            self._flush()  # what has waited behind them
        if times.dead(now):
            self._abort()
        self._watched = times.unanswered() > 0
        return self._watched

    # -- calls that Redis has not run -------------------------------------------------------------

    def _queue_again(self, call: Call, error: bytes) -> bool:
        """Queue `call` again if Redis did not run it and another way of sending it may work.

        Returns whether it was queued.
        """
        if error.startswith(b"-NOSCRIPT"):
            self._context.server.loaded = False
            self._context.counters.noscript += 1
        elif refused := encoding.refused_eval(error):
            self._by_source = refused == b"EVALSHA"  # after an error for EVAL it may be allowed now
            if not self._by_source:
                return False
        elif call.group_size > 1 and not cannot_run(error):
            self._groups = False
        else:
            return False
        self._denials.take_back(call)
        self._again.append(call)
        return True

    # -- the connection ---------------------------------------------------------------------------

    def _handshake(self) -> list[tuple[bytes, ...]]:
        return super()._handshake() + self._wishes

    def _accepts(self, replies: list[Any]) -> bool:
        """See ServerLane._accepts(). A lane works without reports of touched keys, or groups."""
        passing = any(error_in(reply).startswith(PASSING) for reply in replies)
        for wish in reversed(self._wishes):
            reply = replies.pop()
            if wish == _TRACK:
                self._denials.track(reply == b"OK")
            else:  # Redis looks at the rights before it sends MASTERDOWN, which may pass
                self._groups = reply == 1 or cannot_run(error_in(reply))
        return super()._accepts(replies) and not passing

    def _hand_back(self) -> None:
        """See ServerLane._hand_back(). The callers of late calls have got a report already."""
        written = [call for call in self._inflight if not call.late]
        unsent = self._again + self._unsent
        self._by_source = self._groups = False
        self._by_sha_until = 0
        self._denials.track(False)
        self._inflight.clear()
        self._again.clear()
        self._unsent.clear()
        self._report_lost(written, unsent)

    def _report_lost(self, written: list[Call], unsent: list[Call]) -> None:
        """Report to the callers which calls were written, and which were not."""
        touched: list[Caller] = []
        for call in written + unsent:
            touch(call.caller, touched)
        for call in written:
            call.caller.lane_answered(call, encoding.LOST)
        for call in unsent:
            call.caller.lane_returned(call)
        resume_all(touched)

    def unanswered(self) -> int:
        return self._times.unanswered() + len(self._again) + len(self._unsent)

    def drained(self) -> bool:
        """See ServerLane.drained(). A late call is not waited for: it is not sent again."""
        return max(self._times.late_until, self._times.answered) >= self._by_sha_until


def _group_size(calls: list[Call], at: int, most: int) -> int:
    """Return the number of calls from `at` on that go in one request: from 1 to `most`."""
    script = calls[at].rule.script
    end = min(len(calls), at + most)
    after = at
    while after < end:
        call = calls[after]
        if call.rule.script is not script or not call.rule.group_words or call.opens:
            break
        after += 1
    return max(1, after - at)


def _append(out: list[bytes], call: Call, way: int) -> None:
    """Append the request of `call` alone; `way`: see Rule.words()."""
    rule = call.rule
    call.group_size = 1
    if call.opens:
        rule = rule.in_microseconds()
        out.append(_CACHING)
        call.expects_ok = True
    elif call.asks:
        out.append(_ASKING)
        call.expects_ok = True
    out.append(rule.words(way))
    out.append(call.key)
    out.append(rule.tail)


def _append_group(out: list[bytes], group: list[Call]) -> None:
    """Append the request of `group`."""
    script = group[0].rule.script
    assert script is not None and script.group is not None
    out.append(script.group.heads[len(group)])
    for call in group:
        call.group_size = len(group)
        out.append(call.key)
    for call in group:
        out.append(call.rule.group_words)


def _report_late(calls: list[Call], timeout_s: float) -> None:
    error = encoding.late(timeout_s)
    touched: list[Caller] = []
    for call in calls:
        call.late = True
        call.caller.lane_failed(call, error, "late")
        touch(call.caller, touched)
    resume_all(touched)
