"""cluster_circuit: open only while no master answers."""

from __future__ import annotations

import pytest
from rlproxy.upstream.cluster.cluster_circuit import ClusterCircuit


class Circuit(ClusterCircuit):
    """The circuit of a cluster that is down or not, as the test sets it."""

    def __init__(self) -> None:
        super().__init__(lambda: self.is_down)
        self.is_down = False


def test_a_look_opens_and_closes_it() -> None:
    circuit = Circuit()
    circuit.look(4.0)
    assert circuit.last_reply_at < 0  # no reply was seen
    for down in (False, True, True, False, False):
        circuit.is_down = down
        circuit.look(5.0)
        assert circuit.open == down
        assert circuit.why == ("no master answers" if down else "")
    assert circuit.counts.opened == 1
    assert circuit.last_reply_at == 5.0


@pytest.mark.parametrize("down", [False, True])
def test_failures_open_it_only_while_the_cluster_is_down(down: bool) -> None:
    circuit = Circuit()
    circuit.is_down = down
    circuit.connect_failed(5.0, "refused")
    assert circuit.open == down
    assert circuit.counts.connects_failed == 1
    circuit = Circuit()
    circuit.is_down = down
    circuit.timed_out(3, 4.0, 5.0, 1.0)
    assert circuit.open == down
    assert circuit.counts.timeouts == 3
