"""Missing scripts, and servers on which script commands are renamed or forbidden.

Every hit is counted once and answered as if the scripts were present. The hits of one client run in
the order in which it sent them.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator

import pytest
from rlproxy.ratelimit import scripts

from tests import harness, info
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.integration.started import by_lane, by_lane_as_eval, lanes

MAX = 1_000_000


def errors(admin: Raw) -> int:
    """How many errors the server has answered, without those of INFO itself."""
    return info.value(admin, "stats", "total_error_replies")


def has_lane(server: RedisServer, raw: Raw, admin: Raw) -> None:
    """Hit the key `warm` until there is a lane, and send one more hit on it."""

    def opened() -> bool:
        raw.ask("RL.HIT", "warm", MAX, 3600)
        return bool(lanes(server, admin))

    wait_until(opened, "there is a lane")
    for _ in range(20):
        assert isinstance(raw.ask("RL.HIT", "warm", MAX, 3600), list)


# -- commands that are renamed --------------------------------------------------------------------


@contextlib.contextmanager
def server_without(engine: str, name: str) -> Iterator[tuple[RedisServer, Proxy, Raw]]:
    """A server without the command `name`, a proxy in front, and a connection to the server."""
    with (
        harness.server(engine, "--rename-command", name, "") as server,
        harness.proxy(server) as proxy,
        server.raw() as admin,
    ):
        yield server, proxy, admin


def test_a_missing_evalsha_is_replaced_by_eval(engine: str) -> None:
    with server_without(engine, "EVALSHA") as (server, proxy, admin), proxy.raw() as raw:
        has_lane(server, raw, admin)
        for at in range(3):  # the first call of each kind may be answered with the error
            assert raw.ask("RL.HIT", "k", 100, 60) == [0, 100, 99 - at, -1, 60]
            assert raw.ask("RL.PEEK", "k", 100, 60) == [0, 100, 99 - at, -1, 60]
        before = errors(admin)
        raw.send(command("RL.HIT", "k", 100, 60) * 10 + command("RL.PEEK", "k", 100, 60))
        raw.send(command("CL.THROTTLE", "cell", 15, 30, 60))
        replies = [raw.reply() for _ in range(12)]
        assert replies == [
            *([0, 100, left, -1, 60] for left in range(96, 86, -1)),
            [0, 100, 87, -1, 60],
            [0, 16, 15, -1, 2],
        ]
        raw.send(command("PING") + command("RL.PEEK", "k", 100, 60))  # on the private connection
        assert [raw.reply() for _ in range(2)] == ["PONG", [0, 100, 87, -1, 60]]
        assert errors(admin) == before


def test_missing_eval_is_one_error_per_hit(engine: str) -> None:
    with server_without(engine, "EVAL") as (_, proxy, admin), proxy.raw() as raw:
        before = errors(admin)
        raw.send((command("RL.HIT", "k", 5, 60) + command("PING")) * 10)
        for _ in range(10):
            reply = raw.reply()
            assert isinstance(reply, ReplyError)
            assert re.fullmatch(
                "ERR unknown command ['`]EVAL['`]: RL commands need it on the server", str(reply)
            )
            assert raw.reply() == "PONG"
        assert errors(admin) - before == 10


# -- the order of one client's calls --------------------------------------------------------------

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def fixed_then_log(raw: Raw, key: str) -> None:
    """The hit of FIXED is first: that of LOG finds its string."""
    fixed = command("RL.HIT", key, 5, 60, "ALGO", "FIXED")
    raw.send(fixed + command("RL.HIT", key, 5, 60) + fixed)
    replies = [raw.reply() for _ in range(3)]
    assert isinstance(replies[1], ReplyError), replies
    assert str(replies[1]) == WRONG_TYPE
    assert [replies[0], replies[2]] == [[0, 5, 4, -1, 60], [0, 5, 3, -1, 60]]


def test_two_algorithms_on_one_key_keep_their_order(
    redis_server: RedisServer, proxy: Proxy
) -> None:
    """Another client's first hit, on its private connection, loads the script of one of them
    only.
    """
    with redis_server.raw() as admin, proxy.raw() as raw:
        by_lane(redis_server, raw, admin)
        for turn in range(20):
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            with proxy.raw() as other:
                assert isinstance(other.ask("RL.HIT", "another", MAX, 60), list)
            fixed_then_log(raw, f"k{turn}")


# -- scripts that are evicted ---------------------------------------------------------------------


def many_evals(admin: Raw, numbers: Iterator[int]) -> None:
    """As many different scripts by EVAL as Redis keeps, and some more."""
    admin.send(b"".join(command("EVAL", f"return {next(numbers)}", 0) for _ in range(600)))
    for _ in range(600):
        assert isinstance(admin.reply(), int)


def hits_among_evals(raw: Raw, admin: Raw, key: str) -> None:
    numbers = itertools.count()
    for left in range(99, -1, -1):
        if left % 5 == 4:
            many_evals(admin, numbers)
        assert raw.ask("RL.HIT", key, 100, 3600) == [0, 100, left, -1, 3600]


@pytest.fixture
def evicting() -> Iterator[RedisServer]:
    """A server that evicts scripts."""
    name = "redis-8.2"
    if name not in harness.engines():
        pytest.skip("no server that evicts scripts")
    with harness.server(name) as made:
        yield made


def test_loaded_scripts_are_not_evicted_by_hits_sent_as_eval(
    evicting: RedisServer,
) -> None:
    with harness.proxy(evicting) as proxy, proxy.raw() as raw, evicting.raw() as admin:
        by_lane(evicting, raw, admin)
        assert admin.ask("SCRIPT", "FLUSH") == "OK"
        raw.send(command("MULTI") + command("RL.HIT", "place", 5, 60) + command("EXEC"))  # by EVAL
        assert [raw.reply() for _ in range(3)] == ["OK", "QUEUED", [[0, 5, 4, -1, 60]]]
        missing, loaded = info.errors(admin, "NOSCRIPT"), info.calls(admin, "script|load")
        assert raw.ask("RL.HIT", "k", 100, 3600) == [0, 100, 99, -1, 3600]
        loaded += len(scripts.load())
        wait_until(lambda: info.calls(admin, "script|load") == loaded, "they are loaded again")
        by_lane(evicting, raw, admin)
        assert raw.ask("RL.RESET", "k") == 1
        hits_among_evals(raw, admin, "k")
        assert info.value(admin, "stats", "evicted_scripts") > 1000
        assert info.errors(admin, "NOSCRIPT") - missing == 1
        assert info.calls(admin, "script|load") == loaded
        with proxy.raw() as other:
            by_lane(evicting, other, admin)
            hits_among_evals(other, admin, "again")
        assert info.errors(admin, "NOSCRIPT") - missing == 1


def test_where_no_script_can_be_loaded_each_hit_carries_it(evicting: RedisServer) -> None:
    rights = ["~*", "&*", "+@all", "-script"]
    with evicting.raw() as admin:
        assert admin.ask("ACL", "SETUSER", "control", "reset", "on", ">pw", *rights) == "OK"
        url = f"redis://control:pw@127.0.0.1:{evicting.port}"
        with harness.proxy(url) as proxy, proxy.raw() as raw:
            by_lane_as_eval(evicting, raw, admin)
            hits_among_evals(raw, admin, "k")
            assert info.errors(admin, "NOSCRIPT") == info.calls(admin, "script|load") == 0
            assert admin.ask("ACL", "SETUSER", "control", "+script") == "OK"
            by_lane(evicting, raw, admin)  # by EVALSHA, once the next try has loaded them
