"""MULTI, EXEC, DISCARD and WATCH with hits among the commands."""

from __future__ import annotations

import pytest

from tests.conformance.compare import (
    HIT,
    INLINE_HIT,
    UNKNOWN_HIT,
    UNKNOWN_IS_WRONG,
    Bench,
    Case,
    case,
    hit,
    name_of,
)
from tests.harness import command

PING = command("PING")
MULTI = command("MULTI")
EXEC = command("EXEC")
DISCARD = command("DISCARD")
WATCH = command("WATCH", "w")
TOUCH = command("SET", "w", 1)
HELLO3 = command("HELLO", 3)
RESET = command("RESET")

TRANSACTIONS = [
    case("hits queued", MULTI, HIT, HIT, EXEC, HIT, PING),
    case("hits among others", HIT, MULTI, PING, HIT, command("GET", "a"), HIT, EXEC, HIT, HIT),
    case("hits queued in RESP3", HELLO3, MULTI, HIT, command("HGETALL", "h"), EXEC, HIT),
    case("inline", b"multi\r\n", INLINE_HIT, b"exec\r\n", INLINE_HIT),
    case("nothing queued", MULTI, EXEC, HIT),
    case("left open", HIT, MULTI, HIT),
    case("discarded", MULTI, HIT, DISCARD, HIT, EXEC, HIT),
    case("DISCARD alone", DISCARD, HIT, HIT),
    case("EXEC alone", EXEC, HIT, HIT),
    case("nested MULTI", MULTI, HIT, MULTI, HIT, EXEC, HIT),
    case("MULTI with an argument", command("MULTI", "x"), HIT, EXEC, HIT),
    case("DISCARD with an argument", MULTI, HIT, command("DISCARD", "x"), HIT, EXEC, HIT, PING),
    case("EXEC with an argument", MULTI, HIT, command("EXEC", "x"), HIT, EXEC, HIT, PING),
    case("an unknown command aborts", MULTI, HIT, command("FOO"), HIT, EXEC, HIT),
    case("an unknown command aborts a DISCARD", MULTI, command("FOO"), HIT, DISCARD, HIT),
    case("wrong arity aborts", MULTI, HIT, command("GET"), EXEC, HIT),
    case("a wrong hit aborts", MULTI, UNKNOWN_HIT, HIT, EXEC, HIT, rewrite=[UNKNOWN_IS_WRONG]),
    case("a wrong hit behind a hit", MULTI, HIT, UNKNOWN_HIT, EXEC, HIT, HIT,
         rewrite=[UNKNOWN_IS_WRONG]),
    case("a wrong hit discarded", MULTI, UNKNOWN_HIT, DISCARD, HIT, rewrite=[UNKNOWN_IS_WRONG]),
    case("an error while it runs", MULTI, command("SET", "s", "x"), command("INCR", "s"), HIT, EXEC,
         HIT),
    case("a hit on a foreign value", command("SET", "s", "x"), MULTI, hit("s"), HIT, EXEC, HIT),
    case("watched and untouched", WATCH, MULTI, HIT, EXEC, HIT, HIT),
    case("watched and touched", WATCH, TOUCH, MULTI, HIT, EXEC, HIT, HIT),
    case("watched and touched in RESP3", HELLO3, WATCH, TOUCH, MULTI, HIT, EXEC, HIT),
    case("a watched limiter that is hit", command("WATCH", "k"), HIT, MULTI, PING, EXEC, HIT),
    case("a watched limiter hit twice", command("WATCH", "k"), HIT, HIT, MULTI, HIT, EXEC, HIT),
    case("unwatched", command("WATCH", "k"), HIT, command("UNWATCH"), HIT, MULTI, HIT, EXEC, HIT),
    case("watched without MULTI", WATCH, HIT, PING, HIT, TOUCH, HIT),
    case("watched, discarded, touched", WATCH, MULTI, HIT, DISCARD, TOUCH, MULTI, HIT, EXEC, HIT),
    case("WATCH in MULTI", MULTI, WATCH, HIT, EXEC, HIT),
    case("UNWATCH in MULTI", command("WATCH", "k"), MULTI, command("UNWATCH"), HIT, EXEC, HIT, HIT),
    case("WATCH without a key", command("WATCH"), HIT, HIT),
    case("watched and aborted", WATCH, MULTI, command("FOO"), EXEC, TOUCH, MULTI, HIT, EXEC, HIT),
    case("two transactions", MULTI, HIT, EXEC, MULTI, HIT, EXEC, HIT),
    case("a hundred queued", MULTI, *[PING] * 50, *[HIT] * 3, *[PING] * 50, EXEC, HIT),
    case("blocking in MULTI", MULTI, command("BLPOP", "no", 0), HIT, EXEC, HIT),
    case("a script in MULTI", MULTI, command("EVAL", "return 1", 0), HIT, EXEC, HIT),
    case("a script flush in MULTI", HIT, MULTI, command("SCRIPT", "FLUSH"), HIT, EXEC, HIT, HIT),
    case("HELLO in MULTI", MULTI, HELLO3, HIT, EXEC, HIT, command("CONFIG", "GET", "maxmemory")),
    case("HELLO of no version in MULTI", MULTI, command("HELLO", 9), HIT, EXEC, HIT),
    case("RESET in MULTI", MULTI, HIT, RESET, HIT, EXEC, HIT),
    case("RESET behind EXEC", MULTI, HIT, EXEC, RESET, HIT, HIT),
    case("CLIENT in MULTI", MULTI, command("CLIENT", "SETNAME", "n"), HIT, EXEC, HIT,
         command("CLIENT", "GETNAME")),
    case("CLIENT REPLY SKIP in MULTI", MULTI, command("CLIENT", "REPLY", "SKIP"), HIT, EXEC, HIT),
    case("WAIT behind EXEC", MULTI, HIT, EXEC, command("WAIT", 0, 0), HIT),
    case("SUBSCRIBE in MULTI", MULTI, command("SUBSCRIBE", "a"), HIT, EXEC, PING),
    case("SUBSCRIBE to two in MULTI", MULTI, command("SUBSCRIBE", "a", "b"), HIT, EXEC, PING, HIT),
    case("SUBSCRIBE in MULTI in RESP3", HELLO3, MULTI, command("SUBSCRIBE", "a", "b"), HIT, EXEC,
         HIT,
         PING),
    case("UNSUBSCRIBE in MULTI", MULTI, command("UNSUBSCRIBE", "a", "b"), HIT, EXEC, HIT, PING),
    case("MONITOR in MULTI", MULTI, command("MONITOR"), HIT, DISCARD, HIT),
    case("pushes while EXEC runs", HELLO3, command("CLIENT", "TRACKING", "ON"), command("GET", "a"),
         command("GET", "b"), MULTI, command("SET", "a", 1), HIT, command("SET", "b", 1), EXEC,
         PING,
         HIT),
    case("a published push inside EXEC", HELLO3, command("SUBSCRIBE", "c"), MULTI, PING,
         command("PUBLISH", "c", "m"), HIT, PING, EXEC, HIT, PING),
    case("broken bytes in MULTI", MULTI, HIT, b"*x\r\n", EXEC),
    case("a transaction on a script's error", MULTI, command("EVAL", "error('x')", 0), PING, EXEC,
         command("EVAL", "return redis.call('x')", 0), PING, own_scripts=True),
    case("a big value queued", MULTI, command("SET", "s", "x" * 3000), HIT, EXEC, HIT),
]  # fmt: skip


@pytest.mark.parametrize("row", TRANSACTIONS, ids=name_of)
def test_transactions_with_hits(bench: Bench, row: Case) -> None:
    bench.compare(row)
