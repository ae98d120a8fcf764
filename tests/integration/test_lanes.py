"""Lanes: which clients share one, and the effect of missing scripts, changed rights and passwords,
and lost connections.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from tests import harness
from tests.harness import ON_ONE_ENGINE, Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.info import errors, lane_calls
from tests.integration.started import (
    by_lane,
    by_lane_of,
    client_list,
    lanes,
    private,
)
from tests.processes import paused


def is_error(reply: object, start: str) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith(start)


def admitted(*left: int, limit: int = 5) -> list[list[int]]:
    return [[0, limit, each, -1, 60] for each in left]


@pytest.fixture
def server(engine: str) -> Iterator[RedisServer]:
    """A server for one test, of each engine."""
    with harness.server(engine) as made:
        yield made


@pytest.fixture
def made(server: RedisServer) -> Iterator[Proxy]:
    """A proxy for one test in front of it."""
    with harness.proxy(server) as running:
        yield running


@pytest.fixture
def own_proxy(own_server: RedisServer) -> Iterator[Proxy]:
    """A proxy for one test in front of one engine's server."""
    with harness.proxy(own_server) as running:
        yield running


# -- which clients share a lane --------------------------------------------------------------------


def test_hits_of_many_clients_share_one_connection(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(own_proxy.raw()) for _ in range(20)]
        for client in clients:
            by_lane(own_server, client)
        (lane,) = lanes(own_server)
        assert len(private(own_server)) == 20
        monitor = stack.enter_context(own_server.raw())
        assert monitor.ask("MONITOR") == "OK"
        for client in clients:
            client.send(command("RL.HIT", "shared", 100, 60) * 3)
        replies = [client.reply() for client in clients for _ in range(3)]
        assert sorted(map(str, replies)) == sorted(
            str([0, 100, left, -1, 60]) for left in range(40, 100)
        )
        with own_server.raw() as direct:
            direct.ask("ECHO", "over")
        seen = b""
        while b'"over"' not in seen:
            seen += monitor.line()
        addresses = re.findall(rb"\[0 ([\d.:]+)\] \"EVALSHA\"", seen)
        assert addresses == [lane["addr"].encode()] * 60
        assert [row["id"] for row in lanes(own_server)] == [lane["id"]]


def test_each_user_password_and_database_has_its_lane(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with own_server.raw() as admin:
        for user in ("bob", "eve"):
            rule = ["ACL", "SETUSER", user, "on", ">one", ">two", "~*", "&*", "+@all"]
            assert admin.ask(*rule) == "OK"
    kinds: list[list[tuple[str, ...]]] = [
        [],
        [("SELECT", "1")],
        [("AUTH", "bob", "one")],
        [("AUTH", "bob", "two")],
        [("AUTH", "eve", "one")],
        [("AUTH", "bob", "one"), ("SELECT", "1")],
        [("SELECT", "1"), ("AUTH", "bob", "one")],  # the same as the one before
        [("HELLO", "3", "AUTH", "bob", "one")],  # the same as the third
    ]
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            client = stack.enter_context(own_proxy.raw())
            for words in kind:
                assert not isinstance(client.ask(*words), ReplyError)
            by_lane(own_server, client)
            key = f"of-{len(kind)}"
            assert isinstance(client.ask("RL.HIT", key, 100, 60), list)
        found = sorted((row["user"], row["db"]) for row in lanes(own_server))
        assert found == sorted(
            [("default", "0"), ("default", "1"), ("bob", "0"), ("bob", "0"), ("eve", "0")]
            + [("bob", "1")]
        )


def test_client_that_selects_moves_to_another_lane(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with own_proxy.raw() as client:
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]
        by_lane(own_server, client)
        assert client.ask("SELECT", 2) == "OK"
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]
        by_lane(own_server, client)
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(3)[0]
        client.send(command("SELECT", 0) + command("RL.HIT", "k", 5, 60) * 2)
        assert [client.reply() for _ in range(3)] == ["OK", *admitted(3, 2)]
        assert sorted(row["db"] for row in lanes(own_server)) == ["0", "2"]


# -- missing scripts -------------------------------------------------------------------------------


def test_hits_by_lane_survive_a_missing_script(server: RedisServer, made: Proxy) -> None:
    with made.raw() as client, server.raw() as admin:
        by_lane(server, client)
        before = errors(server, "NOSCRIPT")
        for turn in range(3):
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            assert client.ask("RL.HIT", f"one{turn}", 5, 60) == admitted(4)[0]
        assert errors(server, "NOSCRIPT") >= before + 1
        before = errors(server, "NOSCRIPT")
        for turn in range(20):
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            client.send(command("RL.HIT", f"many{turn}", 5, 60) * 7)
            replies = [client.reply() for _ in range(7)]
            assert all(isinstance(reply, list) for reply in replies), replies
            left = [reply[2] for reply in replies if isinstance(reply, list) and not reply[0]]
            assert sorted(left) == [0, 1, 2, 3, 4]
            assert admin.ask("LLEN", f"many{turn}") == 5
        assert errors(server, "NOSCRIPT") >= before + 20
        assert len(lanes(server)) == 1


def test_missing_script_in_a_mixed_pipeline_keeps_the_order(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with own_proxy.raw() as client, own_server.raw() as admin:
        by_lane(own_server, client)
        for turn in range(10):
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            key = f"k{turn}"
            hit = command("RL.HIT", key, 5, 60)
            client.send(
                hit + command("ECHO", "a") + hit + command("SELECT", 1) + hit
                + command("SELECT", 0) + hit + command("ECHO", "b")
            )  # fmt: skip
            got = [client.reply() for _ in range(8)]
            first, second, other, third = admitted(4, 3, 4, 2)
            assert got == [first, b"a", second, "OK", other, "OK", third, b"b"]
            assert admin.ask("LLEN", key) == 3


def test_hits_inside_multi_survive_a_missing_script(server: RedisServer, made: Proxy) -> None:
    with made.raw() as client, server.raw() as admin:
        by_lane(server, client)
        for turn in range(10):
            key = f"k{turn}"
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            assert client.ask("MULTI") == "OK"
            assert client.ask("RL.HIT", key, 5, 60) == "QUEUED"
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            assert client.ask("RL.HIT", key, 5, 60) == "QUEUED"
            assert client.ask("EXEC") == admitted(4, 3)
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            assert client.ask("RL.HIT", key, 5, 60) == admitted(2)[0]
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            hit = command("RL.HIT", key, 5, 60)
            client.send(command("MULTI") + hit * 2 + command("EXEC") + hit)
            assert [client.reply() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", admitted(1, 0)]
            refused = client.reply()
            assert isinstance(refused, list)
            assert refused[:3] == [1, 5, 0]


def test_transaction_whose_watch_fails_counts_no_hit(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy, proxy.raw() as client, own_server.raw() as admin:
        by_lane(own_server, client)
        assert client.ask("WATCH", "w") == "OK"
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]  # on the watching connection
        assert admin.ask("SET", "w", "touched") == "OK"
        client.send(command("MULTI") + command("RL.HIT", "k", 5, 60) + command("EXEC"))
        assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", None]
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(3)[0]


# -- lost connections ------------------------------------------------------------------------------


def test_killed_lane_closes_no_client(own_server: RedisServer, own_proxy: Proxy) -> None:
    with own_proxy.raw() as client, own_server.raw() as admin:
        by_lane(own_server, client, admin)
        count = 0
        for _ in range(5):
            (lane,) = lanes(own_server, admin)
            assert admin.ask("CLIENT", "KILL", "ID", lane["id"]) == 1
            for _ in range(3):
                reply = client.ask("RL.HIT", "k", 1000, 60)
                count += isinstance(reply, list)
                assert isinstance(reply, list) or is_error(reply, "UPSTREAMDOWN "), reply
            assert client.ask("PING") == "PONG"
            by_lane(own_server, client, admin)
        held = admin.ask("LLEN", "k")
        assert isinstance(held, int)
        assert count <= held <= 15
        assert count >= 10


def test_hits_on_a_cut_lane_get_upstreamdown_once_each(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy, own_server.raw() as admin, proxy.raw() as client:
        by_lane(own_server, client)
        (lane,) = lanes(own_server, admin)
        # The server is stopped, with a kill of the lane and earlier hits in its queue.
        with paused(own_server.pid):
            admin.send(command("CLIENT", "KILL", "ID", lane["id"]))
            client.send(command("RL.HIT", "k", 100, 60) * 10)
            time.sleep(0.05)
        assert admin.reply() == 1
        replies = [client.reply() for _ in range(10)]
        lost = sum(is_error(reply, "UPSTREAMDOWN ") for reply in replies)
        assert all(isinstance(reply, list) for reply in replies[lost:])
        assert client.ask("PING") == "PONG"
        assert client.ask("RL.HIT", "other", 5, 60) == admitted(4)[0]
        held = admin.ask("LLEN", "k")
        assert isinstance(held, int)
        assert 10 - lost <= held <= 10


def test_killed_private_connection_closes_only_its_client(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with own_proxy.raw() as one, own_proxy.raw() as two, own_server.raw() as admin:
        number = one.ask("CLIENT", "ID")
        assert two.ask("PING") == "PONG"
        by_lane(own_server, one, admin)
        by_lane(own_server, two, admin)
        assert admin.ask("CLIENT", "KILL", "ID", str(number)) == 1
        assert one.closes()
        assert two.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]


def test_lanes_reopen_after_a_restart(own_server: RedisServer, own_proxy: Proxy) -> None:
    with own_proxy.raw() as client:
        by_lane(own_server, client)
        own_server.stop()
        assert client.closes()
    own_server.start()  # without scripts and data
    with own_proxy.raw() as client:
        wait_until(lambda: isinstance(client.ask("RL.HIT", "k", 9, 60), list), "hits work")
        by_lane(own_server, client)
        assert len(lanes(own_server)) == 1
        with own_server.raw() as admin:
            held = admin.ask("LLEN", "k")
            assert client.ask("RL.HIT", "k", 9, 60) == [0, 9, 8 - int(str(held)), -1, 60]


def test_hung_server_delays_hits_and_loses_none(own_server: RedisServer, own_proxy: Proxy) -> None:
    with own_proxy.raw() as client, own_proxy.raw() as other:
        by_lane(own_server, client)
        by_lane(own_server, other)
        with paused(own_server.pid):
            client.send(command("RL.HIT", "k", 100, 60) * 30)
            other.send(command("RL.HIT", "k", 100, 60) + command("ECHO", "x"))
            time.sleep(0.3)
        replies = [client.reply() for _ in range(30)] + [other.reply()]
        assert sorted(reply[2] for reply in replies if isinstance(reply, list)) == [*range(69, 100)]
        assert other.reply() == b"x"


def test_more_hits_than_one_client_may_have_in_flight_are_answered(
    own_server: RedisServer, own_proxy: Proxy
) -> None:
    with own_proxy.raw() as client, own_proxy.raw() as other:
        by_lane(own_server, client)
        by_lane(own_server, other)
        client.send(command("RL.HIT", "k", 100_000, 60) * 5000 + command("ECHO", "end"))
        for index in range(20):
            assert other.ask("RL.HIT", "o", 100, 60) == [0, 100, 99 - index, -1, 60]
        for index in range(5000):
            assert client.reply() == [0, 100_000, 99_999 - index, -1, 60]
        assert client.reply() == b"end"


# -- rights ---------------------------------------------------------------------------------------


def test_changed_rights_apply_at_once_and_per_key(server: RedisServer, made: Proxy) -> None:
    scripting = ["+eval", "+evalsha", "+time", "+lindex", "+llen", "+rpush", "+ltrim", "+pexpire"]
    with server.raw() as admin, made.raw() as bob, made.raw() as free:
        words = ["ACL", "SETUSER", "bob", "on", ">pw", "~mine:*", "+ping", *scripting, "+lset"]
        assert admin.ask(*words) == "OK"
        assert bob.ask("AUTH", "bob", "pw") == "OK"
        for left in (4, 3):
            assert bob.ask("RL.HIT", "mine:k", 5, 60) == admitted(left)[0]
        for _ in range(3):
            reply = bob.ask("RL.HIT", "yours", 5, 60)
            assert is_error(reply, "NOPERM "), reply
            assert "script" not in str(reply)
        wait_until(lambda: any(row["user"] == "bob" for row in lanes(server)), "bob has a lane")
        assert bob.ask("RL.HIT", "mine:k", 5, 60) == admitted(2)[0]
        assert is_error(bob.ask("RL.HIT", "yours", 5, 60), "NOPERM ")
        assert free.ask("RL.HIT", "yours", 5, 60) == admitted(4)[0]
        assert admin.ask("ACL", "SETUSER", "bob", "resetkeys", "~yours") == "OK"
        assert is_error(bob.ask("RL.HIT", "mine:k", 5, 60), "NOPERM ")
        assert bob.ask("RL.HIT", "yours", 5, 60) == admitted(3)[0]
        assert admin.ask("ACL", "SETUSER", "bob", "-evalsha", "-eval") == "OK"
        assert is_error(bob.ask("RL.HIT", "yours", 5, 60), "NOPERM ")
        assert admin.ask("LLEN", "yours") == 2


def test_errors_of_redis_pass_unchanged(server: RedisServer, made: Proxy) -> None:
    """Errors that Redis raises inside a script read as they do outside of one."""
    with server.raw() as admin, made.raw() as client, made.raw() as bob:

        def refusals() -> list[object]:
            """The errors by lane or not, and inside MULTI."""
            found = [client.ask("RL.HIT", "k", 5, 60), client.ask("RL.HIT", "k", 5, 60)]
            found.append(client.ask("RL.HIT", "k", 5, 60, "COST", 2))
            client.send(command("MULTI") + command("RL.HIT", "k", 5, 60) + command("EXEC"))
            assert client.reply() == "OK"
            queued, inside = client.reply(), client.reply()
            if queued == "QUEUED":
                assert isinstance(inside, list)
                found += inside
            else:  # newer servers refuse it at once
                assert is_error(inside, "EXECABORT ")
                found.append(queued)
            return found

        by_lane(server, client, admin)
        assert admin.ask("CONFIG", "SET", "maxmemory", 1) == "OK"
        outside = admin.ask("SET", "x", "y")
        assert is_error(outside, "OOM ")
        assert [str(reply) for reply in refusals()] == [str(outside)] * 4
        assert admin.ask("CONFIG", "SET", "maxmemory", 0) == "OK"
        assert admin.ask("REPLICAOF", "127.0.0.1", harness.free_port()) == "OK"
        outside = admin.ask("SET", "x", "y")
        assert is_error(outside, "READONLY ")
        assert [str(reply) for reply in refusals()] == [str(outside)] * 4
        assert admin.ask("REPLICAOF", "NO", "ONE") == "OK"
        assert client.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]
        for missing in ("-time", "-rpush", "-lindex"):
            rules = ["reset", "on", ">pw", "~*", "&*", "+@all", missing]
            assert admin.ask("ACL", "SETUSER", "bob", *rules) == "OK"
            assert bob.ask("AUTH", "bob", "pw") == "OK"
            assert admin.ask("DEL", "k") in (0, 1)
            if missing == "-lindex":
                assert admin.ask("RPUSH", "k", "1700000000000000") == 1
            for _ in range(3):
                text = str(bob.ask("RL.HIT", "k", 5, 60))
                assert re.match(r"[A-Z]+ ", text), text
                assert re.search(r"permission|can't run this command", text), text
                assert re.search(r"[0-9a-f]{40}|user_script|script: on", text) is None, text


def test_deleted_user_closes_only_its_clients(server: RedisServer, made: Proxy) -> None:
    with server.raw() as admin, made.raw() as bob, made.raw() as free:
        assert admin.ask("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all") == "OK"
        assert bob.ask("AUTH", "bob", "pw") == "OK"
        by_lane(server, bob, admin)
        by_lane(server, free, admin)
        assert sorted(row["user"] for row in lanes(server, admin)) == ["bob", "default"]
        assert admin.ask("ACL", "DELUSER", "bob") == 1
        assert bob.closes()
        assert free.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]
        wait_until(
            lambda: [row["user"] for row in lanes(server, admin)] == ["default"], "bob's lane ends"
        )
        with made.raw() as again:
            assert is_error(again.ask("AUTH", "bob", "pw"), "WRONGPASS ")


def test_lane_with_an_old_password_is_not_reopened(server: RedisServer, made: Proxy) -> None:
    """The user's password changed: open connections keep their rights, as with Redis, and no lane
    can be opened with the old password.
    """
    with server.raw() as admin, made.raw() as bob:
        assert admin.ask("ACL", "SETUSER", "bob", "on", ">old", "~*", "&*", "+@all") == "OK"
        assert bob.ask("AUTH", "bob", "old") == "OK"
        by_lane(server, bob, admin)
        assert admin.ask("ACL", "SETUSER", "bob", "<old", ">new") == "OK"
        (lane,) = [row for row in lanes(server, admin) if row["user"] == "bob"]
        assert admin.ask("CLIENT", "KILL", "ID", lane["id"]) == 1
        wait_until(
            lambda: lane["id"] not in [row["id"] for row in lanes(server, admin)], "it is gone"
        )
        replies = [bob.ask("RL.HIT", "k", 1000, 60) for _ in range(50)]
        lost = sum(is_error(reply, "UPSTREAMDOWN ") for reply in replies)
        assert lost <= 1
        assert all(isinstance(reply, list) for reply in replies[lost:])
        assert [row for row in lanes(server, admin) if row["user"] == "bob"] == []
        with made.raw() as again:
            assert is_error(again.ask("AUTH", "bob", "old"), "WRONGPASS ")
            assert again.ask("AUTH", "bob", "new") == "OK"
            by_lane(server, again, admin)
        assert isinstance(bob.ask("RL.HIT", "k", 1000, 60), list)


def test_password_set_while_lanes_exist_applies_to_new_clients(
    server: RedisServer, made: Proxy
) -> None:
    """Unauthenticated clients must not use a lane that was opened before."""
    with server.raw() as admin, made.raw() as old, made.raw() as unused:
        by_lane(server, old, admin)
        assert admin.ask("CONFIG", "SET", "requirepass", "pw") == "OK"
        assert old.ask("RL.HIT", "k", 5, 60) == admitted(4)[0]
        for stranger in (unused, made.raw()):
            with stranger:
                for _ in range(5):
                    assert is_error(stranger.ask("RL.HIT", "k", 5, 60), "NOAUTH ")
                stranger.send(command("RL.HIT", "k", 5, 60) * 4)
                assert all(is_error(stranger.reply(), "NOAUTH ") for _ in range(4))
                assert stranger.ask("AUTH", "pw") == "OK"
                by_lane(server, stranger, admin)
        assert admin.ask("LLEN", "k") == 1
        assert old.ask("RL.HIT", "k", 5, 60) == admitted(3)[0]
        # The old lane, which cannot be opened again.
        victims = [row["id"] for row in lanes(server, admin)]
        for victim in victims:
            admin.ask("CLIENT", "KILL", "ID", victim)
        replies = [old.ask("RL.HIT", "later", 1000, 60) for _ in range(50)]
        assert sum(is_error(reply, "UPSTREAMDOWN ") for reply in replies) <= 1
        assert not any(is_error(reply, "NOAUTH") for reply in replies)
        with made.raw() as stranger:
            assert is_error(stranger.ask("RL.HIT", "k", 5, 60), "NOAUTH ")
        assert admin.ask("CONFIG", "SET", "requirepass", "") == "OK"


def test_reset_client_is_unauthenticated_again(own_server: RedisServer, own_proxy: Proxy) -> None:
    with own_server.raw() as admin, own_proxy.raw() as client:
        assert admin.ask("CONFIG", "SET", "requirepass", "pw") == "OK"
        assert client.ask("AUTH", "pw") == "OK"
        by_lane(own_server, client, admin)
        client.send(command("RESET") + command("RL.HIT", "k", 5, 60))
        assert client.reply() == "RESET"
        assert is_error(client.reply(), "NOAUTH ")
        for _ in range(3):
            assert is_error(client.ask("RL.HIT", "k", 5, 60), "NOAUTH ")
        assert admin.ask("EXISTS", "k") == 0


# -- the server's timeout -------------------------------------------------------------------------


def keep_hitting(client: Raw, seconds: float) -> int:
    """Hit for a time; return the number of hits."""
    count = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reply = client.ask("RL.HIT", "busy", 1_000_000, 3600)
        assert isinstance(reply, list), reply
        count += 1
        time.sleep(0.02)
    return count


def test_busy_client_outlives_the_servers_timeout(one_engine: str) -> None:
    with harness.server(one_engine, "--timeout", "1") as server, harness.proxy(server) as proxy:
        with proxy.raw() as busy, proxy.raw() as idle:
            assert idle.ask("PING") == "PONG"
            by_lane(server, busy)
            number, before = busy.ask("CLIENT", "ID"), lane_calls(server)
            count = keep_hitting(busy, 3.5)
            assert busy.ask("CLIENT", "ID") == number
            assert idle.closes()  # as with Redis itself
            assert lane_calls(server) - before > count / 2
        # The control connection must not reconnect each second, nor fill the log.
        assert proxy.read_log().count("WARNING") <= 1, proxy.read_log()


@ON_ONE_ENGINE
@pytest.mark.parametrize("how", ["changed", "no password", "config denied"])
def test_busy_client_outlives_a_timeout_unknown_to_the_proxy(
    redis_server: RedisServer, how: str
) -> None:
    """Hits by lane, cached refusals and a held hit count as activity."""
    args = ["--requirepass", "s3"] if how == "no password" else []
    login = ("AUTH", "s3") if how == "no password" else ("PING",)
    with harness.server(redis_server.engine, *args) as server, contextlib.ExitStack() as stack:
        admin = stack.enter_context(server.raw())
        admin.ask(*login)
        if how == "config denied":  # a client logged in as another user keeps that user's rights
            assert admin.ask("ACL", "SETUSER", "admin", "on", ">pw", "~*", "&*", "+@all") == "OK"
            assert admin.ask("AUTH", "admin", "pw") == "OK"
            assert admin.ask("ACL", "SETUSER", "default", "-config") == "OK"
        proxy = stack.enter_context(harness.proxy(server))
        clients = [stack.enter_context(proxy.raw()) for _ in range(3)]
        for raw in clients:
            raw.ask(*login)
        hits, refused, held = clients
        for raw in clients:
            by_lane(server, raw, admin)
        numbers = [raw.ask("CLIENT", "ID") for raw in clients]
        for raw in clients:
            by_lane(server, raw, admin)
        assert held.ask("RL.HIT", "full", 1, 600) == [0, 1, 0, -1, 600]
        held.send(command("RL.HIT", "full", 1, 600, "WAIT", 900))
        assert admin.ask("CONFIG", "SET", "timeout", 1) == "OK"
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            assert isinstance(hits.ask("RL.HIT", "busy", 1_000_000, 3600), list)
            assert isinstance(refused.ask("RL.HIT", "full", 1, 600), list)
            time.sleep(0.02)
        assert [raw.ask("CLIENT", "ID") for raw in (hits, refused)] == numbers[:2]
        again = stack.enter_context(server.raw())
        again.ask(*login)
        assert numbers[2] in [int(row["id"]) for row in client_list(server, again)]


# -- two nodes of a cluster -----------------------------------------------------------------------


@pytest.fixture
def cluster_nodes(one_engine: str) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A cluster of two masters: the first has slots 0 to 8191, the second the others."""
    with contextlib.ExitStack() as stack:
        # The cluster bus uses the port 10000 above: harness ports may be too high for that.
        made = []
        for _ in range(2):
            bus = harness.free_port()
            args = ("--cluster-enabled", "yes", "--cluster-port", str(bus))
            made.append(stack.enter_context(harness.server(one_engine, *args)))
        first, second = made
        with first.raw() as a, second.raw() as b:
            assert a.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8191) == "OK"
            assert b.ask("CLUSTER", "ADDSLOTSRANGE", 8192, 16383) == "OK"
            bus_of_second = int(second.args[-1])
            assert a.ask("CLUSTER", "SET-CONFIG-EPOCH", 1) == "OK"
            assert b.ask("CLUSTER", "SET-CONFIG-EPOCH", 2) == "OK"
            assert a.ask("CLUSTER", "MEET", "127.0.0.1", second.port, bus_of_second) == "OK"

            def agreed() -> bool:
                states = [raw.ask("CLUSTER", "INFO") for raw in (a, b)]
                return all(
                    isinstance(text, bytes)
                    and b"cluster_state:ok" in text
                    and b"cluster_slots_assigned:16384" in text
                    for text in states
                )

            wait_until(agreed, "the cluster is up")
        yield first, second


def node_id(server: RedisServer) -> bytes:
    with server.raw() as raw:
        found = raw.ask("CLUSTER", "MYID")
    assert isinstance(found, bytes)
    return found


def keys_of(server: RedisServer) -> tuple[str, int, str]:
    """A key of the first node and its slot, and one of the second."""
    low = high = ""
    slot = -1
    with server.raw() as raw:
        for number in range(100):
            found = raw.ask("CLUSTER", "KEYSLOT", f"key{number}")
            assert isinstance(found, int)
            if found < 8192 and not low:
                low, slot = f"key{number}", found
            elif found >= 8192 and not high:
                high = f"key{number}"
    return low, slot, high


def test_moved_reaches_the_client_by_lane_and_in_place(
    cluster_nodes: tuple[RedisServer, RedisServer],
) -> None:
    first, second = cluster_nodes
    mine, _, other = keys_of(first)
    with harness.proxy_of_node(first) as proxy, proxy.raw() as client, first.raw() as admin:

        def moved() -> None:
            reply = client.ask("RL.HIT", other, 5, 60)
            assert is_error(reply, f"MOVED {slot_of(admin, other)} 127.0.0.1:{second.port}"), reply

        moved()
        assert client.ask("RL.HIT", mine, 5, 60) == admitted(4)[0]
        moved()
        by_lane_of(first, client, mine)
        moved()
        assert admin.ask("SCRIPT", "FLUSH") == "OK"
        moved()
        assert admin.ask("DEL", mine) == 1
        hit = command("RL.HIT", mine, 5, 60)
        client.send(hit + command("RL.HIT", other, 5, 60) + hit)
        assert client.reply() == admitted(4)[0]
        assert is_error(client.reply(), "MOVED ")
        assert client.reply() == admitted(3)[0]


def slot_of(raw: Raw, key: str) -> int:
    found = raw.ask("CLUSTER", "KEYSLOT", key)
    assert isinstance(found, int)
    return found


def test_asking_applies_to_the_next_hit_even_without_its_script(
    cluster_nodes: tuple[RedisServer, RedisServer],
) -> None:
    first, second = cluster_nodes
    key, slot, _ = keys_of(first)
    with first.raw() as a, second.raw() as b:
        assert b.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(first)) == "OK"
        assert a.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(second)) == "OK"
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(harness.proxy_of_node(first))
        target = stack.enter_context(harness.proxy_of_node(second))
        with source.raw() as one, target.raw() as two, second.raw() as admin:
            for _ in range(3):
                reply = one.ask("RL.HIT", key, 9, 60)
                assert is_error(reply, f"ASK {slot} 127.0.0.1:{second.port}"), reply
            other = keys_of(first)[2]
            by_lane_of(second, two, other)
            left = 8
            for turn in range(3):
                if turn:
                    assert admin.ask("SCRIPT", "FLUSH") == "OK"
                assert is_error(two.ask("RL.HIT", key, 9, 60), "MOVED ")
                assert two.ask("ASKING") == "OK"
                assert two.ask("RL.HIT", key, 9, 60) == [0, 9, left, -1, 60]
                assert is_error(two.ask("RL.HIT", key, 9, 60), "MOVED ")
                two.send(command("ASKING") + command("RL.HIT", key, 9, 60))
                assert [two.reply(), two.reply()] == ["OK", [0, 9, left - 1, -1, 60]]
                left -= 2
                if turn == 1:
                    assert two.ask("RESET") == "RESET"  # else it stays private behind ASKING
                    by_lane_of(second, two, other)
            assert admin.ask("ASKING") == "OK"
            assert admin.ask("LLEN", key) == 6


# -- over the whole test ---------------------------------------------------------------------------


def test_no_connection_is_left_open(own_server: RedisServer, own_proxy: Proxy) -> None:
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(own_proxy.raw()) for _ in range(10)]
            for client in clients:
                assert client.ask("PING") == "PONG"
                by_lane(own_server, client)
        wait_until(lambda: private(own_server) == [], "private connections end with their clients")
    names = sorted(row["name"] for row in client_list(own_server))
    assert names == ["rlproxy-control", "rlproxy-lane"]
