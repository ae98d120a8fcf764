"""The wait queues of hits with WAIT: one queue per key, first come, first served.

                start()
                   |            head: attempt ──admitted──> its reply, the next one is the head
    queue of key: [head, ..., ...]       └───refused──> sleep for its retry_after, attempt again
                                others: sleep until they are the head, or their deadline has passed

A hit behind the head sends one peek when it joins and one at its deadline. Only the head attempts:
when its retry_after is over, when quota was given back, and every LONGEST_PAUSE_S at the latest.
While a refused hit waits on a key, hits without WAIT on that key are refused with the time that the
head still needs. Without that rule, a stream of them would starve the head. Attempts carry neither
STRICT nor PENALTY, which apply to the final refusal only.

Where the script shapes (LEAKY), a hit attempts when it joins. It takes its slot at once, leaves the
queue, and only its reply is delayed. A penalty makes it wait in the queue like any other hit, and
those that join later wait behind it.

The module uses no socket, event loop or session: the caller passes a clock, timers and callbacks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from rlproxy.ratelimit.algorithms import MICROSECONDS, Limiter
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.hit_replies import integers, rounded
from rlproxy.ratelimit.outcomes import WAITS
from rlproxy.resp import encoding

# Least time from the head's latest request to an early attempt, in seconds. Early attempts happen
# when another hit's peek finds room. Also the pause after a refusal without a retry_after.
WAKE_S: Final = 0.1
# Longest time from the head's latest request to its next attempt, in seconds.
LONGEST_PAUSE_S: Final = 30.0
KEEP_S: Final = 0.5  # interval of keep-alives, seconds: with that of refreshes, below 1 s
MAX_WAITING: Final = 10_000  # waiting hits of one process; WAIT has no effect for further ones

# The states of a waiter: the request under way, or none.
_SLEEPING: Final = 0  # no request under way
_ATTEMPT: Final = 1  # the hit without STRICT and PENALTY
# A peek behind the head. When the waiter joins: can the hit be admitted in time? At its deadline:
# the numbers of the refusal.
_PEEK: Final = 2
_FINAL: Final = 3  # the hit with all its options: admitted or refused for good
_DELAYED: Final = 4  # admitted; its reply is due later
_GONE: Final = 5  # has left its queue
_UNDER_WAY: Final = (_ATTEMPT, _PEEK, _FINAL)

Where = tuple[int, bytes]  # a database and a key as a bulk string
Cancel = Callable[[], None]


class Waiter:
    """One waiting hit.

    where: database and key.
    rule: rule of the hit.
    send: sends a rule for the key; a call of answered(), leave() or unsent() follows.
    finish: sends the reply to the client.
    flush: writes the output of the other callbacks. A waiter calls it only where its caller does
        not flush: from timers, and when another waiter promotes or wakes it.
    keep: keeps the client's private connection alive.
    """

    def __init__(
        self,
        waiting: WaitQueues,
        where: Where,
        rule: Rule,
        send: Callable[[Rule], None],
        finish: Callable[[bytes], None],
        flush: Callable[[], None],
        keep: Callable[[], None],
    ) -> None:
        limiter = rule.limiter
        assert limiter is not None
        self._waiting = waiting
        self._rule = rule
        self._send = send
        self._finish = finish
        self._flush = flush
        self._keep = keep
        self._limiter: Limiter = limiter
        self._deadline: float = waiting.clock() + limiter.wait_us / MICROSECONDS
        self._cancel: Cancel | None = None  # stops its timer
        self._state: int = _SLEEPING
        self._first = True  # its first request is not answered yet
        self._woken = False  # quota was given back, maybe behind the request under way
        self._reply: bytes = b""  # the delayed one
        self._where = where
        self._queue: _Queue = waiting.queue(where)
        self.sent_at: float = 0.0  # time of its latest request
        self.due: float = 0.0  # time at which an attempt may succeed, or at which to send `_reply`
        self.blocks_others = False  # others must not overtake: Redis has refused it or delays it

    # -- events -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the queue of its key, and send the first request. WaitQueues must not be full()."""
        queue = self._queue
        queue.waiters[self] = None
        self._waiting.count += 1
        if self._waiting.draining:
            self.expire()
        shapes = self._rule.shapes and queue.refused == 0
        self._put(_ATTEMPT if shapes or queue.head() is self else _PEEK)

    def answered(self, frame: bytes) -> None:
        """Process Redis' reply to the request under way. Does nothing once the waiter has left.

        frame: whole reply; anything but a script's reply to a hit is passed to the client.
        """
        state = self._state
        if state not in _UNDER_WAY:
            return
        if frame == encoding.LOST and state == _PEEK:
            self._put(state)  # a peek may be sent twice
            return
        self._state = _SLEEPING
        found = integers(frame)
        if not found:  # an error, or not a reply of the script
            self.leave(frame)
            return
        hopeless = self._hopeless(found, state)
        self._first = False
        if state == _FINAL or (state == _ATTEMPT and found[0] == 0):
            self._settled(found)
        elif hopeless:
            self._refuse(found)
        elif state == _PEEK and self.sent_at >= self._deadline:
            self._last_peeked(found)
        else:
            # A hit that Redis answers with an error, or admits at once, blocks no other one.
            if found[0] == 1 and not self.blocks_others:
                self.blocks_others = True
                self._queue.refused += 1
            if state == _ATTEMPT and self._queue.head() is self:
                pause_s = found[3] / MICROSECONDS if found[3] > 0 else WAKE_S
                self.due = 0.0 if self._woken else self._waiting.clock() + pause_s
            self._go_on()

    def unsent(self) -> None:
        """Send the request under way again: it was never written to Redis."""
        if self._state in _UNDER_WAY:
            self._put(self._state)

    def promoted(self) -> None:
        """Wake the waiter if it sleeps: it may be the head now."""
        if self._state == _SLEEPING:
            self._stop_timer()
            self._go_on()
            self._flush()

    def woken(self) -> None:
        """Attempt now, or behind the reply under way: its retry_after is stale.

        That reply may come from before: Redis first answers the connection that it served last.
        Only the head is woken: an admitted hit, whose reply is due later, is not one.
        """
        self.due = 0.0
        self._woken = True
        self.promoted()

    def end_of_file(self) -> bool:
        """End the wait because the client sends no more.

        Returns whether the client still gets a reply: only while the first request is unanswered.
        """
        self.expire()
        return self._first

    def expire(self) -> None:
        """Set the deadline to now. A delayed reply stays due as before."""
        self._deadline = self._waiting.clock()

    def _fired(self) -> None:
        self._stop_timer()
        if self._state == _SLEEPING:
            self._go_on()
        elif self._waiting.clock() < self.due:
            self._set_timer(self.due)
        else:
            self.leave(self._reply)
        if self._cancel is not None:
            self._keep()  # it sleeps on
        self._flush()

    # -- actions ----------------------------------------------------------------------------------

    def _put(self, state: int) -> None:
        """Send the request of `state`: an attempt, a peek or the final one."""
        self._state = state
        self._woken = False
        self.sent_at = self._waiting.clock()
        if self._rule.shapes and not self._first:
            left_us = int((self._deadline - self.sent_at) * MICROSECONDS)
            self._rule = self._rule.within(max(1, left_us))
        if state == _ATTEMPT:
            self._send(self._rule.attempt())
        elif state == _FINAL:
            self._send(self._rule.in_microseconds())
        else:
            self._send(self._rule.peek())

    def _go_on(self) -> None:
        """Send the request that is due, or sleep until one is."""
        now = self._waiting.clock()
        head = self._queue.head() is self
        if now >= self._deadline:
            self._put(_FINAL if head else _PEEK)
        elif head and now >= min(self.due, self.sent_at + LONGEST_PAUSE_S):
            self._put(_ATTEMPT)
        else:
            until = min(self.due, self.sent_at + LONGEST_PAUSE_S) if head else self._deadline
            self._set_timer(min(until, self._deadline))

    def _hopeless(self, found: list[int], state: int) -> bool:
        """Return whether Redis has refused the hit and can't admit it in time."""
        if found[0] == 0:
            return False
        if self._rule.shapes and state == _ATTEMPT:
            alone = len(found) > 5 and found[5] > 0  # only a penalty refuses it
            due = self._waiting.clock() + found[3] / MICROSECONDS
            return not alone or due > self._deadline
        return self._first and (found[3] == -1 or found[3] > self._limiter.wait_us)

    def _settled(self, found: list[int]) -> None:
        """Reply to a hit that is admitted or finally refused, after its delay if there is one."""
        delay_us = found[5] if self._rule.shapes and len(found) > 5 else 0
        delay_us = min(delay_us, self._limiter.wait_us)  # a wrong reply delays it no longer
        reply = rounded(found, self._limiter.unit_us)
        if delay_us > 0:
            self._state = _DELAYED
            self._reply = reply
            self.due = self._waiting.clock() + delay_us / MICROSECONDS
            self._set_timer(self.due)
            queue = self._queue
            queue.remove(self)
            queue.delayed[self] = None
            self.blocks_others = True
            queue.promote()
        else:
            self.leave(reply)

    def _refuse(self, found: list[int]) -> None:
        """Refuse the hit; `found` is the script's refusal, in microseconds."""
        if self._limiter.strict or self._limiter.penalty_us:
            self._put(_FINAL)  # only the real refusal counts the hit or begins the penalty
        else:
            self.leave(rounded(found, self._limiter.unit_us))

    def _last_peeked(self, found: list[int]) -> None:
        if found[0] == 1:
            found[3] = max(found[3], self._queue.needs_us(self._waiting.clock()))
            self._refuse(found)
        elif self._queue.head() is self:
            self._put(_FINAL)  # the hits before it left during the peek
        else:
            self.leave(self._waiting.overtaking(self._where, self._rule, found))

    def leave(self, reply: bytes) -> None:
        """End the wait with the client's reply; b"": none, because it has disconnected."""
        waiting, queue = self._waiting, self._queue
        if self._state == _DELAYED:
            del queue.delayed[self]
        else:
            queue.remove(self)
        self._state = _GONE
        self._stop_timer()
        waiting.count -= 1
        if not queue.waiters and not queue.delayed:
            waiting.forget(self._where)
        if self.blocks_others:  # only the waits of hits that were refused or delayed are counted
            found = integers(reply)
            how = "left"
            if found:
                how = "refused" if found[0] == 1 else "admitted"
            waiting.ended[how] += 1
        if reply:
            self._finish(reply)
        queue.promote()

    def _set_timer(self, until: float) -> None:
        at = min(until, self._waiting.clock() + KEEP_S)
        self._cancel = self._waiting.call_at(at, self._fired)

    def _stop_timer(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


class _Queue:
    """The waiters on one key."""

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()  # not admitted, by arrival
        self.refused: int = 0  # number of `waiters` that Redis has refused
        self.delayed: OrderedDict[Waiter, None] = OrderedDict()  # admitted, in this order

    def head(self) -> Waiter | None:
        """Return the first waiter that is not admitted."""
        return next(iter(self.waiters), None)

    def promote(self) -> None:
        """Wake the head after another waiter was admitted or has left."""
        head = self.head()
        if head is not None:
            head.promoted()

    def remove(self, waiter: Waiter) -> None:
        """Remove `waiter` from those that are not admitted."""
        del self.waiters[waiter]
        self.refused -= waiter.blocks_others

    def needs_us(self, now: float) -> int:
        """Return the microseconds until a delayed reply or the head's attempt is due; 1 or more."""
        first = next(iter(self.delayed or self.waiters))
        return max(1, ceil((first.due - now) * MICROSECONDS))


class WaitQueues:
    """The wait queues of this process.

    clock: returns seconds.
    call_at: calls a function at a time of that clock, not earlier; returns a function that cancels
        the call.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], Cancel],
    ) -> None:
        self.clock = clock
        self.call_at = call_at
        self.count: int = 0
        self.ended: dict[str, int] = dict.fromkeys(WAITS, 0)  # ended waits, by how
        self.draining = False  # all waits have ended; those of later hits end at once
        self._queues: dict[Where, _Queue] = {}

    def full(self) -> bool:
        """Return whether MAX_WAITING hits wait."""
        return self.count >= MAX_WAITING

    def drain(self) -> None:
        """End all waits, of hits that join later too: each hit is admitted or refused now."""
        self.draining = True
        for queue in list(self._queues.values()):
            for waiter in list(queue.waiters):
                waiter.expire()
                waiter.promoted()

    def blocks(self, where: Where) -> bool:
        """Return whether a hit that Redis refused or delays waits on this key.

        Hits without WAIT must then not overtake it; see overtaking().
        """
        queue = self._queues.get(where)
        return queue is not None and (queue.refused > 0 or len(queue.delayed) > 0)

    def freed(self, where: Where) -> None:
        """Wake the head of this key: a reset or a refund has given quota back."""
        queue = self._queues.get(where)
        head = queue.head() if queue is not None else None
        if head is not None:
            head.woken()

    def overtaking(self, where: Where, rule: Rule, found: list[int]) -> bytes:
        """Return the refusal of a hit that would overtake the queue.

        Wakes the head if the peek found room, at most every WAKE_S.
        found: the script's reply to a peek at the hit, times in microseconds.
        """
        limiter = rule.limiter
        assert limiter is not None
        now, retry_us = self.clock(), found[3]
        queue = self._queues.get(where)
        if queue is None:
            needs_us, head = 1, None
        else:
            needs_us, head = queue.needs_us(now), queue.head()
        if found[0] == 0 or retry_us != -1:  # else it will never be admitted
            retry_us = max(retry_us, needs_us)
        if found[0] == 0 and head is not None and now >= head.sent_at + WAKE_S:
            head.woken()  # the peek found room, so the head's retry_after may be stale
        return rounded([1, found[1], 0, retry_us, found[4]], limiter.unit_us)

    # -- for waiters ------------------------------------------------------------------------------

    def queue(self, where: Where) -> _Queue:
        """Return the queue of a key, made if needed."""
        queue = self._queues.get(where)
        if queue is None:
            queue = self._queues[where] = _Queue()
        return queue

    def forget(self, where: Where) -> None:
        """Forget the queue of a key, which is empty."""
        del self._queues[where]
