"""Traffic that is not request and reply: MONITOR, replication, large values, and readers that stop
reading.
"""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from tests import harness
from tests.conformance.compare import HIT, Bench
from tests.harness import DEADLINE_S, Proxy, Raw, RedisServer, command, wait_until

PING = command("PING")
MB = 1 << 20


def lines_until(raw: Raw, last: bytes) -> list[bytes]:
    got = []
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        line = raw.line()
        got.append(line)
        if last in line or not line:
            return got
    raise AssertionError(got)


def test_monitor_streams_commands(bench: Bench) -> None:
    answers = []
    for made in (bench.server, bench.proxy):
        with made.raw() as raw:
            raw.send(PING + command("MONITOR"))
            got = [raw.line(), raw.line()]
            assert got == [b"+PONG\r\n", b"+OK\r\n"]
            for number in range(20):
                bench.look.ask("SET", "m", number)
            bench.look.ask("ECHO", "the end")
            for line in lines_until(raw, b"the end"):
                if b'"SET"' in line or b'"ECHO"' in line:
                    # The time, and the address of the client that sent the command.
                    got.append(re.sub(rb"^\+[\d.]+ \[\d+ [\d.:]+\]", b"+TIME", line))
            answers.append(got)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 23


def test_monitor_shows_a_hit_behind_it(bench: Bench) -> None:
    bench.reset()
    with bench.proxy.raw() as raw:
        bench.warm(raw, [HIT.proxied] * 2)
        raw.send(HIT.proxied + command("MONITOR"))
        assert raw.reply() == [0, 10, 7, -1, 60]
        assert raw.reply() == "OK"
        bench.look.ask("ECHO", "the end")
        assert lines_until(raw, b"the end")


def test_sync_streams_the_data_set_and_later_commands(bench: Bench) -> None:
    bench.look.ask("CONFIG", "SET", "repl-diskless-sync", "no")
    bench.look.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    for made in (bench.server, bench.proxy):
        bench.reset()
        bench.look.ask("SET", "big", "x" * 300_000)
        with made.raw() as raw:
            raw.send(command("SYNC"))
            header = raw.line()
            while header in (b"\n", b"\r\n"):
                header = raw.line()
            header = header.lstrip(b"\n")  # Redis sends line feeds while it saves
            assert header.startswith(b"$")
            size = int(header[1:])
            assert size > 1000
            assert raw.exactly(size).startswith((b"REDIS", b"VALKEY"))
            bench.look.ask("SET", "later", "y" * 100)
            wanted = command("SET", "later", "y" * 100)
            got = b""
            end = time.monotonic() + DEADLINE_S
            while wanted not in got and time.monotonic() < end:
                got += raw.quiet(0.01)
            assert wanted in got


def test_replica_replicates_through_the_proxy(
    engine: str, redis_server: RedisServer, proxy: Proxy
) -> None:
    with redis_server.raw() as raw:
        raw.ask("CONFIG", "SET", "repl-diskless-sync", "no")
        raw.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        raw.ask("SET", "before", "x" * 500_000)
    with contextlib.ExitStack() as stack:
        options = ("--replicaof", "127.0.0.1", str(proxy.port))
        replica = stack.enter_context(harness.server(engine, *options))
        with proxy.raw() as client, replica.raw() as there:

            def link() -> bool:
                text = there.ask("INFO", "replication")
                return isinstance(text, bytes) and b"master_link_status:up" in text

            wait_until(link, "the replica is in step")
            assert there.ask("STRLEN", "before") == 500_000
            for _ in range(3):
                client.ask("RL.HIT", "k", 10, 60)
            client.ask("SET", "after", "x" * MB)
            wait_until(lambda: there.ask("STRLEN", "after") == MB, "what follows arrives")
            assert there.ask("LLEN", "k") == 3
            assert client.ask("WAIT", 1, 10_000) == 1  # its acknowledgements arrive too


@pytest.mark.parametrize("size", [100, 16_383, 65_536, 262_144, 5 * MB + 17])
def test_large_values_pass_both_ways(bench: Bench, size: int) -> None:
    value = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    request = command("SET", "v", value) + command("GET", "v") + command("STRLEN", "v")
    wanted = b"+OK\r\n$%d\r\n%b\r\n:%d\r\n" % (size, value, size)
    bench.reset()
    with bench.proxy.raw() as raw:
        raw.send(HIT.proxied * 2 + request + HIT.proxied)
        assert [raw.reply(), raw.reply()] == [[0, 10, 9, -1, 60], [0, 10, 8, -1, 60]]
        assert raw.exactly(len(wanted)) == wanted
        assert raw.reply() == [0, 10, 7, -1, 60]
    assert bench.look.ask("GET", "v") == value


def test_reader_that_stops_is_cut_by_redis_own_limit(bench: Bench) -> None:
    bench.reset()
    bench.look.ask("SET", "v", "x" * MB)
    bench.look.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 8388608 0 0")
    for made in (bench.server, bench.proxy):
        with made.raw() as raw, made.raw() as other:
            raw.ask("CLIENT", "SETNAME", "sleeper")
            before = bench.proxy.memory()
            raw.send(command("GET", "v") * 60)
            wait_until(lambda: b"sleeper" not in bench.clients(), "Redis has cut the reader")
            # Other clients are not affected.
            started = time.monotonic()
            assert other.ask("PING") == "PONG"
            assert time.monotonic() - started < 2
            assert bench.proxy.memory() - before < 24 * MB
            assert raw.closes()
    bench.look.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")


def test_subscriber_that_stops_is_cut_by_redis_own_limit(bench: Bench) -> None:
    bench.reset()
    bench.look.ask("CONFIG", "SET", "client-output-buffer-limit", "pubsub 4194304 0 0")
    for made in (bench.server, bench.proxy):
        with made.raw() as raw, made.raw() as other:
            raw.ask("CLIENT", "SETNAME", "sleeper")
            raw.ask("SUBSCRIBE", "a")
            # Small ones: Valkey shares a large message among its readers and does not count it.
            batch = command("PUBLISH", "a", "m" * 8000) * 500
            for _ in range(20):
                bench.look.send(batch)
                if [bench.look.reply() for _ in range(500)][-1] == 0:
                    break
            wait_until(lambda: b"sleeper" not in bench.clients(), "Redis has cut the reader")
            assert other.ask("PING") == "PONG"
            assert raw.closes()
    bench.look.ask("CONFIG", "SET", "client-output-buffer-limit", "pubsub 33554432 8388608 60")
