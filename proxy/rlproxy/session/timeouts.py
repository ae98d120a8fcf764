"""The hit timeout: looks at regular times for hits that Redis has not answered.

There is no timer per hit. Each owner of unanswered hits registers a `look` function, which is
called `EVERY` times per timeout and answers its late hits. No timer runs while no hit is
unanswered. While Redis is silent, PINGs are sent: without a reply to them, late hits open the
circuit. The module has no socket and no event loop: clock and timers are passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from rlproxy.session.circuit_breaker import CircuitBreaker

EVERY: Final = 4  # looks per timeout; more if MAX_S is shorter
MAX_S: Final = 0.05  # longest time between two looks, in seconds
LEAST_S: Final = 0.001
STALLED_S: Final = 0.05  # delay of a look in seconds; beyond, replies may wait in the sockets


class HitTimeouts:
    """The owners of unanswered hits in one process.

    `timeout_s` is in seconds; infinite: no hit is late.
    """

    def __init__(
        self,
        circuit: CircuitBreaker,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.circuit = circuit
        self.timeout_s: float = inf
        self.on_silence: Callable[[], None] = lambda: None  # sends PINGs
        self.clock = clock
        self._later = later
        self._watched: list[Callable[[float], bool]] = []
        self._due: float = 0.0  # time of the next look; 0: none, as no hit is watched
        self._skipped = False  # the latest look was left out
        self._pinged_at: float = 0.0  # or the time since which hits are watched

    def watch(self, look: Callable[[float], bool]) -> None:
        """Call `look` with the current time at regular intervals, until it returns False.

        look: answers the hits that are late. Returns whether others may become late.
        """
        self._watched.append(look)
        if self._due == 0.0:
            self._pinged_at = self.clock()
            self._start()

    def _start(self) -> None:
        pause_s = max(LEAST_S, min(self.timeout_s / EVERY, MAX_S))
        self._due = self.clock() + pause_s
        self._later(pause_s, self._look)

    def _look(self) -> None:
        """Call each `look` function, and `on_silence` every half timeout without a reply."""
        now = self.clock()
        # After a stall of this process, the replies are read first. Where it is stalled again and
        # again, as by a CPU limit, every second look takes place.
        self._skipped = now - self._due > STALLED_S and not self._skipped
        if self._skipped:
            self._start()
            return
        watched = self._watched
        self._watched = []
        for look in watched:
            if look(now):
                self._watched.append(look)
        if not self._watched:
            self._due = 0.0
            return
        self._start()
        if now - max(self.circuit.last_reply_at, self._pinged_at) >= self.timeout_s / 2:
            self._pinged_at = now
            self.on_silence()
