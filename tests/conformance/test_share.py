"""--share: commands on shared connections are answered byte for byte as on a private connection,
and no client gets another client's reply.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from rlproxy.resp import commands

from tests import harness
from tests.conformance.routing_support import password, rounds
from tests.conformance.test_cluster import cluster_node
from tests.conformance.troubles import TROUBLES, trouble
from tests.gate import Gate, Pipe, gated
from tests.harness import (
    DEADLINE_S,
    ON_ONE_ENGINE,
    Proxy,
    Raw,
    RedisServer,
    command,
    wait_until,
)
from tests.info import calls, clients

SHARE = ("--share", "yes")
LARGE = 65536  # bytes; a shared connection carries no larger reply
ONE = sorted(harness.engines())[-1:]  # for tests that take seconds and do not depend on the engine
Words = tuple[bytes | str | int, ...]


class ClosedError(Exception):
    """The peer has closed the connection."""


def frame(raw: Raw) -> bytes:
    """The next reply as raw bytes."""
    line = raw.line()
    if not line.endswith(b"\r\n"):
        raise ClosedError(line)
    kind, size = line[:1], line[1:-2]
    if kind in b"$=!" and size != b"-1":
        data = raw.exactly(int(size) + 2)
        if len(data) < int(size) + 2:
            raise ClosedError
        return line + data
    if kind in b"*~>%|" and size != b"-1":
        count = int(size) * (2 if kind in b"%|" else 1) + (kind == b"|")
        return line + b"".join(frame(raw) for _ in range(count))
    return line


def raw_reply(raw: Raw, *words: bytes | str | int) -> bytes:
    """One command's reply as raw bytes."""
    raw.send(command(*words))
    return frame(raw)


def text(raw: Raw, *words: bytes | str | int) -> str:
    """One command's bulk reply as text."""
    answer = raw.ask(*words)
    assert isinstance(answer, bytes), answer
    return answer.decode()


def connections(look: Raw) -> dict[int, dict[str, str]]:
    """CLIENT LIST, by id."""
    return {int(row["id"]): row for row in clients(look)}


def private_id(client: Raw) -> int:
    """The id of the client's private connection, found by sending CLIENT on it."""
    answer = client.ask("CLIENT", "ID")
    assert isinstance(answer, int), answer
    return answer


def by_lane(client: Raw, look: Raw, *words: bytes | str | int) -> bool:
    """Whether this command of `client` travels on a shared connection."""
    own = private_id(client)
    raw_reply(client, *words)
    return connections(look)[own]["cmd"].startswith("client")


def shares(client: Raw, look: Raw) -> bool:
    """Whether reads and writes of `client` travel on a shared connection now; neither changes
    data.
    """
    return by_lane(client, look, "GETBIT", "warm", 0) and by_lane(client, look, "PERSIST", "warm")


def join(client: Raw, look: Raw) -> Raw:
    """Return when they do."""
    wait_until(lambda: shares(client, look), "ordinary commands are shared")
    return client


def lanes(look: Raw) -> list[int]:
    """The ids of the shared connections."""
    return [number for number, row in connections(look).items() if row["name"] == "rlproxy-share"]


class Pair:
    """A server and a proxy with --share, and a connection for inspection."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.look = server.raw()

    @contextlib.contextmanager
    def clients(self, count: int, protocol: int = 2) -> Iterator[list[Raw]]:
        """Clients whose ordinary commands are shared."""
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(self.proxy.raw()) for _ in range(count)]
            for client in made:
                if protocol == 3:
                    client.ask("HELLO", 3)
                join(client, self.look)
            yield made

    @contextlib.contextmanager
    def client(self, protocol: int = 2) -> Iterator[Raw]:
        with self.clients(1, protocol) as (one,):
            yield one


@pytest.fixture(scope="module")
def module_pair(module_server: RedisServer) -> Iterator[Pair]:
    with harness.proxy(module_server, *SHARE) as proxy:
        made = Pair(module_server, proxy)
        yield made
        made.look.close()


@pytest.fixture
def pair(module_pair: Pair) -> Pair:
    """The module's pair, with the server empty."""
    module_pair.look.ask("FLUSHALL")
    return module_pair


# -- the same bytes --------------------------------------------------------------------------------

# A sample that finds a value, for each command that may be shared.
_SAMPLES = """
APPEND s abc; BITCOUNT s 0 -1; BITPOS s 1; DECR n; DECRBY n 7; DEL gone1 gone2; ECHO x;
EXISTS s s none; EXPIRE l 1000 NX; EXPIREAT l 99999999999; EXPIRETIME e;
GEOADD g 13.361389 38.115556 b; GEODIST g a a; GEOHASH g a none; GEOPOS g a none;
GEOSEARCH g FROMMEMBER a BYRADIUS 1 km WITHDIST WITHCOORD; GET s; GETBIT s 3; GETRANGE s 1 2;
HDEL h f9 f2; HEXISTS h f1; HEXPIRETIME h FIELDS 1 f1; HGET h f1; HGETALL h; HINCRBY h n 3;
HINCRBYFLOAT h n 1.5; HKEYS h; HLEN h; HMGET h f1 none; HMSET h f5 5 f6 6;
HPEXPIRETIME h FIELDS 1 f1; HPTTL h FIELDS 1 f1; HSCAN h 0; HSET h f7 7 f1 1; HSETNX h f8 8;
HSTRLEN h f1; HTTL h FIELDS 1 f1; HVALS h; INCR n; INCRBY n 5; INCRBYFLOAT f 0.25; LINDEX l 1;
LINSERT l BEFORE b x; LLEN l; LPOS l b COUNT 0; LPUSH l 1 2; LPUSHX none 1; LRANGE l 0 -1;
LREM l 1 a; LSET l 0 z; LTRIM l 0 5; MGET s none l; MSET m1 1 m2 2; MSETNX m1 1 m3 3; PERSIST e;
PEXPIRE absent 1000; PEXPIREAT l 99999999999999; PEXPIRETIME e; PFADD p a b c; PFCOUNT p;
PSETEX m1 1000000 x; PTTL s; RENAME m1 m4; RENAMENX m4 m2; RPUSH l 8 9; RPUSHX l 7; SADD t 7 8;
SCARD t; SDIFF t u; SET s value KEEPTTL; SETBIT s 9 1; SETEX m5 1000 x; SETNX s x;
SETRANGE s 2 xyz; SINTER t u; SISMEMBER t 1; SMEMBERS t; SMISMEMBER t 1 99; SMOVE t u 1;
SREM t 2 99; SSCAN t 0; STRLEN s; SUBSTR s 0 1; SUNION t u; TIME; TOUCH s none; TTL s; TYPE z;
UNLINK gone3; XACK x grp 1-1; XACKDEL x grp IDS 1 1-1; XADD x 5-5 a b; XDEL x 1-1;
XDELEX x IDS 2 1-1 9-9; XLEN x; XRANGE x - +; XREVRANGE x + - COUNT 1; XTRIM x MAXLEN 5;
ZADD z INCR 1.5 a; ZCARD z; ZCOUNT z -inf +inf; ZINCRBY z 2.5 a; ZLEXCOUNT z - +;
ZMSCORE z a none; ZRANGE z 0 -1 WITHSCORES; ZRANGEBYLEX z - +;
ZRANGEBYSCORE z -inf +inf WITHSCORES; ZRANK z b; ZREM z none; ZREMRANGEBYLEX z [x [y;
ZREMRANGEBYRANK z 50 60; ZREMRANGEBYSCORE z 1000 2000; ZREVRANGE z 0 -1 WITHSCORES;
ZREVRANGEBYLEX z + -; ZREVRANGEBYSCORE z +inf -inf; ZREVRANK z b; ZSCAN z 0; ZSCORE z b
"""
SAMPLES = {line.split()[0]: line.split()[1:] for line in _SAMPLES.split(";")}
READS = frozenset(commands.SHARED_READS.decode().split())
WRITES = frozenset(commands.SHARED_WRITES.decode().split())
VARIES = ("TIME",)  # with every call

SETUP: tuple[str, ...] = (
    "SET s value",
    "SET n 10",
    "SET f 1.5",
    "HSET h f1 1 f2 2 f3 3 n 1",
    "RPUSH l a b c b a",
    "SADD t 1 2 3",
    "SADD u 3 4",
    "ZADD z 1 a 2.5 b +inf c",
    "GEOADD g 13.361389 38.115556 a",
    "XADD x 1-1 a b",
    "XADD x 2-1 c d",
    "XGROUP CREATE x grp 0",
    "PFADD p x",
    "SET e x",
    "PEXPIREAT e 99999999999999",
)


def sample(name: str) -> list[str]:
    return [name, *SAMPLES[name]]


def prepare(look: Raw) -> None:
    look.ask("FLUSHALL")
    for line in SETUP:
        answer = look.ask(*line.split())
        assert not isinstance(answer, Exception), (line, answer)


def test_every_shareable_command_has_a_sample() -> None:
    assert set(SAMPLES) >= READS | WRITES


@pytest.mark.parametrize("protocol", [2, 3])
def test_each_command_one_by_one(pair: Pair, protocol: int) -> None:
    """The reply to existing, missing and wrong-type keys, and with too few and too many words."""
    rows: list[Words] = []
    for name in SAMPLES:
        if name not in VARIES:
            found = tuple(sample(name))
            lower = (name.lower(), *found[1:])
            rows += [found, lower, (name, "none"), (name, "h", "one", "2"), (name, "t"), (name,)]
            rows += [(*found, "what", "is", "this")]
    rows += [("SET", "", ""), ("GET", ""), ("SET", b"\r\n", b"\0\r\n\xff"), ("GET", b"\r\n")]
    answers: list[list[bytes]] = []
    for who in ("server", "proxy"):
        prepare(pair.look)
        with contextlib.ExitStack() as stack:
            if who == "server":
                raw = stack.enter_context(pair.server.raw())
                raw.ask("HELLO", protocol)
            else:
                raw = stack.enter_context(pair.client(protocol))
            answers.append([raw_reply(raw, *words) for words in rows])
    different = [
        (words, direct, proxied)
        for words, direct, proxied in zip(rows, *answers, strict=True)
        if direct != proxied
    ]
    assert not different, different[:3]


def test_each_command_goes_by_lane(pair: Pair) -> None:
    prepare(pair.look)
    with pair.client() as client:
        private = [
            name for name in sorted(READS | WRITES) if not by_lane(client, pair.look, *sample(name))
        ]
    assert private == []


# -- errors ----------------------------------------------------------------------------------------


# The proxy cuts its connections if replicas keep answering: other tests have another proxy.
DEMOTED = ("READONLY", "MASTERDOWN")


@pytest.mark.parametrize("error", TROUBLES)
def test_errors_of_the_server_reach_the_client_unchanged(pair: Pair, error: str) -> None:
    rows: tuple[Words, ...] = (
        ("SET", "evalsha", "NOSCRIPT"),
        ("GET", "evalsha"),
        ("HSET", "h", "f", "v"),
        ("ECHO", "-NOSCRIPT No matching script"),
        ("MGET", "a", "b"),
        ("INCR", "n"),
    )
    with contextlib.ExitStack() as stack:
        if error in DEMOTED:
            pair = Pair(pair.server, stack.enter_context(harness.proxy(pair.server, *SHARE)))
            stack.callback(pair.look.close)
        client = stack.enter_context(pair.client())
        direct = stack.enter_context(pair.server.raw())
        other = stack.enter_context(pair.server.raw())
        stack.enter_context(trouble(error, pair.look, other))
        expected = [raw_reply(direct, *words) for words in rows]
        assert [raw_reply(client, *words) for words in rows] == expected
        assert any(each.startswith(b"-" + error.encode()) for each in expected)


@pytest.mark.parametrize("one", ONE)
def test_errors_of_a_cluster_reach_the_client_unchanged(one: str) -> None:
    with (
        cluster_node(one) as node,
        harness.proxy_of_node(node, *SHARE) as proxy,
        node.raw() as look,
    ):
        node_id = text(look, "CLUSTER", "MYID")
        look.ask("CLUSTER", "ADDSLOTS", *range(12000))
        wait_until(lambda: raw_reply(look, "GET", "bar") == b"$-1\r\n", "the node serves")
        rows: tuple[Words, ...] = (
            ("GET", "bar"),
            ("GET", "foo"),
            ("SET", "foo", "x"),
            ("MGET", "bar", "b"),
            ("MSET", "{bar}a", 1, "{bar}b", 2),
            ("RENAME", "{bar}a", "{bar}c"),
        )
        with proxy.raw() as client, node.raw() as direct:
            wait_until(lambda: by_lane(client, look, "GET", "bar"), "it is shared")
            wait_until(lambda: by_lane(client, look, "PERSIST", "bar"), "it is shared")
            expected = [raw_reply(direct, *words) for words in rows]
            look.ask("DEL", "{bar}a", "{bar}b", "{bar}c")
            assert [raw_reply(client, *words) for words in rows] == expected
            errors = {line.split()[0] for line in expected if line.startswith(b"-")}
            assert {b"-CLUSTERDOWN", b"-CROSSSLOT"} <= errors
            slot = look.ask("CLUSTER", "KEYSLOT", "k")
            look.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", node_id)
            own = private_id(client)
            for name in ("get", "strlen"):
                assert client.ask("ASKING") == "OK"
                assert raw_reply(client, name, "k") in (b"$-1\r\n", b":0\r\n")
                assert connections(look)[own]["cmd"] == name
            assert client.ask("READONLY") == "OK"
            assert not by_lane(client, look, "GET", "bar")


# -- many clients ----------------------------------------------------------------------------------


def test_client_that_takes_redirects_shares_no_connection(pair: Pair) -> None:
    """CLIENT CAPA of Valkey: a replica redirects the commands of this connection alone."""
    with pair.clients(2) as (client, other):
        client.ask("CLIENT", "SETNAME", "capa")
        assert shares(client, pair.look)
        raw_reply(client, "CLIENT", "CAPA", "REDIRECT")
        assert not by_lane(client, pair.look, "GETBIT", "warm", 0)
        assert not by_lane(client, pair.look, "PERSIST", "warm")
        assert shares(other, pair.look)


@ON_ONE_ENGINE
def test_large_and_small_replies_of_many_clients(pair: Pair) -> None:
    fields = [word for at in range(10_000) for word in (f"field{at}", at)]
    pair.look.ask("HSET", "h", *fields)
    pair.look.ask("RPUSH", "l", *range(20_000))
    pair.look.ask("SET", "mb", os.urandom(1 << 20))
    large: list[Words] = [("HGETALL", "h"), ("LRANGE", "l", 0, -1), ("GET", "mb"), ("HKEYS", "h")]
    expected = {words: raw_reply(pair.look, *words) for words in large}

    def small(client: Raw, number: int) -> None:
        for at in range(150):
            word = b"%d:%d" % (number, at)
            assert raw_reply(client, "ECHO", word) == b"$%d\r\n%b\r\n" % (len(word), word)

    def greedy(number: int) -> None:
        for at in range(3):
            with pair.proxy.raw() as client:
                raw_reply(client, "GET", "none")
                words = large[(number + at) % len(large)]
                assert raw_reply(client, *words) == expected[words]
                assert raw_reply(client, "GET", "none") == b"$-1\r\n"

    before = {name: calls(pair.look, name) for name in ("hgetall", "lrange", "hkeys")}
    with pair.clients(6) as clients, ThreadPoolExecutor(12) as pool:
        tasks = [pool.submit(small, client, at) for at, client in enumerate(clients)]
        tasks += [pool.submit(greedy, number) for number in range(4)]
        for task in tasks:
            task.result()
    for name, count in before.items():
        assert calls(pair.look, name) - count <= 6  # three times, and again at most once each


@ON_ONE_ENGINE
def test_slow_reader_delays_no_client_and_uses_bounded_memory(pair: Pair) -> None:
    size, readers = 16_000_000, 8
    pair.look.ask("SET", "big", b"x" * size)
    with pair.clients(1) as (other,), pair.clients(readers) as slow:
        before = pair.proxy.memory()
        for client in slow:
            client.send(command("GET", "big"))
        for at in range(300):
            assert raw_reply(other, "SET", "k", at) == b"+OK\r\n"
            assert other.ask("GET", "k") == b"%d" % at
        assert pair.proxy.memory() - before < readers * size // 3
        for client in slow[:2]:
            assert frame(client) == b"$%d\r\n%b\r\n" % (size, b"x" * size)
            assert raw_reply(client, "ECHO", "x") == b"$1\r\nx\r\n"


# -- replies in pieces -----------------------------------------------------------------------------


@contextlib.contextmanager
def held(pair: Pair) -> Iterator[tuple[Gate, Pair]]:
    """The server behind a gate."""
    with gated(pair.server, *SHARE) as (gate, proxy):
        made = Pair(pair.server, proxy)
        try:
            yield gate, made
        finally:
            made.look.close()


def lane(gate: Gate, carried: bytes) -> Pipe:
    """The newest shared connection that carried these bytes."""

    def found() -> list[Pipe]:
        return [
            pipe for pipe in gate.pipes if b"rlproxy-share" in pipe.sent and carried in pipe.sent
        ]

    wait_until(found, "a shared connection")
    return found()[-1]


def reading(gate: Gate) -> Pipe:
    return lane(gate, b"GETBIT")


def writing(gate: Gate) -> Pipe:
    return lane(gate, b"PERSIST")


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def at_least(size: int, data: bytes) -> bool:
    return len(data) >= size


@ON_ONE_ENGINE
@pytest.mark.parametrize("pieces", ["whole", "two", "three", "bytes at the edge"])
def test_large_replies_in_pieces_with_others_behind_them(pair: Pair, pieces: str) -> None:
    """At each size near the bound: the right reply to each, and no command sent more than twice."""
    with held(pair) as (gate, front), front.clients(2) as (second, third):
        front.look.ask("SET", "b", "second")
        front.look.ask("SET", "c", "third")
        pipe = reading(gate)
        for size in (LARGE - 11, LARGE - 10, LARGE - 9, LARGE - 1, LARGE, LARGE + 1, 150_000):
            value = random.Random(size).randbytes(size)
            front.look.ask("SET", "a", value)
            front.look.ask("CONFIG", "RESETSTAT")
            with front.client() as first:
                pipe.hold()
                first.send(command("GET", "a"))
                wait_until(lambda: calls(front.look, "get") == 1, "the large one is first")
                second.send(command("GET", "b"))
                third.send(command("GET", "c"))
                total = len(bulk(value))
                behind = len(bulk(b"second") + bulk(b"third"))
                pipe.until(partial(at_least, total + behind))
                if pieces == "two":
                    pipe.release(total // 2)
                    rounds(front.proxy, 2)
                elif pieces == "three":
                    pipe.release(LARGE - 3)
                    rounds(front.proxy, 2)
                    pipe.release(total - (LARGE - 3) + 5 if total > LARGE else 1)
                    rounds(front.proxy, 2)
                elif pieces == "bytes at the edge":
                    pipe.release(min(total, LARGE) - 2)
                    for _ in range(4):
                        rounds(front.proxy, 1)
                        pipe.release(1)
                pipe.release()
                assert frame(first) == bulk(value)
            assert frame(second) == bulk(b"second")
            assert frame(third) == bulk(b"third")
            assert calls(front.look, "get") in (3, 4)
            if size < LARGE - 10:
                assert calls(front.look, "get") == 3
            elif size > 2 * LARGE and pieces == "two":
                assert calls(front.look, "get") == 4


# -- lost connections ------------------------------------------------------------------------------


def test_lost_lane_closes_clients_with_writes_and_repeats_reads(pair: Pair) -> None:
    with held(pair) as (gate, front), front.clients(8) as clients:
        readers, writers = clients[:5], clients[5:]
        front.look.ask("SET", "s", "value")
        for pipe in (reading(gate), writing(gate)):
            pipe.hold()
        for client in readers:
            client.send(command("GET", "s"))
        for client in writers:
            client.send(command("INCR", "n"))
        wait_until(lambda: front.look.ask("GET", "n") == b"3", "the writes have run")
        reading(gate).until(lambda data: data.count(b"value") == 5)
        for pipe in {reading(gate), writing(gate)}:
            pipe.cut()
        for client in readers:
            assert frame(client) == bulk(b"value")
        for client in writers:
            assert client.closes()
            assert client.quiet() == b""
        assert front.look.ask("GET", "n") == b"3"
        for client in readers:
            assert raw_reply(client, "SET", "k", "v") == b"+OK\r\n"


def test_lane_lost_within_a_large_reply_costs_no_reply(pair: Pair) -> None:
    with held(pair) as (gate, front), front.clients(2) as (large, small):
        front.look.ask("SET", "big", b"x" * 200_000)
        front.look.ask("SET", "s", "value")
        pipe = reading(gate)
        pipe.hold()
        large.send(command("GET", "big"))
        pipe.until(partial(at_least, 200_000))
        small.send(command("GET", "s"))
        pipe.release(100_000)
        rounds(front.proxy)
        pipe.cut()
        assert frame(large) == bulk(b"x" * 200_000)
        assert frame(small) == bulk(b"value")
        with front.client() as other:
            assert raw_reply(other, "GET", "s") == bulk(b"value")
            assert raw_reply(other, "GET", "big") == bulk(b"x" * 200_000)


def test_client_that_closes_while_its_command_is_on_the_lane(pair: Pair) -> None:
    with held(pair) as (gate, front), front.clients(5) as clients:
        front.look.ask("SET", "s", "value")
        half, gone, quits, mixed, stays = clients
        pipe = reading(gate)
        pipe.hold()
        for client in clients:
            client.send(command("GET", "s"))
        pipe.until(lambda data: data.count(b"value") == 5)
        half.finish()
        gone.close()
        quits.send(command("QUIT"))
        mixed.send(command("PING") + command("RL.HIT", "k", 9, 60))
        mixed.send(command("GET", "s"))
        rounds(front.proxy)
        pipe.release()
        assert frame(half) == bulk(b"value")
        assert half.closes()
        assert frame(quits) == bulk(b"value")
        assert quits.line() == b"+OK\r\n"
        assert quits.closes()
        assert frame(mixed) == bulk(b"value")
        assert mixed.line() == b"+PONG\r\n"
        assert mixed.reply() == [0, 9, 8, -1, 60]
        assert frame(mixed) == bulk(b"value")
        assert frame(stays) == bulk(b"value")
        assert raw_reply(stays, "ECHO", "x") == bulk(b"x")


# -- events on the server and other clients --------------------------------------------------------


def test_paused_writes_delay_no_reads(pair: Pair) -> None:
    with pair.clients(3) as (writer, counter, reader):
        pair.look.ask("SET", "k", "v")
        pair.look.ask("PFADD", "p", "a")
        pair.look.ask("CLIENT", "PAUSE", int(DEADLINE_S * 1000), "WRITE")
        try:
            writer.send(command("SET", "k", "w"))
            counter.send(command("PFCOUNT", "p"))  # PFCOUNT may write, so it is paused as well
            rounds(pair.proxy)
            end = time.monotonic() + DEADLINE_S / 2
            for _ in range(20):
                assert raw_reply(reader, "GET", "k") == bulk(b"v")
            assert time.monotonic() < end
        finally:
            pair.look.ask("CLIENT", "UNPAUSE")
        assert writer.reply() == "OK"
        assert counter.reply() == 1


def test_reply_beyond_the_servers_limit_closes_only_its_client(pair: Pair) -> None:
    pair.look.ask("SET", "big", b"x" * 8_000_000)
    with pair.clients(13) as clients:
        greedy, others = clients[0], clients[1:]
        pair.look.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 1000000 0 0")
        try:
            greedy.send(command("GET", "big"))
            for at, client in enumerate(others):
                client.send(command("INCR", "n") if at % 2 else command("ECHO", "x"))
            for at, client in enumerate(others):
                assert frame(client)[:1] == (b":" if at % 2 else b"$")
            for client in others:
                assert raw_reply(client, "SET", "k", "v") == b"+OK\r\n"
        finally:
            pair.look.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")
    assert pair.look.ask("GET", "n") == b"6"


def test_watch_notices_changes_by_lane(pair: Pair) -> None:
    with pair.clients(2) as (one, other):
        for _ in range(3):
            one.ask("WATCH", "k")
            assert raw_reply(other, "INCR", "k").startswith(b":")
            one.ask("MULTI")
            one.ask("INCR", "k")
            assert one.ask("EXEC") is None
            assert shares(one, pair.look)
        assert pair.look.ask("GET", "k") == b"3"


def test_commands_on_a_lane_are_answered_before_the_proxy_ends(pair: Pair) -> None:
    pair.look.ask("SET", "s", "value")
    pair.look.ask("SET", "big", b"x" * 200_000)
    with held(pair) as (gate, front), front.clients(3) as (small, large, writer):
        pipes = [reading(gate), writing(gate)]
        for pipe in pipes:
            pipe.hold()
        large.send(command("GET", "big"))
        small.send(command("GET", "s"))
        writer.send(command("INCR", "n"))
        pipes[0].until(partial(at_least, 200_000))
        pipes[1].until(partial(at_least, 4))
        front.proxy.terminate()

        def refuses() -> bool:
            try:
                front.proxy.raw().close()
            except ConnectionRefusedError:
                return True
            return False

        wait_until(refuses, "it stops listening")
        for pipe in pipes:
            pipe.release()
        assert frame(small) == bulk(b"value")
        assert frame(large) == bulk(b"x" * 200_000)
        assert frame(writer) == b":1\r\n"
        for client in (small, large, writer):
            assert client.closes()
        assert front.proxy.wait() == 0


# -- rights ----------------------------------------------------------------------------------------


def test_unauthenticated_client_does_not_use_an_open_lane(pair: Pair) -> None:
    with pair.clients(2) as (old, other), password(pair.look, "secret"):
        for at in range(5):
            assert raw_reply(old, "SET", "k", at) == b"+OK\r\n"
            with pair.proxy.raw() as stranger:
                for words in (("GET", "k"), ("SET", "k", "mine"), ("ECHO", "x"), ("GET", "k")):
                    assert raw_reply(stranger, *words).startswith(b"-NOAUTH")
                stranger.send(command("GET", "k") * 3)
                for _ in range(3):
                    assert frame(stranger).startswith(b"-NOAUTH")
                assert raw_reply(stranger, "AUTH", "wrong").startswith(b"-WRONGPASS")
                assert raw_reply(stranger, "GET", "k").startswith(b"-NOAUTH")
            assert raw_reply(other, "GET", "k") == bulk(b"%d" % at)
        with pair.proxy.raw() as known:
            assert known.ask("AUTH", "secret") == "OK"
            join(known, pair.look)
            assert raw_reply(known, "GET", "k") == bulk(b"4")
            assert raw_reply(known, "RESET") == b"+RESET\r\n"
            for _ in range(3):
                assert raw_reply(known, "GET", "k").startswith(b"-NOAUTH")


@contextlib.contextmanager
def users(look: Raw, **rules: str) -> Iterator[None]:
    try:
        for name, rule in rules.items():
            assert look.ask("ACL", "SETUSER", name, "reset", "on", ">pw", *rule.split()) == "OK"
        yield
    finally:
        look.ask("ACL", "DELUSER", *rules)


def as_user(client: Raw, look: Raw, name: str) -> Raw:
    assert client.ask("AUTH", name, "pw") == "OK"
    return join(client, look)


def test_each_client_runs_as_its_user_and_in_its_database(pair: Pair) -> None:
    look = pair.look
    rule = "~{}:* ~warm +@all"
    with (
        users(look, amy=rule.format("amy"), bob=rule.format("bob")),
        pair.proxy.raw() as amy,
        pair.proxy.raw() as bob,
        pair.proxy.raw() as bob3,
        pair.client() as nobody,
    ):
        as_user(amy, look, "amy")
        as_user(bob, look, "bob")
        assert bob3.ask("AUTH", "bob", "pw") == "OK"
        assert bob3.ask("SELECT", 3) == "OK"
        join(bob3, look)
        assert nobody.ask("SET", "bob:k", "0") == "OK"
        for _ in range(3):
            assert raw_reply(amy, "SET", "amy:k", "amy") == b"+OK\r\n"
            assert raw_reply(amy, "GET", "bob:k").startswith(b"-NOPERM")
            assert raw_reply(bob, "GET", "amy:k").startswith(b"-NOPERM")
            assert raw_reply(bob, "SET", "bob:k", "in 0") == b"+OK\r\n"
            assert raw_reply(bob3, "SET", "bob:k", "in 3") == b"+OK\r\n"
            assert raw_reply(nobody, "GET", "bob:k") == bulk(b"in 0")
            assert raw_reply(bob3, "GET", "bob:k") == bulk(b"in 3")
        rows = connections(look)
        found = {(rows[number]["user"], rows[number]["db"]) for number in lanes(look)}
        assert {("amy", "0"), ("bob", "0"), ("bob", "3"), ("default", "0")} <= found
        # Mid stream.
        assert raw_reply(bob, "AUTH", "amy", "pw") == b"+OK\r\n"
        assert raw_reply(bob, "GET", "bob:k").startswith(b"-NOPERM")
        assert raw_reply(bob, "GET", "amy:k") == bulk(b"amy")
        join(bob, look)
        assert raw_reply(bob, "GET", "bob:k").startswith(b"-NOPERM")
        bob.send(command("AUTH", "bob", "pw") + command("GET", "bob:k") + command("GET", "amy:k"))
        assert frame(bob) == b"+OK\r\n"
        assert frame(bob) == bulk(b"in 0")
        assert frame(bob).startswith(b"-NOPERM")
        assert raw_reply(bob, "AUTH", "amy", "wrong").startswith(b"-WRONGPASS")
        assert raw_reply(bob, "GET", "bob:k") == bulk(b"in 0")


def test_changed_rights_apply_at_once(pair: Pair) -> None:
    look = pair.look
    with users(look, bob="~* +@all"), pair.server.raw() as direct, pair.proxy.raw() as bob:
        as_user(bob, look, "bob")
        direct.ask("AUTH", "bob", "pw")
        for key in ("k", "evalsha", "'evalsha'", "NOSCRIPT"):
            assert raw_reply(bob, "SET", key, "v") == b"+OK\r\n"
            look.ask("ACL", "SETUSER", "bob", "resetkeys", "~warm")
            assert raw_reply(bob, "GET", key).startswith(b"-NOPERM")
            assert raw_reply(bob, "GET", key) == raw_reply(direct, "GET", key)
            look.ask("ACL", "SETUSER", "bob", "allkeys", "-get", "-set")
            assert raw_reply(bob, "GET", key) == raw_reply(direct, "GET", key)
            assert raw_reply(bob, "SET", key, 1) == raw_reply(direct, "SET", key, 1)
            look.ask("ACL", "SETUSER", "bob", "+@all")
            assert raw_reply(bob, "GET", key) == bulk(b"v")
            join(bob, look)
        look.ask("ACL", "DELUSER", "bob")
        bob.send(command("GET", "k"))
        assert bob.closes()
