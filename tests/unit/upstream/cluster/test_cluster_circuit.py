"""cluster_circuit: open only while no master answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from rlproxy.upstream.cluster.cluster_circuit import ClusterCircuit


def made(down: Callable[[], bool], late: list[tuple[float, ...]]) -> ClusterCircuit:
    return ClusterCircuit(down, lambda _slot: b"", lambda *given: late.append(given))


def test_a_look_opens_and_closes_it() -> None:
    circuit = made(lambda: False, [])
    circuit.look(4.0)
    assert circuit.last_reply_at < 0  # no reply was seen
    for is_down in (False, True, True, False, False):
        circuit.down = partial(bool, is_down)
        circuit.look(5.0)
        assert circuit.open == is_down
        assert circuit.why == ("no master answers" if is_down else "")
    assert circuit.counts.opened == 1


def test_a_reply_of_one_master_is_none_of_another() -> None:
    late: list[tuple[float, ...]] = []
    circuit = made(lambda: False, late)
    circuit.replied(4.9)
    circuit.timed_out(2, 4.0, 5.0, 1.0, 1)
    assert circuit.last_reply_at < 4.0  # so that all are sent a PING before a hit is late
    assert late == [(4.0, 5.0, 1.0, 1)]
    assert circuit.counts.timeouts == 2


@pytest.mark.parametrize("is_down", [False, True])
def test_failures_open_it_only_while_the_cluster_is_down(is_down: bool) -> None:
    circuit = made(lambda: is_down, [])
    circuit.connect_failed(5.0, "refused")
    assert circuit.open == is_down
    assert circuit.counts.connects_failed == 1
    circuit = made(lambda: is_down, [])
    circuit.timed_out(3, 4.0, 5.0, 1.0)
    assert circuit.open == is_down
    assert circuit.counts.timeouts == 3
