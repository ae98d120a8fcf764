"""A password on the default user: replies while it is required, and the identity of a connection
afterwards.
"""

from __future__ import annotations

import pytest

from tests import harness
from tests.conformance.compare import ARITY, HIT, INLINE_HIT, Bench, Case, case, hit, name_of
from tests.harness import ReplyError, command

PING = command("PING")
PASSWORD = ("CONFIG", "SET", "requirepass", "s3")
# bob may hit keys that begin with b, and query his own rights.
BOB = ("ACL", "SETUSER", "bob", "on", ">pw", "~b*", "+@all")
WHO = command("ACL", "WHOAMI")
LOGIN = command("AUTH", "s3")
AS_BOB = command("AUTH", "bob", "pw")
BOB_HIT = hit("b")

NEEDED = [
    case("nothing but refusals", PING, HIT, command("GET", "k"), INLINE_HIT, HIT),
    case("unknown before NOAUTH", command("FOO", "x"), HIT, command("FOO")),
    case("arity before NOAUTH", command("GET"), HIT, command("SET", "a")),
    case("ten arguments", command("DEL", *"123456789"), PING),
    case("eleven arguments", command("DEL", *"1234567890"), PING),
    case("eleven arguments behind a hit", HIT, command("DEL", *"1234567890"), PING),
    case("bulk of 16384", command("ECHO", "x" * 16384), PING),
    case("bulk of 16385", command("ECHO", "x" * 16385), PING),
    case("bulk of 16385 begun", PING, b"*2\r\n$4\r\nECHO\r\n$16385\r\n"),
    case("bulk of 16385 behind a hit", HIT, b"*2\r\n$4\r\nECHO\r\n$16385\r\nx"),
    case("name of 16385", b"*1\r\n$16385\r\n" + b"x" * 16385),
    case("inline of eleven words", b"DEL 1 2 3 4 5 6 7 8 9 0\r\n", PING),
    case("wrong password", command("AUTH", "nope"), HIT, command("AUTH", "bob", "pw"), HIT),
    case("right password", LOGIN, HIT, PING, HIT),
    case("right password, hits before and behind", HIT, LOGIN, HIT, HIT, PING),
    case("right password inline", b"auth s3\r\n", INLINE_HIT, b"ping\r\n", INLINE_HIT),
    case("right, then wrong password", LOGIN, HIT, command("AUTH", "nope"), HIT, WHO),
    case("AUTH of no and of many arguments", command("AUTH"), command("AUTH", *"abc"), HIT, LOGIN),
    case("eleven arguments after AUTH", LOGIN, command("DEL", *"1234567890"), HIT),
    case("big bulk after AUTH", LOGIN, command("ECHO", "x" * 20_000), HIT),
    case("HELLO without AUTH", command("HELLO", 3), HIT, command("HELLO")),
    case("HELLO with AUTH", command("HELLO", 3, "AUTH", "default", "s3"), HIT, WHO, HIT),
    case("HELLO with a wrong AUTH", command("HELLO", 3, "AUTH", "default", "no"), HIT, LOGIN, HIT),
    case("RESET before AUTH", command("RESET"), HIT, LOGIN, HIT),
    case("RESET after AUTH", LOGIN, HIT, HIT, command("RESET"), HIT, PING, LOGIN, HIT),
    case("QUIT before AUTH", HIT, command("QUIT"), HIT),
    case("MULTI before AUTH", command("MULTI"), HIT, command("EXEC"), LOGIN, HIT),
    case("SUBSCRIBE before AUTH", command("SUBSCRIBE", "a"), HIT, PING, LOGIN),
    case("CLIENT REPLY before AUTH", command("CLIENT", "REPLY", "OFF"), HIT, LOGIN, HIT),
    case("MONITOR before AUTH", command("MONITOR"), HIT, LOGIN, HIT),
    case("SELECT before AUTH", command("SELECT", 2), HIT, LOGIN, HIT),
    case("broken bytes before AUTH", HIT, b"*x\r\n", HIT),
    case("AUTH in MULTI", LOGIN, command("MULTI"), HIT, LOGIN, command("EXEC"), HIT, PING, HIT),
]

# tests/conformance/test_acl_histories.py has the rows whose commands are sent one by one.
WHOSE = [
    case("AUTH without a password set", command("AUTH", "x"), HIT, HIT, PING),
    case("bob by a HELLO that fails, then others", HIT, HIT,
         command("HELLO", 3, "AUTH", "bob", "pw", "SETNAME", "a b"), HIT, PING, BOB_HIT,
         command("AUTH", "bob", "pw"), BOB_HIT, HIT, command("RESET"), HIT, setup=[BOB]),
    case("bob under REPLY OFF", command("CLIENT", "REPLY", "OFF"), AS_BOB,
         command("CLIENT", "REPLY", "ON"), WHO, HIT, BOB_HIT, setup=[BOB]),
    case("bob, wrong passwords in a pipeline", PING, command("AUTH", "bob", "no"), PING, HIT,
         command("HELLO", 2, "AUTH", "bob", "no"), command("AUTH", "bob", "no"), HIT, WHO,
         command("SELECT", 1), command("HELLO", 3, "SETNAME", "n", "AUTH", "bob", "no"), HIT,
         AS_BOB, WHO, command("AUTH", "no"), BOB_HIT, PING, setup=[BOB]),
    # Redis 7.2 to 8 leave the error out of EXEC's array, which is one element short.
    case("bob, wrong password in MULTI", AS_BOB, BOB_HIT, command("MULTI"),
         command("AUTH", "bob", "no"), BOB_HIT, command("EXEC"), WHO, BOB_HIT, PING, BOB_HIT,
         setup=[BOB]),
    case("bob by HELLO, wrong password in MULTI", AS_BOB, command("MULTI"), PING,
         command("HELLO", 3, "AUTH", "bob", "no"), command("EXEC"), WHO, BOB_HIT, PING, BOB_HIT,
         setup=[BOB]),
    case("bob may not hit in MULTI", AS_BOB, command("MULTI"), HIT, PING, command("EXEC"),
         setup=[("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+ping", "+multi", "+exec")]),
    case("bob's DISCARD is refused", AS_BOB, command("MULTI"), command("DISCARD"), BOB_HIT, PING,
         command("EXEC"), BOB_HIT,
         setup=[("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-discard")]),
    case("bob's RESET is refused", AS_BOB, command("SELECT", 1), HIT, command("RESET"), HIT, WHO,
         HIT,
         setup=[("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-reset")]),
]  # fmt: skip


@pytest.mark.parametrize("row", NEEDED, ids=name_of)
def test_commands_while_a_password_is_required(bench: Bench, row: Case) -> None:
    # Not warm: a connection from before the password keeps its rights.
    row = Case(row.name, row.pieces, (PASSWORD,), row.rewrite)
    bench.compare(row, warm=False)


@pytest.mark.parametrize("row", WHOSE, ids=name_of)
def test_hit_runs_as_its_clients_user(bench: Bench, row: Case) -> None:
    bench.compare(row)


def test_hit_behind_a_wrong_password_is_answered_once(bench: Bench) -> None:
    bench.reset([BOB])
    with harness.proxy(bench.server) as proxy, proxy.raw() as raw:
        raw.send(PING + command("AUTH", "bob", "no") + HIT.proxied)
        raw.finish()
        replies = raw.quiet(5)
        assert replies.endswith(b"\r\n*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:60\r\n")
    bench.reset()


def test_error_of_an_invalid_hit_precedes_noauth(bench: Bench) -> None:
    bench.reset([PASSWORD])
    with bench.proxy.raw() as raw:
        assert raw.ask("RL.HIT", "k") == ReplyError(ARITY)
        assert str(raw.ask("RL.HIT", "k", 10, 60)).startswith("NOAUTH")
    bench.reset()
