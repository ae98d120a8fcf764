"""Events on the server: timeouts, changed rights, deleted users, and replicas to wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests import harness
from tests.conformance.compare import HIT, Bench
from tests.harness import Proxy, RedisServer, command, wait_until
from tests.processes import paused

PING = command("PING")


def test_hits_of_a_deleted_user_do_not_count(bench: Bench) -> None:
    bench.reset([("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all")])
    with bench.proxy.raw() as raw:
        raw.ask("AUTH", "bob", "pw")
        bench.warm(raw, [HIT.proxied] * 3)
        before = bench.look.ask("LLEN", "k")
        bench.look.ask("ACL", "DELUSER", "bob")
        raw.send(HIT.proxied)
        assert raw.closes()
        assert bench.look.ask("LLEN", "k") == before


@pytest.fixture(scope="module")
def replicated(engine: str) -> Iterator[tuple[RedisServer, Proxy, RedisServer]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(engine, "--repl-diskless-sync", "no"))
        proxy = stack.enter_context(harness.proxy(server))
        options = ("--replicaof", "127.0.0.1", str(server.port))
        replica = stack.enter_context(harness.server(engine, *options))
        with replica.raw() as there:

            def link() -> bool:
                text = there.ask("INFO", "replication")
                return isinstance(text, bytes) and b"master_link_status:up" in text

            wait_until(link, "the replica is in step")
        yield server, proxy, replica


def test_wait_covers_hits(replicated: tuple[RedisServer, Proxy, RedisServer]) -> None:
    server, proxy, replica = replicated
    answers = []
    for made, hit in ((server, HIT.direct), (proxy, HIT.proxied)):
        with server.raw() as look, made.raw() as raw:
            look.ask("DEL", "k")
            got = []
            for _ in range(3):
                raw.send(hit)
                got.append(raw.reply())
            got.append(raw.ask("WAIT", 1, 5000))
            for _ in range(2):  # everything raw has written so far is acknowledged
                look.ask("INCR", "n")
                assert look.ask("WAIT", 1, 5000) == 1
            with paused(replica.pid):
                for _ in range(2):
                    raw.send(hit)
                    got += [raw.reply(), raw.ask("WAIT", 1, 100)]
                raw.send(hit + command("WAIT", 1, 100) + PING)
                got += [raw.reply() for _ in range(3)]
            got.append(raw.ask("WAIT", 1, 5000))
            answers.append(got)
    assert answers[0] == answers[1]
    assert answers[0][4:8] == [[0, 10, 6, -1, 60], 0, [0, 10, 5, -1, 60], 0]
