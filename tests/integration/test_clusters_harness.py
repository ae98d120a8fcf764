"""The harness of clusters: slots move with their keys, replicas take over."""

from __future__ import annotations

import math

from tests.clusters import ELECTION_S, Cluster


def test_moves_that_have_begun_are_given_up(one_engine: str) -> None:
    with Cluster(one_engine) as cluster:
        first, second, _ = cluster.masters()
        cluster.begin_move(0, second)
        assert [row.moving for row in second.view() if "myself" in row.flags] == [(0,)]
        cluster.give_up_moves()
        assert not any(row.moving for node in cluster.nodes for row in node.view())
        assert cluster.owner(0) is first


def test_a_replica_that_was_elected_waits_for_its_next_election(engine: str) -> None:
    with Cluster(engine, replicas=1) as cluster:
        master = cluster.nodes[0]
        (replica,) = cluster.replicas(master)
        assert replica.since_election_s() == math.inf
        for promoted in (replica, master, replica):
            cluster.failover(promoted)
            assert promoted.since_election_s() < ELECTION_S
            with promoted.raw() as raw:
                assert raw.ask("SET", cluster.key_at(promoted), 1) == "OK"
                assert raw.ask("WAIT", 1, 2000) == 1  # the former master follows at once
        assert "timed out" not in replica.log() + master.log()
        assert "attempt expired" not in replica.log()


def test_a_killed_node_comes_back_empty(engine: str) -> None:
    with Cluster(engine) as cluster:
        master = cluster.nodes[0]
        master.do("SET", cluster.key_at(master), 1)
        replica = cluster.add_node(master)  # it receives a snapshot
        cluster.kill(master)
        cluster.kill(replica)
        replica.start()
        assert replica.ask("DBSIZE") == 0
