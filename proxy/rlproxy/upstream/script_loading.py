"""Loading the scripts on the server, at a moment when no lane has a call under way.

    a call was answered NOSCRIPT ──load()──────> held: lanes write nothing more
    a new control connection ──connected()──────>   │  all that lanes wrote is answered: look()
                                                    v
                                  the control connection sends SCRIPT LOAD
                                                    │  over(), or HOLD_S have passed
                                                    v
                                  lanes go on: what was answered NOSCRIPT first

So no script of ours appears on the server between two calls of one client, and all that were
behind the first NOSCRIPT are answered so, too. Where the control connection may not load, there
is the same pause without SCRIPT LOAD: the scripts then come with the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.timeouts import HitTimeouts

HOLD_S: Final = 0.5  # the longest pause; at most half the hit timeout


def _nothing() -> None:
    return


def _always() -> bool:
    return True


def _no_timer(_delay_s: float, _function: Callable[[], None]) -> None:
    return


class ScriptLoading:
    """Whether the server has the scripts, and what waits for them. Knows no socket or loop."""

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
        later: Callable[[float, Callable[[], None]], object] = _no_timer,
    ) -> None:
        self.settled = False  # the first attempt on this control connection is over
        self.loaded = False  # at the latest attempt the scripts were loaded
        self.missed = False  # a script was missing since then, and could not be loaded
        self.held = False  # lanes write nothing
        self.on_wanted: Callable[[], None] = _nothing  # the control connection loads now
        self.drained: Callable[[], bool] = _always  # whether no lane has a call under way
        self._able = False  # the control connection is there, and may load as far as is known
        self._requested = False  # on_wanted() was called in this pause
        self._hold: int = 0  # number of the pause
        self._then: list[Callable[[], None]] = []
        self._timeouts = timeouts
        self._later = later

    # -- those that need the scripts --------------------------------------------------------------

    def load(self) -> None:
        """A script is missing: load all of them again. See when_over() for the end of it."""
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
        """Call `then` once, at the end of the pause or attempt that is next; see `loaded`."""
        self._then.append(then)

    def look(self) -> None:
        """The last call under way may have been answered."""
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
        """There is a control connection that may load, as far as is known: on_wanted() follows."""
        self._able = True
        self._requested = False
        self.load()

    def over(self, loaded: bool) -> None:
        """An attempt to load the scripts is over, or there can be none."""
        self.loaded = self._able = loaded
        self.settled = True
        self.missed = False
        self._end()

    def lost(self) -> None:
        """The control connection is gone: the next one may find another server."""
        self._able = self.settled = False

    def _give_up(self, number: int) -> None:
        if not self.held or number != self._hold:
            return
        late = self._able and not self._requested
        self.over(False)
        if late:
            self.on_wanted()  # for the calls that come then

    def _end(self) -> None:
        self.held = False
        then, self._then = self._then, []
        for each in then:
            each()
