"""The circuit breaker: whether hits go to Redis at all, by what this process observed. No I/O, no
clock.

                    a connection refused, or hits timed out, and nothing heard meanwhile
             CLOSED ────────────────────────────────────────────────────────────────────> OPEN
        hits ask Redis  <──────────────────────────────────────────────────  hits are answered here
                            a reply of Redis' on any connection, an error too

While it is open the control connection asks, again and again, and what clients themselves send to
Redis goes its way. Should the control connection not get as far as asking, now and then a hit is
let through. Times are seconds of the event loop's clock, handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SETTLED_S: Final = 0.1  # who was heard so lately is there, though a connection was refused
UNASKED_S: Final = 3.0  # nobody has asked for so long: then hits do
TRIAL_S: Final = 0.5  # one in so long
TOLD: Final = 5  # outages that people hear of, in
TOLD_S: Final = 60.0  # so many seconds; more are counted


class Counts:
    """What became of hits that Redis did not answer, and of connections, since the start."""

    __slots__ = ("connects_failed", "failed", "failed_closed", "failed_open", "opened", "timeouts")

    def __init__(self) -> None:
        self.failed_open: int = 0  # hits admitted by --on-upstream-failure allow
        self.failed_closed: int = 0  # hits refused by deny
        self.failed: int = 0  # calls that got the error
        self.timeouts: int = 0  # calls of these that had been sent, and whose reply was late
        self.connects_failed: int = 0  # connections that could not be opened
        self.opened: int = 0  # how often the circuit opened

    def without(self) -> int:
        """Calls answered without Redis."""
        return self.failed_open + self.failed_closed + self.failed


class CircuitBreaker:
    """Whether Redis is asked. `since`: of the latest change; `why`: what opened it."""

    __slots__ = (
        "_asked_at",
        "_told",
        "_told_since",
        "_trial_at",
        "_without",
        "counts",
        "heard_at",
        "on_close",
        "on_open",
        "open",
        "since",
        "told",
        "untold",
        "why",
    )

    def __init__(self) -> None:
        self.open = False
        self.since: float = 0.0
        self.why = ""
        self.heard_at: float = -1e9  # when Redis was last heard of
        self.counts = Counts()
        self.on_open: Callable[[], None] | None = None
        self.on_close: Callable[[float, int], None] | None = None  # seconds, hits without Redis
        self.told = False  # whether people hear of this outage, and how many before
        self.untold: int = 0  # followed too closely on one that they had heard of
        self._told: int = 0
        self._told_since: float = -1e9
        self._asked_at: float = -1e9  # when the control connection last got as far as asking
        self._trial_at: float = -1e9
        self._without: int = 0

    def heard(self, now: float) -> None:
        """Redis has answered something."""
        self.heard_at = now
        if self.open:
            self._close(now)

    def connect_failed(self, now: float, why: str, ours: bool = False) -> None:
        """A connection could not be opened; `ours`: for want of something on this side."""
        self.counts.connects_failed += 1
        if not ours and now - self.heard_at > SETTLED_S:
            self._open(now, why)

    def timed_out(self, number: int, since: float, now: float, limit_s: float) -> None:
        """So many hits, the first of them unanswered since `since`, had no answer within `limit_s`
        seconds.
        """
        self.counts.timeouts += number
        if self.heard_at <= since:
            self._open(now, f"no answer within {limit_s * 1000:g} ms")

    def asked(self, now: float) -> None:
        """The control connection asks, or was told that nobody is there."""
        self._asked_at = now

    def tries(self, now: float) -> bool:
        """Whether one hit is to ask all the same, while it is open."""
        if now - self._asked_at < UNASKED_S or now - self._trial_at < TRIAL_S:
            return False
        self._trial_at = now
        return True

    def _open(self, now: float, why: str) -> None:
        if self.open:
            return
        self.open = True
        self.since = now
        self.why = why
        self.counts.opened += 1
        self._without = self.counts.without()
        if now - self._told_since >= TOLD_S:
            self._told_since = now
            self._told = 0
        self.told = self._told < TOLD
        if self.told:
            self._told += 1
        else:
            self.untold += 1
        if self.on_open is not None:
            self.on_open()

    def _close(self, now: float) -> None:
        self.open = False
        out_s = now - self.since
        self.since = now
        self.why = ""
        if self.on_close is not None:
            self.on_close(out_s, self.counts.without() - self._without)


class Backoff:
    """Pauses between attempts: each up to twice as long as the one before, and shortened at random
    by up to a half, so that those who lost the same server don't all come back at once.
    """

    __slots__ = ("_first_s", "_most_s", "_next_s", "_random")

    def __init__(self, first_s: float, most_s: float, random: Callable[[], float]) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s
        self._random = random  # from 0 to 1

    def pause_s(self) -> float:
        """Of the next pause, in seconds."""
        pause = self._next_s
        self._next_s = min(2 * pause, self._most_s)
        return pause * (1.0 - self._random() / 2)

    def reset(self) -> None:
        """It went well."""
        self._next_s = self._first_s
