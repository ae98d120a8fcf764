"""Random streams of bytes, whole or cut at random places, to a server and through the proxy: the
replies must be equal, byte for byte.

`python -m tests.fuzz differential --streams N --seed S [--engine NAME] [--share]`. Hits are paired
with EVALs that count alike (see tests/conformance/compare).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests import harness
from tests.conformance.compare import (
    ARITY,
    FENCE_ROUNDS,
    HIT,
    INLINE_HIT,
    PROXY_ROUNDS,
    SCRIPT_NAMES,
    STILL_S,
    UNKNOWN_HIT,
    Bench,
    Case,
    Outcome,
    Piece,
    before_each_auth,
    case,
    difference,
    fence,
    hit,
    normal,
    rewritten,
)
from tests.fuzz.choices import pieces
from tests.harness import RedisServer, command

BLOCK_S = 0.02
PATIENCE_S = 3.0
MAX_HITS = 8  # on one key: EVALs and hits count alike only while all are admitted

UNKNOWN_HIT_IS_WRONG = (
    rb"-ERR unknown command [`']RL\.HIT[^\r]*\r\n",
    b"-" + ARITY.encode() + b"\r\n",
)

Line = tuple[object, ...]
# Commands whose replies follow from the earlier commands of this connection.
PLAIN: tuple[Line, ...] = (
    *(
        ("PING",),
        ("PING", "x"),
        ("ECHO", "hello"),
        ("echo", "a\r\nb"),
        ("GET", "s"),
        ("SET", "s", "1"),
    ),
    *(
        ("SET", "s", "v" * 300),
        ("SET", "s", "2", "GET"),
        ("INCR", "n"),
        ("INCR", "s"),
        ("APPEND", "s", "x"),
    ),
    *(
        ("LPUSH", "l", "a", "b"),
        ("LRANGE", "l", 0, -1),
        ("RPOP", "l"),
        ("DEL", "s", "l"),
        ("TYPE", "l"),
    ),
    *(("HSET", "h", "f", "1", "g", "2"), ("HGETALL", "h"), ("SADD", "z", "m"), ("SMEMBERS", "z")),
    *(("ZADD", "zz", "1.5", "m"), ("ZSCORE", "zz", "m"), ("ZRANGE", "zz", 0, -1, "WITHSCORES")),
    *(
        ("MGET", "s", "n", "nil"),
        ("EXISTS", "s"),
        ("STRLEN", "s"),
        ("GETRANGE", "s", 0, 3),
        ("LLEN", "s"),
    ),
    *(("EVAL", "return {1, {2, 'x'}, false}", 0), ("EVAL", "return redis.error_reply('OWN x')", 0)),
    *(
        ("FOO",),
        ("FOO", "bar"),
        ("GET",),
        ("SET", "s"),
        ("",),
        ("OBJECT", "ENCODING", "n"),
        ("DBSIZE",),
    ),
    *(("GETSET", "s", "3"), ("SETEX", "s", 100, "v"), ("PERSIST", "s"), ("RENAME", "nope", "x")),
    *(
        ("PUBLISH", "elsewhere", "x"),
        ("WAIT", 0, 0),
        ("LASTSAVE", "x"),
        ("SETRANGE", "s", 5, "abc"),
    ),
)
STATE: tuple[Line, ...] = (
    *(("MULTI",), ("MULTI",), ("EXEC",), ("EXEC",), ("DISCARD",), ("WATCH", "s"), ("UNWATCH",)),
    *(("SELECT", 1), ("SELECT", 0), ("SELECT", 99), ("SELECT", "x"), ("HELLO", 3), ("HELLO", 2)),
    *(("HELLO", 4), ("HELLO", "x"), ("HELLO", 3, "SETNAME", "n"), ("HELLO", 3, "SETNAME", "a b")),
    *(
        ("AUTH", "x"),
        ("AUTH", "default", "x"),
        ("AUTH", "bob", "pw"),
        ("AUTH", "bob", "no"),
        ("AUTH",),
    ),
    *(("HELLO", 3, "AUTH", "bob", "pw"), ("HELLO", 3, "AUTH", "bob", "pw", "SETNAME", "a b")),
    *(("RESET",), ("RESET",), ("RESET", "x"), ("QUIT",), ("CLIENT", "REPLY", "OFF")),
    *(
        ("CLIENT", "REPLY", "ON"),
        ("CLIENT", "REPLY", "SKIP"),
        ("CLIENT", "REPLY", "x"),
        ("CLIENT", "GETNAME"),
    ),
    *(
        ("CLIENT", "SETNAME", "x"),
        ("CLIENT", "NOPE"),
        ("ASKING",),
        ("READONLY",),
        ("SCRIPT", "EXISTS", "x"),
    ),
    *(("SUBSCRIBE", "c"), ("SUBSCRIBE", "c", "d", "e"), ("PSUBSCRIBE", "p*"), ("UNSUBSCRIBE",)),
    *(("UNSUBSCRIBE", "c"), ("PUNSUBSCRIBE",), ("PUBLISH", "c", "m"), ("SUBSCRIBE",), ("PING",)),
)
BLOCKING: tuple[Line, ...] = (
    ("BLPOP", "empty", BLOCK_S),
    ("BRPOP", "empty", "l", BLOCK_S),
    ("BLMOVE", "empty", "l", "LEFT", "RIGHT", BLOCK_S),
)
RAW: tuple[bytes, ...] = (
    *(
        b"PING\r\n",
        b"ping\n",
        b"  PING  x \r\n",
        b"set s 'a b'\r\n",
        b'echo "\\x41\\n"\r\n',
        b"\r\n",
        b"\n",
    ),
    *(b"*0\r\n", b"*-1\r\n", b"*-10\r\n", b"get\ts\r\n", b"echo a\x0bb\r\n"),
    *(b"foo\x0bbar\r\n", b"$4\r\n", b"*1\r\n$0\r\n\r\n"),
)
BROKEN: tuple[bytes, ...] = (
    *(b"*x\r\n", b"*\r\n", b"*01\r\n", b"*3000000000\r\n", b"*1\r\nfoo\r\n", b"*1\r\n$-1\r\n"),
    *(b"*1\r\n$04\r\nPING\r\n", b"*2\r\n$4\r\nPING\r\nX1\r\na\r\n", b'get "a\r\n', b"get 'a'b\r\n"),
    *(b"*2\r\n$4\r\nECHO\r\n$3\r\nab", b"*2\r\n$4\r\nECHO", b"*1\r\n$536870913\r\n", b"PIN"),
    *(b"*-99999999999999999999\r\n", b"*1\r\n$99999999999999999999\r\n", b"*1\r\n+4\r\nPING\r\n"),
)
WRONG_AUTH = command("AUTH", "bob", "no")
# Where a server omits the error of an AUTH behind other replies, the proxy does not, as long as it
# can count replies. After these commands, or a second AUTH in RESP3, it may omit it.
UNCOUNTED = (b"SUBSCRIBE\r\n", b"\r\nREPLY\r\n", b"MULTI\r\n", b"HELLO\r\n")
# After hits by lane and one of these, WAIT gets an error of the proxy.
UNCOVERED = (*UNCOUNTED, b"FOO\r\n", b"ASKING\r\n", b"READONLY\r\n", b"SETNAME\r\n")
VERTICAL_TAB = hit("k\x0bt", written=b"rl.hit k\x0bt 10 60\r\n")
SETUP = (("ACL", "SETUSER", "bob", "on", ">pw", "allkeys", "allchannels", "+@all"),)


@dataclass
class Stream:
    """One stream: the bytes, the pieces in which the proxy gets them, and the time it may block."""

    row: Case
    cuts: list[int]
    block_s: float
    warm: bool


def stream(source: random.Random, number: int) -> Stream:
    """A random stream."""
    parts: list[Piece] = []
    block_s = 0.0
    hits = 0
    stateful = source.random() < 0.6
    for _ in range(source.randrange(1, 14)):
        dice = source.random()
        if dice < 0.35:
            parts.append(command(*_words(source.choice(PLAIN))))
        elif dice < 0.6 and stateful:
            parts.append(command(*_words(source.choice(STATE))))
        elif dice < 0.66 and source.random() < 0.3:
            parts.append(command(*_words(source.choice(BLOCKING))))
            block_s += BLOCK_S
        elif dice < 0.9 and hits < MAX_HITS - 2:
            hits += 1
            parts.append(source.choice((HIT, HIT, hit("k2"), INLINE_HIT, VERTICAL_TAB)))
        elif dice < 0.93:
            parts.append(UNKNOWN_HIT)
        else:
            parts.append(source.choice(RAW))
    # Where replies are off, the time at which a server closes depends on how it reads the bytes.
    off = any(isinstance(part, bytes) and b"\r\nREPLY\r\n" in part for part in parts)
    if source.random() < 0.15 and not off:
        parts.append(source.choice(BROKEN))
        if source.random() < 0.5:
            parts.append(command("PING"))
    cuts = [source.randrange(65536) for _ in range(source.choice((0, 0, 1, 3, 10)))]
    row = case(
        f"stream {number}",
        *parts,
        setup=SETUP,
        rewrite=(UNKNOWN_HIT_IS_WRONG,),
    )
    return Stream(row, cuts, block_s, source.random() < 0.5)


def comparable(made: Stream, server: RedisServer) -> bool:
    """Whether the replies to the stream follow from its commands, regardless of their encoding."""
    redis_leaves_out = server.engine.startswith("redis") and server.version >= (7, 2)
    sent = b"".join(made.row.proxied())
    wrong = WRONG_AUTH in sent and any(word in sent for word in UNCOUNTED)
    # Redis 8.2 reports malformed bytes behind a blocked command when it next reads from the client.
    reports_late = server.engine.startswith("redis") and server.version >= (8,)
    late = made.block_s > 0 and any(piece in BROKEN for piece in made.row.proxied())
    uncovered = b"$4\r\nWAIT\r\n$1\r\n0\r\n" in sent and any(word in sent for word in UNCOVERED)
    return not (redis_leaves_out and wrong) and not (reports_late and late) and not uncovered


def _words(line: Line) -> list[str | int]:
    return [word if isinstance(word, (int, str)) else str(word) for word in line]


class Differential:
    """Compares streams on one bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.bytes = 0

    def compare(self, made: Stream) -> str:
        """Return an empty string if the replies are equal, otherwise the first difference."""
        expected = self._direct(made)
        got = self._proxied(made, expected)
        self.bytes += len(expected.data)
        return "" if got == expected else difference(expected, got)

    def _direct(self, made: Stream) -> Outcome:
        bench, row = self._bench, made.row
        bench.reset(row.setup)
        with bench.server.raw() as raw:
            data = bench.warm(raw, [HIT.direct] * 2) if made.warm else b""
            sent = b"".join(row.direct())
            for part in before_each_auth(row.direct()):
                raw.send(part)
                if made.block_s:  # a server checks ten times a second for expired timeouts
                    time.sleep(made.block_s * 1.5 + 0.15)
                fence(bench.look, 1)
            fence(bench.look, FENCE_ROUNDS + len(sent) // 8192)
            data += raw.quiet(STILL_S)
            closed = raw.closed
            keys = bench.keys()
        return Outcome(self._normal(data, row), closed, keys)

    def _proxied(self, made: Stream, expected: Outcome) -> Outcome:
        bench, row = self._bench, made.row
        bench.reset(row.setup)
        with bench.proxy.raw() as raw:
            data = bench.warm(raw, [HIT.proxied] * 2) if made.warm else b""
            for piece in pieces(b"".join(row.proxied()), made.cuts):
                raw.send(piece)
                if made.cuts:
                    time.sleep(0.0002)
            if made.block_s:
                time.sleep(made.block_s * 1.5 + 0.15)
            end = time.monotonic() + PATIENCE_S
            while self._normal(data, row) != expected.data or raw.closed != expected.closed:
                data += raw.quiet(STILL_S)
                if time.monotonic() > end or raw.closed:
                    break
            bench.settle(PROXY_ROUNDS)
            data += raw.quiet(STILL_S)
            return Outcome(self._normal(data, row), raw.closed, bench.keys())

    def _normal(self, data: bytes, row: Case) -> bytes:
        return normal(rewritten(rewritten(data, SCRIPT_NAMES), row.rewrite), row)


@dataclass
class Compared:
    """The counts of a run."""

    streams: int = 0
    unsteady: int = 0  # differed once, and not when repeated
    differences: list[tuple[int, Stream, str]] | None = None


def run(
    bench: Bench,
    seed: int,
    streams: int,
    first: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Compared:
    """Compare streams `first` to first + streams - 1 of `seed`; stops at the fifth difference."""
    differential = Differential(bench)
    done = Compared(differences=[])
    assert done.differences is not None
    for number in range(first, first + streams):
        made = stream(random.Random(f"{seed}:{number}"), number)
        found = differential.compare(made) if comparable(made, bench.server) else ""
        if found:  # timing may differ on a busy machine: a real difference occurs again
            again = [differential.compare(made) for _ in range(2)]
            if all(again):
                done.differences.append((number, made, found))
            else:
                done.unsteady += 1
        done.streams += 1
        progress(number)
        if len(done.differences) >= 5:
            break
    return done


class _Progress:
    """Prints a line every 10 s."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._told = time.monotonic()

    def __call__(self, number: int) -> None:
        if time.monotonic() - self._told > 10:
            self._told = time.monotonic()
            print(f"{self._engine}: stream {number}", flush=True)


def main(words: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz differential", description=__doc__)
    parser.add_argument("--streams", type=int, default=2000, help="with each engine")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first stream")
    parser.add_argument("--engine", choices=sorted(harness.engines()), action="append")
    parser.add_argument("--share", action="store_true", help="the proxy runs with --share")
    options = parser.parse_args(words)
    failed = False
    for engine in options.engine or sorted(harness.engines()):
        started = time.monotonic()
        with (
            harness.server(engine) as server,
            harness.proxy(server, *(["--share"] if options.share else [])) as proxy,
        ):
            bench = Bench(server, proxy)
            done = run(bench, options.seed, options.streams, options.first, _Progress(engine))
            bench.close()
        assert done.differences is not None
        for number, made, found in done.differences:
            failed = True
            print(f"{engine}: stream {number} of seed {options.seed} differs: {found}")
            print(f"    sent, {len(made.cuts)} cuts, {'warm' if made.warm else 'cold'}:")
            print(f"    {[getattr(part, 'proxied', part) for part in made.row.pieces]}")
            print(
                f"    again: python -m tests.fuzz differential --engine {engine} --seed"
                f" {options.seed} --first {number} --streams 1{' --share' * options.share}"
            )
        print(
            f"{engine}{', --share' * options.share}: {done.streams} streams,"
            f" {len(done.differences)} differ, {done.unsteady} differed once and not again,"
            f" {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
