"""The user, database and order with which a hit runs, on each route.

tests/conformance/test_connection_state.py compares what one connection sees. This file adds other
actors: changed users, new passwords, flushed scripts, and pushes without a request.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import harness
from tests.conformance.routing_support import (
    MANY,
    admitted,
    goes_by_lane,
    hit,
    join_lane,
    kill_lanes,
    load_scripts,
    names,
    password,
    rounds,
    stays_private,
)
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, is_error, wait_until
from tests.processes import paused


@pytest.fixture
def look(redis_server: RedisServer) -> Iterator[Raw]:
    """A connection to the server itself, opened before any change of a test."""
    with redis_server.raw() as raw:
        for user in ("bob", "eve"):
            raw.ask("ACL", "DELUSER", user)
        yield raw
        raw.ask("CONFIG", "SET", "requirepass", "")
        raw.ask("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")


@pytest.fixture
def client(proxy: Proxy, look: Raw) -> Iterator[Raw]:
    """A client whose hits go by lane."""
    with proxy.raw() as raw:
        join_lane(raw, look)
        yield raw


def count(look: Raw, key: str, db: int = 0) -> object:
    look.ask("SELECT", db)
    try:
        return look.ask("LLEN", key)
    finally:
        look.ask("SELECT", 0)


# -- identity -------------------------------------------------------------------------------------


def test_lane_older_than_the_password_admits_no_unauthenticated_client(
    client: Raw, proxy: Proxy, look: Raw
) -> None:
    with password(look, "pw"), proxy.raw() as stranger, proxy.raw() as known:
        for words in (
            ("PING",),
            ("AUTH", "wrong"),
            ("HELLO", "3"),
            ("HELLO", "3", "AUTH", "default", "wrong"),
            ("RESET",),
            ("RL.RESET", "k"),
        ):
            stranger.ask(*words)
            for _ in range(3):
                assert is_error(stranger.ask("RL.HIT", "k", 5, 60), "NOAUTH"), words
        assert known.ask("AUTH", "pw") == "OK"
        join_lane(known, look)
        # A connected client stays authenticated until it resets.
        assert client.ask("RL.HIT", "mine", 5, 60) == admitted(1, 5)
        assert client.ask("RESET") == "RESET"
        for _ in range(3):
            assert is_error(client.ask("RL.HIT", "k", 5, 60), "NOAUTH")
    assert look.ask("EXISTS", "k") == 0


# Odd commands that change the connection's user, or seem to: hits must run as the user Redis has
# for it. tests/conformance/test_acl_histories.py has the usual ones.
HELLOS: tuple[tuple[bytes | str, ...], ...] = (
    ("HELLO", "3", "auth", "bob", "pw", "setname", "x"),
    ("HELLO", "2", "SETNAME", "x", "AUTH", "bob", "pw"),
    ("HELLO", "3", "AUTH", "eve", "pw", "AUTH", "bob", "pw"),
    ("HELLO", "3", b"AUTH\0", "bob", "pw"),
    ("HELLO", "3", b"auth\0x", "bob", "pw"),
    ("HELLO", "3", b"SETNAME\0", "x", "AUTH", "bob", "pw"),
    ("HELLO", "3", b"SETNAME\0", "AUTH", "AUTH", "bob", "pw"),
    ("HELLO", "3", "SETNAME", "AUTH", "bob", "pw"),
    ("HELLO", "3", "FOO", "AUTH", "bob", "pw"),
    (b"HELLO\0", "3", "AUTH", "bob", "pw"),
    ("AUTH", "bob", "pw", "x"),
    ("AUTH", b"bob\0", "pw"),
    ("AUTH", "pw"),
)


def users(look: Raw) -> None:
    for user in ("bob", "eve"):
        look.ask("ACL", "SETUSER", user, "on", ">pw", f"~{user[0]}*", "~warm", "+@all")


@pytest.mark.parametrize("words", HELLOS, ids=lambda words: repr(b" ".join(map(_bytes, words))))
def test_hit_runs_as_the_user_of_the_connection(
    client: Raw, look: Raw, words: tuple[bytes | str, ...]
) -> None:
    users(look)
    client.ask(*words)
    who = client.ask("ACL", "WHOAMI")
    assert who in (b"default", b"bob")
    for _ in range(4):
        reply = client.ask("RL.HIT", "secret", MANY, 60)
        assert is_error(reply, "NOPERM") == (who == b"bob"), (who, reply)
        assert not is_error(client.ask("RL.HIT", "b", MANY, 60), "NOPERM")


def _bytes(word: bytes | str) -> bytes:
    return word if isinstance(word, bytes) else word.encode()


SWITCHES = {
    "in MULTI": command("MULTI") + command("AUTH", "bob", "pw") + command("EXEC"),
    "HELLO in MULTI": command("MULTI") + command("HELLO", 3, "AUTH", "bob", "pw") + command("EXEC"),
    "behind EXEC": command("MULTI") + hit() + command("EXEC") + command("AUTH", "bob", "pw"),
    "under SKIP": command("CLIENT", "REPLY", "SKIP") + command("AUTH", "bob", "pw"),
    "under OFF": command("CLIENT", "REPLY", "OFF")
    + command("AUTH", "bob", "pw")
    + command("CLIENT", "REPLY", "ON"),
    "behind FOO": command("FOO") + command("AUTH", "bob", "pw"),
    "refused behind right": command("AUTH", "bob", "pw") + command("AUTH", "eve", "wrong"),
    "after RESET": command("RESET") + command("AUTH", "bob", "pw"),
    "inline": b'auth bob "pw"\r\n',
    "in between hits": hit() + command("AUTH", "bob", "pw") + hit("b"),
    "over 64 KB": command("AUTH", "bob", "pw") + command("AUTH", "eve", "x" * 70_000),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_hit_runs_as_the_new_user_after_auth(
    client: Raw, proxy: Proxy, look: Raw, name: str
) -> None:
    users(look)
    client.send(SWITCHES[name] + command("ECHO", "switched"))
    text = b""
    while not text.startswith(b"switched"):
        text = client.line()
        assert text
    assert client.ask("ACL", "WHOAMI") == b"bob"
    for _ in range(4):
        assert is_error(client.ask("RL.HIT", "secret", MANY, 60), "NOPERM")
    assert client.ask("RESET") == "RESET"
    for index in range(4):
        assert client.ask("RL.HIT", "secret", MANY, 60) == admitted(index + 1)


def test_hits_of_a_deleted_user_do_not_count(proxy: Proxy, look: Raw) -> None:
    look.ask("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all")
    with proxy.raw() as bob:
        assert bob.ask("AUTH", "bob", "pw") == "OK"
        join_lane(bob, look)
        before = look.ask("LLEN", "warm")
        look.ask("ACL", "DELUSER", "bob")
        bob.send(hit("warm"))
        assert bob.closes()
    assert look.ask("LLEN", "warm") == before


def test_disabled_user_or_new_password_keeps_the_connection(proxy: Proxy, look: Raw) -> None:
    for change in (("resetpass", ">other"), ("off",)):
        look.ask("ACL", "SETUSER", "bob", "reset", "on", ">pw", "~*", "+@all")
        look.ask("DEL", "b")
        with proxy.raw() as client:
            client.ask("AUTH", "bob", "pw")
            join_lane(client, look)
            look.ask("ACL", "SETUSER", "bob", *change)
            assert goes_by_lane(client, look)
            assert kill_lanes(look) > 0
            for index in range(5):
                assert client.ask("RL.HIT", "b", MANY, 60) == admitted(index + 1)
            assert stays_private(client, look)
            with proxy.raw() as other:
                assert is_error(other.ask("AUTH", "bob", "pw"), "WRONGPASS")
                assert other.ask("ACL", "WHOAMI") == b"default"


def test_error_before_noauth_does_not_authenticate(engine: str) -> None:
    """Without EVAL a hit is an unknown command, and Redis sends that error to unauthenticated
    clients too.
    """
    with (
        harness.server(engine, "--rename-command", "EVAL", "") as server,
        harness.proxy(server) as proxy,
        server.raw() as look,
        proxy.raw() as first,
    ):
        end = 200
        while "rlproxy-lane" not in names(look) and end:
            first.ask("RL.RESET", "x")
            end -= 1
        look.ask("CONFIG", "SET", "requirepass", "pw")
        with proxy.raw() as stranger:
            for _ in range(6):
                assert isinstance(stranger.ask("RL.HIT", "k", 5, 60), ReplyError)
                assert is_error(stranger.ask("RL.RESET", "k"), "NOAUTH")
        assert look.ask("EXISTS", "k") == 0


# -- databases ------------------------------------------------------------------------------------


def test_two_databases_are_two_limiters_on_two_lanes(client: Raw, proxy: Proxy, look: Raw) -> None:
    with proxy.raw() as other:
        other.ask("SELECT", 5)
        join_lane(other, look)
        for index in range(3):
            assert other.ask("RL.HIT", "k", MANY, 60) == admitted(index + 1)
            assert client.ask("RL.HIT", "k", MANY, 60) == admitted(index + 1)
        assert goes_by_lane(other, look) and goes_by_lane(client, look)
        assert (count(look, "k", 0), count(look, "k", 5)) == (3, 3)
        assert is_error(other.ask("SELECT", 99999), "ERR")
        assert other.ask("RL.HIT", "k", MANY, 60) == admitted(4)
        other.send(command("SELECT", 0) + hit() + command("SELECT", 5) + hit())
        assert [other.reply() for _ in range(4)] == ["OK", admitted(4), "OK", admitted(5)]


# -- order ----------------------------------------------------------------------------------------

FLUSHED: dict[str, tuple[bytes, list[object], dict[int, int]]] = {
    "hits": (hit() * 3, [admitted(1), admitted(2), admitted(3)], {0: 3}),
    "SELECT behind": (
        hit() + command("SELECT", 5) + hit(),
        [admitted(1), "OK", admitted(1)],
        {0: 1, 5: 1},
    ),
    "MULTI behind": (
        hit() + command("MULTI") + hit() + command("EXEC") + hit(),
        [admitted(1), "OK", "QUEUED", [admitted(2)], admitted(3)],
        {0: 3},
    ),
    "SKIP behind": (
        hit() + command("CLIENT", "REPLY", "SKIP") + hit() + hit(),
        [admitted(1), admitted(3)],
        {0: 3},
    ),
    "RESET behind": (
        command("SELECT", 5) + hit() + command("RESET") + hit(),
        ["OK", admitted(1), "RESET", admitted(1)],
        {0: 1, 5: 1},
    ),
    "QUIT behind": (hit() + command("QUIT") + hit(), [admitted(1), "OK"], {0: 1}),
    "DEL between": (
        hit() + command("DEL", "k") + hit(),
        [admitted(1), 1, admitted(1)],
        {0: 1},
    ),
    "RL.RESET between": (
        hit() + command("RL.RESET", "k") + hit() + hit() + command("RL.RESET", "k") + hit(),
        [admitted(1), 1, admitted(1), admitted(2), 1, admitted(1)],
        {0: 1},
    ),
    "RL.PEEK between": (
        hit() + command("RL.PEEK", "k", MANY, 60) + hit(),
        [admitted(1), admitted(1), admitted(2)],
        {0: 2},
    ),
}


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("name", FLUSHED)
def test_order_is_kept_when_the_script_is_missing(
    client: Raw, look: Raw, name: str, apart: bool
) -> None:
    data, replies, counts = FLUSHED[name]
    look.ask("SCRIPT", "FLUSH")
    if apart:
        for piece in data.replace(b"*4\r\n", b"\0*4\r\n").split(b"\0"):
            client.send(piece)
    else:
        client.send(data)
    assert [client.reply() for _ in replies] == replies
    if name == "QUIT behind":
        assert client.line() == b"" and client.closed
    else:
        assert client.ask("ECHO", "end") == b"end"
    assert {db: count(look, "k", db) for db in counts} == counts
    load_scripts(look)


def test_ten_thousand_hits_in_one_pipeline(client: Raw, look: Raw) -> None:
    size = 10_000
    data = hit() * size
    while data:
        client.send(data[:65536])
        data = data[65536:]
        if len(data) < 65536:
            break
    client.send(data)
    # Not reset_after: the machine's clock may step back by a microsecond.
    for number in range(size):
        reply = client.reply()
        assert isinstance(reply, list)
        assert reply[:4] == admitted(number + 1)[:4]
    assert count(look, "k") == size
    join_lane(client, look)


def test_hits_behind_a_partial_set_wait_for_it(client: Raw, proxy: Proxy, look: Raw) -> None:
    value = b"v" * 300_000
    whole = command("SET", "s", value) + hit() + command("STRLEN", "s") + hit()
    client.send(whole[:100_000])
    rounds(proxy)
    client.send(whole[100_000:])
    assert [client.reply() for _ in range(4)] == ["OK", admitted(1), 300_000, admitted(2)]
    join_lane(client, look)


def test_push_inside_an_array_is_no_element_of_it(
    client: Raw, proxy: Proxy, look: Raw, redis_server: RedisServer
) -> None:
    """Redis 6.2 and 7.0 write invalidations that were redirected here into EXEC's array."""
    client.ask("HELLO", 3)
    join_lane(client, look)
    number = client.ask("CLIENT", "ID")
    assert isinstance(number, int)
    with redis_server.raw() as tracker:
        tracker.ask("HELLO", 3)
        assert tracker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number) == "OK"
        tracker.ask("GET", "tracked")
        client.send(
            command("MULTI")
            + command("SET", "tracked", 1)
            + command("INCR", "n")
            + command("EXEC")
            + command("BLPOP", "list", 0)
        )
        data = b""
        while b":1\r\n" not in data or b"tracked" not in data:
            line = client.line()
            assert line
            data += line
        client.send(hit())  # has to wait behind BLPOP
        rounds(proxy)
        assert client.quiet(0.01) in (b"", b"\r\n")
        assert look.ask("RPUSH", "list", "x") == 1
        assert client.reply() == [b"list", b"x"]
        assert client.reply() == admitted(1)
        assert goes_by_lane(client, look)


def test_unsolicited_pushes_come_between_replies(
    client: Raw, look: Raw, redis_server: RedisServer
) -> None:
    client.ask("HELLO", 3)
    join_lane(client, look)
    number = client.ask("CLIENT", "ID")
    assert isinstance(number, int)
    with redis_server.raw() as tracker:
        tracker.ask("HELLO", 3)
        tracker.ask("CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", number)
        for index in range(30):
            look.ask("SET", "t", index)
            client.send(hit())
            got = [client.reply()]
            while got[-1] != admitted(index + 1):
                assert got[-1] in (
                    [b"invalidate", [b"t"]],
                    [b"invalidate", [b"k"]],
                    [b"invalidate", [b"k", b"t"]],
                    [b"invalidate", [b"t", b"k"]],
                )
                got.append(client.reply())
        wait_until(lambda: look.ask("LLEN", "k") == 30, "all hits counted")


def test_hit_behind_client_tracking_is_tracked_though_its_script_is_missing(
    client: Raw, look: Raw
) -> None:
    client.ask("HELLO", 3)
    join_lane(client, look)
    assert client.ask("RL.HIT", "k", 1, 60) == [0, 1, 0, -1, 60]
    assert look.ask("SCRIPT", "FLUSH") == "OK"
    client.send(command("CLIENT", "TRACKING", "ON") + command("RL.HIT", "k", 1, 60))
    assert client.reply() == "OK"
    refused = client.reply()  # it reads, and writes nothing
    assert isinstance(refused, list)
    assert refused[0] == 1
    look.ask("DEL", "k")
    assert client.reply() == [b"invalidate", [b"k"]]


def test_hit_on_a_watched_key_fails_the_transaction(client: Raw, proxy: Proxy, look: Raw) -> None:
    with proxy.raw() as other:
        join_lane(other, look)
        assert client.ask("WATCH", "k") == "OK"
        assert other.ask("RL.HIT", "k", MANY, 60) == admitted(1)  # by lane
        client.send(command("MULTI") + hit() + command("EXEC"))
        assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", None]
        assert count(look, "k") == 1
        # The client's own hit counts as a change as well; an unwatched key does not.
        client.send(command("WATCH", "k") + hit() + command("MULTI") + command("EXEC"))
        assert [client.reply() for _ in range(4)] == ["OK", admitted(2), "OK", None]
        client.send(command("WATCH", "j") + hit() + command("MULTI") + hit() + command("EXEC"))
        assert [client.reply() for _ in range(5)] == [
            "OK", admitted(3), "OK", "QUEUED", [admitted(4)],
        ]  # fmt: skip
        join_lane(client, look)
        # WATCH keeps no hit from the lane.
        assert client.ask("WATCH", "k") == "OK"
        assert goes_by_lane(client, look)
        assert client.ask("RL.HIT", "k", MANY, 60) == admitted(5)
        client.send(command("MULTI") + command("EXEC"))
        assert [client.reply() for _ in range(2)] == ["OK", None]


def test_error_of_the_clients_own_script_keeps_its_name(client: Raw) -> None:
    client.ask("SUBSCRIBE", "a")
    client.ask("UNSUBSCRIBE", "a")
    assert client.ask("RL.HIT", "k", MANY, 60) == admitted(1)
    client.ask("SUBSCRIBE", "a")
    assert str(client.ask("EVAL", "return 1", 0)).startswith("ERR Can't execute 'eval'")


FORGED = command("EVAL", "return {ok='RESET'}", 0)


@pytest.mark.parametrize(
    "state",
    [
        command("CLIENT", "REPLY", "ON"),
        command("PFDEBUG", "GETREG", "none"),  # unknown to the proxy
        command("MULTI"),
        command("SUBSCRIBE", "a"),
        command("CLIENT", "TRACKING", "ON"),
    ],
    ids=["reply", "unknown", "multi", "subscribe", "tracking"],
)
def test_forged_reset_opens_no_lane(client: Raw, look: Raw, state: bytes) -> None:
    client.ask("HELLO", 3)
    client.send(state + FORGED * 3)
    replies = [client.reply() for _ in range(4)]
    assert replies[1:] == ["QUEUED"] * 3 or replies[1:] == ["RESET"] * 3
    assert stays_private(client, look)


def test_a_command_that_redis_does_not_know_changes_nothing(client: Raw, look: Raw) -> None:
    join_lane(client, look)
    assert isinstance(client.ask("FOO"), ReplyError)
    assert goes_by_lane(client, look)


def test_mixed_chunks_keep_their_order_while_the_server_is_stopped(
    client: Raw, proxy: Proxy, look: Raw, redis_server: RedisServer
) -> None:
    with paused(redis_server.pid):
        expected: list[object] = []
        client.send(hit() * 3)
        client.send(command("RL.HIT", "k") + hit())
        client.send(command("SET", "a", 1) + hit())
        client.send(hit() * 100 + command("GET", "a"))
        client.send(command("SELECT", 5) + hit())
        wrong = ReplyError("ERR wrong number of arguments for 'rl.hit' command")
        expected += [admitted(1), admitted(2), admitted(3), wrong, admitted(4), "OK", admitted(5)]
        expected += [admitted(6 + n) for n in range(100)] + [b"1", "OK", admitted(1)]
    assert [client.reply() for _ in expected] == expected
    assert (count(look, "k"), count(look, "k", 5)) == (105, 1)
