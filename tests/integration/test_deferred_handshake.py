"""Clients that connect during an outage, where hits are answered without Redis: their handshake is
deferred, their hits are answered, and Redis receives the handshake before any other command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rlproxy.config import config

from tests import harness
from tests.harness import DEADLINE_S, Proxy, RedisServer, ReplyError, wait_until
from tests.info import clients
from tests.integration.runtimes import CLIENTS

ADMITTED = [0, 5, 5, -1, 0]
REFUSED = [1, 5, 0, 1, 1]
COUNTED = [0, 5, 4, -1, 60]
HIT = ("RL.HIT", "k", 5, 60)


@pytest.fixture
def password_server(one_engine: str) -> Iterator[RedisServer]:
    """A server with a password and a user, whose clients may not change passwords."""
    users = "bob on >bp ~* &* +@all"
    made = RedisServer(
        one_engine,
        harness.engines()[one_engine],
        ("--requirepass", "pw", "--user", *users.split()),
    )
    try:
        yield made
    finally:
        made.close()


def failing(server: RedisServer, mode: str = "allow", *args: str) -> Any:
    return harness.proxy(
        f"redis://:pw@127.0.0.1:{server.port}",
        *("--on-upstream-failure", mode, "--hit-timeout", "400"),
        *args,
    )


def client(proxy: Proxy, protocol: int = 3, **options: Any) -> Any:
    """redis-py with default settings, on one connection and without retries."""
    all_options: dict[str, Any] = {"single_connection_client": True, "retry": None, **options}
    return redis.Redis(port=proxy.port, protocol=protocol, decode_responses=True, **all_options)


def counted(made: Any) -> list[int]:
    """The reply to a hit once Redis answers it."""
    found: list[int] = []

    def answered() -> bool:
        found[:] = made.execute_command(*HIT)
        return found not in (ADMITTED, REFUSED)

    wait_until(answered, "Redis answers hits")
    return found


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_user_and_database_are_sent_after_the_outage(
    password_server: RedisServer, mode: str, protocol: int
) -> None:
    bob = {"username": "bob", "password": "bp", "db": 2, "client_name": "one"}
    with (
        failing(password_server, mode) as proxy,
        client(proxy, protocol, **bob) as one,
        client(proxy, protocol, password="pw") as two,
    ):
        for made in (one, two):
            for _ in range(3):
                got = made.execute_command(*HIT)
                assert got == (ADMITTED if mode == "allow" else REFUSED)
            with pytest.raises(redis.ResponseError, match="UPSTREAMDOWN"):
                made.get("s")
        password_server.start()
        assert counted(one) == COUNTED  # its first hit, in another database
        assert counted(two) == COUNTED
        assert one.acl_whoami() == "bob"
        assert two.acl_whoami() == "default"
        me = one.client_info()
        assert (me["name"], me["db"], me["user"]) == ("one", 2, "bob")
        if password_server.version >= (7, 2):
            assert me["lib-name"].startswith("redis-py")
            assert me["resp"] == str(protocol)
        assert one.set("s", 1)
        assert two.get("s") is None
        assert two.exists("k")


def test_clients_that_connect_after_a_kill_are_served(password_server: RedisServer) -> None:
    password_server.start()
    with (
        failing(password_server) as proxy,
        client(proxy, password="pw", db=2, single_connection_client=False) as made,
    ):
        assert made.execute_command(*HIT) == COUNTED
        password_server.stop()

        def admitted() -> bool:  # its private connection was closed, as with Redis itself
            try:
                return bool(made.execute_command(*HIT) == ADMITTED)
            except redis.RedisError:
                return False

        wait_until(admitted, "hits are admitted")
        assert all(made.execute_command(*HIT) == ADMITTED for _ in range(10))
        password_server.start()
        assert counted(made) == COUNTED


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_clients_that_connect_during_a_hang_are_served(
    password_server: RedisServer, known: bool
) -> None:
    """Clients that begin with a handshake are served, also those that are the first to wait."""
    password_server.start()
    with failing(password_server) as proxy, proxy.raw() as raw:
        assert raw.ask("AUTH", "pw") == "OK"
        assert raw.ask(*HIT) == COUNTED
        os.kill(password_server.pid, signal.SIGSTOP)
        if known:
            assert raw.ask(*HIT) == ADMITTED
        retry = Retry(NoBackoff(), 0 if known else 1)
        with client(proxy, username="bob", password="bp", db=3, retry=retry) as made:
            assert made.execute_command(*HIT) == ADMITTED
            os.kill(password_server.pid, signal.SIGCONT)
            assert counted(made) == COUNTED
            assert made.acl_whoami() == "bob"
            assert made.client_info()["db"] == 3


def test_clients_that_connect_at_the_client_limit_are_served(password_server: RedisServer) -> None:
    password_server.start()
    with failing(password_server) as proxy, proxy.raw() as raw, password_server.raw() as admin:
        assert raw.ask("AUTH", "pw") == "OK"
        assert raw.ask(*HIT) == COUNTED
        assert admin.ask("AUTH", "pw") == "OK"
        assert admin.ask("CONFIG", "SET", "maxclients", len(clients(admin))) == "OK"
        with pytest.raises(redis.ConnectionError, match="max number of clients"):
            client(proxy, username="bob", password="bp", db=3)
        assert admin.ask("CONFIG", "SET", "maxclients", 100) == "OK"
        with client(proxy, username="bob", password="bp", db=3) as made:
            assert made.execute_command(*HIT) == COUNTED  # the first in its own database
            assert made.acl_whoami() == "bob"
            assert made.client_info()["db"] == 3


def test_wrong_password_in_a_deferred_handshake_is_refused(engine: str) -> None:
    """Some versions of Redis omit the error of an AUTH that is not the first command of a write."""
    args = ("--requirepass", "pw", "--user", "bob", "on", ">bp", "~*", "&*", "+@all")
    made = RedisServer(engine, harness.engines()[engine], args)
    try:
        with failing(made) as proxy:
            for greeting in (
                [("AUTH", "pw"), ("SELECT", 2), ("AUTH", "bob", "no")],
                [("CLIENT", "SETNAME", "n"), ("HELLO", 2, "AUTH", "bob", "no")],
            ):
                made.stop()
                with proxy.raw() as raw:
                    assert not any(isinstance(raw.ask(*one), ReplyError) for one in greeting)
                    assert raw.ask(*HIT) == ADMITTED
                    made.start()
                    raw.send(harness.command("SET", "s", 1) + harness.command(*HIT))
                    assert str(raw.reply()).startswith("WRONGPASS")
                    assert raw.closes()
                with made.raw() as direct:
                    assert direct.ask("AUTH", "pw") == "OK"
                    assert direct.ask("DBSIZE") == 0
    finally:
        made.close()


def test_client_with_wrong_credentials_runs_no_command(password_server: RedisServer) -> None:
    with failing(password_server) as proxy:
        with proxy.raw() as wrong, proxy.raw() as without, proxy.raw() as nowhere:
            assert wrong.ask("AUTH", "bob", "no") == "OK"
            assert isinstance(without.ask("HELLO", 2), list)
            assert nowhere.ask("AUTH", "pw") == "OK"
            assert nowhere.ask("SELECT", 9999) == "OK"
            for raw in (wrong, without, nowhere):
                assert raw.ask(*HIT) == ADMITTED
            password_server.start()
            for raw, why in ((wrong, "WRONGPASS"), (without, "NOAUTH"), (nowhere, "ERR DB index")):
                raw.send(harness.command("SET", "s", 1) + harness.command(*HIT))
                refused = raw.reply()
                assert isinstance(refused, ReplyError)
                assert str(refused).startswith(why)
                assert raw.closes()
        with password_server.raw() as direct:
            assert direct.ask("AUTH", "pw") == "OK"
            assert direct.ask("DBSIZE") == 0  # no command ran


def test_ready_check_of_ioredis_gets_no_reply(password_server: RedisServer) -> None:
    """The help of --on-upstream-failure documents this."""
    if missing := CLIENTS["ioredis"].missing():
        pytest.skip(missing)
    script = Path(__file__).parent / "clients" / "fail_open.js"
    with failing(password_server) as proxy:
        done = subprocess.run(
            ["node", str(script), str(proxy.port), "ioredis-ready-check"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert json.loads(done.stdout).startswith("UPSTREAMDOWN"), done
    (option,) = (option for option in config.OPTIONS if option.flag == "--on-upstream-failure")
    assert "enableReadyCheck: false" in option.help


@pytest.mark.parametrize("name", ["ioredis", "node-redis"])
def test_node_clients_are_served_during_an_outage(password_server: RedisServer, name: str) -> None:
    if missing := CLIENTS[name].missing():
        pytest.skip(missing)
    script = Path(__file__).parent / "clients" / "fail_open.js"
    with failing(password_server) as proxy:
        process = subprocess.Popen(
            ["node", str(script), str(proxy.port), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first, process.stderr.read() if process.stderr else ""
            assert json.loads(first) == ADMITTED
            password_server.start()
            with proxy.raw() as raw:
                assert raw.ask("AUTH", "pw") == "OK"
                wait_until(lambda: raw.ask("PING") == "PONG", "Redis is back")
            out, err = process.communicate("go on\n", timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()
        assert [json.loads(line) for line in out.splitlines()] == ["OK", COUNTED], err
        with password_server.raw() as direct:
            assert direct.ask("AUTH", "pw") == "OK"
            assert direct.ask("SELECT", 2) == "OK"
            assert direct.ask("DBSIZE") == 2
