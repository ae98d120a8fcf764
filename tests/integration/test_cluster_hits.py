"""Hits over the nodes of a real Redis Cluster: exact per key, in order, while slots move and nodes
fail.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from rlproxy.resp.key_slot import key_slot

from tests import harness
from tests.clusters import ON_ONE_CLUSTER, Cluster
from tests.harness import Proxy, Raw, ReplyError, command, wait_at_once, wait_until
from tests.info import clients, stats
from tests.integration.started import by_lane_of
from tests.repeating import RepeatingClients

KEYS = 300
LIMIT = 1_000_000
PIPELINE = 20  # hits in one write
BACK_S = 10.0  # after the cluster's own recovery; generous, it takes milliseconds
ROUNDS = 5  # writes of each client between two changes of the cluster


@pytest.fixture
def proxy(cluster: Cluster, module_cluster_proxy: Proxy) -> Proxy:
    """The module's proxy, in front of the empty cluster."""
    return module_cluster_proxy


@pytest.fixture(scope="module")
def module_slow_cluster(one_engine: str) -> Iterator[Cluster]:
    """A cluster whose nodes are missed late. The tests leave it complete."""
    with Cluster(one_engine, node_timeout_ms=15000) as made:
        yield made


@pytest.fixture
def slow_cluster(module_slow_cluster: Cluster) -> Cluster:
    """The same, empty."""
    return module_slow_cluster.emptied()


def warm(raw: Raw, keys: int = 30) -> None:
    """Open the lanes to all nodes."""
    for turn in range(2):
        for number in range(keys):
            assert isinstance(raw.ask("RL.HIT", f"warm{number}", LIMIT, 60), list), turn


def remaining(reply: object) -> int:
    assert isinstance(reply, list), reply
    return int(reply[2])


def test_hits_are_exact_for_each_key(proxy: Proxy) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.raw()) for _ in range(4)]
        for raw in clients:
            raw.send(b"".join(command("RL.HIT", f"key{n}", 10, 60) * 3 for n in range(KEYS)))
        admitted = dict.fromkeys(range(KEYS), 0)
        for raw in clients:
            for number in range(KEYS):
                for _ in range(3):
                    reply = raw.reply()
                    assert isinstance(reply, list), reply
                    admitted[number] += reply[0] == 0
    assert set(admitted.values()) == {10}


def test_reset_of_keys_in_several_slots(proxy: Proxy) -> None:
    with proxy.raw() as raw:
        warm(raw)
        for number in range(20):
            raw.ask("RL.HIT", f"key{number}", 1, 60)
        keys = [f"key{number}" for number in range(20)]
        assert raw.ask("RL.RESET", *keys, "none") == 20
        assert raw.ask("RL.RESET", "{a}1", "{a}2") == 0
        for key in keys:
            assert raw.ask("RL.HIT", key, 1, 60) == [0, 1, 0, -1, 60]


def test_blocks_go_to_the_node_of_their_key(proxy: Proxy) -> None:
    """First on the private connections, then by lane."""
    with proxy.raw() as raw:
        for start in (0, 20):
            keys = [f"b{number}" for number in range(start, start + 20)]
            for key in keys:
                raw.send(command("RL.BLOCK", key, 600) + command("RL.HIT", key, 1, 60))
                raw.send(command("RL.BLOCK", key, 0) + command("RL.HIT", key, 1, 60))
                replies = [raw.reply() for _ in range(4)]
                assert replies[:2] == [[1, 0, 0, 600, 600], [1, 1, 0, 600, 600]]
                assert replies[2:] == [[0, 0, 0, -1, 0], [0, 1, 0, -1, 60]]
            warm(raw)


def test_reset_is_not_split_without_cross_slot(cluster: Cluster) -> None:
    with harness.proxy(cluster.url, "--cross-slot", "error") as proxy, proxy.raw() as raw:
        for _ in range(2):  # before lanes are used and after
            assert str(raw.ask("RL.RESET", "key1", "key2")).startswith("CROSSSLOT")
            assert raw.ask("RL.RESET", "{a}1", "{a}2") == 0
            warm(raw)


def test_missing_scripts_are_loaded_on_each_node(cluster: Cluster, proxy: Proxy) -> None:
    with proxy.raw() as raw:
        warm(raw)
        for node in cluster.nodes:
            node.do("SCRIPT", "FLUSH")
            for turn in range(1, 4):
                raw.send(b"".join(command("RL.HIT", f"k{n}", LIMIT, 60) for n in range(50)))
                lefts = {remaining(raw.reply()) for _ in range(50)}
                assert len(lefts) == 1, (node, turn)


def test_users_share_no_lane_on_any_node(cluster: Cluster, proxy: Proxy) -> None:
    for node in cluster.nodes:
        for user in ("ann", "bob"):
            node.do("ACL", "SETUSER", user, "on", ">pw", "+@all", "~*", "&*")
    with proxy.raw() as ann, proxy.raw() as bob, proxy.raw() as nobody:
        assert [ann.ask("AUTH", "ann", "pw"), bob.ask("AUTH", "bob", "pw")] == ["OK", "OK"]
        for raw in (ann, bob, nobody):
            warm(raw)
        for node in cluster.nodes:
            lanes = [row["user"] for row in clients(node) if row["name"] == "rlproxy-lane"]
            assert sorted(lanes) == ["ann", "bob", "default"]
        # A password that is changed ends the lanes of that user only.
        for node in cluster.nodes:
            node.do("ACL", "SETUSER", "ann", "resetpass", ">new")
            for row in clients(node):
                if (row["name"], row["user"]) == ("rlproxy-lane", "ann"):
                    node.ask("CLIENT", "KILL", "ID", row["id"])
        with proxy.raw() as again:
            assert str(again.ask("AUTH", "ann", "pw")).startswith("WRONGPASS")
            assert again.ask("AUTH", "ann", "new") == "OK"
            warm(again)
        warm(bob)
        # A user who loses the right to a key keeps none of the other one's.
        for node in cluster.nodes:
            node.do("ACL", "SETUSER", "bob", "resetkeys", "~bob*")
        assert isinstance(nobody.ask("RL.HIT", "key1", 5, 60), list)
        assert isinstance(bob.ask("RL.HIT", "key1", 5, 60), ReplyError)


def hitting(proxy: Proxy, tag: str, clients: int = 4) -> RepeatingClients:
    """Clients that hit their own keys, all in one slot, and check that nothing is lost, doubled or
    reordered: the remaining quota falls by one with each hit.
    """

    def step(raw: Raw, number: int, done: int) -> None:
        words = ("RL.HIT", f"{{{tag}}}{number}", LIMIT, 600, "ALGO", "FIXED")
        raw.send(command(*words) * PIPELINE)
        expected = LIMIT - done * PIPELINE
        for _ in range(PIPELINE):
            expected -= 1
            assert remaining(raw.reply()) == expected

    return RepeatingClients(proxy.raw, clients, step)


def test_hits_of_a_user_that_one_node_refuses_get_an_error(cluster: Cluster) -> None:
    for node in cluster.masters():
        node.do("ACL", "SETUSER", "cat", "on", ">pw", "+@all", "~*", "&*")
    with (
        harness.proxy(cluster.url, "--on-upstream-failure", "allow") as proxy,
        proxy.raw() as client,
    ):
        assert client.ask("AUTH", "cat", "pw") == "OK"
        for key in cluster.keys_of_all() * 5:  # by lane, but the first
            assert isinstance(client.ask("RL.HIT", key, 9, 60), list)
        refusing = cluster.masters()[0]
        assert refusing.ask("ACL", "DELUSER", "cat") == 1
        key = cluster.key_at(refusing)

        def refused() -> bool:
            got = client.ask("RL.HIT", key, 9, 60)
            assert isinstance(got, ReplyError), got
            return str(got).startswith("WRONGPASS")

        wait_until(refused, "the proxy has seen the node's error")
        assert refused()
        refusing.do("ACL", "SETUSER", "cat", "on", ">pw", "+@all", "~*", "&*")
        wait_until(
            lambda: isinstance(client.ask("RL.HIT", key, 9, 60), list), "the node accepts it again"
        )
        by_lane_of(refusing, client, key)


def test_a_slot_moves_under_load(cluster: Cluster, proxy: Proxy) -> None:
    slot = key_slot(b"tag")
    with hitting(proxy, "tag") as load:
        load.wait_rounds(ROUNDS)
        for turn in range(4):
            owner = cluster.owner(slot)
            to = cluster.nodes[(cluster.nodes.index(owner) + 1) % 3]
            cluster.begin_move(slot, to)
            time.sleep(0.02)
            while cluster.move_keys(slot, to, 1):  # some keys are here, some are there
                time.sleep(0.02)
            cluster.end_move(slot, to, everywhere=turn % 2 == 0)
            load.wait_rounds(ROUNDS)
    with proxy.raw() as raw:
        for number, rounds in enumerate(load.rounds):
            words = ("RL.PEEK", f"{{tag}}{number}", LIMIT, 600, "ALGO", "FIXED")
            assert remaining(raw.ask(*words)) == LIMIT - rounds * PIPELINE
    cluster.wait_ok()


@pytest.mark.parametrize("algorithm", ["LOG", "ZLOG"])
@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (("RL.HIT", "moved", 5, 60), ("RL.REFUND", "moved", 5, 60, 9), [0, 5, 5, -1, 0]),
        (("RL.BLOCK", "moved", 60), ("RL.BLOCK", "moved", 90), [1, 0, 0, 90, 90]),
        (("RL.BLOCK", "moved", 90), ("RL.BLOCK", "moved", 60), [1, 0, 0, 60, 60]),
    ],
    ids=["refund", "longer block", "shorter block"],
)
def test_all_of_a_key_is_replaced_while_its_slot_moves(
    cluster: Cluster,
    proxy: Proxy,
    algorithm: str,
    first: tuple[str | int, ...],
    then: tuple[str | int, ...],
    expected: list[int],
) -> None:
    """A script must not write a key that it has emptied: it belongs to the other node by then."""
    slot = key_slot(b"moved")
    to = cluster.other_master(slot)
    with proxy.raw() as raw:
        assert isinstance(raw.ask(*first, "ALGO", algorithm), list)
        cluster.begin_move(slot, to)
        assert raw.ask(*then, "ALGO", algorithm) == expected
        cluster.move_keys(slot, to)
        cluster.end_move(slot, to)
        limited = raw.ask("RL.PEEK", "moved", 5, 60, "ALGO", algorithm)
        assert isinstance(limited, list)
        assert limited[0] == expected[0]
    cluster.wait_ok()  # the next case moves the same slot


def test_a_remembered_refusal_ends_when_its_slot_moves(cluster: Cluster, proxy: Proxy) -> None:
    slot = key_slot(b"denied")
    with proxy.raw() as raw:
        warm(raw)
        assert remaining(raw.ask("RL.HIT", "denied", 1, 600)) == 0
        for _ in range(5):
            reply = raw.ask("RL.HIT", "denied", 1, 600)
            assert isinstance(reply, list) and reply[0] == 1
        owner = cluster.owner(slot)
        to = next(node for node in cluster.nodes if node is not owner)
        cluster.move_slot(slot, to)
        to.ask("DEL", "denied")
        with proxy.raw() as other:
            other.ask("RL.HIT", "x{denied}", 5, 60)  # the proxy learns of the move
            assert remaining(other.ask("RL.HIT", "denied", 1, 600)) == 0


def test_hits_and_new_clients_while_no_master_answers(slow_cluster: Cluster) -> None:
    cluster = slow_cluster
    with harness.proxy(cluster.url, "--hit-timeout", "200") as proxy, proxy.raw() as raw:
        warm(raw)
        keys = [cluster.key_at(node) for node in cluster.nodes]
        for node in cluster.nodes:
            cluster.stop(node)
        try:

            def open_circuit() -> bool:
                for key in keys:
                    assert str(raw.ask("RL.HIT", key, LIMIT, 60)).startswith("UPSTREAMDOWN")
                return "no master answers" in str(raw.ask("RL.HIT", keys[0], LIMIT, 60))

            wait_until(open_circuit, "the circuit of the cluster is open")
            with proxy.raw() as new:
                assert "no master answers" in str(new.ask("RL.HIT", keys[0], LIMIT, 60))
        finally:
            for node in cluster.nodes:
                cluster.cont(node)

        def back() -> bool:
            return all(isinstance(raw.ask("RL.HIT", key, LIMIT, 60), list) for key in keys)

        wait_until(back, "hits on all masters run again")


def test_a_paused_master_answers_only_for_its_own_keys(slow_cluster: Cluster) -> None:
    cluster = slow_cluster
    with harness.proxy(cluster.url, "--hit-timeout", "2000") as proxy:
        paused, well = cluster.nodes[0], cluster.nodes[1]
        lost, kept = cluster.key_at(paused), cluster.key_at(well)
        with proxy.raw() as raw, proxy.raw() as other:
            warm(raw)
            warm(other)
            cluster.stop(paused)
            try:
                other.send(command("RL.HIT", lost, LIMIT, 60))
                for left in range(1, 100):
                    assert remaining(raw.ask("RL.HIT", kept, LIMIT, 60)) == LIMIT - left
                assert other.quiet() == b""  # the hit on the paused master still waits
                assert str(other.reply()).startswith("UPSTREAMDOWN")
                wait_until(lambda: "does not answer" in proxy.read_log(), "the circuit is open")

                def refused(client: Raw = other, *options: str | int) -> None:
                    reply = client.ask("RL.HIT", lost, LIMIT, 60, *options)
                    assert str(reply).startswith("UPSTREAMDOWN")

                wait_at_once(refused, "the error comes without a wait")
                # a client that comes now
                with proxy.raw() as new:
                    assert isinstance(new.ask("RL.HIT", kept, LIMIT, 60), list)
                    assert isinstance(new.ask("RL.HIT", kept, LIMIT, 60), list)
                    wait_at_once(partial(refused, new), "the error comes without a wait")
                    for options in ((), ("WAIT", 60)):
                        with proxy.raw() as newest:  # its first hit takes no lane
                            call = partial(refused, newest, *options)
                            wait_at_once(call, "the error comes without a wait")
                    found = str(stats(new))
                    assert f"{paused.address}=0" in found
                    assert f"{well.address}=1" in found
            finally:
                cluster.cont(paused)

            def back() -> bool:
                return isinstance(other.ask("RL.HIT", lost, LIMIT, 60), list)

            wait_until(back, "hits on its keys run again")
            log = proxy.read_log()
            assert f"Redis at {paused.address} does not answer" in log
            assert f"Redis at {well.address} does not answer" not in log


def test_new_clients_hit_a_killed_master(slow_cluster: Cluster) -> None:
    """The first hit of a client takes its private connection, as does one behind a command."""
    killed, kept = slow_cluster.nodes[0], slow_cluster.key_at(slow_cluster.nodes[1])
    lost = command("RL.HIT", slow_cluster.key_at(killed), 5, 60)
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(harness.proxy(slow_cluster.url, "--on-upstream-failure", mode))
            for mode in ("allow", "deny")
        ]
        slow_cluster.kill(killed)
        for proxy, expected in zip(proxies, ([0, 5, 5, -1, 0], [1, 5, 0, 1, 1]), strict=True):
            for _ in range(3):
                with proxy.raw() as new:
                    new.send(lost + lost + command("SET", kept, 1) + lost)
                    assert [new.reply() for _ in range(4)] == [expected, expected, "OK", expected]
    killed.start()
    slow_cluster.wait_ok()


def test_new_clients_hit_a_paused_master(slow_cluster: Cluster) -> None:
    """Each sends one hit, which takes its private connection. Only the first hit waits."""
    paused, well = slow_cluster.nodes[:2]
    lost, kept = slow_cluster.key_at(paused), slow_cluster.key_at(well)
    with harness.proxy(slow_cluster.url, "--hit-timeout", "800") as proxy, proxy.raw() as other:
        warm(other)
        slow_cluster.stop(paused)
        try:
            for _ in range(4):
                with proxy.raw() as new:
                    new.send(command("RL.HIT", lost, 5, 60))
                    assert isinstance(other.ask("RL.HIT", kept, LIMIT, 60), list)
                    assert str(new.reply()).startswith("UPSTREAMDOWN")
            assert stats(other)["errors_late"] == "1"
            log = proxy.read_log()
            assert f"Redis at {paused.address} does not answer" in log
            assert f"Redis at {well.address} does not answer" not in log
        finally:
            slow_cluster.cont(paused)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_lost_master_is_replaced(replicated: Cluster, how: str) -> None:
    cluster = replicated
    gone, well, *_ = cluster.masters()
    (replica,) = cluster.replicas(gone)
    lost, kept = cluster.key_at(gone), cluster.key_at(well)
    with harness.proxy(cluster.url, "--hit-timeout", "1000") as proxy:
        with proxy.raw() as raw, proxy.raw() as direct:
            warm(raw)
            warm(direct)
            (cluster.kill if how == "kill" else cluster.stop)(gone)
            served: list[float] = []

            def watch() -> None:
                wait_until(lambda: not isinstance(replica.ask("TYPE", lost), ReplyError), "served")
                served.append(time.monotonic())

            watcher = threading.Thread(target=watch)
            watcher.start()
            deadline = time.monotonic() + 30
            while not isinstance(reply := raw.ask("RL.HIT", lost, LIMIT, 60), list):
                assert time.monotonic() < deadline
                assert str(reply).startswith("UPSTREAMDOWN"), reply
                time.sleep(0.01)
            now = time.monotonic()
            watcher.join()
            assert now - served[0] < BACK_S
            reply = direct.ask("RL.HIT", kept, LIMIT, 60)
            assert isinstance(reply, list)
        assert "the masters of the cluster are now" in proxy.read_log()
    gone.start() if how == "kill" else cluster.cont(gone)
    cluster.wait_ok()


def test_a_manual_failover_loses_no_hit(replicated: Cluster) -> None:
    *_, master = replicated.masters()  # the others have been replaced just now
    (replica,) = replicated.replicas(master)
    tag = replicated.key_at(master, "tag")
    with harness.proxy(replicated.url) as proxy, hitting(proxy, tag, 2) as load:
        load.wait_rounds(ROUNDS)
        replicated.failover(replica)
        load.wait_rounds(ROUNDS)


@ON_ONE_CLUSTER
def test_remembered_refusals_answer_locally(proxy: Proxy) -> None:
    def local() -> int:
        with proxy.raw() as other:
            return int(stats(other)["refused_locally"])

    with proxy.raw() as raw:
        warm(raw)
        time.sleep(1.1)  # its first hits took its private connection, which counts as a write
        before = local()
        for _ in range(50):
            raw.ask("RL.HIT", "denied", 1, 60)
        assert local() - before >= 40


def test_a_node_that_is_added_serves_hits(slow_cluster: Cluster) -> None:
    cluster = slow_cluster
    with harness.proxy(cluster.url) as proxy:
        slot = key_slot(b"tag")
        owner = cluster.owner(slot)
        with hitting(proxy, "tag", 2) as load:
            load.wait_rounds(ROUNDS)
            added = cluster.add_node()
            cluster.begin_move(slot, added)
            while cluster.move_keys(slot, added, 1):
                time.sleep(0.02)
            cluster.end_move(slot, added)
            load.wait_rounds(ROUNDS)
        wait_until(lambda: added.address in proxy.read_log(), "the proxy logs the new master")
    cluster.move_slot(slot, owner)
    cluster.remove_node(added)


def test_hits_while_the_cluster_is_down_get_an_error_and_then_run(slow_cluster: Cluster) -> None:
    killed = slow_cluster.nodes[2]
    kept = slow_cluster.key_at(slow_cluster.nodes[0])
    with (
        harness.proxy(slow_cluster.url, "--hit-timeout", "300") as proxy,
        proxy.raw() as raw,
        slow_cluster.setting("cluster-node-timeout", 500),
    ):
        warm(raw)
        slow_cluster.kill(killed)

        def refused() -> bool:
            return str(raw.ask("RL.HIT", kept, LIMIT, 60)).startswith("CLUSTERDOWN ")

        wait_until(refused, "the others refuse hits")
        wait_at_once(lambda: [refused() for _ in range(5)], "errors come without a wait")
        assert refused()
        killed.start()

        def runs() -> bool:
            return isinstance(raw.ask("RL.HIT", kept, LIMIT, 60), list)

        wait_until(runs, "hits run again")
        slow_cluster.wait_ok()


def test_a_password_is_used_for_all_nodes(slow_cluster: Cluster) -> None:
    with slow_cluster.requires("pw"):
        url = slow_cluster.url.replace("://", "://:pw@")
        with harness.proxy(url) as made, made.raw() as raw:
            assert str(raw.ask("RL.HIT", "k", LIMIT, 60)).startswith("NOAUTH")
            assert raw.ask("AUTH", "pw") == "OK"
            warm(raw)
            assert stats(raw)["lanes"] == "3"
            with made.raw() as stranger:
                assert str(stranger.ask("RL.HIT", "k", LIMIT, 60)).startswith("NOAUTH")
        with harness.proxy(slow_cluster.url) as made:
            assert "it wants a password" in made.read_log()
            with made.raw() as raw:
                assert str(raw.ask("RL.HIT", "k", LIMIT, 60)).startswith("UPSTREAMDOWN")


def test_several_workers_count_together(cluster: Cluster) -> None:
    with harness.proxy(cluster.url, "--workers", "2") as proxy, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.raw()) for _ in range(6)]
        for raw in clients:
            raw.send(b"".join(command("RL.HIT", f"shared{n}", 10, 60) * 3 for n in range(50)))
        admitted = 0
        for raw in clients:
            for _ in range(150):
                reply = raw.reply()
                assert isinstance(reply, list), reply
                admitted += reply[0] == 0
        assert admitted == 500


@ON_ONE_CLUSTER
@pytest.mark.parametrize(
    ("last", "ends"), [(("QUIT",), False), (("READONLY",), True), (("MULTI",), True)]
)
def test_the_last_command_behind_a_hit_is_answered_before_the_client_is_closed(
    proxy: Proxy, last: tuple[str, ...], ends: bool
) -> None:
    """The proxy answers it, once the reply to the hit has come.

    ends: the client sends its end of file behind it.
    """
    with proxy.raw() as raw:
        warm(raw, 2)
        raw.send(command("RL.HIT", "warm0", LIMIT, 60) + command(*last))
        if ends:
            raw.finish()
        assert isinstance(raw.reply(), list)
        assert raw.reply() == "OK"
        assert raw.closes()
