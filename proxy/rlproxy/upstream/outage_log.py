"""The log of one server's outages and problems: each is logged once, and so is its end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from rlproxy.observability.logs import log
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.upstream.connector import Target

MAX_LOGGED: Final = 5  # outages logged per LOGGED_S, lost control connections included
LOGGED_S: Final = 60.0  # seconds


class OutageLog:
    """The log of the server of `target`. `clock` returns seconds."""

    def __init__(self, target: Target, circuit: CircuitBreaker, clock: Callable[[], float]) -> None:
        self._target = target
        self._circuit = circuit
        self._clock = clock
        self._serves = True
        self._logged = False  # the present outage is logged
        self._unexplained = False  # the control connection was lost, and no line states why
        self._problem = ""  # the problem that was logged last
        self._since = -inf  # the begin of the present LOGGED_S
        self._number = 0  # outages since then

    def circuit_opened(self) -> None:
        """Log that the server does not answer."""
        if self._may_log() and not self._logged:
            self._logged = True
            log.warning(
                "redis_silent",
                "Redis at {address} does not answer ({reason}); "
                "hits are answered by --on-upstream-failure",
                address=self._target.where,
                reason=self._circuit.why,
            )

    def circuit_closed(self, out_s: float, without: int) -> None:
        """Log that it answers again after `out_s`; `without` hits were answered without it."""
        if self._logged:
            log.warning(
                "redis_back",
                "Redis at {address} is back after {seconds:.1f} s; "
                "hits answered without it: {hits}",
                address=self._target.where,
                seconds=out_s,
                hits=without,
            )
        self._logged = False

    def follow(self, serves: bool) -> None:
        """Take whether the server serves keys: nothing else of it is logged while it does not.

        A master of a cluster may leave in an outage or with a problem, which ends in the log.
        """
        if serves == self._serves:
            return
        if not serves and (self._logged or self._problem):
            log.warning(
                "redis_left",
                "Redis at {address} is no master any more; hits answered without it: {hits}",
                address=self._target.where,
                hits=self._circuit.without(),
            )
            self._logged = False
            self._problem = ""
        self._serves = serves
        if serves and self._circuit.open:
            self.circuit_opened()

    def control_lost(self) -> None:
        """Record that the control connection was lost; control_works() logs it."""
        self._unexplained = not self._circuit.open

    def control_failed(self, why: str, refused: bool) -> None:
        """Log why the control connection failed.

        refused: the server refused the connection. That is logged when the circuit opens.
        """
        known = self._circuit.open or self._logged
        if not (known or refused) and self._may_log():
            self._logged = known = True
            text = "cannot reach Redis at {address}: {reason}; retrying"
            log.warning("redis_unreachable", text, address=self._target.where, reason=why)
        self._unexplained = self._unexplained and not known

    def control_works(self, problem: str) -> None:
        """Log a new problem of the server, or the end of the last problem or outage.

        problem: empty if there is none.
        """
        where = self._target.where
        problem = problem if self._serves else ""
        if problem and (self._logged or problem != self._problem):
            text = "Redis at {address}: {reason}"
            log.warning("redis_refuses", text, address=where, reason=problem)
        elif not problem and (self._logged or self._problem):
            text = "Redis at {address}: the problem is over"
            log.warning("redis_back", text, address=where)
        elif self._unexplained and self._may_log():
            text = "Redis at {address}: the proxy's own connection was lost; a new one works"
            log.warning("redis_back", text, address=where)
        self._problem = problem
        self._logged = self._unexplained = False

    def _may_log(self) -> bool:
        """Return whether to log an outage, and count it: MAX_LOGGED per LOGGED_S."""
        if not self._serves:
            return False
        now = self._clock()
        if now - self._since >= LOGGED_S:
            self._since = now
            self._number = 0
        self._number += 1
        return self._number <= MAX_LOGGED
