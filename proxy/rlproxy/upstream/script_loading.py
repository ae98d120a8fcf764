"""The loading of the scripts, at a moment when no lane has a call under way.

    a call was answered NOSCRIPT ──load()──────> held: lanes write nothing more
    a new control connection ──connected()──────>   │  all that lanes wrote is answered: look()
                                                    v
                                  the control connection sends SCRIPT LOAD
                                                    │  over(), or HOLD_S have passed
                                                    v
                                  lanes go on: calls answered NOSCRIPT first

So no script of the proxy appears on the server between two calls of one client. All calls behind
the first NOSCRIPT get the same reply. Where the control connection has no right to load, there is
the same pause without SCRIPT LOAD, and the scripts are sent with the calls. Where a call is still
under way when the pause ends, the scripts are sent with the calls, too, until the next pause.

Lanes wait for SCRIPT LOAD at most a tenth of the time: after a wait, the next pauses end when the
command is sent, for REST times the length of the wait. The scripts are sent with the calls then.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from rlproxy.session.timeouts import HitTimeouts

HOLD_S: Final = 0.5  # longest pause in seconds; it is also at most half the hit timeout
REST: Final = 9.0  # time without a wait for SCRIPT LOAD, in multiples of the wait before


class ScriptLoading:
    """Whether the server has the scripts, and the pause in which they are loaded. No I/O.

    later: calls a function after a delay in seconds.
    clock: returns seconds.
    """

    def __init__(
        self,
        timeouts: HitTimeouts,
        later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settled = False  # whether the first attempt on this control connection is over
        self.loaded = False  # whether the latest attempt succeeded
        # Whether Redis refused it for a reason that lasts, and no script was missing since.
        self.refused = False
        self.held = False  # whether the pause runs, in which lanes write nothing
        self.on_wanted: Callable[[], None] = lambda: None  # has the control connection load now
        self.on_over: Callable[[], None] = lambda: None  # lets all lanes go on
        # Returns whether no lane has a call under way.
        self.drained: Callable[[], bool] = lambda: True
        self._able = False  # whether a control connection exists, and was not refused
        self._requested = False  # whether on_wanted() was called in this pause
        self._requested_at: float = 0.0
        self._rest_until: float = 0.0
        self._hold: int = 0  # number of the pause
        self._timeouts = timeouts
        self._later = later
        self._clock = clock

    # -- lanes ------------------------------------------------------------------------------------

    def load(self) -> None:
        """Begin a pause to load all scripts again, because one is missing."""
        if not self.held:
            self.held = True
            self._requested = False
            self._hold += 1
            number = self._hold
            self._later(self._limit_s(), lambda: self._give_up(number))
        self.look()

    def _limit_s(self) -> float:
        timeout_s = self._timeouts.timeout_s
        return min(HOLD_S, timeout_s / 2) if timeout_s > 0.0 else HOLD_S

    def look(self) -> None:
        """Load the scripts if a pause runs and no call is under way any more."""
        if not self.held or self._requested or not self.drained():
            return
        if self.settled and not self._able:
            self.refused = False
            self._end()
            return
        self._requested = True
        self._requested_at = self._clock()
        self.on_wanted()
        if self._requested_at < self._rest_until:
            self.over(False)

    # -- the control connection -------------------------------------------------------------------

    def connected(self) -> None:
        """Begin a pause to load the scripts for a new control connection."""
        self._able = True
        self._requested = False
        self.load()

    def over(self, loaded: bool, refused: bool = False) -> None:
        """End the pause after an attempt to load the scripts, or because none is possible.

        loaded: whether the attempt succeeded.
        refused: whether Redis refused it for a reason that lasts.
        """
        self.loaded = self._able = loaded
        self.refused = refused
        self.settled = True
        self._end()

    def lost(self) -> None:
        """Forget the control connection, which was lost. The next one may find another server."""
        self._able = self.settled = self.loaded = self.refused = False

    def _give_up(self, number: int) -> None:
        if not self.held or number != self._hold:
            return
        able = self._able and not self._requested
        limit_s = self._limit_s()
        self.over(False)
        if able:
            # Not at once: a call under way may find its script missing, and the next one find it.
            self._able = True
            self._later(REST * limit_s, lambda: self._try_again(number))

    def _try_again(self, number: int) -> None:
        if number == self._hold and self.settled:
            self.load()

    def _end(self) -> None:
        if self.held and self._requested:
            now = self._clock()
            self._rest_until = max(self._rest_until, now + REST * (now - self._requested_at))
        self.held = False
        self.on_over()
