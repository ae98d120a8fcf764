"""Events on the server: timeouts, changed rights, deleted users, and replicas to wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests import harness
from tests.conformance.compare import HIT, Bench
from tests.harness import Proxy, RedisServer, command, wait_until
from tests.processes import paused

PING = command("PING")


def test_timeout_closes_idle_clients_and_not_busy_ones(engine: str) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(engine, "--timeout", "1"))
        proxy = stack.enter_context(harness.proxy(server))
        with server.raw() as direct, proxy.raw() as idle, proxy.raw() as busy, proxy.raw() as new:
            assert direct.ask("PING") == "PONG"
            assert idle.ask("RL.HIT", "idle", 10, 60) == [0, 10, 9, -1, 60]
            started = time.monotonic()
            hits = 0
            while time.monotonic() - started < 3.5:
                hits += 1
                answer = busy.ask("RL.HIT", "k", 1000, 60)
                assert isinstance(answer, list), answer
                assert answer[2] == 1000 - hits
                time.sleep(0.02)  # the pace of a client, not a wait
            assert direct.closes()
            assert idle.closes()
            assert not busy.closed
            assert new.ask("RL.HIT", "k", 1000, 60) == [0, 1000, 999 - hits, -1, 60]


def test_new_rights_apply_to_the_next_hit(bench: Bench) -> None:
    answers = []
    for made, hit in ((bench.server, HIT.direct), (bench.proxy, HIT.proxied)):
        bench.reset([("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all")])
        got: list[object] = []
        with made.raw() as raw:
            assert raw.ask("AUTH", "bob", "pw") == "OK"

            def hits(got: list[object] = got, raw: harness.Raw = raw, hit: bytes = hit) -> None:
                for _ in range(3):
                    raw.send(hit)
                    answer = raw.reply()
                    if isinstance(answer, harness.ReplyError):
                        answer = str(answer).split()[0]
                    got.append(answer)

            hits()
            for rule in ("resetkeys", "~*", "-@write", "+@write", "-@scripting", "+@all"):
                bench.look.ask("DEL", "k")
                bench.look.ask("ACL", "SETUSER", "bob", rule)
                hits()
            bench.look.ask("DEL", "k")
            bench.look.ask("ACL", "SETUSER", "bob", "off", ">another", "<pw")
            hits()  # a connected client stays connected
        answers.append(got)
    assert answers[0] == answers[1]
    assert "NOPERM" in answers[0]


def test_deleted_users_client_is_closed(bench: Bench) -> None:
    for made, hit in ((bench.server, HIT.direct), (bench.proxy, HIT.proxied)):
        bench.reset([("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all")])
        with made.raw() as raw, made.raw() as stays:
            raw.ask("AUTH", "bob", "pw")
            bench.warm(raw, [hit] * 3)
            bench.look.ask("ACL", "DELUSER", "bob")
            assert raw.closes()
            assert stays.ask("PING") == "PONG"


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


def test_restarted_server_closes_its_clients_and_serves_new_ones(engine: str) -> None:
    with harness.server(engine) as server, harness.proxy(server) as proxy:
        with proxy.raw() as raw, proxy.raw() as subscriber:
            for _ in range(3):
                raw.ask("RL.HIT", "k", 10, 60)
            subscriber.ask("SUBSCRIBE", "a")
            server.stop()
            assert raw.closes()
            assert subscriber.closes()
        server.start()
        # the scripts are gone with the old server, without effect on clients
        with proxy.raw() as raw:
            assert raw.ask("PING") == "PONG"  # any reply shows the proxy that it is back
            for left in (9, 8, 7):
                assert raw.ask("RL.HIT", "k", 10, 60) == [0, 10, left, -1, 60]


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
