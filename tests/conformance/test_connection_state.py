"""Commands that change the state of their connection, with hits before, between and after them."""

from __future__ import annotations

import pytest

from tests.conformance.compare import (
    HIT,
    INLINE_HIT,
    UNKNOWN_HIT,
    Bench,
    Case,
    Swap,
    case,
    hit,
    name_of,
)
from tests.harness import command

PING = command("PING")
RESET = command("RESET")
QUIT = command("QUIT")
OFF = command("CLIENT", "REPLY", "OFF")
ON = command("CLIENT", "REPLY", "ON")
SKIP = command("CLIENT", "REPLY", "SKIP")
HELLO3 = command("HELLO", 3)
HELLO2 = command("HELLO", 2)
MAP = command("CONFIG", "GET", "maxmemory")  # a map in RESP3, an array in RESP2

PEEK_LUA = "return {0, 10, 10 - redis.call('LLEN', KEYS[1]), -1, 60}"
PEEK = Swap(command("EVAL", PEEK_LUA, 1, "k"), command("RL.PEEK", "k", 10, 60))

PROTOCOL = [
    case("HELLO alone", command("HELLO"), HIT),
    case("HELLO 2", HELLO2, HIT, MAP),
    case("HELLO 3", HELLO3, HIT, MAP, PING, HIT),
    case("HELLO 3 in mid pipeline", MAP, HIT, HELLO3, MAP, HIT, HELLO2, MAP, HIT),
    case("HELLO 4", HELLO3, MAP, command("HELLO", 4), MAP, HIT),
    case("HELLO of a word", command("HELLO", "abc"), MAP, HIT),
    case("HELLO of a number below zero", command("HELLO", "-3"), HIT),
    case("HELLO with a leading zero", command("HELLO", "03"), MAP, HIT),
    case("HELLO SETNAME", command("HELLO", 3, "SETNAME", "n"), command("CLIENT", "GETNAME"), HIT),
    case("HELLO SETNAME of two words", command("HELLO", 3, "SETNAME", "a b"), MAP, HIT),
    case("HELLO with a word too many", command("HELLO", 3, "FOO"), MAP, HIT),
    case("HELLO with AUTH cut short", command("HELLO", 3, "AUTH", "bob"), MAP, HIT),
    case("inline hello", b"hello 3\r\n", MAP, INLINE_HIT),
    case(
        "a handshake",
        HELLO3,
        command("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "none"),
        command("CLIENT", "SETINFO", "LIB-NAME", "redis-py"),
        command("CLIENT", "SETINFO", "LIB-VER", "8.0"),
        PING,
        HIT,
        HIT,
    ),
    case("a nil in both", command("GET", "no"), HELLO3, command("GET", "no"), HIT),
    case("a double in both", command("ZADD", "z", "1.5", "m"), command("ZSCORE", "z", "m"), HELLO3,
         command("ZSCORE", "z", "m"), HIT),
    case("a set in both", command("SADD", "s", "m"), command("SMEMBERS", "s"), HELLO3,
         command("SMEMBERS", "s"), HIT),
    case("every type", HELLO3, *(command("DEBUG", "PROTOCOL", kind) for kind in
         ("string", "integer", "double", "null", "array", "set", "map", "attrib", "bignum",
          "true", "false", "verbatim")), HIT, PING, HIT),
    case("a push in between", HELLO3, HIT, command("DEBUG", "PROTOCOL", "push"), HIT, PING, HIT),
]  # fmt: skip

LEAVING = [
    case("RESET", RESET, HIT, PING),
    case("RESET of RESP3", HELLO3, HIT, RESET, MAP, HIT),
    case("RESET of a database", command("SELECT", 3), HIT, RESET, HIT, HIT),
    case("RESET of a name", command("CLIENT", "SETNAME", "n"), RESET, command("CLIENT", "GETNAME")),
    case("RESET of MULTI", command("MULTI"), HIT, RESET, HIT, command("EXEC"), HIT),
    case("RESET of WATCH", command("WATCH", "k"), HIT, RESET, command("MULTI"), HIT,
         command("EXEC"), HIT),
    case("RESET of REPLY OFF", OFF, HIT, RESET, HIT, PING),
    case("RESET of REPLY SKIP", SKIP, RESET, HIT, PING),
    case("RESET of subscriptions", command("SUBSCRIBE", "a", "b"), HIT, RESET, HIT, PING),
    case("RESET of subscriptions in RESP3", HELLO3, command("SUBSCRIBE", "a"), HIT, RESET, HIT,
         MAP),
    case("RESET of tracking", HELLO3, command("CLIENT", "TRACKING", "ON"), command("GET", "k"),
         RESET,
         command("GET", "k"), HIT, HIT),
    case("RESET of an unknown command", command("FOO"), HIT, RESET, HIT, HIT),
    case("RESET with an argument", command("SELECT", 2), command("RESET", "x"), HIT),
    case("RESET inline", b"select 2\r\nreset\r\n", INLINE_HIT),
    case("RESET twice", command("SELECT", 2), RESET, RESET, HIT, HIT),
    case("QUIT", QUIT),
    case("QUIT and PING", QUIT, PING),
    case("QUIT and a hit", HIT, QUIT, HIT),
    case("QUIT and a write", HIT, QUIT, command("SET", "a", 1), HIT),
    case("QUIT inline", b"quit\r\n", INLINE_HIT),
    case("QUIT with arguments", command("QUIT", "x"), HIT, PING),
    case("QUIT in MULTI", command("MULTI"), HIT, QUIT, HIT, command("EXEC")),
    case("QUIT under REPLY OFF", OFF, QUIT, HIT),
    case("QUIT while subscribed", command("SUBSCRIBE", "a"), QUIT, HIT),
    case("QUIT and broken bytes", QUIT, b"*x\r\n", HIT),
    case("QUIT after HELLO 3", HELLO3, HIT, QUIT, HIT),
]  # fmt: skip

DATABASE = [
    case("SELECT", command("SELECT", 3), HIT, HIT, PING, HIT),
    case("SELECT between hits", HIT, command("SELECT", 3), HIT, command("SELECT", 0), HIT, HIT),
    case("SELECT out of range", command("SELECT", 99), HIT, command("SELECT", -1), HIT),
    case("SELECT of a word", command("SELECT", "x"), HIT, command("SELECT", ""), HIT),
    case("SELECT with a leading zero", command("SELECT", "03"), HIT, command("SELECT", " 3"), HIT),
    case("SELECT of no and of many", command("SELECT"), command("SELECT", 1, 2), HIT),
    case("SELECT of a long number", command("SELECT", "9" * 30), HIT),
    case("SELECT in MULTI", command("MULTI"), command("SELECT", 2), HIT, command("EXEC"), HIT, HIT),
    case("SELECT in MULTI, discarded", command("MULTI"), command("SELECT", 2), command("DISCARD"),
         HIT, HIT),
    case("SELECT under REPLY OFF", OFF, command("SELECT", 2), HIT, ON, HIT, HIT),
    case("SELECT under REPLY SKIP", SKIP, command("SELECT", 2), HIT, HIT),
    case("SELECT inline", b"select 2\r\n", INLINE_HIT, HIT),
    case("SWAPDB", HIT, command("SWAPDB", 0, 1), HIT, HIT),
    case("a script that selects", command("EVAL", "redis.call('SELECT', 2)", 0), HIT, HIT),
    case("MOVE", HIT, command("MOVE", "k", 2), HIT, HIT),
]  # fmt: skip

LONG_HIT = command("RL.HIT", "k" * 70_000, 10, 60)

SILENCE = [
    case("OFF", OFF, HIT, PING, HIT),
    case("OFF and ON", OFF, HIT, PING, HIT, ON, HIT, PING),
    case("OFF twice", OFF, OFF, HIT, ON, ON, HIT),
    case("OFF swallows errors", OFF, command("FOO"), command("GET"), UNKNOWN_HIT, ON, HIT),
    case("ON alone", ON, HIT, UNKNOWN_HIT, PING),
    case("SKIP and PING", SKIP, PING, HIT, PING),
    case("SKIP and a hit", SKIP, HIT, HIT, PING),
    case("SKIP and a wrong hit", SKIP, UNKNOWN_HIT, HIT, PING),
    case("SKIP and a hit that is too long", SKIP, LONG_HIT, HIT, PING),
    case("OFF and a hit that is too long", OFF, LONG_HIT, HIT, ON, HIT, PING),
    case("SKIP twice", SKIP, SKIP, HIT, HIT, PING),
    case("SKIP between hits", HIT, HIT, SKIP, HIT, HIT, SKIP, PING, HIT),
    case("SKIP at the end", HIT, SKIP),
    case("SKIP under OFF", OFF, SKIP, PING, ON, PING, HIT),
    case("REPLY in lower case", command("client", "reply", "off"), HIT, PING, ON, HIT),
    case("REPLY inline", b"client reply skip\r\n", INLINE_HIT, INLINE_HIT),
    case("REPLY of an unknown word", command("CLIENT", "REPLY", "X"), HIT, PING, UNKNOWN_HIT),
    case("REPLY without a word", command("CLIENT", "REPLY"), HIT, PING),
    case("REPLY with two words", command("CLIENT", "REPLY", "OFF", "ON"), HIT, PING, HIT),
    case("CLIENT alone", command("CLIENT"), HIT, PING),
    case("confirmations under OFF", OFF, command("SUBSCRIBE", "a", "b"), HIT, PING, ON),
    case("confirmations under OFF in RESP3", HELLO3, OFF, command("SUBSCRIBE", "a"), HIT, ON, HIT),
    case("messages under OFF", HELLO3, command("SUBSCRIBE", "a"), OFF, command("PUBLISH", "a", "m"),
         HIT, ON, HIT),
    case("a transaction under OFF", OFF, command("MULTI"), HIT, command("EXEC"), ON, HIT, HIT),
    case("OFF in a transaction", command("MULTI"), OFF, HIT, command("EXEC"), HIT, ON, HIT),
    case("broken bytes under OFF", OFF, HIT, b"*x\r\n", HIT),
    # (Redis closes once it has a reply to write, here the one to ECHO.)
    case("SKIP and broken bytes", command("ECHO", "x"), SKIP, b"*x\r\n", HIT),
    case("OFF and SELECT and RESET", OFF, command("SELECT", 2), HIT, RESET, HIT, HIT),
    case("HELLO under SKIP", SKIP, HELLO3, MAP, HIT, HIT),
]  # fmt: skip

OTHER = [
    case("readonly", command("READONLY"), HIT, command("READWRITE"), HIT, HIT),
    case("asking", command("ASKING"), HIT, HIT),
    case("tracking", command("CLIENT", "TRACKING", "ON"), HIT, HELLO3, command("CLIENT", "TRACKING",
         "ON"), command("GET", "a"), command("SET", "a", 1), HIT, HIT),
    case("caching", HELLO3, command("CLIENT", "TRACKING", "ON", "OPTIN"),
         command("CLIENT", "CACHING", "YES"), HIT, HIT, command("CLIENT", "CACHING", "YES"),
         command("GET", "k"), HIT, PING),
    case("caching without tracking", command("CLIENT", "CACHING", "YES"), HIT, HIT),
    case("no-evict", command("CLIENT", "NO-EVICT", "ON"), HIT, HIT),
    case("no-touch", command("CLIENT", "NO-TOUCH", "ON"), HIT, HIT),
    case("names", command("CLIENT", "SETNAME", "n"), HIT, command("CLIENT", "GETNAME"), HIT),
    case("a name of two words", command("CLIENT", "SETNAME", "a b"), HIT),
    case("scripts", command("SCRIPT", "LOAD", "return 1"), HIT, command("SCRIPT", "EXISTS", "x"),
         HIT),
    case("an EVALSHA of an unknown script", command("EVALSHA", "0" * 40, 0), HIT, PING),
    case("scripts flushed in between", HIT, command("SCRIPT", "FLUSH"), HIT, HIT, PING),
    case("EVAL of a client", command("EVAL", "return {KEYS[1], 1, 'x'}", 1, "k"), HIT),
    case("a raised error", command("EVAL", "return redis.error_reply('X y')", 0), HIT),
    case("wait without replicas", HIT, command("WAIT", 0, 0), HIT, HIT, command("WAIT", 0, 10),
         HIT),
    case("wait with a wrong number", HIT, command("WAIT", "x", 0), command("WAIT"), HIT),
    case("keys that hits left", HIT, command("TYPE", "k"), command("EXISTS", "k"), HIT,
         command("DEL", "k"), HIT, command("RENAME", "k", "j"), HIT, command("LLEN", "j")),
    case("a foreign value", command("SET", "k", "v"), HIT, command("GET", "k"), HIT),
    case("blocking commands that need not block", command("RPUSH", "l", "a"),
         command("BLPOP", "l", 0), HIT, PING),
    case("replconf", command("REPLCONF", "listening-port", "1"), HIT, PING, HIT),
    case("long pipeline", *[HIT] * 5, *[PING] * 300, HIT, *[command("SET", "a", "b")] * 100, HIT),
    case("an unknown subcommand", command("CLIENT", "FOO"), HIT, HIT),
    case("restored hits", HIT, command("DUMP", "no"), HIT, PING),
    case("RL.RESET", HIT, hit("j"), Swap(command("DEL", "k", "x"), command("rl.reset", "k", "x")),
         HIT, HIT),
    case("RL.PEEK", HIT, PEEK, HIT, HIT),
]  # fmt: skip


@pytest.mark.parametrize("row", PROTOCOL, ids=name_of)
def test_hits_after_a_change_of_protocol(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", LEAVING, ids=name_of)
def test_hits_after_reset_and_quit(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", DATABASE, ids=name_of)
def test_hits_after_select(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", SILENCE, ids=name_of)
def test_hits_under_client_reply(bench: Bench, row: Case) -> None:
    bench.compare(row)


@pytest.mark.parametrize("row", OTHER, ids=name_of)
def test_hits_with_other_connection_state(bench: Bench, row: Case) -> None:
    bench.compare(row)
