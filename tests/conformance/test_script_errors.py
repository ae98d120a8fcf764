"""Errors of Redis on a hit reach the client unchanged, without the names of scripts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from tests import harness
from tests.conformance.compare import SCRIPT_NAMES, rewritten
from tests.conformance.troubles import TROUBLES, trouble
from tests.harness import ON_EVERY_ENGINE, Proxy, Raw, RedisServer, ReplyError, command, wait_until

pytestmark = ON_EVERY_ENGINE

HIT = ("RL.HIT", "k", 10, 60)


@pytest.fixture(scope="module")
def pair(engine: str) -> Iterator[tuple[RedisServer, Proxy]]:
    with harness.server(engine) as server, harness.proxy(server) as proxy:
        yield server, proxy


def plain_error(server: RedisServer, *words: str) -> ReplyError:
    with server.raw() as raw:
        answer = raw.ask(*words)
    assert isinstance(answer, ReplyError), answer
    return answer


def replies_on_both(warm: Raw, proxy: Proxy) -> list[object]:
    """The replies to a hit on `warm`, whose hits go by lane, and to two hits on a new
    connection.
    """
    with proxy.raw() as cold:
        return [warm.ask(*HIT), cold.ask(*HIT), cold.ask(*HIT)]


def cleaned(line: bytes) -> str:
    """A script's error without Redis' additions."""
    error = rewritten(line, SCRIPT_NAMES).decode()[1:-2]
    return error if error.split()[0].isupper() else f"ERR {error}"


@pytest.mark.parametrize("error", TROUBLES)
def test_errors_of_the_server_are_errors_of_the_hit(
    pair: tuple[RedisServer, Proxy], error: str
) -> None:
    server, proxy = pair
    if (error, server.version) == ("NOREPLICAS", (6, 2)):
        pytest.skip("scripts may write there")
    with server.raw() as look, server.raw() as other, proxy.raw() as warm:
        look.ask("FLUSHALL")
        for _ in range(3):
            warm.ask(*HIT)
        with trouble(error, look, other):
            # A replica refuses a write before it reports that its master is down.
            words = ("GET", "k") if error == "MASTERDOWN" else ("RPUSH", "k", "x")
            expected = plain_error(server, *words)
            assert str(expected).startswith(error)
            assert replies_on_both(warm, proxy) == [expected] * 3
            if error == "READONLY":
                assert warm.ask("RL.PEEK", "k", 10, 60) == [0, 10, 7, -1, 60]
        assert look.ask("LLEN", "k") == 3


def test_misconf_reaches_the_client(engine: str) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(engine))
        proxy = stack.enter_context(harness.proxy(server))
        with server.raw() as look, proxy.raw() as warm:
            for _ in range(3):
                warm.ask(*HIT)
            answer = look.ask("CONFIG", "GET", "dir")
            assert isinstance(answer, list)
            look.ask("CONFIG", "SET", "save", "3600 100000")
            shutil.rmtree(answer[1])  # no directory to save to
            look.ask("BGSAVE")

            def failed() -> bool:
                text = look.ask("INFO", "persistence")
                return isinstance(text, bytes) and b"rdb_last_bgsave_status:err" in text

            wait_until(failed, "the background save has failed")
            expected = plain_error(server, "RPUSH", "k", "x")
            assert str(expected).startswith("MISCONF")
            assert replies_on_both(warm, proxy) == [expected] * 3


def test_loading_reaches_the_client(engine: str) -> None:
    options = ["--key-load-delay", "4000", "--rdbcompression", "no"]
    keys, size = 5000, 1100  # 20 s, until the delay ends
    if engine == "redis-6.2":
        keys, size = 300, 50_000  # Redis checks only every 2 MB, and has no option for it
    else:
        options += ["--loading-process-events-interval-bytes", "1024"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(harness.server(engine, *options))
        proxy = stack.enter_context(harness.proxy(server))
        fill = f"for n = 1, {keys} do redis.call('SET', 'key' .. n, ('x'):rep({size})) end"
        assert server.ask("EVAL", fill, 0) is None
        assert server.ask("SAVE") == "OK"
        server.stop()
        server.start()
        with server.raw() as look, proxy.raw() as raw:
            expected = look.ask("GET", "x")
            assert str(expected).startswith("LOADING")
            assert raw.ask("GET", "x") == expected  # any reply shows the proxy that it is back
            assert [raw.ask(*HIT), raw.ask(*HIT)] == [expected, expected]
            if engine != "redis-6.2":  # which refuses it while it loads
                assert look.ask("CONFIG", "SET", "key-load-delay", 0) == "OK"
            wait_until(lambda: not isinstance(look.ask("GET", "x"), ReplyError), "loaded")
            assert raw.ask(*HIT) == [0, 10, 9, -1, 60]
            assert raw.ask(*HIT) == [0, 10, 8, -1, 60]


def test_noauth_and_noperm_reach_the_client(pair: tuple[RedisServer, Proxy]) -> None:
    server, proxy = pair
    with server.raw() as look:
        look.ask("ACL", "SETUSER", "bob", "on", ">pw", "~other", "+@all")
        look.ask("ACL", "SETUSER", "eve", "on", ">pw", "~*", "+@all", "-@write")
        look.ask("ACL", "SETUSER", "joe", "on", ">pw", "~*", "+ping")
        try:
            for user in ("bob", "eve", "joe"):
                with server.raw() as raw:
                    assert raw.ask("AUTH", user, "pw") == "OK"
                    raw.send(command("EVAL", "return redis.call('RPUSH', KEYS[1], 1)", 1, "k"))
                    error = cleaned(raw.line())
                # Redis reports a command that the script may not call as an error of the script.
                assert user == "eve" or error.startswith("NOPERM")
                with proxy.raw() as raw:
                    assert raw.ask("AUTH", user, "pw") == "OK"
                    for _ in range(3):
                        assert str(raw.ask(*HIT)).replace("evalsha", "eval") == error
            look.ask("CONFIG", "SET", "requirepass", "s3")
            with proxy.raw() as raw:
                expected = plain_error(server, "GET", "k")
                assert str(expected).startswith("NOAUTH")
                assert [raw.ask(*HIT), raw.ask(*HIT)] == [expected, expected]
        finally:
            look.ask("CONFIG", "SET", "requirepass", "")
            look.ask("ACL", "DELUSER", "bob", "eve", "joe")


def test_errors_inside_a_transaction_contain_no_script_names(
    pair: tuple[RedisServer, Proxy],
) -> None:
    server, proxy = pair
    with server.raw() as look, proxy.raw() as raw:
        look.ask("FLUSHALL")
        look.ask("SET", "k", "foreign")
        answer = [raw.ask("MULTI"), raw.ask(*HIT), raw.ask("EXEC")]
        wrong = ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")
        assert answer == ["OK", "QUEUED", [wrong]]
        assert raw.ask(*HIT) == wrong


def test_largest_numbers_keep_every_digit(pair: tuple[RedisServer, Proxy]) -> None:
    server, proxy = pair
    with server.raw() as look, proxy.raw() as raw:
        look.ask("FLUSHALL")
        ten_years_ms = 315_360_000_000
        answer = raw.ask("RL.HIT", "k", 1, ten_years_ms, "MS")
        assert answer == [0, 1, 0, -1, ten_years_ms]
        assert raw.ask("RL.HIT", "one", 1_000_000, "0.001") == [0, 1_000_000, 999_999, -1, 1]


def test_evicted_or_flushed_scripts_change_no_reply(pair: tuple[RedisServer, Proxy]) -> None:
    server, proxy = pair
    with server.raw() as look, proxy.raw() as raw, proxy.raw() as other:
        look.ask("FLUSHALL")
        for number in range(700):  # 7.4 and later keep 500 scripts that came by EVAL
            look.send(command("EVAL", f"return {number}", 0))
        for _ in range(700):
            look.reply()
        left = 1000
        for client in (raw, other, raw, other):
            for kind in ("", "SYNC", "ASYNC"):
                if kind:
                    look.ask("SCRIPT", "FLUSH", kind)
                client.send(command("RL.HIT", "k", 1000, 60) * 5 + command("PING"))
                for _ in range(5):
                    left -= 1
                    assert client.reply() == [0, 1000, left, -1, 60]
                assert client.reply() == "PONG"
        look.ask("SCRIPT", "FLUSH")
        raw.send(command("MULTI") + command("RL.HIT", "k", 1000, 60) * 2 + command("EXEC"))
        assert [raw.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
        assert raw.reply() == [[0, 1000, left - 1, -1, 60], [0, 1000, left - 2, -1, 60]]
