"""redis-py works with the proxy as with Redis, and sends RL.HIT by execute_command. Clients of a
cluster: test_cluster_clients.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio

from tests.harness import ON_ONE_ENGINE, Proxy, RedisServer, wait_until
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


@pytest.fixture
async def aclient(proxy: Proxy, protocol: int) -> AsyncIterator[Any]:
    """An asynchronous client."""
    made: Any = redis_asyncio.Redis(port=proxy.port, protocol=protocol, decode_responses=True)
    yield made
    await made.aclose()


def test_commands_of_all_kinds_work(client: Any) -> None:
    assert client.ping()
    assert client.set("s", "value", ex=100)
    assert client.get("s") == "value"
    assert 90 < client.ttl("s") <= 100
    assert client.hset("h", mapping={"a": 1, "b": 2}) == 2
    assert client.hgetall("h") == {"a": "1", "b": "2"}
    assert client.rpush("l", 1, 2, 3) == 3
    assert client.lrange("l", 0, -1) == ["1", "2", "3"]
    assert client.sadd("set", "x", "y") == 2
    assert client.smembers("set") == {"x", "y"}
    assert client.zadd("z", {"one": 1, "two": 2.5}) == 2
    assert client.zscore("z", "two") == 2.5
    assert client.xadd("x", {"f": "v"})
    assert len(client.xrange("x")) == 1
    assert sorted(client.scan_iter("*")) == ["h", "l", "s", "set", "x", "z"]
    assert client.dbsize() == 6
    assert "redis_version" in client.info("server")
    assert client.config_get("maxmemory")["maxmemory"] == "0"
    assert client.incr("n") == 1
    assert client.delete("n", "l") == 2
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.incr("h")
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NO.SUCH")


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


def test_pipelines_return_replies_in_order(client: Any) -> None:
    pipe = client.pipeline(transaction=False)
    for _ in range(5):
        pipe.execute_command(*HIT)
    assert pipe.execute() == FIVE
    client.delete("limit")
    pipe.set("a", 1).execute_command(*HIT)
    pipe.get("a")
    pipe.execute_command("RL.HIT", "limit", "five", 60)
    pipe.execute_command(*HIT)
    got = pipe.execute(raise_on_error=False)
    assert got[:3] == [True, FIVE[0], "1"]
    assert isinstance(got[3], redis.ResponseError)
    assert got[4] == FIVE[1]


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


def test_publish_and_subscribe(client: Any, proxy: Proxy, protocol: int) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("news")
        pubsub.psubscribe("n*")
        wait_until(lambda: client.pubsub_numpat() == 1, "the subscription is there")
        assert client.publish("news", "hello") == 2
        got: list[Any] = []

        def two() -> bool:
            message = pubsub.get_message(timeout=0.05)
            if message:
                got.append((message["type"], message["channel"], message["data"]))
            return len(got) == 2

        wait_until(two, "both messages")
        assert sorted(got) == [("message", "news", "hello"), ("pmessage", "news", "hello")]
        pubsub.unsubscribe()
        pubsub.punsubscribe()
        wait_until(lambda: client.pubsub_numpat() == 0, "it is gone")
    if protocol == 3:  # in RESP3 a subscribed connection may send other commands
        raw = client.connection_pool.get_connection()
        raw.send_command("SUBSCRIBE", "c")
        raw.send_command(*HIT)
        replies = [raw.read_response(push_request=True) for _ in range(2)]
        assert ["subscribe", "c", 1] in replies
        assert FIVE[0] in replies
        raw.disconnect()
        client.connection_pool.release(raw)


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


async def test_asyncio_client_works(aclient: Any) -> None:
    assert await aclient.ping()
    assert [await aclient.execute_command(*HIT) for _ in range(5)] == FIVE
    async with aclient.pipeline(transaction=True) as pipe:
        pipe.execute_command("RL.HIT", "other", 5, 60)
        pipe.set("a", 1)
        pipe.execute_command("RL.HIT", "other", 5, 60)
        assert await pipe.execute() == [FIVE[0], True, FIVE[1]]
    async with aclient.pipeline(transaction=False) as pipe:
        for _ in range(3):
            pipe.execute_command("RL.HIT", "other", 5, 60)
            pipe.echo("x")
        assert await pipe.execute() == [FIVE[2], "x", FIVE[3], "x", FIVE[4], "x"]
    assert await aclient.blpop("nothing", timeout=0.05) is None
    async with aclient.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("c")
        while await aclient.publish("c", "m") == 0:
            pass
        message = None
        while message is None:
            message = await pubsub.get_message(timeout=5)
        assert message["data"] == "m"
    double = aclient.register_script("return 2 * ARGV[1]")
    assert await double(args=[21]) == 42
