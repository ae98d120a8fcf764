"""The log lines of an outage: Redis does not answer, and Redis is back."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.observability.logs import log
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.session.context import ServerFacts
from rlproxy.upstream.control import Control


class OutageLog:
    """The log of one server's outages.

    server: has the address of the server.
    answer: returns the value of --on-upstream-failure.
    """

    def __init__(
        self,
        circuit: CircuitBreaker,
        control: Control,
        server: ServerFacts,
        answer: Callable[[], str],
    ) -> None:
        self._circuit = circuit
        self._control = control
        self._server = server
        self._answer = answer

    def opened(self) -> None:
        """Probe Redis and log that it does not answer: the circuit has opened."""
        self._control.probe()
        circuit = self._circuit
        if circuit.logged and not self._control.warned:
            text = (
                "Redis at {address} does not answer ({reason}), {count} times since this was last "
                "logged; hits are answered as --on-upstream-failure says ({answer})"
                if circuit.untold
                else "Redis at {address} does not answer ({reason}); hits are answered as "
                "--on-upstream-failure says ({answer})"
            )
            log.warning(
                "redis_silent",
                text,
                address=self._server.where,
                reason=circuit.why,
                answer=self._answer(),
                count=1 + circuit.untold,
            )
            circuit.untold = 0

    def closed(self, out_s: float, without: int) -> None:
        """Log that Redis answers again after `out_s`; `without` hits were answered without it."""
        if self._circuit.logged or self._control.warned:
            log.warning(
                "redis_back",
                "Redis at {address} is back after {seconds:.1f} s; "
                "hits answered without it: {hits}",
                address=self._server.where,
                seconds=out_s,
                hits=without,
            )
        self._control.warned = False
