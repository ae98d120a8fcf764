"""Sends the same bytes to the server and through the proxy, and compares the replies.

A case is a row: a name and pieces of bytes. A `Swap` is a piece that differs between the two: the
proxy's addition (a hit), and the server's equivalent (an EVAL that counts the same way). So a hit
can be compared wherever an EVAL can be sent.

No sleep waits for a server to finish; a *fence* does. A fence is a number of PINGs on another
connection, one after the other. Servers and proxy are single loops, so data sent before the first
PING has been read, answered and written before the last reply.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from tests.harness import DEADLINE_S, Proxy, Raw, RedisServer, command

FENCE_ROUNDS = 5  # loop iterations that a server may need: read, write, close, one spare
PROXY_ROUNDS = 9  # the same for two loops in a row, and for opening a connection between them
SLOW_BYTES = 300  # up to here in pieces of SHORT bytes, beyond that in larger pieces
SHORT = (1, 3, 1, 7)  # repeated, so that each third byte ends a piece
STILL_S = 0.0005  # seconds behind a fence until no more data is expected
CLOSING_TRIES = 3
PAUSE_S = 0.00003  # seconds between the pieces of a slow case, so that they are read one by one


@dataclass(frozen=True)
class Swap:
    """A piece that is `direct` on the way to the server and `proxied` on the way to the proxy."""

    direct: bytes
    proxied: bytes


Piece = bytes | Swap
Rewrite = tuple[bytes, bytes]


@dataclass(frozen=True)
class Case:
    """One row. `rewrite` (pattern, replacement) turns the server's answer into the one that the
    contract requires of the proxy, where the two differ on purpose.
    """

    name: str
    pieces: tuple[Piece, ...]
    setup: tuple[tuple[str, ...], ...] = ()
    rewrite: tuple[Rewrite, ...] = ()
    own_scripts: bool = False

    def direct(self) -> list[bytes]:
        return [piece.direct if isinstance(piece, Swap) else piece for piece in self.pieces]

    def proxied(self) -> list[bytes]:
        return [piece.proxied if isinstance(piece, Swap) else piece for piece in self.pieces]


def case(
    name: str,
    *pieces: Piece,
    setup: Iterable[tuple[str, ...]] = (),
    rewrite: Iterable[Rewrite] = (),
    own_scripts: bool = False,
) -> Case:
    return Case(name, pieces, tuple(setup), tuple(rewrite), own_scripts)


def name_of(row: object) -> str:
    """The id for pytest."""
    return row.name.replace(" ", "-") if isinstance(row, Case) else str(row)


# -- hits and their equivalents --------------------------------------------------------------------

# Counts like RL.HIT k 10 60 while fewer than ten hits are admitted, reads and writes the same key
# (tracking depends on both), and leaves the same type.
COUNT_LUA = (
    "redis.call('LINDEX', KEYS[1], 0) local n = redis.call('RPUSH', KEYS[1], 'x')"
    " redis.call('PEXPIRE', KEYS[1], 60000) return {0, 10, 10 - n, -1, 60}"
)
ARITY = "ERR wrong number of arguments for 'rl.hit' command"


def hit(key: str = "k", written: bytes | None = None) -> Swap:
    """RL.HIT key 10 60 (or `written`, with the same meaning)."""
    proxied = command("RL.HIT", key, 10, 60) if written is None else written
    return Swap(command("EVAL", COUNT_LUA, 1, key), proxied)


def refused(written: bytes, error: str) -> Swap:
    """An invalid command of the family, whose error the proxy writes."""
    return Swap(command("EVAL", f"return redis.error_reply([[{error}]])", 0), written)


HIT = hit()
INLINE_HIT = hit(written=b"rl.hit k 10 60\r\n")
WRONG_HIT = refused(command("RL.HIT", "k"), ARITY)
# Cases in which Redis itself must reject the command, which is unknown to it; the proxy replaces
# the error.
UNKNOWN_HIT = command("RL.HIT", "k")
UNKNOWN_IS_WRONG: Rewrite = (rb"-ERR unknown command [^\r]*\r\n", b"-" + ARITY.encode() + b"\r\n")

# -- normalising -----------------------------------------------------------------------------------

# Differences by nature: the id in HELLO's reply is the connection's. In Redis a hit is an EVAL or
# an EVALSHA, and some error replies contain that name.
_VARIES: tuple[Rewrite, ...] = (
    (rb"(\$2\r\nid\r\n):\d+\r\n", rb"\1:ID\r\n"),
    (rb"'evalsha'", b"'eval'"),
)
# Redis adds this to errors raised inside a script (line 18): 7.x after the error, 6.2 before it.
SCRIPT_NAMES: tuple[Rewrite, ...] = (
    (rb" script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.", b""),
    (
        rb"-ERR Error running script \(call to f_\w{40}\): (?:@user_script:\s?\d+: )+-?",
        b"-",
    ),
)


def rewritten(data: bytes, rules: Iterable[Rewrite]) -> bytes:
    for pattern, by in rules:
        data = re.sub(pattern, by, data)
    return data


def normal(data: bytes, row: Case) -> bytes:
    return rewritten(data, _VARIES)


# -- running ---------------------------------------------------------------------------------------

_KEYS_LUA = """
local found = {}
for db = 0, 4 do
  redis.call('SELECT', db)
  local keys = redis.call('KEYS', '*')
  table.sort(keys)
  for _, key in ipairs(keys) do
    local type = redis.call('TYPE', key)['ok']
    local is = type
    if type == 'list' then is = is .. redis.call('LLEN', key)
    elseif type == 'string' then is = is .. redis.call('GET', key) end
    found[#found + 1] = db .. ':' .. key .. '=' .. is
  end
end
return found
"""


@dataclass(frozen=True)
class Outcome:
    """The replies a client got, whether it was closed, and what the server holds afterwards."""

    data: bytes
    closed: bool
    keys: object


def fence(raw: Raw, rounds: int) -> None:
    for _ in range(rounds):
        assert raw.ask("PING") == "PONG"


def slowly(data: bytes) -> Iterator[bytes]:
    """Cut the data into short pieces; the middle of long data into longer ones."""
    half = SLOW_BYTES // 2 if len(data) > SLOW_BYTES else len(data)
    lengths = itertools.cycle(SHORT)
    longer = max(997, len(data) // 64)
    pos = 0
    while pos < len(data):
        middle = half <= pos < len(data) - half
        end = min(pos + longer, len(data) - half) if middle else pos + next(lengths)
        yield data[pos:end]
        pos = end


def before_each_auth(parts: list[bytes]) -> Iterator[bytes]:
    """`parts` joined, and cut before each AUTH or HELLO with AUTH. Redis 7.2 to 8 omit the error of
    AUTH while they have other replies to write; through the proxy they never do.
    """
    joined = b""
    for part in parts:
        if b"AUTH" in part.upper() and joined:
            yield joined
            joined = b""
        joined += part
    yield joined


def difference(expected: Outcome, got: Outcome) -> str:
    """A readable description of the first place where the two differ."""
    pairs = zip(expected.data, got.data, strict=False)
    size = next((at for at, (one, two) in enumerate(pairs) if one != two), -1)
    same = expected.data[:size] if size >= 0 else min(expected.data, got.data, key=len)
    lines = [f"after {len(same)} bytes {same[-60:]!r}"]
    for who, outcome in (("server", expected), ("proxy", got)):
        closed = "closed" if outcome.closed else "open"
        rest = outcome.data[len(same) :]
        lines.append(f"    {who:6} {rest[:200]!r}, {len(rest)} bytes, {closed}, {outcome.keys}")
    return "\n".join(lines)


class Bench:
    """A server, the proxy in front of it, and connections for inspection and fences."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        self.look = server.raw()
        self._behind = proxy.raw()
        # From here on the lane shared by plain clients of this proxy is open.
        end = time.monotonic() + DEADLINE_S
        with proxy.raw() as raw:
            while b"rlproxy-lane" not in self.clients() and time.monotonic() < end:
                raw.ask("RL.HIT", "warm", 1, 1)
        assert b"rlproxy-lane" in self.clients()

    def clients(self) -> bytes:
        answer = self.look.ask("CLIENT", "LIST")
        assert isinstance(answer, bytes)
        return answer

    def settle(self, rounds: int) -> None:
        """Return when all data sent through the proxy before is read, answered and written."""
        fence(self._behind, rounds)

    def close(self) -> None:
        self.look.close()
        self._behind.close()

    def reset(self, setup: Iterable[tuple[str, ...]] = ()) -> None:
        fence(self._behind, 3)
        ask = self.look.ask
        ask("CONFIG", "SET", "requirepass", "")
        ask("ACL", "DELUSER", "bob")
        ask("FLUSHALL")
        for words in setup:
            answer = ask(*words)
            assert not isinstance(answer, Exception), (words, answer)

    def keys(self) -> object:
        return self.look.ask("EVAL", _KEYS_LUA, 0)

    def warm(self, raw: Raw, pieces: list[bytes]) -> bytes:
        """Two hits, each answered before the next: through the proxy the second goes by lane."""
        got = b""
        for data in pieces:
            raw.send(data)
            got += raw.line()
            if got.endswith(b"*5\r\n"):
                got += b"".join(raw.line() for _ in range(5))
        return got

    def ask_server(self, row: Case, slow: bool, warm: bool) -> Outcome:
        self.reset(row.setup)
        with self.server.raw() as raw:
            data = self.warm(raw, [HIT.direct] * 2) if warm else b""
            parts = row.direct()
            # Slowly, each part is answered before the next, as through the proxy. Some results
            # depend on it: some bytes make Redis drop replies it has not written yet.
            for part in parts if slow else before_each_auth(parts):
                raw.send(part)
                fence(self.look, 1 if slow else FENCE_ROUNDS)
            size = sum(map(len, parts))
            fence(self.look, FENCE_ROUNDS + size // 8192)
            data += raw.quiet(STILL_S)
            closed = raw.closed
            keys = self.keys()
        if not row.own_scripts:
            data = rewritten(data, SCRIPT_NAMES)
        data = rewritten(normal(data, row), row.rewrite)
        return Outcome(data, closed, keys)

    def ask_proxy(self, row: Case, slow: bool, warm: bool, expected: Outcome) -> Outcome:
        self.reset(row.setup)
        with self.proxy.raw() as raw:
            data = self.warm(raw, [HIT.proxied] * 2) if warm else b""
            parts = row.proxied()
            if slow:
                for part in parts:
                    for piece in slowly(part):
                        raw.send(piece)
                        time.sleep(PAUSE_S)
                    self.settle(2)
            else:
                raw.send(b"".join(parts))
            end = time.monotonic() + DEADLINE_S
            while normal(data, row) != expected.data or raw.closed != expected.closed:
                data += raw.quiet(STILL_S)
                late = time.monotonic() > end
                if late or raw.closed or len(normal(data, row)) > len(expected.data):
                    break
            fence(self._behind, PROXY_ROUNDS)
            data += raw.quiet(STILL_S)
            return Outcome(normal(data, row), raw.closed, self.keys())

    def compare(self, row: Case, warm: bool | None = None) -> None:
        """Compare the case whole and, through the proxy, in short pieces; one of the two on a new
        connection, the other on one whose hits go by lane. The row's name decides which, unless
        `warm` does.

        Where the server closes the connection, one of CLOSING_TRIES attempts must match: the server
        may lose its last replies, because it resets a connection that it has not read to the end.
        test_blocking proves that the proxy loses no reply it has received.
        """
        for slow in (False, True):
            is_warm = slow == bool(crc32(row.name.encode()) & 1) if warm is None else warm
            for _ in range(CLOSING_TRIES):
                expected = self.ask_server(row, slow, is_warm)
                got = self.ask_proxy(row, slow, is_warm, expected)
                if got == expected or not (expected.closed or got.closed):
                    break
            how = f"{'slow' if slow else 'whole'}, {'warm' if is_warm else 'cold'}"
            if got != expected:
                raise AssertionError(f"{how}: {difference(expected, got)}")
