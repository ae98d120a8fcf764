"""Loading the scripts on the server, at a moment when no lane has a call under way.

    a call was answered NOSCRIPT ──load()──────> held: lanes write nothing more
    a new control connection ──connected()──────>   │  all that lanes wrote is answered: look()
                                                    v
                                  the control connection sends SCRIPT LOAD
                                                    │  over(), or HOLD_S have passed
                                                    v
                                  lanes go on: calls answered NOSCRIPT first

So no script of the proxy appears on the server between two calls of one client. All calls behind
the first NOSCRIPT get the same reply. Where the control connection has no right to load, there is
the same pause without SCRIPT LOAD, and the scripts are sent with the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.timeouts import HitTimeouts

HOLD_S: Final = 0.5  # longest pause in seconds; it is also at most half the hit timeout


def _nothing() -> None:
    return


def _always() -> bool:
    return True


class ScriptLoading:
    """Whether the server has the scripts, and the pause in which they are loaded. No I/O.

    later: calls a function after a delay in seconds.
    """

    __slots__ = (
        "_able",
        "_hold",
        "_later",
        "_timeouts",
        "_requested",
        "_then",
        "drained",
        "held",
        "loaded",
        "missed",
        "on_wanted",
        "settled",
    )

    def __init__(
        self,
        timeouts: HitTimeouts,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.settled = False  # whether the first attempt on this control connection is over
        self.loaded = False  # whether the latest attempt succeeded
        self.missed = False  # whether a script was missing since then and could not be loaded
        self.held = False  # whether the pause runs, in which lanes write nothing
        self.on_wanted: Callable[[], None] = _nothing  # has the control connection load now
        self.drained: Callable[[], bool] = _always  # returns whether no lane has a call under way
        self._able = False  # whether a control connection exists, and was not refused
        self._requested = False  # whether on_wanted() was called in this pause
        self._hold: int = 0  # number of the pause
        self._then: list[Callable[[], None]] = []  # functions called at the end of the pause
        self._timeouts = timeouts
        self._later = later

    # -- those that need the scripts --------------------------------------------------------------

    def load(self) -> None:
        """Begin a pause to load all scripts again, because one is missing.

        when_over() reports the end of the pause.
        """
        if not self.held:
            self.held = True
            self._requested = False
            self._hold += 1
            number = self._hold
            timeout_s = self._timeouts.timeout_s
            limit_s = min(HOLD_S, timeout_s / 2) if timeout_s > 0.0 else HOLD_S
            self._later(limit_s, lambda: self._give_up(number))
        self.look()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call `then` once, at the end of the next pause or attempt. `loaded` is its result."""
        self._then.append(then)

    def look(self) -> None:
        """Load the scripts if a pause runs and no call is under way any more."""
        if not self.held or self._requested or not self.drained():
            return
        if self.settled and not self._able:
            self.missed = True
            self._end()
            return
        self._requested = True
        self.on_wanted()

    # -- the control connection -------------------------------------------------------------------

    def connected(self) -> None:
        """Begin a pause to load the scripts for a new control connection."""
        self._able = True
        self._requested = False
        self.load()

    def over(self, loaded: bool) -> None:
        """End the pause after an attempt to load the scripts, or because none is possible.

        loaded: whether the attempt succeeded.
        """
        self.loaded = self._able = loaded
        self.settled = True
        self.missed = False
        self._end()

    def lost(self) -> None:
        """Forget the control connection, which was lost. The next one may find another server."""
        self._able = self.settled = False

    def _give_up(self, number: int) -> None:
        if not self.held or number != self._hold:
            return
        late = self._able and not self._requested
        self.over(False)
        if late:
            self.on_wanted()  # the late attempt serves the calls that follow

    def _end(self) -> None:
        self.held = False
        then, self._then = self._then, []
        for each in then:
            each()
