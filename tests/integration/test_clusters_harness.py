"""The harness of clusters: slots move with their keys, replicas take over."""

from __future__ import annotations

import math

from rlproxy.resp.key_slot import key_slot

from tests.clusters import ELECTION_S, Cluster
from tests.harness import ReplyError, wait_until


def test_a_slot_moves_with_its_keys_step_by_step(engine: str) -> None:
    with Cluster(engine) as cluster:
        first, second, third = cluster.masters()
        assert [first, second, third] == cluster.nodes
        slot = key_slot(b"{tag}")
        owner = cluster.owner(slot)
        to = second if owner is not second else first
        for number in range(5):
            owner.do("SET", f"{{tag}}{number}", number)
        cluster.begin_move(slot, to)
        assert cluster.move_keys(slot, to, 2) == 2
        replies = [owner.ask("GET", f"{{tag}}{number}") for number in range(5)]
        asks = [str(reply) for reply in replies if isinstance(reply, ReplyError)]
        assert asks == [f"ASK {slot} {to.address}"] * 2
        assert cluster.move_keys(slot, to) == 3
        cluster.end_move(slot, to, everywhere=False)
        cluster.wait_ok()
        assert cluster.owner(slot) is to
        assert [to.ask("GET", f"{{tag}}{number}") for number in range(5)] == [
            b"%d" % number for number in range(5)
        ]
        cluster.move_slot(slot, owner)
        assert to.ask("GET", "{tag}1") == ReplyError(f"MOVED {slot} {owner.address}")
        key = cluster.key_at(third)
        assert cluster.owner_of_key(key) is third
        assert third.ask("GET", key) is None


def test_replicas_take_over_by_hand_and_after_a_kill(one_engine: str) -> None:
    with Cluster(one_engine, masters=3, replicas=1, password="pw") as cluster:
        first, second = cluster.nodes[:2]
        (replica,) = cluster.replicas(first)
        assert replica is cluster.nodes[3]
        cluster.failover(replica)
        assert cluster.masters() == [replica, *cluster.nodes[1:3]]
        assert cluster.replicas(replica) == [first]
        (other,) = cluster.replicas(second)
        cluster.kill(second)
        cluster.wait_promoted(other)
        assert cluster.masters() == [replica, other, cluster.nodes[2]]
        second.start()
        wait_until(lambda: cluster.replicas(other) == [second], "it comes back as a replica")
        cluster.wait_ok()


def test_a_paused_master_continues_and_a_node_is_added(one_engine: str) -> None:
    with Cluster(one_engine) as cluster:
        first = cluster.nodes[0]
        cluster.stop(first)
        assert cluster.serving() == cluster.nodes[1:]
        cluster.cont(first)
        added = cluster.add_node()
        cluster.move_slot(0, added)
        assert cluster.owner(0) is added
        assert cluster.masters()[0] is added
        replica = cluster.add_node(added)
        assert cluster.replicas(added) == [replica]


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
