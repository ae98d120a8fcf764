"""WAIT and WAITAOF cover hits that went over lanes. With a stopped replica the number is never too
high, and it is Redis' own wherever replies are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests import harness
from tests.conformance.routing_support import (
    goes_by_lane,
    join_lane,
    kill_lanes,
    lane_calls,
    names,
)
from tests.harness import DEADLINE_S, ON_EVERY_ENGINE, Proxy, Raw, RedisServer, command, wait_until
from tests.info import blocked_clients
from tests.integration.started import by_lane_as_eval
from tests.processes import paused

IN_TIME_MS = int(DEADLINE_S * 1000)
HIT = ("RL.HIT", "warm", 1_000_000, 60)
# The rights that docs/operations.md lists, and WAIT.
RIGHTS = [
    *("+evalsha", "+eval", "+time", "+get", "+set", "+lindex", "+llen", "+rpush", "+lpush"),
    *("+ltrim", "+zrange", "+zcard", "+zcount", "+zadd", "+zremrangebyrank", "+pexpire", "+pttl"),
    *("+client|tracking", "+client|caching", "+del", "+wait"),
]
NOT_COVERED = "can't cover this connection's earlier writes here"


@dataclass
class Pair:
    """A primary, its replica, and a direct client of the primary."""

    primary: RedisServer
    replica: RedisServer
    look: Raw

    def in_step(self) -> None:
        """Return when the replica has received every write."""
        self.look.ask("SET", "step", 1)
        wait_until(lambda: self.look.ask("WAIT", 1, 100) == 1, "the replica is in step")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The replica has acknowledged all earlier writes, and acknowledges none within the
        block.
        """
        self.in_step()
        with paused(self.replica.pid):
            yield


@pytest.fixture(scope="module")
def pair(engine: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(harness.server(engine, "--repl-diskless-sync-delay", "0"))
        options = ("--replicaof", "127.0.0.1", str(primary.port))
        replica = stack.enter_context(harness.server(engine, *options))
        made = Pair(primary, replica, stack.enter_context(primary.raw()))
        made.in_step()
        yield made


@pytest.fixture(scope="module")
def proxy(pair: Pair) -> Iterator[Proxy]:
    with harness.proxy(pair.primary) as made:
        yield made


@pytest.fixture
def client(pair: Pair, proxy: Proxy) -> Iterator[Raw]:
    """A client whose hits go by lane."""
    with proxy.raw() as made:
        join_lane(made, pair.look)
        yield made


# -- replies ---------------------------------------------------------------------------------------


def steps(pair: Pair, server: RedisServer | Proxy, write: tuple[str | int, ...]) -> list[object]:
    """The replies of WAIT to two clients of `server` that write."""

    def client() -> Raw:
        made = server.raw()
        if isinstance(server, Proxy):
            join_lane(made, pair.look)
        return made

    with client() as one, client() as two:
        one.ask(*write)
        got = [one.ask("WAIT", 1, IN_TIME_MS), one.ask("WAIT", 1, IN_TIME_MS)]
        with pair.stopped():
            two.ask(*write)
            for words in (("WAIT", 1, 20), ("WAIT", 0, 0), ("WAIT", 9, 20), ("WAIT", "x", 0)):
                got.append(two.ask(*words))
            got += [two.ask("WAIT", 1), one.ask("WAIT", 1, 20)]  # its own write is older
            two.send(command("WAIT", 1, 0) + command("PING"))
            wait_until(lambda: blocked_clients(pair.look) == 1, "it waits")
        got += [two.reply(), two.reply()]
        two.send(command(*write) + command("WAIT", 1, IN_TIME_MS))
        two.reply()
        return [*got, two.reply()]


@ON_EVERY_ENGINE
def test_wait_answers_as_redis_does(pair: Pair, proxy: Proxy) -> None:
    expected = steps(pair, pair.primary, ("SET", "a", 1))
    assert expected[:5] == [1, 1, 0, 0, 0]
    assert expected[7:] == [1, 1, "PONG", 1]
    assert steps(pair, proxy, HIT) == expected


def test_first_wait_of_a_client_returns_no_smaller_number(pair: Pair, proxy: Proxy) -> None:
    with proxy.raw() as raw, pair.stopped():
        assert raw.ask("WAIT", 1, 20) == 1
        raw.ask("SET", "a", 1)
        assert raw.ask("WAIT", 1, 20) == 0


def test_no_message_is_published(pair: Pair, client: Raw) -> None:
    with pair.primary.raw() as subscriber:
        subscriber.ask("PSUBSCRIBE", "*")
        assert client.ask("WAIT", 1, IN_TIME_MS) == 1
        pair.look.ask("PUBLISH", "end", "x")
        assert subscriber.reply() == [b"pmessage", b"*", b"end", b"x"]


@ON_EVERY_ENGINE
@pytest.mark.parametrize("options", [(), ("--share", "yes")], ids=["private", "share"])
@pytest.mark.parametrize("write", [HIT, ("SET", "a", 1)], ids=["hit", "set"])
def test_user_without_channels_gets_the_right_number(
    pair: Pair, options: tuple[str, ...], write: tuple[str | int, ...]
) -> None:
    with harness.proxy(pair.primary, *options) as proxy, proxy.raw() as raw:
        rights = ["reset", "on", ">secret", "~*", "resetchannels", *RIGHTS]
        assert pair.look.ask("ACL", "SETUSER", "app", *rights) == "OK"
        assert raw.ask("AUTH", "app", "secret") == "OK"
        join_lane(raw, pair.look)
        with pair.stopped():
            pair.look.ask("ACL", "LOG", "RESET")
            raw.ask(*write)
            assert raw.ask("WAIT", 1, 20) == 0
            assert raw.ask("WAIT", 1, 20) == 0
        assert raw.ask("WAIT", 1, IN_TIME_MS) == 1
        assert pair.look.ask("ACL", "LOG") == []


@ON_EVERY_ENGINE
def test_user_without_wait_adds_one_line_to_the_acl_log(pair: Pair, proxy: Proxy) -> None:
    with proxy.raw() as raw:
        rights = ["reset", "on", ">secret", "~*", *RIGHTS, "-wait"]
        assert pair.look.ask("ACL", "SETUSER", "app", *rights) == "OK"
        assert raw.ask("AUTH", "app", "secret") == "OK"
        join_lane(raw, pair.look)
        pair.look.ask("ACL", "LOG", "RESET")
        assert str(raw.ask("WAIT", 1, 20)).startswith("NOPERM ")
        log = pair.look.ask("ACL", "LOG")
        assert isinstance(log, list)
        assert [entry[1] for entry in log] == [1]


@ON_EVERY_ENGINE
def test_server_of_unknown_version_is_covered(engine: str) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(
            harness.server(engine, "--repl-diskless-sync-delay", "0", "--requirepass", "pw")
        )
        options = ("--replicaof", "127.0.0.1", str(primary.port), "--masterauth", "pw")
        replica = stack.enter_context(harness.server(engine, *options))
        look = stack.enter_context(primary.raw())
        assert look.ask("AUTH", "pw") == "OK"
        pair = Pair(primary, replica, look)
        pair.in_step()
        proxy = stack.enter_context(harness.proxy(primary.url))
        raw = stack.enter_context(proxy.raw())
        assert raw.ask("AUTH", "pw") == "OK"
        by_lane_as_eval(primary, raw, look)
        with pair.stopped():
            assert isinstance(raw.ask("RL.HIT", "warm", 1_000_000, 3600), list)
            assert raw.ask("WAIT", 1, 20) == 0


def test_shared_writes_without_a_hit_are_not_covered(pair: Pair) -> None:
    with harness.proxy(pair.primary, "--share", "yes") as proxy, proxy.raw() as raw:

        def is_shared() -> bool:
            raw.ask("SET", "a", 1)
            return "rlproxy-share" in names(pair.look)

        wait_until(is_shared, "writes go by lane")
        pair.look.ask("ACL", "LOG", "RESET")
        with pair.stopped():
            raw.ask("SET", "a", 1)
            assert NOT_COVERED in str(raw.ask("WAIT", 1, 20))
            raw.ask("SET", "a", 1)
            assert NOT_COVERED in str(raw.ask("WAIT", 1, 20))
            raw.ask(*HIT)
            assert raw.ask("WAIT", 1, 20) == 0
        assert raw.ask("WAIT", 1, IN_TIME_MS) == 1
        assert pair.look.ask("ACL", "LOG") == []
        with proxy.raw() as other:
            assert other.ask("WAIT", 0, 0) == 1
            with pair.stopped():
                other.ask("SET", "a", 1)
                assert other.ask("WAIT", 1, 20) == 0


@ON_EVERY_ENGINE
@pytest.mark.parametrize("left", ["alive", "gone", "persistent", "other database"])
def test_wait_covers_hits_whose_key_has_changed(pair: Pair, client: Raw, left: str) -> None:
    key = f"limit:{left}"
    with pair.stopped():
        calls = lane_calls(pair.look)
        client.ask("RL.HIT", key, 10, 60)
        assert lane_calls(pair.look) > calls
        if left == "gone":
            pair.look.ask("DEL", key)
        elif left == "persistent":
            pair.look.ask("PERSIST", key)
        elif left == "other database":
            client.ask("SELECT", 1)
        before = [pair.look.ask(*words) for words in (("DUMP", key), ("PTTL", key))]
        found = client.ask("WAIT", 1, 20)
        if left == "persistent":
            assert NOT_COVERED in str(found)
        else:
            assert found == 0
        after = [pair.look.ask(*words) for words in (("DUMP", key), ("PTTL", key))]
        assert after[0] == before[0]
        assert isinstance(after[1], int)
        assert isinstance(before[1], int)
        assert 0 <= before[1] - after[1] < 60_000


@ON_EVERY_ENGINE
def test_waitaof_covers_hits(engine: str) -> None:
    if engine in ("redis-6.2", "redis-7.0"):
        pytest.skip("it has no WAITAOF")
    aof = ("--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        primary = stack.enter_context(
            harness.server(engine, "--repl-diskless-sync-delay", "0", *aof)
        )
        options = ("--replicaof", "127.0.0.1", str(primary.port))
        replica = stack.enter_context(harness.server(engine, *options, *aof))
        pair = Pair(primary, replica, stack.enter_context(primary.raw()))
        pair.in_step()
        wait_until(lambda: pair.look.ask("WAITAOF", 1, 1, 100) == [1, 1], "it is on both disks")
        proxy = stack.enter_context(harness.proxy(primary))
        replies = []
        for server, write in ((primary, ("SET", "a", 1)), (proxy, HIT)):
            with server.raw() as one, server.raw() as two:
                for raw in (one, two):
                    raw.ask("SET", "a", 1)
                    if server is proxy:
                        join_lane(raw, pair.look)
                one.ask(*write)
                got = [one.ask("WAITAOF", 1, 1, IN_TIME_MS)]
                with pair.stopped():
                    two.ask(*write)
                    got += [two.ask("WAITAOF", *words) for words in ((1, 1, 30), (0, 0, 0))]
                    got += [two.ask("WAITAOF", 2, 1, 0), two.ask("WAIT", 1, 20)]
                replies.append([*got, two.ask("WAITAOF", 1, 1, IN_TIME_MS)])
        assert replies[0][:3] == [[1, 1], [1, 0], [1, 0]]
        assert replies[1] == replies[0]


def test_wait_after_a_lost_lane(pair: Pair, client: Raw) -> None:
    with pair.stopped():
        assert goes_by_lane(client, pair.look)
        assert kill_lanes(pair.look) > 0
        assert client.ask("WAIT", 1, 20) == 0
    assert client.ask("WAIT", 1, IN_TIME_MS) == 1
