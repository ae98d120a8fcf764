"""cluster_circuit: open only while no master answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulk, unreachable
from rlproxy.session.call import Call, Caller
from rlproxy.session.circuit_breaker import CircuitBreaker
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.cluster_circuit import ClusterCircuit
from rlproxy.upstream.cluster.slot_map import Shard, slot_map

from tests.unit.upstream.test_lane import HIT

A, B = Address("h", 1), Address("h", 2)
OF_A, OF_B, OF_NONE = b"b", b"k", b"a"  # keys, by the master of their slot


class Bench:
    """The circuit of a cluster of two masters, and theirs."""

    def __init__(self, down: bool = False) -> None:
        self.down: bool = down
        self.nodes = {A: CircuitBreaker(), B: CircuitBreaker()}
        self.cluster = SimpleNamespace(
            map=slot_map({Shard("a", A): [(0, 4999)], Shard("b", B): [(5000, 9999)]}),
            is_down=lambda: self.down,
        )
        self.circuit = ClusterCircuit(cast("Cluster", self.cluster), self.nodes.__getitem__)


def test_a_look_opens_and_closes_it() -> None:
    bench = Bench()
    circuit = bench.circuit
    circuit.look(4.0)
    assert circuit.last_reply_at < 0  # no reply was seen
    for bench.down in (False, True, True, False, False):
        circuit.look(5.0)
        assert circuit.open == bench.down
        assert circuit.why == ("no master answers" if bench.down else "")
    assert circuit.counts.opened == 1


def test_a_reply_of_one_master_is_none_of_another() -> None:
    bench = Bench()
    circuit = bench.circuit
    circuit.replied(4.9)
    bench.nodes[A].replied(4.5)
    circuit.timed_out(2, 4.0, 5.0, 1.0, 1)
    assert circuit.last_reply_at < 4.0  # so that all are sent a PING before a hit is late
    assert [node.open for node in bench.nodes.values()] == [False, True]
    assert circuit.counts.timeouts == 2


def test_the_error_for_a_call_is_that_of_the_master_of_its_slot() -> None:
    bench = Bench()
    bench.nodes[B].connect_failed(5.0, "refused")
    calls = [Call(Caller(), HIT, bulk(key)) for key in (OF_A, OF_B, OF_NONE)]
    found = list(map(bench.circuit.error_of_node, calls))
    assert found == [b"", unreachable("h:2", "refused"), b""]


@pytest.mark.parametrize("is_down", [False, True])
def test_failures_open_it_only_while_the_cluster_is_down(is_down: bool) -> None:
    circuit = Bench(is_down).circuit
    circuit.connect_failed(5.0, "refused")
    assert circuit.open == is_down
    assert circuit.counts.connects_failed == 1
    circuit = Bench(is_down).circuit
    circuit.timed_out(3, 4.0, 5.0, 1.0)
    assert circuit.open == is_down
    assert circuit.counts.timeouts == 3
