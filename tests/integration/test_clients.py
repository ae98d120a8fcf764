"""redis-py works with the proxy as with Redis, and sends RL.HIT by execute_command. Clients of a
cluster: test_cluster_clients.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.harness import ON_ONE_ENGINE, Proxy, RedisServer
from tests.info import lane_calls
from tests.integration.started import by_lane, lanes, private

pytestmark = ON_ONE_ENGINE
HIT = ("RL.HIT", "limit", 5, 60)
FIVE = [[0, 5, left, -1, 60] for left in (4, 3, 2, 1, 0)]


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def client(proxy: Proxy, protocol: int) -> Iterator[Any]:
    """A synchronous client."""
    with redis.Redis(port=proxy.port, protocol=protocol, decode_responses=True) as made:
        yield made


def test_hits_by_execute_command(client: Any, redis_server: RedisServer) -> None:
    assert [client.execute_command(*HIT) for _ in range(5)] == FIVE
    refused = client.execute_command(*HIT)
    assert refused[:3] == [1, 5, 0]
    assert 55 < refused[3] <= 60
    assert client.execute_command("RL.PEEK", "limit", 5, 60)[:3] == [1, 5, 0]
    assert client.llen("limit") == 5
    assert client.execute_command("RL.RESET", "limit") == 1
    assert client.execute_command(*HIT) == FIVE[0]
    for words in (("RL.HIT",), ("RL.HIT", "k", 0, 1), ("RL.HIT", "k", 1, 1, "ALGO", "NONE")):
        with pytest.raises(redis.ResponseError):
            client.execute_command(*words)
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("RL.NOPE", "k")
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.execute_command("RL.HIT", "text", 5, 60)


def test_transactions_count_hits_or_abort(client: Any) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.set("a", "1")
    pipe.execute_command(*HIT)
    pipe.get("a")
    pipe.execute_command(*HIT)
    assert pipe.execute() == [True, FIVE[0], "1", FIVE[1]]
    pipe.execute_command(*HIT)
    pipe.execute_command("RL.HIT", "limit", 0, 60)
    with pytest.raises(redis.ResponseError):
        pipe.execute()
    assert client.llen("limit") == 2  # the transaction was aborted as a whole
    pipe.reset()
    with client.pipeline() as watching:
        watching.watch("a")
        assert watching.execute_command(*HIT) == FIVE[2]
        client.set("a", "2")
        watching.multi()
        watching.execute_command(*HIT)
        with pytest.raises(redis.WatchError):
            watching.execute()
    assert client.execute_command(*HIT) == FIVE[3]
    taken = client.transaction(lambda p: (p.multi(), p.execute_command(*HIT)), "a")
    assert taken == [FIVE[4]]


def test_hits_go_by_lane_after_every_handshake(
    client: Any, proxy: Proxy, redis_server: RedisServer
) -> None:
    """The commands redis-py sends first (HELLO, CLIENT SETINFO, ...) must not keep it off the
    lanes.
    """
    with proxy.raw() as raw:
        by_lane(redis_server, raw)

    def of_clients() -> list[dict[str, str]]:
        rows = lanes(redis_server)
        return [row for row in rows if (row["user"], row["db"]) == ("default", "0")]

    (lane,) = of_clients()
    for reply in FIVE[:4]:
        assert client.execute_command(*HIT) == reply
    (same,) = of_clients()
    assert same["id"] == lane["id"]
    assert same["cmd"] == "evalsha"
    (own,) = (row for row in private(redis_server) if row["cmd"] != "client|list")
    before = lane_calls(redis_server)
    assert client.execute_command(*HIT) == FIVE[4]
    assert lane_calls(redis_server) == before + 1
    (same,) = (row for row in private(redis_server) if row["id"] == own["id"])
    assert same["cmd"] == own["cmd"]
