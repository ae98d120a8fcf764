"""The circuit breaker: whether hits go to Redis at all, by what this process observed. No I/O, no
clock.

                    a connection refused, or hits timed out, and no reply of Redis since
             CLOSED ────────────────────────────────────────────────────────────────────> OPEN
       hits go to Redis <──────────────────────────────────────────────────  hits are answered here
                            a reply of Redis on any connection, an error too

While the circuit is open, the control connection queries Redis repeatedly. Clients' other commands
still go to Redis. Times are seconds of the event loop's clock; the caller passes them in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.call import Call

SETTLED_S: Final = 0.1  # seconds after a reply in which a refused connection is ignored


class Counts:
    """Counters since the start: calls that Redis did not answer, and connections."""

    def __init__(self) -> None:
        self.without: int = 0  # calls answered without Redis
        self.timeouts: int = 0  # hits that exceeded --hit-timeout, sent or not
        self.connects_failed: int = 0  # connections that could not be opened
        self.opened: int = 0  # times that the circuit opened


class CircuitBreaker:
    """The state of the circuit: whether hits go to Redis.

    `since` is the time of the latest change, in seconds, and `why` the reason while it is open.
    """

    def __init__(self) -> None:
        self.open = False
        self.since: float = 0.0
        self.why = ""
        self.last_reply_at: float = -1e9  # time of the latest reply of Redis
        self.counts = Counts()
        self.on_open: Callable[[], None] = lambda: None
        # arguments: seconds open, hits answered without Redis
        self.on_close: Callable[[float, int], None] = lambda _open_s, _without: None
        self._without: int = 0

    def error_of_node(self, _call: Call) -> bytes:
        """Return the error for a call whose node of a cluster takes no hits now, else b""."""
        return b""

    def without(self) -> int:
        """Return the number of hits that were answered without Redis since the circuit opened."""
        return self.counts.without - self._without if self.open else 0

    def replied(self, now: float) -> None:
        """Record a reply of Redis, and close the circuit."""
        self.last_reply_at = now
        if self.open:
            self._close(now)

    def connect_failed(self, now: float, why: str, lacking: bool = False) -> None:
        """Record a failed connection attempt. Open the circuit unless Redis has just replied.

        lacking: this machine lacks a resource, such as files to open; then the circuit stays as it
        is.
        """
        self.counts.connects_failed += 1
        if not lacking and now - self.last_reply_at > SETTLED_S:
            self._open(now, why)

    def timed_out(
        self, number: int, since: float, now: float, limit_s: float, answered: int = 0
    ) -> None:
        """Record `number` hits without a reply after `limit_s` seconds.

        The circuit opens if Redis has not replied on any connection after `since`, the time since
        which the first of these hits is unanswered.
        answered: the number of these hits that Counts.without contains already.
        """
        self.counts.timeouts += number
        if self.last_reply_at <= since:
            self._open(now, f"no answer within {limit_s * 1000:g} ms", answered)

    def _open(self, now: float, why: str, answered: int = 0) -> None:
        if self.open:
            return
        self.open = True
        self.since = now
        self.why = why
        self.counts.opened += 1
        self._without = self.counts.without - answered
        self.on_open()

    def _close(self, now: float) -> None:
        out_s, without = now - self.since, self.without()
        self.open = False
        self.since = now
        self.why = ""
        self.on_close(out_s, without)
