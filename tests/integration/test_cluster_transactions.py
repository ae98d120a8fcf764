"""MULTI, EXEC, DISCARD, WATCH and UNWATCH on a Redis Cluster, also while slots move."""

from __future__ import annotations

import pytest
from rlproxy.resp.key_slot import key_slot
from rlproxy.upstream.cluster.transaction import MAX_KEPT

from tests.clusters import Cluster
from tests.harness import Proxy, Raw, ReplyError, command, wait_until

CROSSSLOT = ReplyError("CROSSSLOT Keys in request don't hash to the same slot")
ABORTED = ReplyError("EXECABORT Transaction discarded because of previous errors.")
KEY, SAME, OTHER = "{tx}1", "{tx}2", "other"  # OTHER is in another slot, at another node
SLOT = key_slot(KEY.encode())


def all_replies(client: Raw, *lines: str, slowly: bool = False) -> list[object]:
    """Send commands in one write or byte by byte; return their replies."""
    data = b"".join(command(*line.split()) for line in lines)
    (client.send_slowly if slowly else client.send)(data)
    return [client.reply() for _ in lines]


def test_transactions(client: Raw) -> None:
    assert all_replies(
        client,
        *("MULTI", "PING", f"SET {KEY} 1", f"INCR {SAME}", "ECHO x", "EXEC"),
        *("MULTI", f"SET {OTHER} 2", "EXEC", f"GET {OTHER}", f"GET {KEY}"),
        *("MULTI", "PING", "EXEC", "MULTI", "EXEC", "MULTI", "DISCARD"),
        *("MULTI", f"SET {KEY} 5", "DISCARD", f"GET {KEY}"),
        slowly=True,
    ) == [
        *("OK", "QUEUED", "QUEUED", "QUEUED", "QUEUED", ["PONG", "OK", 1, b"x"]),
        *("OK", "QUEUED", ["OK"], b"2", b"1"),
        *("OK", "QUEUED", ["PONG"], "OK", [], "OK", "OK"),
        *("OK", "QUEUED", "OK", b"1"),
    ]


def test_transactions_that_fail(client: Raw) -> None:
    replies = all_replies(
        client,
        *("MULTI", f"SET {KEY} 1", f"SET {OTHER} 1", f"SET {KEY} 2", "EXEC"),
        *("MULTI", f"MSET {KEY} 1 {OTHER} 2", "EXEC"),
        *("MULTI", "NOSUCHCOMMAND", f"SET {KEY} 1", "EXEC"),
        *("MULTI", f"SET {KEY}", "EXEC"),
        *("MULTI", f"SET {KEY} 7", f"LPUSH {KEY} 7", "EXEC"),
        *("EXEC", "DISCARD"),
        *("MULTI", "CLUSTER RESET", "EXEC", "MULTI", "MIGRATE h 1 k 0 1", "EXEC"),
        *("MULTI", "AUTH a b", "EXEC"),
        *("MULTI", "EXEC now", f"GET {KEY}", "EXEC"),
        *("MULTI", "MULTI", "DISCARD", f"GET {KEY}"),
        *("WATCH", "MULTI now", "MULTI", "DISCARD now", "DISCARD", "UNWATCH"),
    )
    assert replies[:5] == ["OK", "QUEUED", CROSSSLOT, "QUEUED", ABORTED]
    assert replies[5:8] == ["OK", CROSSSLOT, ABORTED]
    assert isinstance(replies[9], ReplyError) and replies[10:12] == ["QUEUED", ABORTED]
    assert isinstance(replies[13], ReplyError) and replies[14] == ABORTED
    assert replies[15:18] == ["OK", "QUEUED", "QUEUED"]
    assert isinstance(replies[18], list) and replies[18][0] == "OK"
    assert isinstance(replies[18][1], ReplyError)
    assert replies[19:21] == [ReplyError("ERR EXEC without MULTI")] + [
        ReplyError("ERR DISCARD without MULTI")
    ]
    for at in (22, 25, 28, 31):
        assert replies[at - 1] == "OK"
        assert isinstance(replies[at], ReplyError), replies[at]
    assert replies[23] == replies[26] == replies[29] == ABORTED
    assert replies[32:34] == [b"7", ReplyError("ERR EXEC without MULTI")]
    assert isinstance(replies[35], ReplyError)
    assert replies[36:38] == ["OK", b"7"]
    assert [isinstance(reply, ReplyError) for reply in replies[38:]] == [
        *(True, True, False, True, False, False)
    ]


def test_exec_behind_a_refusal_gets_the_error_of_the_node(
    client: Raw, module_cluster: Cluster
) -> None:
    owner = module_cluster.owner_of_key(KEY)
    with owner.raw() as direct, owner.raw() as busy:
        for one in (client, direct):
            assert all_replies(one, "MULTI", f"INCR {KEY}") == ["OK", "QUEUED"]
        owner.do("CONFIG", "SET", "lua-time-limit", 1)
        busy.send(command("EVAL", "while true do end", 1, KEY))
        try:
            wait_until(lambda: "BUSY" in str(owner.ask("GET", KEY)), "the node is busy")
            replies = [[one.ask("INCR", KEY), one.ask("EXEC")] for one in (client, direct)]
            assert replies[0] == replies[1]
            assert "because of: BUSY" in str(replies[0][1])
        finally:
            owner.do("SCRIPT", "KILL")
            busy.reply()
            owner.do("CONFIG", "SET", "lua-time-limit", 5000)


def test_a_node_gets_multi_as_the_client_wrote_it(client: Raw, module_cluster: Cluster) -> None:
    with module_cluster.owner_of_key(KEY).raw() as monitor:
        assert monitor.ask("MONITOR") == "OK"
        assert all_replies(client, "mUlTi", f"GET {KEY}", "EXEC")[:2] == ["OK", "QUEUED"]
        wait_until(lambda: b'"mUlTi"' in monitor.quiet(0.05), "the node shows it")


@pytest.mark.parametrize(
    "line",
    [
        *("SELECT 0", "CLIENT SETNAME a", "CLIENT TRACKING on"),  # one link alone
        *("CLIENT ID", "CLIENT KILL ID 1", "CLIENT LIST"),  # an id of one node
    ],
)
def test_commands_that_a_transaction_refuses(client: Raw, line: str) -> None:
    replies = all_replies(client, "MULTI", line, "EXEC", f"GET {KEY}")
    assert "not allowed inside a transaction" in str(replies[1])
    assert replies[2] == ABORTED


def test_watch_inside_is_refused_and_aborts_as_on_one_server(
    client: Raw, module_cluster: Cluster
) -> None:
    with module_cluster.owner_of_key(KEY).raw() as direct:
        inside = ("MULTI", f"GET {KEY}", f"WATCH {KEY}", "UNWATCH", "EXEC")
        expected = all_replies(direct, *inside)
    assert isinstance(expected[2], ReplyError)
    for keys in ((KEY, KEY), (KEY, OTHER), (OTHER, KEY)):
        lines = [line.replace(KEY, key) for line, key in zip(inside[1:3], keys, strict=True)]
        assert all_replies(client, "MULTI", *lines, *inside[3:]) == expected
    for first, last in ((), lines[:1]), (lines[:1], ()):  # the node is known before WATCH, or not
        replies = all_replies(client, "MULTI", *first, f"WATCH {KEY}", *last, "EXEC")
        assert (replies[-1] == ABORTED) == (expected[-1] == ABORTED)


def test_watch(client: Raw, cluster_proxy: Proxy) -> None:
    with cluster_proxy.raw() as other:
        assert client.ask("WATCH", KEY, SAME) == "OK"
        assert client.ask("WATCH", OTHER) == CROSSSLOT
        assert all_replies(client, "MULTI", f"INCR {KEY}", "EXEC") == ["OK", "QUEUED", [1]]
        assert client.ask("WATCH", KEY) == "OK"
        assert other.ask("INCR", KEY) == 2
        assert all_replies(client, "MULTI", "PING", f"INCR {KEY}", "EXEC") == [
            *("OK", "QUEUED", "QUEUED"),
            None,
        ]
        assert client.ask("WATCH", KEY) == "OK"
        assert other.ask("INCR", KEY) == 3
        assert all_replies(client, "UNWATCH", "MULTI", f"INCR {OTHER}", "EXEC")[3] == [1]
        assert client.ask("WATCH", KEY) == "OK"
        assert all_replies(client, "MULTI", "DISCARD") == ["OK", "OK"]
        assert other.ask("INCR", KEY) == 4
        assert all_replies(client, "MULTI", f"INCR {KEY}", "EXEC")[2] == [5]
        assert client.ask("WATCH", KEY) == "OK"
        assert all_replies(client, "MULTI", f"INCR {OTHER}", "EXEC")[1:] == [CROSSSLOT, ABORTED]
        for key in (KEY, SAME):
            assert all_replies(client, f"WATCH {KEY}", f"WATCH {SAME}") == ["OK", "OK"]
            assert other.ask("SET", key, 5) == "OK"
            assert all_replies(client, "MULTI", f"GET {KEY}", "EXEC")[2] is None
        assert all_replies(
            client, f"WATCH {KEY}", "MULTI", f"INCR {KEY}", "EXEC", f"WATCH {OTHER}", "UNWATCH"
        ) == ["OK", "OK", "QUEUED", [6], "OK", "OK"]


def test_the_slot_moves_between_two_watches(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    assert client.ask("WATCH", KEY) == "OK"
    module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
    with cluster_proxy.raw() as other:
        assert other.ask("SET", KEY, 5) == "OK"  # the proxy finds the new owner
    assert client.ask("WATCH", SAME) == "OK"
    assert all_replies(client, "MULTI", f"GET {KEY}", "EXEC")[2] is None


def test_the_slot_of_a_watched_key_moves_before_a_transaction_without_keys(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    """No node redirects such a transaction, and the move touches no key that is missing."""
    for moves in (True, False):
        assert client.ask("DEL", KEY) in (0, 1)
        assert client.ask("WATCH", KEY) == "OK"
        if moves:
            module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
        with cluster_proxy.raw() as other:
            assert other.ask("SET", OTHER if not moves else KEY, 5) == "OK"
        replies = all_replies(client, "MULTI", "PING", "EXEC")
        assert replies == ["OK", "QUEUED", None if moves else ["PONG"]]


def test_the_slot_moves_before_a_transaction(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    assert client.ask("SET", KEY, 0) == "OK"
    module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
    lines = ("MULTI", f"INCR {KEY}", "EXEC")
    assert all_replies(client, f"INCR {KEY}", *lines * 5, f"GET {KEY}") == [
        1,
        *[reply for number in range(2, 7) for reply in ("OK", "QUEUED", [number])],
        b"6",
    ]


def test_a_large_transaction_is_not_sent_again(client: Raw, module_cluster: Cluster) -> None:
    large = "x" * (MAX_KEPT // 2)
    for size in (1, 2, 1):
        assert client.ask("DEL", KEY) in (0, 1)
        assert client.ask("MULTI") == "OK"
        assert [client.ask("SET", KEY, large) for _ in range(size)] == ["QUEUED"] * size
        module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
        assert client.ask("EXEC") == (["OK"] if size == 1 else ABORTED)
        assert client.ask("GET", KEY) == (large.encode() if size == 1 else None)
    assert client.ask("MULTI") == "OK"
    assert [client.ask("ECHO", large) for _ in range(3)] == ["QUEUED"] * 3
    assert str(client.ask("SET", KEY, 1)).startswith("ERR the commands before the first key ")
    assert client.ask("EXEC") == ABORTED


def test_the_error_of_a_command_that_is_sent_again_is_that_of_exec(
    client: Raw, module_cluster: Cluster
) -> None:
    assert client.ask("SET", KEY, 0) == "OK"
    to = module_cluster.other_master(SLOT)
    assert client.ask("MULTI") == "OK"
    assert client.ask("INCR", KEY) == "QUEUED"
    module_cluster.move_slot(SLOT, to)
    to.do("CONFIG", "SET", "maxmemory", 1)
    try:
        assert client.ask("INCR", KEY) == "QUEUED"
        assert str(client.ask("EXEC")).startswith("OOM ")
    finally:
        to.do("CONFIG", "SET", "maxmemory", 0)
    assert client.ask("GET", KEY) == b"0"


def test_the_slot_moves_behind_a_command_that_was_rejected(
    client: Raw, module_cluster: Cluster
) -> None:
    assert all_replies(client, "MULTI", f"SET {KEY} 1") == ["OK", "QUEUED"]
    assert isinstance(client.ask("SET", KEY), ReplyError)
    module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
    assert client.ask("EXEC") == ABORTED
    assert client.ask("EXISTS", KEY) == 0


def test_the_slot_moves_inside_a_transaction(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    for watches in (False, True):
        for at in range(4):
            client.ask("SET", KEY, 0)
            if watches:
                assert client.ask("WATCH", KEY) == "OK"
            lines = ["MULTI", f"INCR {KEY}", "PING", f"INCR {KEY}"]
            for number, line in enumerate(lines):
                if number == at:
                    module_cluster.move_slot(SLOT, module_cluster.other_master(SLOT))
                assert client.ask(*line.split()) in ("OK", "QUEUED")
            expected = None if watches else [1, "PONG", 2]
            assert client.ask("EXEC") == expected, (at, watches)
            assert client.ask("GET", KEY) == (b"0" if watches else b"2")


def test_transactions_while_keys_of_the_slot_move(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    client.ask("MSET", KEY, 0, SAME, 0)
    to = module_cluster.other_master(SLOT)
    module_cluster.begin_move(SLOT, to)
    module_cluster.move_keys(SLOT, to, 1)
    # One key is at each node now.
    assert all_replies(client, "MULTI", f"INCR {KEY}", "EXEC")[2] == [1]
    assert all_replies(client, "MULTI", f"INCR {SAME}", "EXEC")[2] == [1]
    assert client.ask("WATCH", KEY) == "OK"
    assert all_replies(client, "MULTI", f"INCR {KEY}", "EXEC")[2] in (None, [2])
    client.send(command("SET", KEY, 1))
    assert client.reply() == "OK"
    client.send(b"".join(map(command_of, ("MULTI", f"INCR {KEY}", f"INCR {SAME}", "EXEC", "PING"))))
    assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
    assert module_cluster.move_keys(SLOT, to) == 1  # both keys are at the new node
    assert client.reply() == [2, 2]
    assert client.reply() == "PONG"
    assert all_replies(client, "MULTI", f"GET {KEY}", f"MGET {KEY} {SAME}", "EXEC")[3] == [
        b"2",
        [b"2", b"2"],
    ]
    module_cluster.end_move(SLOT, to)
    module_cluster.wait_ok()
    assert all_replies(client, "MULTI", f"INCR {KEY}", "EXEC")[2] == [3]
    assert client.ask("GET", SAME) == b"2"


@pytest.mark.parametrize("redirected", ["INCR", "EVAL return(#KEYS) 1"])
@pytest.mark.parametrize("before", [(), (f"WATCH {KEY}",)])
def test_a_redirected_command_does_not_enter_the_transaction_behind_it(
    client: Raw, module_cluster: Cluster, before: tuple[str, ...], redirected: str
) -> None:
    key = module_cluster.key_at(module_cluster.other_master(SLOT))
    module_cluster.begin_move(key_slot(key.encode()), module_cluster.owner(SLOT))
    try:
        replies = all_replies(client, *before, f"{redirected} {key}", "MULTI", f"INCR {KEY}")
        assert replies[len(before) :] == [1, "OK", "QUEUED"]
        assert client.ask("EXEC") == [1]
    finally:
        module_cluster.give_up_moves()


@pytest.mark.parametrize(
    "lines",
    [
        (f"MSET {KEY} 1 {SAME} 1",),
        (f"MSET {KEY} 1 {OTHER} 1 {SAME} 1",),
        ("MULTI", f"SET {SAME} 1", f"SET {KEY} 1", "EXEC"),
    ],
)
def test_a_command_with_several_keys_is_not_overtaken_while_the_slot_moves(
    client: Raw, module_cluster: Cluster, lines: tuple[str, ...]
) -> None:
    client.ask("MSET", KEY, 0, SAME, 0)
    owner, to = module_cluster.owner(SLOT), module_cluster.other_master(SLOT)
    module_cluster.begin_move(SLOT, to)
    owner.do("MIGRATE", "127.0.0.1", to.port, KEY, 0, 5000)
    errors = int(owner.info("stats")["total_error_replies"])
    client.send(b"".join(map(command_of, (*lines, f"SET {SAME} 2"))))
    wait_until(
        lambda: int(owner.info("stats")["total_error_replies"]) > errors, "the node refuses it"
    )
    module_cluster.move_keys(SLOT, to)
    module_cluster.end_move(SLOT, to)
    module_cluster.wait_ok()
    replies = [client.reply() for _ in (*lines, 1)]
    assert not [reply for reply in replies if isinstance(reply, ReplyError)]
    assert client.ask("MGET", KEY, SAME) == [b"1", b"2"]


def command_of(line: str) -> bytes:
    """Encode the words of `line`."""
    return command(*line.split())


def test_a_lost_connection_ends_the_client_inside_a_transaction(
    client: Raw, cluster_proxy: Proxy, module_cluster: Cluster
) -> None:
    node = module_cluster.owner(SLOT)
    for lines in (["MULTI", f"INCR {KEY}"], [f"WATCH {KEY}"]):
        with cluster_proxy.raw() as other:
            for line in lines:
                assert other.ask(*line.split()) in ("OK", "QUEUED")
            node.ask("CLIENT", "KILL", "TYPE", "normal")
            assert other.closes()
    # Without a transaction, the connection to the node is replaced.
    with cluster_proxy.raw() as other:
        assert other.ask("GET", KEY) is None
        node.ask("CLIENT", "KILL", "TYPE", "normal")
        with cluster_proxy.raw() as another:  # the proxy sees the end of the connection first
            assert another.ask("PING") == "PONG"
        assert other.ask("GET", KEY) is None
