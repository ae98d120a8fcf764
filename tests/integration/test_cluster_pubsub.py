"""Subscriptions on a Redis Cluster: channels, patterns, shard channels, keyspace events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rlproxy.resp.key_slot import key_slot

from tests.clusters import ON_ONE_CLUSTER, Cluster
from tests.harness import Proxy, Raw, ReplyError, command, wait_until
from tests.processes import paused


@pytest.fixture
def other(cluster_proxy: Proxy) -> Iterator[Raw]:
    """Another client."""
    with cluster_proxy.raw() as made:
        yield made


@pytest.fixture
def _shard_channels(module_cluster: Cluster) -> None:
    if module_cluster.nodes[0].version < (7,):
        pytest.skip("no shard channels")


needs_shard_channels = pytest.mark.usefixtures("_shard_channels")


def patterns(cluster: Cluster) -> list[object]:
    """Return the number of patterns at each master."""
    return [node.ask("PUBSUB", "NUMPAT") for node in cluster.masters()]


def test_channels_and_patterns(client: Raw, other: Raw) -> None:
    client.send(command("SUBSCRIBE", "a", "b") + command("PSUBSCRIBE", "c*"))
    assert [client.reply() for _ in range(3)] == [
        *([b"subscribe", b"a", 1], [b"subscribe", b"b", 2]),
        [b"psubscribe", b"c*", 3],
    ]
    assert other.ask("PUBLISH", "a", "x") in (0, 1)  # subscribers at the publisher's node
    assert client.reply() == [b"message", b"a", b"x"]
    other.ask("PUBLISH", "cc", "x")
    assert client.reply() == [b"pmessage", b"c*", b"cc", b"x"]
    found = other.ask("PUBSUB", "NUMSUB", "a", "none")
    assert found == [b"a", 1, b"none", 0]
    channels = other.ask("PUBSUB", "CHANNELS")
    assert isinstance(channels, list) and sorted(channels) == [b"a", b"b"]
    assert other.ask("PUBSUB", "NUMPAT") == 1
    client.send(command("UNSUBSCRIBE") + command("UNSUBSCRIBE", "none") + command("PUNSUBSCRIBE"))
    ended = [client.reply() for _ in range(4)]
    assert {str(reply[1]) for reply in ended[:2] if isinstance(reply, list)} == {"b'a'", "b'b'"}
    assert ended[2:] == [[b"unsubscribe", b"none", 1], [b"punsubscribe", b"c*", 0]]
    assert client.ask("UNSUBSCRIBE") == [b"unsubscribe", None, 0]
    assert client.ask("PING") == "PONG"
    assert client.ask("SET", "k", 1) == "OK"


@needs_shard_channels
def test_ping_while_shard_channels_are_left(cluster_proxy: Proxy, module_cluster: Cluster) -> None:
    for channel in module_cluster.keys_of_all():
        with cluster_proxy.raw() as client:
            assert client.ask("SSUBSCRIBE", channel) == [b"ssubscribe", channel.encode(), 1]
            assert client.ask("UNSUBSCRIBE") == [b"unsubscribe", None, 0]
            assert client.ask("PING") == [b"pong", b""]
            assert client.ask("PING", "x") == [b"pong", b"x"]


def test_a_redirected_command_runs_before_the_subscription_behind_it(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    for to in module_cluster.masters():  # one of them is home, which subscribes
        other = next(node for node in module_cluster.masters() if node is not to)
        key = module_cluster.key_at(other, "redirected")
        module_cluster.begin_move(key_slot(key.encode()), to)
        try:
            with cluster_proxy.raw() as client:
                assert client.ask("PING") == "PONG"
                client.send(command("INCR", key) + command("SUBSCRIBE", "behind"))
                assert client.reply() == 1
                assert client.reply() == [b"subscribe", b"behind", 1]
        finally:
            module_cluster.give_up_moves()


def test_other_commands_while_it_subscribes(client: Raw, other: Raw) -> None:
    assert client.ask("SUBSCRIBE", "mixed") == [b"subscribe", b"mixed", 1]
    resp3 = client.ask("PING") == "PONG"
    if resp3:
        for number in range(20):
            client.send(command("SET", f"k{number}", 1) + command("GET", f"k{number}"))
            other.ask("PUBLISH", "mixed", number)
            replies = [client.reply() for _ in range(3)]
            assert [each for each in replies if not isinstance(each, list)] == ["OK", b"1"]
            assert [b"message", b"mixed", b"%d" % number] in replies
        assert isinstance(client.ask("HELLO", 2), list)  # restricts it from now on
    for line in ("GET k", "MULTI", "MONITOR", "DBSIZE", "CLIENT ID", "HELLO 3", "MGET a b"):
        reply = client.ask(*line.split())
        assert isinstance(reply, ReplyError), (line, reply)
        assert "allowed in this context" in reply.args[0], reply
    assert client.ask("PING", "x") == [b"pong", b"x"]


def test_errors_while_it_subscribes_are_those_of_a_node(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    with cluster_proxy.raw() as client, module_cluster.nodes[0].raw() as node:
        for raw in (client, node):
            assert raw.ask("SUBSCRIBE", "a") == [b"subscribe", b"a", 1]
        for line in (
            *("NONE", "none x y", "GET", "SET k", "MULTI x", "CLIENT", "CLIENT NONE"),
            *("CLIENT ID", "client id x", "Config Get x", "CLUSTER SLOTS", "EXEC", "DBSIZE"),
        ):
            assert client.ask(*line.split()) == node.ask(*line.split()), line
        for key in module_cluster.keys_of_all():
            reply = client.ask("GET", key)  # two of three are not home's
            assert str(reply).startswith("ERR Can't execute 'get': only (P"), reply


@needs_shard_channels
def test_errors_of_arity_while_it_has_shard_channels_alone(
    cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    (channel, *_) = module_cluster.keys_of_all()
    with cluster_proxy.raw() as client, module_cluster.owner_of_key(channel).raw() as node:
        for raw in (client, node):
            assert raw.ask("SSUBSCRIBE", channel) == [b"ssubscribe", channel.encode(), 1]
        for line in (
            *("GET", "get a b", "SET k", "MULTI x", "CLIENT", "CLIENT ID", "client id x"),
            *("DEL", "MGET", "DBSIZE", "DBSIZE x", f"GET {channel}"),
        ):
            assert client.ask(*line.split()) == node.ask(*line.split()), line


@pytest.mark.parametrize("ends", ["RESET", "QUIT"])
def test_reset_and_quit_while_it_subscribes(
    client: Raw, other: Raw, module_cluster: Cluster, ends: str
) -> None:
    assert client.ask("SUBSCRIBE", "a", "__keyspace@0__:x") == [b"subscribe", b"a", 1]
    assert client.reply() == [b"subscribe", b"__keyspace@0__:x", 2]
    client.send(command(ends))
    if ends == "QUIT":
        assert client.reply() == "OK"
        assert client.closes()
        return
    assert client.reply() == "RESET"
    assert client.ask("GET", "none") is None
    client.send(b"*0\r\n")
    other.ask("PUBLISH", "a", "x")
    assert client.ask("PING") == "PONG"
    nodes = module_cluster.masters()
    wait_until(
        lambda: [node.ask("PUBSUB", "NUMSUB", "a") for node in nodes] == [[b"a", 0]] * 3,
        "no node has a subscriber",
    )


def test_subscriptions_that_are_refused(client: Raw, other: Raw, module_cluster: Cluster) -> None:
    other.ask("ACL", "SETUSER", "limited", "on", ">pw", "+@all", "~*", "resetchannels", "&ok*")
    assert client.ask("AUTH", "limited", "pw") == "OK"
    reply = client.ask("SUBSCRIBE", "ok", "forbidden", "ok2")
    assert isinstance(reply, ReplyError) and reply.args[0].startswith("NOPERM")
    assert client.ask("SET", "k", 1) == "OK"
    assert client.ask("SUBSCRIBE", "ok", "ok2") == [b"subscribe", b"ok", 1]
    assert client.reply() == [b"subscribe", b"ok2", 2]
    assert isinstance(client.ask("SUBSCRIBE", "forbidden"), ReplyError)
    ended = [client.ask("UNSUBSCRIBE"), client.reply()]
    assert [reply[2] for reply in ended] == [1, 0]  # type: ignore[index]
    assert client.ask("SET", "k", 1) == "OK"
    other.ask("ACL", "DELUSER", "limited")


def test_no_subscription_begins_in_a_transaction(client: Raw) -> None:
    for words in (("SUBSCRIBE", "a"), ("PSUBSCRIBE", "a*"), ("SSUBSCRIBE", "a")):
        assert client.ask("MULTI") == "OK"
        reply = client.ask(*words)
        assert isinstance(reply, ReplyError)
        assert "not allowed inside a transaction" in str(reply)
        reply = client.ask("EXEC")
        assert str(reply).startswith("EXECABORT")


def test_keyspace_events_of_all_masters(client: Raw, other: Raw, module_cluster: Cluster) -> None:
    assert other.ask("CONFIG", "SET", "notify-keyspace-events", "KEA") == "OK"
    keys = module_cluster.keys_of_all()
    reply = client.ask("PSUBSCRIBE", "__keyevent@0__:set", "news*")
    assert reply == [b"psubscribe", b"__keyevent@0__:set", 1]
    assert client.reply() == [b"psubscribe", b"news*", 2]
    assert client.ask("SUBSCRIBE", f"__keyspace@0__:{keys[1]}")[2] == 3  # type: ignore[index]
    for key in keys:
        assert other.ask("SET", key, 1) == "OK"
    other.ask("PUBLISH", "news", "once")
    found: list[object] = []
    while len(found) < 5:
        found.append(client.reply())
    expected = [
        [b"pmessage", b"__keyevent@0__:set", b"__keyevent@0__:set", key.encode()] for key in keys
    ] + [
        [b"message", b"__keyspace@0__:" + keys[1].encode(), b"set"],
        [b"pmessage", b"news*", b"news", b"once"],
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert client.quiet(0.1) == b""
    client.send(command("PUNSUBSCRIBE") + command("UNSUBSCRIBE"))
    assert [client.reply()[2] for _ in range(3)] == [2, 1, 0]  # type: ignore[index]
    wait_until(lambda: patterns(module_cluster) == [0, 0, 0], "all nodes have dropped it")
    assert other.ask("CONFIG", "SET", "notify-keyspace-events", "") == "OK"


@pytest.mark.parametrize("words", [("MONITOR",), ("PSUBSCRIBE", "__key*")], ids=" ".join)
def test_the_reply_comes_once_all_masters_send_and_before_what_they_send(
    cluster_proxy: Proxy, other: Raw, module_cluster: Cluster, words: tuple[str, ...]
) -> None:
    assert other.ask("CONFIG", "SET", "notify-keyspace-events", "KEA") == "OK"
    keys = list(zip(module_cluster.masters(), module_cluster.keys_of_all(), strict=True))
    for node, key in keys:
        with cluster_proxy.raw() as client:
            assert client.ask("DBSIZE") in range(4)
            with paused(node.pid):
                client.send(command(*words))
                for another, its_key in keys:
                    if another is not node:
                        another.do("SET", its_key, 1)
                assert client.quiet() == b""
            assert client.reply() in ("OK", [b"psubscribe", b"__key*", 1])
            node.do("SET", key, 1)
            seen = ""
            while key not in seen:
                seen += str(client.reply())
            if words == ("MONITOR",):  # ioredis fails on a line that comes with the reply
                assert seen.count('"SET"') == 1, seen
    module_cluster.wait_ok()
    assert other.ask("CONFIG", "SET", "notify-keyspace-events", "") == "OK"


def test_patterns_of_home_and_of_all_masters_end_together(
    client: Raw, other: Raw, module_cluster: Cluster
) -> None:
    assert client.ask("PSUBSCRIBE", "news*") == [b"psubscribe", b"news*", 1]
    assert client.ask("PSUBSCRIBE", "__key*") == [b"psubscribe", b"__key*", 2]
    client.send(command("PUNSUBSCRIBE"))
    assert [client.reply()[2] for _ in range(2)] == [1, 0]  # type: ignore[index]
    for key in module_cluster.keys_of_all():
        assert client.ask("SET", key, 1) == "OK"


@ON_ONE_CLUSTER
def test_keyspace_events_of_a_master_that_joins(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    (added,) = module_cluster.nodes[3:] or [module_cluster.add_node()]
    assert client.ask("PSUBSCRIBE", "__key*") == [b"psubscribe", b"__key*", 1]
    slot = key_slot(b"moved")
    owner = module_cluster.owner(slot)
    module_cluster.move_slot(slot, added)
    added.do("CONFIG", "SET", "notify-keyspace-events", "KEA")
    wait_until(lambda: added.ask("PUBSUB", "NUMPAT") == 1, "it has the pattern")
    with cluster_proxy.raw() as other:
        assert other.ask("SET", "moved", 1) == "OK"
    assert client.reply() == [b"pmessage", b"__key*", b"__keyspace@0__:moved", b"set"]
    assert client.reply() == [b"pmessage", b"__key*", b"__keyevent@0__:set", b"moved"]
    added.do("CONFIG", "SET", "notify-keyspace-events", "")
    module_cluster.move_slot(slot, owner)


@needs_shard_channels
def test_shard_channels(client: Raw, other: Raw, module_cluster: Cluster) -> None:
    one, two, three = module_cluster.keys_of_all(prefix="channel")
    assert client.ask("SSUBSCRIBE", one) == [b"ssubscribe", one.encode(), 1]
    client.send(command("SSUBSCRIBE", two) + command("SSUBSCRIBE", three))
    assert [client.reply()[2] for _ in range(2)] == [2, 3]  # type: ignore[index]
    for name in (one, two, three):
        assert other.ask("SPUBLISH", name, "x") == 1
        assert client.reply() == [b"smessage", name.encode(), b"x"]
    assert [other.ask(*words) for words in (("MULTI",), ("SPUBLISH", two, "x"))] == ["OK", "QUEUED"]
    assert other.ask("EXEC") == [1]
    assert client.reply() == [b"smessage", two.encode(), b"x"]
    assert isinstance(client.ask("SSUBSCRIBE", one, two), ReplyError)
    found = other.ask("PUBSUB", "SHARDCHANNELS")
    assert isinstance(found, list) and len(found) == 3
    assert client.ask("SUNSUBSCRIBE", two) == [b"sunsubscribe", two.encode(), 2]
    client.send(command("SUNSUBSCRIBE"))
    assert [client.reply()[2] for _ in range(2)] == [1, 0]  # type: ignore[index]
    assert client.ask("SET", "k", 1) == "OK"
    assert client.ask("SUNSUBSCRIBE") == [b"sunsubscribe", None, 0]


@needs_shard_channels
def test_the_slot_of_a_shard_channel_moves(
    client: Raw, other: Raw, module_cluster: Cluster
) -> None:
    slot = key_slot(b"shard")
    assert client.ask("SSUBSCRIBE", "shard") == [b"ssubscribe", b"shard", 1]
    for _ in range(4):
        module_cluster.move_slot(slot, module_cluster.other_master(slot))
        wait_until(lambda: other.ask("SPUBLISH", "shard", "x") == 1, "it is subscribed again")
        assert client.reply() == [b"smessage", b"shard", b"x"]
    assert client.ask("SUNSUBSCRIBE", "shard") == [b"sunsubscribe", b"shard", 0]
    assert client.ask("SET", "k", 1) == "OK"


@needs_shard_channels
def test_several_shard_channels_are_subscribed_where_their_slot_is_now(
    client: Raw, module_cluster: Cluster
) -> None:
    slot = key_slot(b"shard")
    assert client.ask("PING") == "PONG"
    module_cluster.move_slot(slot, module_cluster.other_master(slot))
    client.send(command("SSUBSCRIBE", "{shard}1", "{shard}2"))
    assert [client.reply() for _ in range(2)] == [
        [b"ssubscribe", b"{shard}1", 1],
        [b"ssubscribe", b"{shard}2", 2],
    ]
    client.send(command("SUNSUBSCRIBE"))
    assert [client.reply() for _ in range(2)] == [
        [b"sunsubscribe", b"{shard}1", 1],
        [b"sunsubscribe", b"{shard}2", 0],
    ]


@ON_ONE_CLUSTER
def test_a_master_joins_at_which_a_transaction_is_open(
    cluster_proxy: Proxy, other: Raw, module_cluster: Cluster
) -> None:
    (added,) = module_cluster.nodes[3:] or [module_cluster.add_node()]
    slot = key_slot(b"moved")
    owner = module_cluster.owner(slot)
    with cluster_proxy.raw() as client:
        client.send(command("HELLO", 3))
        client.reply()
        assert other.ask("DEL", "moved") in (0, 1)
        assert client.ask("PSUBSCRIBE", "__key*") == [b"psubscribe", b"__key*", 1]
        module_cluster.begin_move(slot, added)
        assert client.ask("WATCH", "moved") == "OK"
        assert client.ask("MULTI") == "OK"
        module_cluster.end_move(slot, added)
        module_cluster.wait_ok()
        assert other.ask("GET", "moved") is None
        assert client.ask("SET", "moved", 1) == "QUEUED"
        assert client.ask("EXEC") == ["OK"]
        wait_until(lambda: added.ask("PUBSUB", "NUMPAT") == 1, "it has the pattern")
    module_cluster.move_slot(slot, owner)
