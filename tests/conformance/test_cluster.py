"""Errors of a cluster node on a hit, and ASKING, which applies to one command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, is_error, wait_until

FOREIGN = "foo"  # slot 12182, served by another node
OURS = "bar"  # slot 5061
IMPORTED = "k"  # slot 7629, being imported
RL = ("RL.HIT", OURS, 10, 60)


def error_of(raw: Raw, *words: str | int) -> str:
    answer = raw.ask(*words)
    assert isinstance(answer, ReplyError), answer
    return str(answer)


@contextlib.contextmanager
def cluster_node(engine: str) -> Iterator[RedisServer]:
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    made = RedisServer(engine, harness.engines()[engine], options)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(scope="module")
def node(engine: str) -> Iterator[tuple[RedisServer, Proxy]]:
    """A node that serves all slots except those of FOREIGN and IMPORTED, next to one that serves
    these.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(cluster_node(engine))
        two = stack.enter_context(cluster_node(engine))
        proxy = stack.enter_context(harness.proxy_of_node(one))
        with one.raw() as here, two.raw() as there:
            theirs = {here.ask("CLUSTER", "KEYSLOT", key) for key in (FOREIGN, IMPORTED)}
            ours = [slot for slot in range(16384) if slot not in theirs]
            assert here.ask("CLUSTER", "ADDSLOTS", *ours[:-1]) == "OK"  # one slot has no owner
            assert there.ask("CLUSTER", "ADDSLOTS", *[int(str(slot)) for slot in theirs]) == "OK"
            assert here.ask("CLUSTER", "MEET", "127.0.0.1", two.port) == "OK"
            name = there.ask("CLUSTER", "MYID")
            assert isinstance(name, bytes)
            slot = here.ask("CLUSTER", "KEYSLOT", IMPORTED)
            assert isinstance(slot, int)

            def met() -> bool:
                return is_error(here.ask("GET", FOREIGN), "MOVED")

            wait_until(met, "the nodes know each other")
            assert here.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", name) == "OK"
        yield one, proxy


def test_moved_precedes_noscript(node: tuple[RedisServer, Proxy]) -> None:
    server, proxy = node
    with server.raw() as look, proxy.raw() as raw, proxy.raw() as cold:
        look.ask("FLUSHALL")
        expected = error_of(look, "GET", FOREIGN)
        assert expected.startswith("MOVED")
        for left in (9, 8, 7):
            assert raw.ask(*RL) == [0, 10, left, -1, 60]
        look.ask("SCRIPT", "FLUSH")
        for client in (raw, cold):
            assert error_of(client, "RL.HIT", FOREIGN, 10, 60) == expected
            assert error_of(client, "RL.PEEK", FOREIGN, 10, 60) == expected
            assert error_of(client, "RL.RESET", FOREIGN) == expected
        # A missing script of a local key is loaded as usual.
        assert raw.ask(*RL) == [0, 10, 6, -1, 60]


def test_asking_applies_to_one_hit(node: tuple[RedisServer, Proxy]) -> None:
    server, proxy = node
    hit = ("RL.HIT", IMPORTED, 10, 60)
    with server.raw() as look, proxy.raw() as raw, proxy.raw() as cold:
        look.ask("FLUSHALL")
        expected = error_of(look, "GET", IMPORTED)
        assert expected.startswith("MOVED")
        for _ in range(3):
            raw.ask(*RL)
        left = 10
        for client in (raw, cold):
            for flush in (False, True):
                if flush:
                    look.ask("SCRIPT", "FLUSH")
                client.send(command("ASKING") + command(*hit) * 2 + command("PING"))
                left -= 1
                assert client.reply() == "OK"
                assert client.reply() == [0, 10, left, -1, 60]
                assert str(client.reply()) == expected
                assert client.reply() == "PONG"
                # One by one.
                assert client.ask("ASKING") == "OK"
                left -= 1
                assert client.ask(*hit) == [0, 10, left, -1, 60]
                assert error_of(client, *hit) == expected


def test_any_command_consumes_asking(node: tuple[RedisServer, Proxy]) -> None:
    server, proxy = node
    with proxy.raw() as raw, server.raw() as look:
        look.ask("FLUSHALL")
        raw.send(command("ASKING", "x") + command("RL.HIT", IMPORTED, 10, 60))
        assert [str(raw.reply()).split()[0], str(raw.reply()).split()[0]] == ["ERR", "MOVED"]
        raw.send(command("ASKING") + command("PING") + command("RL.HIT", IMPORTED, 10, 60))
        assert [raw.reply(), raw.reply()] == ["OK", "PONG"]
        assert str(raw.reply()).startswith("MOVED")
        raw.send(command("ASKING") + command("RL.HIT", "x") + command("RL.HIT", IMPORTED, 10, 60))
        assert raw.reply() == "OK"
        assert "wrong number of arguments" in str(raw.reply())
        raw.reply()  # an invalid hit may or may not have reached Redis


def test_crossslot_tryagain_ask_and_clusterdown_reach_the_client(
    node: tuple[RedisServer, Proxy],
) -> None:
    server, proxy = node
    with server.raw() as look, proxy.raw() as raw:
        look.ask("FLUSHALL")
        for _ in range(3):
            raw.ask(*RL)
        expected = error_of(look, "DEL", OURS, "baz{other}")
        assert expected.startswith("CROSSSLOT")
        assert error_of(raw, "RL.RESET", OURS, "baz{other}") == expected

        two = (f"a{{{IMPORTED}}}", f"b{{{IMPORTED}}}")
        assert look.ask("ASKING") == "OK"
        expected = error_of(look, "DEL", *two)
        assert expected.startswith("TRYAGAIN")
        assert raw.ask("ASKING") == "OK"
        assert error_of(raw, "RL.RESET", *two) == expected

        slot = look.ask("CLUSTER", "KEYSLOT", "leaving")
        nodes = look.ask("CLUSTER", "NODES")
        assert isinstance(slot, int) and isinstance(nodes, bytes)
        (other,) = [line.split()[0] for line in nodes.splitlines() if b"myself" not in line]
        assert look.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", other) == "OK"
        expected = error_of(look, "GET", "leaving")
        assert expected.startswith("ASK ")
        assert error_of(raw, "RL.HIT", "leaving", 10, 60) == expected
        assert look.ask("CLUSTER", "SETSLOT", slot, "STABLE") == "OK"

        nobodys = next(
            f"n{number}"
            for number in range(200_000)
            if look.ask("CLUSTER", "KEYSLOT", f"n{number}") == 16383
        )
        expected = error_of(look, "GET", nobodys)
        assert expected.startswith("CLUSTERDOWN")
        assert error_of(raw, "RL.HIT", nobodys, 10, 60) == expected
        assert raw.ask(*RL) == [0, 10, 6, -1, 60]


def test_hits_work_after_readonly_and_readwrite(node: tuple[RedisServer, Proxy]) -> None:
    _, proxy = node
    with proxy.raw() as raw:
        for _ in range(3):
            raw.ask(*RL)
        assert raw.ask("READONLY") == "OK"
        assert isinstance(raw.ask(*RL), list)
        assert raw.ask("READWRITE") == "OK"
        assert isinstance(raw.ask(*RL), list)
