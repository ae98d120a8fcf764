"""Calls of the Lua scripts on a real server, with an injected clock."""

from __future__ import annotations

from functools import cache
from typing import Any
from zlib import crc32

import redis
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.scripts import Script

from tests.lua_headers import algorithm_of

SCRIPTS = scripts.load()
START_US = 1_784_000_000_000_000
SECOND = 1_000_000
CLOCK_ARGUMENT = 7  # every script takes its clock as ARGV[7]


def at(seconds: float) -> int:
    """The injected clock `seconds` after its start, in microseconds."""
    return START_US + round(seconds * SECOND)


def script_of(algorithm: str) -> Script:
    """The script of an ALGO name."""
    return SCRIPTS[ALGORITHMS[algorithm.encode()].script]


@cache
def _load(client: Any, algorithm: str) -> str:
    """Load what a Caller calls, once on each server; the SHA-1 of the copy with KEYS[2] and KEYS[3]
    as its clock.
    """
    script = script_of(algorithm)
    client.script_load(script.source)
    client.script_load(SCRIPTS["block"].source)
    text = scripts.text(script.name)
    return str(client.script_load(text.replace("call('TIME')", "{KEYS[2], KEYS[3]}")))


def usual(argv: tuple[object, ...]) -> bool:
    """Whether ARGV `argv` asks for a hit without options, so that the proxy sends max, window and
    perhaps the unit.
    """
    return argv[3:] in ((), (1,), (1, "hit"), (1, "hit", ""))


class Caller:
    """Calls one script; the key's real time to live never expires it while the injected clock
    stands still.

    The script may have a shorter way for usual hits, which reads the clock by TIME. Three of four
    usual hits go by a copy of the script that finds the injected clock in KEYS[2] and KEYS[3].

    `ttl_ms` is PTTL after the latest call (-2: no key, -1: the call wrote no TTL).
    """

    def __init__(self, client: redis.Redis, algorithm: str, key: str = "k") -> None:
        self.client: Any = client
        self.script = script_of(algorithm)
        self.key = key
        self.ttl_ms = -2
        self._clocked = _load(client, algorithm)

    def words(self, clock_us: int, *argv: object) -> tuple[object, ...]:
        """Return the words of the call behind EVALSHA."""
        if usual(argv) and crc32(repr((clock_us, argv)).encode()) & 3:
            sent = argv[:2] if argv[2:3] == (SECOND,) else argv[:3]
            return (self._clocked, 3, self.key, *divmod(clock_us, SECOND), *sent)
        argv = argv if len(argv) > 2 else (*argv, SECOND)
        missing = CLOCK_ARGUMENT - 1 - len(argv)
        return (self.script.sha.decode(), 1, self.key, *argv, *[""] * missing, clock_us)

    def __call__(self, clock_us: int | None, *argv: object) -> list[int]:
        """Return the reply to ARGV `argv` at `clock_us` (None: the server's own clock).

        Raises redis.ResponseError.
        """
        words: tuple[object, ...] = (self.script.sha.decode(), 1, self.key, *argv)
        if clock_us is not None:
            words = self.words(clock_us, *argv)
        return self._run(words)

    def block(self, clock_us: int, span_us: int, unit_us: int = SECOND) -> list[int]:
        """Return the reply to a block of the key for `span_us`; 0 lifts it.

        Raises redis.ResponseError.
        """
        return self._run(self.block_words(clock_us, span_us, unit_us))

    def block_words(self, clock_us: int, span_us: int, unit_us: int = SECOND) -> tuple[object, ...]:
        """Return the words of a block behind EVALSHA."""
        argv = (algorithm_of(self.script), span_us, unit_us, clock_us)
        return (SCRIPTS["block"].sha.decode(), 1, self.key, *argv)

    def _run(self, words: tuple[object, ...]) -> list[int]:
        """Return the reply to EVALSHA with these words, and note the key's time to live."""
        with self.client.pipeline() as pipe:
            pipe.evalsha(*words)
            pipe.pttl(self.key)
            pipe.persist(self.key)
            found, self.ttl_ms, _ = pipe.execute()
        assert isinstance(found, list)
        return found
