"""Bounds on what one client can make the proxy hold, and cleanup after clients that have left."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import harness
from tests.conformance.routing_support import (
    MANY,
    admitted,
    goes_by_lane,
    hit,
    join_lane,
    names,
    rounds,
)
from tests.harness import (
    DEADLINE_S,
    ON_ONE_ENGINE,
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    command,
    wait_until,
)
from tests.processes import paused

MB = 1 << 20
STUCK_S = 0.25  # no write possible for this many seconds: the proxy takes no more


@pytest.fixture
def look(redis_server: RedisServer) -> Iterator[Raw]:
    with redis_server.raw() as raw:
        yield raw


@contextlib.contextmanager
def fresh(server: RedisServer) -> Iterator[Proxy]:
    """A new proxy: its memory is due to this test alone."""
    with harness.proxy(server) as made:
        yield made


def push(client: Raw, block: bytes, most: int, watch: Callable[[], None]) -> int:
    """Write `block` repeatedly, `most` bytes at most, until no more is accepted."""
    client.sock.setblocking(False)
    sent = 0
    end = time.monotonic() + DEADLINE_S
    while sent < most and time.monotonic() < end:
        if not select.select([], [client.sock], [], STUCK_S)[1]:
            break
        at = sent % len(block)
        sent += client.sock.send(block[at : at + 65536])
        watch()
    client.sock.settimeout(DEADLINE_S)
    return sent


FLOODS: dict[str, tuple[bytes, int, int]] = {
    # block, the maximum to send, the memory it may take
    "hits": (hit() * 500, 4 * MB, 40 * MB),
    "inline hits": (b"RL.HIT k 5 60\n" * 5000, 2 * MB, 40 * MB),
    "wrong hits": (b"RL.HIT k\n" * 7000, 1 * MB, 40 * MB),
    "helps": (b"RL.HELP\n" * 8000, 1 * MB, 40 * MB),
    "passwords": (command("AUTH", "bob", "p" * 16_000) * 20, 80 * MB, 40 * MB),
    "greetings": (command("HELLO", 3, "AUTH", "u" * 8000, "p" * 8000) * 20, 80 * MB, 40 * MB),
    "names": (command("CLIENT", "SETNAME", "n" * 16_000) * 20, 80 * MB, 40 * MB),
    "pings": (command("PING") * 4000, 6 * MB, 40 * MB),
    "transactions": ((command("MULTI") + hit() + command("EXEC")) * 500, 4 * MB, 40 * MB),
    "long keys": (command("RL.HIT", "k" * 60_000, 5, 60) * 5, 60 * MB, 40 * MB),
    "too long": (command("RL.HIT", "k" * 200_000, 5, 60), 60 * MB, 40 * MB),
}


@ON_ONE_ENGINE
@pytest.mark.parametrize("name", FLOODS)
def test_client_that_never_reads_uses_bounded_memory(
    redis_server: RedisServer, look: Raw, name: str
) -> None:
    """Redis has its own limit for replies; here memory must not grow with the bytes sent."""
    block, most, bound = FLOODS[name]
    look.ask("SET", "big", b"x" * 8_000_000)
    with fresh(redis_server) as proxy, proxy.raw() as client:
        join_lane(client, look)
        before = proxy.memory()
        peak = before

        def watch() -> None:
            nonlocal peak
            peak = max(peak, proxy.memory())

        client.send(command("GET", "big"))  # from here on its replies are stuck
        push(client, block, most, watch)
        watch()
        with proxy.raw() as other:  # no other client is affected
            join_lane(other, look)
        assert peak - before < bound, f"{(peak - before) // MB} MB"


@ON_ONE_ENGINE
@pytest.mark.parametrize("name", ["hits", "inline hits", "helps", "long keys"])
def test_stopped_server_uses_bounded_memory(redis_server: RedisServer, name: str) -> None:
    block, most, bound = FLOODS[name]
    with fresh(redis_server) as proxy, redis_server.raw() as look, proxy.raw() as warm:
        join_lane(warm, look)
        before = proxy.memory()
        peak = before

        def watch() -> None:
            nonlocal peak
            peak = max(peak, proxy.memory())

        with paused(redis_server.pid), proxy.raw() as cold:
            push(cold, block, most, watch)
            push(warm, block, most, watch)
            watch()
        assert peak - before < bound, f"{(peak - before) // MB} MB"


def test_closed_clients_leave_no_memory_or_files(
    proxy: Proxy, redis_server: RedisServer, look: Raw
) -> None:
    endings: list[Callable[[Raw], None]] = [
        lambda raw: None,
        lambda raw: raw.send(hit()),
        lambda raw: raw.send(hit()[:10]),
        lambda raw: raw.send(hit() * 500),
        lambda raw: raw.send(command("BLPOP", "nolist", 0) + hit()),
        lambda raw: raw.send(command("SUBSCRIBE", "a") + hit()),
        lambda raw: raw.send(command("MONITOR")),
        lambda raw: raw.send(command("SET", "s", "x" * 100_000)[:50_000]),
        lambda raw: raw.send(command("QUIT") + hit()),
        lambda raw: raw.send(b"*x\r\n"),
        lambda raw: raw.send(command("RL.HIT", "k" * 100_000)[:80_000]),
        lambda raw: raw.send(command("MULTI") + hit()),
        lambda raw: raw.finish(),
    ]

    def files() -> int:
        return len(os.listdir(Path(f"/proc/{proxy.pid}/fd")))

    with proxy.raw() as client:
        join_lane(client, look)
        rounds(proxy)
        wait_until(lambda: len([name for name in names(look) if not name]) == 2, "quiet")
        before = files()
        for _ in range(6):
            for ending in endings:
                with proxy.raw() as raw:
                    ending(raw)
        rounds(proxy)  # all earlier connections are accepted by then
        wait_until(lambda: len([name for name in names(look) if not name]) == 2, "all are gone")
        wait_until(lambda: files() <= before, "all files are closed")
        assert goes_by_lane(client, look)


def test_large_replies_keep_their_order_among_hits(proxy: Proxy, look: Raw) -> None:
    size = 1_500_000
    look.ask("SET", "big", b"x" * size)
    with proxy.raw() as client:
        join_lane(client, look)
        for index in range(3):
            client.send(hit())
            client.send(command("GET", "big") + hit() + command("MGET", "big", "no") + hit())
            client.send(hit())
            base = index * 4
            assert client.reply() == admitted(base + 1)
            assert client.reply() == b"x" * size
            assert client.reply() == admitted(base + 2)
            assert client.reply() == [b"x" * size, None]
            assert [client.reply() for _ in range(2)] == [admitted(base + 3), admitted(base + 4)]
        join_lane(client, look)


def test_slow_reader_gets_every_reply_in_order(proxy: Proxy, look: Raw) -> None:
    size = 4_000_000
    look.ask("SET", "big", b"x" * size)
    with proxy.raw() as client, proxy.raw() as other:
        join_lane(client, look)
        client.send(hit() + command("GET", "big") * 3)
        rounds(proxy)
        for _ in range(300):
            client.send(hit() + command("RL.HIT", "k"))
        client.send(command("ECHO", "end"))
        join_lane(other, look)
        assert other.ask("RL.HIT", "j", MANY, 60) == admitted(1)
        assert client.reply() == admitted(1)
        assert [client.reply() for _ in range(3)] == [b"x" * size] * 3
        wrong = ReplyError("ERR wrong number of arguments for 'rl.hit' command")
        for index in range(300):
            assert client.reply() == admitted(index + 2)
            assert client.reply() == wrong
        assert client.reply() == b"end"
        join_lane(client, look)


@pytest.mark.parametrize("argc", [5, 200_000], ids=["few", "many"])
def test_too_long_hit_with_a_malformed_tail(proxy: Proxy, look: Raw, argc: int) -> None:
    words: list[bytes | str | int] = ["RL.HIT", "k", 5, 60]
    words += ["x"] * (argc - 5) + ["y" * (100_000 if argc == 5 else 1)]
    long = command(*words)
    broken = long[: long.rindex(b"$")] + b"!" + hit()
    for cut in (len(broken), 80_000):
        with proxy.raw() as client:
            join_lane(client, look)
            client.send(hit())
            client.send(hit() + broken[:cut])
            if cut < len(broken):
                rounds(proxy, 3)
                client.send(broken[cut:])
            assert isinstance(client.reply(), list) and isinstance(client.reply(), list)
            last = str(client.reply())
            if "longer than" in last:
                last = str(client.reply())
            assert last.startswith("ERR Protocol error")
            assert client.line() == b"" and client.closed
