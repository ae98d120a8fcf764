"""Commands that the proxy denies: never run, refused in order, and without other effects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import harness
from tests.conformance import test_framing, test_password
from tests.conformance.compare import (
    HIT,
    INLINE_HIT,
    Bench,
    Case,
    Swap,
    case,
    name_of,
)
from tests.harness import (
    ON_ONE_ENGINE,
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    command,
)

DENIED = ("keys", "config|set", "Debug", "script|flush", "rl.reset", "eval", "ft.search", "object")
KEYS = b"-NOPERM command 'keys' is denied by rlproxy (--deny-command)\r\n"
CONFIG_SET = b"-NOPERM command 'config|set' is denied by rlproxy (--deny-command)\r\n"
PING = command("PING")
HI = command("ECHO", "hi")


@pytest.fixture(scope="module")
def module_proxy(module_server: RedisServer) -> Iterator[Proxy]:
    args = [word for name in DENIED for word in ("--deny-command", name)]
    with harness.proxy(module_server, *args) as made:
        yield made


def denied(*words: str, written: bytes | None = None) -> Swap:
    """A denied command; the server gets an unknown command in its place."""
    instead = command("RL.DENIED", words[0].upper())
    return Swap(instead, command(*words) if written is None else written)


ASK_KEYS = denied("KEYS", "*")
SET_CONFIG = denied("CONFIG", "SET", "maxmemory-samples", "7")
UNKNOWN = rb"-ERR unknown command [^\r]*KEYS[^\r]*\r\n"
TOLD = [(UNKNOWN, KEYS), (UNKNOWN.replace(b"KEYS", b"CONFIG"), CONFIG_SET)]
AS_KEYS = [(UNKNOWN, KEYS)]
MULTI, EXEC = command("MULTI"), command("EXEC")
BIG = "x" * 300_000

ROWS = [
    case("alone", ASK_KEYS, rewrite=TOLD),
    case("twice between others", PING, ASK_KEYS, HI, ASK_KEYS, ASK_KEYS, PING, rewrite=TOLD),
    case("in any case", denied("KEYS", written=command("kEyS", "*")), PING, rewrite=TOLD),
    case("inline", denied("KEYS", written=b"keys *\r\n"), b"ping\r\n", rewrite=TOLD),
    case("inline in quotes", denied("KEYS", written=b' "k\\x65ys" *\n'), PING, rewrite=TOLD),
    case("among hits", HIT, ASK_KEYS, HIT, HIT, ASK_KEYS, HIT, rewrite=TOLD),
    case("hits and then one", HIT, HIT, ASK_KEYS, INLINE_HIT, rewrite=TOLD),
    case("a subcommand", SET_CONFIG, command("CONFIG", "GET", "port"), PING, rewrite=TOLD),
    case("a subcommand in any case", denied("CONFIG", written=command("Config", "sEt", "a", "1")),
         PING, rewrite=TOLD),
    case("a subcommand inline", denied("CONFIG", written=b"config set a 1\r\n"), PING,
         rewrite=TOLD),
    case("another subcommand", command("CONFIG", "GET", "maxmemory"), command("CONFIG"),
         command("CONFIG", "NOPE"), command("CONFIG", "RESETSTAT"), HIT),
    case("in MULTI", MULTI, HIT, ASK_KEYS, command("SET", "a", 1), EXEC, PING, HIT, rewrite=TOLD),
    case("a subcommand in MULTI", MULTI, SET_CONFIG, command("SET", "a", 1), EXEC, HIT,
         rewrite=TOLD),
    case("in MULTI, discarded", MULTI, ASK_KEYS, command("DISCARD"), HIT, HIT, rewrite=TOLD),
    case("with watched keys", command("WATCH", "a"), ASK_KEYS, MULTI, HIT, EXEC, rewrite=TOLD),
    case("under REPLY OFF", command("CLIENT", "REPLY", "OFF"), ASK_KEYS, HIT,
         command("CLIENT", "REPLY", "ON"), HIT),
    case("under REPLY SKIP", command("CLIENT", "REPLY", "SKIP"), ASK_KEYS, HIT, PING),
    case("behind something unknown", command("FOO"), ASK_KEYS, HIT, rewrite=TOLD),
    case("while subscribed", command("SUBSCRIBE", "a"), ASK_KEYS, PING),
    case("while subscribed in RESP3", command("HELLO", 3), command("SUBSCRIBE", "a"), ASK_KEYS,
         HIT, PING),
    case("large", denied("KEYS", written=command("KEYS", BIG, BIG)), PING, HIT, rewrite=TOLD),
    case("large in MULTI", MULTI, denied("KEYS", written=command("KEYS", BIG)), HIT, EXEC, HIT,
         rewrite=TOLD),
    case("large with a subcommand",
         denied("CONFIG", written=command("CONFIG", "SET", "requirepass", BIG)), PING, HIT,
         rewrite=TOLD),
    case("large, unfinished", PING, denied("KEYS", written=command("KEYS", BIG)[:-5]),
         rewrite=TOLD),
    case("then a broken command", ASK_KEYS, b"*2\r\n$x\r\n", PING, rewrite=TOLD),
    case("with another name for it", denied("KEYS", written=command(b"KEYS\0aa", "*")),
         denied("KEYS", written=command(b"KEYS\0" + b"a" * 100, "*")), PING, rewrite=TOLD),
    case("before QUIT", ASK_KEYS, command("QUIT"), ASK_KEYS, rewrite=TOLD),
    case("a command that hits go as", denied("KEYS"), HIT, HIT, HIT, rewrite=AS_KEYS),
    case("a lot", *((ASK_KEYS, HI) * 300), rewrite=TOLD),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_denied_commands_are_refused(bench: Bench, row: Case) -> None:
    bench.compare(row)


def test_denied_command_behind_a_blocking_command(bench: Bench) -> None:
    """A row would be compared before Redis has answered."""
    found = []
    for made, request in ((bench.server, ASK_KEYS.direct), (bench.proxy, ASK_KEYS.proxied)):
        with made.raw() as raw:
            raw.send(command("BLPOP", "nope", "0.05") + request + PING)
            found.append([raw.line() for _ in range(3)])
    assert found[0][::2] == [b"*-1\r\n", b"+PONG\r\n"]
    assert found[1] == [b"*-1\r\n", KEYS, b"+PONG\r\n"]


@ON_ONE_ENGINE
@pytest.mark.parametrize(
    "row",
    [*test_framing.BROKEN, *test_framing.LIMITS, *test_framing.LENIENT],
    ids=name_of,
)
def test_malformed_bytes_get_the_servers_own_error(bench: Bench, row: Case) -> None:
    bench.compare(row)


@ON_ONE_ENGINE
@pytest.mark.parametrize("row", test_password.NEEDED[:20], ids=name_of)
def test_other_commands_are_unchanged(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Raw]:
    with proxy.raw() as raw:
        yield raw


def calls(server: RedisServer, name: str) -> bytes:
    with server.raw() as raw:
        stats = raw.ask("INFO", "commandstats")
    assert isinstance(stats, bytes)
    return b"".join(line for line in stats.splitlines() if f"_{name}".encode() in line)


def test_redis_never_runs_a_denied_command(client: Raw, redis_server: RedisServer) -> None:
    with redis_server.raw() as raw:
        raw.ask("CONFIG", "RESETSTAT")
    for at in range(2000):  # Redis 6 and 7 take some names with a NUL for the command before it
        client.send(command(b"OBJECT\0%d" % at, "HELP") + command("FT.SEARCH", at))
    for _ in range(2000):
        assert "'object' is denied" in str(client.reply())
        assert "'ft.search' is denied" in str(client.reply())
    assert not calls(redis_server, "object")
    # A name that no command has, for the script call of a hit.
    assert client.ask("RL.HIT", "k", 10, 60) == [0, 10, 9, -1, 60]
    assert "'eval' is denied" in str(client.ask("EVAL", "return 1", 0))
    assert "'rl.reset' is denied" in str(client.ask("RL.RESET", "k"))
    assert client.ask("RL.HIT", "k", 10, 60) == [0, 10, 8, -1, 60]


@ON_ONE_ENGINE
def test_denied_command_with_more_arguments_than_servers_take(
    client: Raw, redis_server: RedisServer
) -> None:
    """Arguments are normally not inspected; here the name is."""
    with redis_server.raw() as raw:
        raw.ask("CONFIG", "RESETSTAT")
    client.send(b"*1048578\r\n$4\r\nKEYS\r\n" + b"$1\r\na\r\n" * 1_048_577 + PING)
    assert client.reply() == ReplyError(KEYS[1:-2].decode())
    assert client.reply() == "PONG"
    assert not calls(redis_server, "keys")


@pytest.mark.parametrize(
    "start",
    [b"*1\r\n$01\r\n", b"*01\r\n", b'ping "x\r\n', b"ping\0\r\n", b"*1\r\nping\r\n"],
    ids=["length", "count", "quotes", "NUL", "no length"],
)
def test_bytes_behind_malformed_ones_are_not_forwarded(
    client: Raw, redis_server: RedisServer, start: bytes
) -> None:
    """Another server might parse it differently and run the bytes after it."""
    client.send(HI + start)
    assert client.reply() == b"hi"
    client.send(command("SET", "behind", 1) * 3)
    assert client.line().startswith(b"-ERR Protocol error")
    assert client.closes()
    with redis_server.raw() as raw:
        assert raw.ask("DBSIZE") == 0
