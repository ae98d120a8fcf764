"""The circuit of a whole cluster: open only while no master answers. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import unreachable
from rlproxy.session.call import Call
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.upstream.cluster.cluster import Cluster


class ClusterCircuit(CircuitBreaker):
    """What sessions see of the circuits of all nodes.

    It is open only while every master is down: a dead master answers only for its own keys.

    of_node: returns the circuit of the node at an address.
    """

    def __init__(self, cluster: Cluster, of_node: Callable[[Address], CircuitBreaker]) -> None:
        super().__init__()
        self._cluster = cluster
        self._of_node = of_node

    def error_of_node(self, call: Call) -> bytes:
        owner = self._cluster.map.owner(call.hash_slot())
        if owner is None:
            return b""
        circuit = self._of_node(owner)
        return unreachable(str(owner), circuit.why) if circuit.open else b""

    def connect_failed(self, now: float, why: str, lacking: bool = False) -> None:
        if self._cluster.is_down():
            super().connect_failed(now, why, lacking)
        else:
            self.counts.connects_failed += 1

    def timed_out(
        self, number: int, since: float, now: float, limit_s: float, answered: int = 0
    ) -> None:
        if self._cluster.is_down():
            super().timed_out(number, since, now, limit_s, answered)
        else:
            self.counts.timeouts += number
            for address in self._cluster.map.index:  # those that have not replied, though to a PING
                self._of_node(address).timed_out(0, since, now, limit_s, answered)

    def replied(self, now: float) -> None:
        """Close it. A reply of one master does not count as one of the master of another hit."""
        if self.open:
            self._close(now)

    def look(self, now: float) -> None:
        """Close it if a master answers, and open it if none does."""
        if self._cluster.is_down():
            self._open(now, "no master answers")
        elif self.open:
            self.replied(now)
