"""Calls of the Lua scripts on a real server, with an injected clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.scripts import Script

SCRIPTS = scripts.load()
START_US = 1_784_000_000_000_000
SECOND = 1_000_000
CLOCK_ARGUMENT = 7  # every script takes its clock as ARGV[7]


def at(seconds: float) -> int:
    """The injected clock `seconds` after its start, in microseconds."""
    return START_US + round(seconds * SECOND)


def script_of(algorithm: str) -> Script:
    """The script of an ALGO name."""
    (found,) = (script for script in SCRIPTS.values() if script.header["algo"] == algorithm)
    return found


class Caller:
    """Calls one script; the key's real time to live never expires it while the injected clock
    stands still.

    `ttl_ms` is PTTL after the latest call (-2: no key, -1: the call wrote no TTL). `stays_us` is
    the sixth integer of a refusal in microseconds, 0 without one; it is not part of the returned
    reply.
    """

    def __init__(self, client: redis.Redis, algorithm: str, key: str = "k") -> None:
        self.client: Any = client
        self.script = script_of(algorithm)
        self.key = key
        self.ttl_ms = -2
        self.stays_us = 0
        self.client.script_load(self.script.source)

    def __call__(self, clock_us: int | None, *argv: object) -> list[int]:
        """Return the reply to ARGV `argv` at `clock_us` (None: the server's own clock).

        Raises redis.ResponseError.
        """
        words: Sequence[object] = argv
        if clock_us is not None:
            missing = CLOCK_ARGUMENT - 1 - len(argv)
            words = [*argv, *[""] * missing, clock_us]
        with self.client.pipeline() as pipe:
            pipe.evalsha(self.script.sha.decode(), 1, self.key, *words)
            pipe.pttl(self.key)
            pipe.persist(self.key)
            found, self.ttl_ms, _ = pipe.execute()
        assert isinstance(found, list)
        shaping = len(argv) > 5 and " " in str(argv[5]) and self.script.header["algo"] == "LEAKY"
        self.stays_us = 0
        if len(found) == 6 and not shaping:
            assert str(argv[2]) == "1"
            assert found[0] == 1
            self.stays_us = found.pop()
        return found
