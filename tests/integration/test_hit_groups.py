"""Groups: hits that a lane sends in one call are those that Redis would run one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests import harness, info
from tests.clusters import Cluster
from tests.harness import ON_EVERY_ENGINE, Proxy, Raw, RedisServer, ReplyError, command, is_error
from tests.integration.started import by_lane, by_lane_of

HOUR_S = 3600
MAX = 3


@pytest.fixture
def client(redis_server: RedisServer, proxy: Proxy) -> Iterator[Raw]:
    """A client whose hits go by lane."""
    with proxy.raw() as raw:
        by_lane(redis_server, raw)
        yield raw


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[Raw]:
    """A connection to the server, which has the user eve with every right for a test."""
    with redis_server.raw() as raw:
        raw.ask("ACL", "SETUSER", "eve", "on", ">pw", "~*", "+@all")
        yield raw
        raw.ask("ACL", "DELUSER", "eve")


@pytest.fixture
def eve(proxy: Proxy, admin: Raw) -> Iterator[Raw]:
    """A client that has logged in as eve."""
    with proxy.raw() as raw:
        assert raw.ask("AUTH", "eve", "pw") == "OK"
        yield raw


def hits(raw: Raw, keys: list[str], *rule: str | int) -> list[object]:
    """Send a hit of each key in one write; return the replies."""
    raw.send(b"".join(command("RL.HIT", key, *rule) for key in keys))
    return [raw.reply() for _ in keys]


@ON_EVERY_ENGINE
@pytest.mark.parametrize("algorithm", [name.decode() for name in ALGORITHMS])
def test_a_group_counts_as_single_hits_do(
    redis_server: RedisServer, client: Raw, algorithm: str
) -> None:
    """One key is used up, and one holds what no limiter writes."""
    rule = (MAX, HOUR_S, "ALGO", algorithm)
    keys = ["a", "b", "a", "foreign", "a", "c", "a", "b", "a", "foreign", "d", "d"]
    with redis_server.raw() as direct:
        direct.ask("SET", "foreign", "x")
        alone = [client.ask("RL.HIT", key, *rule) for key in keys]
        direct.ask("DEL", "a", "b", "c", "d")
        before = info.lane_calls(direct), info.calls(direct, "time")
        together = hits(client, keys, *rule)
        after = info.lane_calls(direct), info.calls(direct, "time")
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1]  # one clock
    for one, other in zip(together, alone, strict=True):
        if isinstance(other, ReplyError):
            assert one == other
            continue
        assert isinstance(one, list) and isinstance(other, list)
        assert one[:3] == other[:3]
        for seconds, expected in zip(one[3:], other[3:], strict=True):
            assert abs(seconds - expected) <= 10  # other moments
    assert [isinstance(one, ReplyError) for one in together] == [key == "foreign" for key in keys]


@ON_EVERY_ENGINE
@pytest.mark.parametrize("pattern", ["~mine:*", "~[^y]*"])
def test_the_order_behind_a_key_that_the_user_has_no_right_to(
    redis_server: RedisServer, admin: Raw, eve: Raw, pattern: str
) -> None:
    """A group would be refused as a whole, and what it holds would run behind the refund."""
    admin.ask("ACL", "SETUSER", "eve", "resetkeys", pattern)
    by_lane_of(redis_server, eve, "mine:0", admin)
    eve.send(
        command("RL.HIT", "yours", MAX, HOUR_S)
        + command("RL.HIT", "mine:1", MAX, HOUR_S)
        + command("RL.REFUND", "mine:1", MAX, HOUR_S, 1)
    )
    assert is_error(eve.reply(), "NOPERM")
    assert eve.reply() == [0, MAX, MAX - 1, -1, HOUR_S]
    assert eve.reply() == eve.ask("RL.PEEK", "mine:1", MAX, HOUR_S) == [0, MAX, MAX, -1, 0]


@ON_EVERY_ENGINE
def test_keys_that_the_user_loses_the_right_to(
    redis_server: RedisServer, admin: Raw, eve: Raw
) -> None:
    by_lane(redis_server, eve, admin)
    admin.ask("ACL", "SETUSER", "eve", "resetkeys", "~mine:*")
    for left in (99, 98):
        replies = hits(eve, ["mine:1", "yours", "mine:2", "mine:3"], 100, HOUR_S)
        assert is_error(replies[1], "NOPERM")
        assert [replies[at] for at in (0, 2, 3)] == [[0, 100, left, -1, HOUR_S]] * 3


@ON_EVERY_ENGINE
def test_a_right_that_a_script_lacks_is_the_same_error(
    redis_server: RedisServer, admin: Raw, eve: Raw
) -> None:
    """The first hit of a key needs RPUSH, and then PEXPIRE."""
    by_lane(redis_server, eve, admin)
    for denied in ("-rpush", "-pexpire", "-time"):
        admin.ask("ACL", "SETUSER", "eve", "+@all", denied)
        alone = eve.ask("RL.HIT", f"alone{denied}", MAX, HOUR_S)
        together = hits(eve, [f"one{denied}", f"two{denied}"], MAX, HOUR_S)
        assert isinstance(alone, ReplyError)
        assert together == [alone, alone]


def test_a_server_that_refuses_keys_of_several_slots_gets_single_hits(one_engine: str) -> None:
    with Cluster(one_engine, 1) as cluster:
        (node,) = cluster.nodes
        with harness.proxy_of_node(node) as proxy, proxy.raw() as raw:
            by_lane(node, raw)
            keys = [f"k{number}" for number in range(40)]
            for left in (99, 98, 97):
                assert hits(raw, keys, 100, HOUR_S) == [[0, 100, left, -1, HOUR_S]] * 40
