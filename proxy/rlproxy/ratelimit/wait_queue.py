"""The wait queues of hits with WAIT: one queue per key, first come, first served.

                 join()
                   |            head: attempt ──admitted──> its reply, the next one is the head
    queue of key: [head, ..., ...]       └───refused──> sleep for its retry_after, attempt again
                                others: sleep until they are the head, or their time is over

Only the head asks Redis, and only when Redis has said that it may: nothing is polled. While anybody
waits on a key, hits on it that don't wait are refused with the time the head still needs, or a
stream of them would starve it. What is tried meanwhile carries neither STRICT nor PENALTY; those
belong to the final refusal. Where the script shapes (LEAKY), the hit takes its place at once and
only its reply is held.

Knows no socket, loop or session: a clock, timers and two functions of each waiter are handed in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import ceil
from typing import Final

from rlproxy.ratelimit.algorithms import MICROSECONDS, Limiter
from rlproxy.ratelimit.grammar import Rule
from rlproxy.ratelimit.outcomes import WAIT_ADMITTED, WAIT_LEFT, WAIT_REFUSED, WAITS
from rlproxy.resp import encoding

WAKE_S: Final = 0.1  # how often others' luck may have the head ask again
ASK_S: Final = 30.0  # the head asks again after so long, whatever it was told
KEEP_S: Final = 0.75  # how often a connection is kept alive; Redis' least timeout is 1 s
MAX_WAITING: Final = 10_000  # of one process; beyond, WAIT acts as if absent

# What a waiter has asked, or does.
_SLEEPING: Final = 0
_ATTEMPT: Final = 1  # to be admitted
_LOOK: Final = 2  # whether waiting is any use: it is not the head
_LAST_LOOK: Final = 3  # what to tell: its time is over, and it was not the head
_FINAL: Final = 5  # to be admitted or refused for good
_HELD: Final = 6  # it is admitted, and its reply is due later
_GONE: Final = 7

Where = tuple[int, bytes]  # a database and a key
Cancel = Callable[[], None]


class Waiter:
    """One waiting hit. `ask` sends a rule for its key, `finish` gives its client the reply, `keep`
    keeps the client's connection alive, `pump` moves what these three have put down.
    """

    __slots__ = (
        "_ask",
        "_cancel",
        "_deadline",
        "_does",
        "_finish",
        "_first",
        "_keep",
        "_limiter",
        "_flush",
        "_reply",
        "_rule",
        "_until",
        "_waiting",
        "asked_at",
        "due",
        "waits",
        "where",
    )

    def __init__(
        self,
        waiting: WaitQueues,
        where: Where,
        rule: Rule,
        ask: Callable[[Rule], None],
        finish: Callable[[bytes], None],
        flush: Callable[[], None],
        keep: Callable[[], None],
    ) -> None:
        limiter = rule.limiter
        assert limiter is not None
        self._waiting = waiting
        self._rule = rule
        self._ask = ask
        self._finish = finish
        self._flush = flush
        self._keep = keep
        self._limiter: Limiter = limiter
        self._deadline: float = waiting.clock() + limiter.wait_us / MICROSECONDS
        self._cancel: Cancel | None = None
        self._until: float = 0.0  # when it goes on
        self._does: int = _SLEEPING
        self._first = True  # its first question is not answered yet
        self._reply: bytes = b""  # of a held one
        self.where = where
        self.asked_at: float = 0.0  # when its latest question was put
        self.due: float = 0.0  # when an attempt may succeed, or the reply of a held one is due
        self.waits = False  # Redis knows its client and has it wait: nobody may overtake it

    # -- what happens to it -----------------------------------------------------------------------

    def start(self) -> None:
        """It is in its queue: ask for the first time."""
        if self._rule.shapes or self._waiting.is_head(self):
            self._put(_ATTEMPT)
        else:
            self._put(_LOOK)

    def answered(self, frame: bytes) -> None:
        """Redis' reply to what it asked."""
        does = self._does
        if does == _GONE:
            return
        if frame == encoding.LOST and does in (_LOOK, _LAST_LOOK):
            self._put(does)  # a look may be sent twice
            return
        self._does = _SLEEPING
        found = encoding.integers(frame)
        if not found:  # an error, or nothing that can be understood
            self._leave(frame)
            return
        first, self._first = self._first, False
        hopeless = found[3] == -1 or found[3] > self._limiter.wait_us
        if does == _FINAL or (does == _ATTEMPT and found[0] == 0):
            self._settled(found)
        elif does == _LAST_LOOK:
            self._last_looked(found)
        elif found[0] == 1 and (self._rule.shapes or (first and hopeless)):
            self._refuse(found)
        else:
            if found[0] == 1:
                self._waiting.waits(self)
            if does == _ATTEMPT:
                pause_s = found[3] / MICROSECONDS if found[3] > 0 else WAKE_S
                self.due = self._waiting.clock() + pause_s
            self._go_on()

    def unanswered(self, instead: Callable[[], bytes]) -> None:
        """Redis does not answer what it asked: its client gets `instead`."""
        if self._does != _GONE:
            self._leave(instead())

    def unsent(self) -> None:
        """What it asked was never sent."""
        if self._does not in (_GONE, _SLEEPING, _HELD):
            self._put(self._does)

    def promoted(self) -> None:
        """It may be the head now."""
        if self._does == _SLEEPING:
            self._stop_timer()
            self._go_on()
            self._flush()

    def woken(self) -> None:
        """What it was told of its time is not true any more."""
        if not self._reply:
            self.due = 0.0
            self.promoted()

    def cancel(self) -> None:
        """Its client is gone: the place goes to the next one."""
        if self._does != _GONE:
            self._leave(b"")

    def last_word(self) -> bool:
        """Its client sends no more. Whether it is still answered: it is if that is a matter of the
        first question.
        """
        self.expire()
        return self._first

    def expire(self) -> None:
        """Its time is over. (What is held was admitted, and keeps its time.)"""
        self._deadline = self._waiting.clock()

    def _fired(self) -> None:
        self._cancel = None
        if self._waiting.clock() < self._until:
            self._keep()
            self._set_timer(self._until)
        elif self._reply:
            self._leave(self._reply)
        elif self._does == _SLEEPING:
            self._go_on()
        self._flush()

    # -- what it does -----------------------------------------------------------------------------

    def _put(self, does: int) -> None:
        self._does = does
        self.asked_at = self._waiting.clock()
        if does == _ATTEMPT:
            self._ask(self._rule.attempt())
        elif does == _FINAL:
            self._ask(self._rule.final())
        else:
            self._ask(self._rule.look())

    def _go_on(self) -> None:
        """Ask what there is to be asked now, or sleep until there is something."""
        now = self._waiting.clock()
        head = self._waiting.is_head(self)
        if now >= self._deadline:
            self._put(_FINAL if head else _LAST_LOOK)
        elif head and now >= min(self.due, self.asked_at + ASK_S):
            self._put(_ATTEMPT)
        else:
            until = min(self.due, self.asked_at + ASK_S) if head else self._deadline
            self._set_timer(min(until, self._deadline))

    def _settled(self, found: list[int]) -> None:
        """Admitted, or refused for good."""
        held_us = found[5] if self._rule.shapes and len(found) > 5 else 0
        held_us = min(held_us, self._limiter.wait_us)  # (whatever was said)
        reply = encoding.rounded(found, self._limiter.unit_us)
        if held_us > 0:
            self._does = _HELD
            self._reply = reply
            self._waiting.waits(self)
            self.due = self._waiting.clock() + held_us / MICROSECONDS
            self._stop_timer()
            self._set_timer(self.due)
        else:
            self._leave(reply)

    def _refuse(self, found: list[int]) -> None:
        """Redis would refuse it, with `found`."""
        if self._limiter.strict or self._limiter.penalty_us:
            self._put(_FINAL)  # which leaves its mark
        else:
            self._leave(encoding.rounded(found, self._limiter.unit_us))

    def _last_looked(self, found: list[int]) -> None:
        if found[0] == 1:
            found[3] = max(found[3], self._waiting.needs_us(self.where))
            self._refuse(found)
        elif self._waiting.is_head(self):
            self._put(_FINAL)  # those before it have left meanwhile
        else:
            self._leave(self._waiting.overtaking(self.where, self._rule, found))

    def _leave(self, reply: bytes) -> None:
        self._does = _GONE
        self._stop_timer()
        self._waiting.left(self)
        if self.waits:
            found = encoding.integers(reply)
            how = WAIT_LEFT
            if found:
                how = WAIT_REFUSED if found[0] == 1 else WAIT_ADMITTED
            self._waiting.ended[how] += 1
        if reply:
            self._finish(reply)
        self._waiting.promote(self.where)

    def _set_timer(self, until: float) -> None:
        self._until = until
        at = min(until, self._waiting.clock() + KEEP_S)
        self._cancel = self._waiting.call_at(at, self._fired)

    def _stop_timer(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


class _Queue:
    """Those who wait on one key, and how many of them Redis has told to."""

    __slots__ = ("waiters", "waiting")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.waiting: int = 0


class WaitQueues:
    """All that wait in this process. `clock` in seconds; `call_at` calls a function at a time of
    that clock, never before, and returns what cancels it.
    """

    __slots__ = ("_draining", "_queues", "call_at", "clock", "count", "ended")

    def __init__(
        self,
        clock: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], Cancel],
    ) -> None:
        self.clock = clock
        self.call_at = call_at
        self.count: int = 0
        self.ended: list[int] = [0] * len(WAITS)  # who had to wait, by how that ended
        self._queues: dict[Where, _Queue] = {}
        self._draining = False

    def join(
        self,
        where: Where,
        rule: Rule,
        ask: Callable[[Rule], None],
        finish: Callable[[bytes], None],
        flush: Callable[[], None],
        keep: Callable[[], None],
    ) -> Waiter | None:
        """A new waiter at the end of its key's queue, for the caller to start(); None if there are
        too many.
        """
        if self.count >= MAX_WAITING:
            return None
        waiter = Waiter(self, where, rule, ask, finish, flush, keep)
        queue = self._queues.get(where)
        if queue is None:
            queue = self._queues[where] = _Queue()
        queue.waiters[waiter] = None
        self.count += 1
        if self._draining:
            waiter.expire()
        return waiter

    def drain(self) -> None:
        """Nobody waits any more: who does is refused now, unless admitted."""
        self._draining = True
        for queue in list(self._queues.values()):
            for waiter in list(queue.waiters):
                waiter.expire()
                waiter.promoted()

    def blocks(self, where: Where) -> bool:
        """Whether somebody waits on this key: then nobody may overtake."""
        queue = self._queues.get(where)
        return queue is not None and queue.waiting > 0

    def needs_us(self, where: Where) -> int:
        """Microseconds that the first in the queue still needs, at least 1."""
        head = self._head(where)
        return 1 if head is None else max(1, ceil((head.due - self.clock()) * MICROSECONDS))

    def freed(self, where: Where) -> None:
        """Something was given back on this key: whoever is the head may ask at once."""
        head = self._head(where)
        if head is not None:
            head.woken()

    def overtaking(self, where: Where, rule: Rule, found: list[int]) -> bytes:
        """The refusal of a hit by `rule` that would overtake; `found` is what a look at it says."""
        limiter = rule.limiter
        assert limiter is not None
        never = found[0] == 1 and found[3] == -1
        retry_us = -1 if never else max(found[3], self.needs_us(where))
        head = self._head(where)
        if found[0] == 0 and head is not None and self.clock() >= head.asked_at + WAKE_S:
            head.woken()  # there is room: what it was told may not be true any more
        return encoding.rounded([1, found[1], 0, retry_us, found[4]], limiter.unit_us)

    # -- for waiters ------------------------------------------------------------------------------

    def is_head(self, waiter: Waiter) -> bool:
        """Whether it is the first in its queue."""
        return self._head(waiter.where) is waiter

    def waits(self, waiter: Waiter) -> None:
        """Redis would refuse it, so it waits. (Whom Redis does not let in stands in nobody's way,
        nor does who is admitted as soon as it is asked.)
        """
        if not waiter.waits:
            waiter.waits = True
            self._queues[waiter.where].waiting += 1

    def left(self, waiter: Waiter) -> None:
        """It is not in its queue any more."""
        queue = self._queues[waiter.where]
        del queue.waiters[waiter]
        queue.waiting -= waiter.waits
        self.count -= 1
        if not queue.waiters:
            del self._queues[waiter.where]

    def promote(self, where: Where) -> None:
        """Somebody left: whoever is the head now may go on."""
        head = self._head(where)
        if head is not None:
            head.promoted()

    def _head(self, where: Where) -> Waiter | None:
        queue = self._queues.get(where)
        return next(iter(queue.waiters)) if queue is not None else None
