"""A corpus, and a fuzzer without coverage feedback: inputs are mutations of earlier ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MAX_INPUT = 400
TOKENS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"*1\r\n",
        b"*3\r\n",
        b"$4\r\n",
        b"$0\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"$-1",
    ),
    *(
        b">2\r\n",
        b"%1\r\n",
        b"|1\r\n",
        b"~2\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"=5\r\n",
        b"(1\r\n",
    ),
    *(
        b":1\r\n",
        b"+OK\r\n",
        b"-ERR x\r\n",
        b"$5\r\nhello\r\n",
        b"*2147483648\r\n",
        b"999999999999999999",
    ),
    *(b"RL.HIT", b"AUTH", b"SELECT", b"GET", b"MULTI", b'"', b"'", b"\\x41", b"\0", b"\xff", b" "),
)

Target = Callable[[bytes], None]


@dataclass
class Crash:
    """An input that failed, and its failure."""

    data: bytes
    error: BaseException


@dataclass
class Ran:
    """The counts of one target's run."""

    inputs: int = 0
    seconds: float = 0.0
    crashes: list[Crash] = field(default_factory=list)


def corpus(target: str) -> list[bytes]:
    """The stored inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def mutated(source: random.Random, seeds: list[bytes]) -> bytes:
    """A new input: an old one changed in a few places, or random bytes."""
    if not seeds or source.random() < 0.1:
        return source.randbytes(source.choice((5, 20, 60, 150)))
    data = bytearray(source.choice(seeds))
    for _ in range(1 << source.randrange(4)):
        how = source.randrange(8)
        at = source.randrange(len(data) + 1)
        size = 1 + source.randrange(8)
        if how == 0 and data:
            data[at % len(data)] ^= 1 << source.randrange(8)
        elif how == 1 and data:
            data[at % len(data)] = source.randrange(256)
        elif how == 2:
            data[at:at] = source.randbytes(size)
        elif how == 3:
            del data[at : at + size]
        elif how == 4:
            data[at:at] = data[at : at + 4 * size]
        elif how == 5:
            other = source.choice(seeds)
            data[at:] = other[source.randrange(len(other) + 1) :]
        elif how == 6:
            data[at:at] = source.choice(TOKENS)
        else:
            data[at : at + size] = source.choice(TOKENS)
    return bytes(data[:MAX_INPUT])


def run(
    target: Target,
    seeds: list[bytes],
    seed: int,
    inputs: int,
    seconds: float,
    progress: Callable[[Ran], None] = lambda _: None,
    every_s: float = 10.0,
    most_crashes: int = 5,
) -> Ran:
    """Run the seeds, then mutations, until the number of inputs or seconds is reached (0: no
    bound).
    """
    source = random.Random(seed)
    ran = Ran()
    started = logged_at = time.monotonic()
    while (not inputs or ran.inputs < inputs) and len(ran.crashes) < most_crashes:
        number = ran.inputs
        data = seeds[number] if number < len(seeds) else mutated(source, seeds)
        try:
            target(data)
        except Exception as error:
            ran.crashes.append(Crash(shrunk(target, data, error), error))
        ran.inputs += 1
        if number % 64 == 0:
            now = time.monotonic()
            ran.seconds = now - started
            if seconds and ran.seconds >= seconds:
                break
            if now - logged_at >= every_s:
                logged_at = now
                progress(ran)
    ran.seconds = time.monotonic() - started
    return ran


def shrunk(target: Target, data: bytes, error: BaseException, tries: int = 2000) -> bytes:
    """A smaller input that fails in the same way."""

    def fails(candidate: bytes) -> bool:
        try:
            target(candidate)
        except Exception as found:
            return _kind(found) == _kind(error)
        return False

    size = max(1, len(data) // 2)
    while size and tries > 0:
        at = 0
        smaller = False
        while at < len(data) and tries > 0:
            tries -= 1
            candidate = data[:at] + data[at + size :]
            if fails(candidate):
                data = candidate
                smaller = True
            else:
                at += size
        if not smaller:
            size //= 2
    return data


def _kind(error: BaseException) -> tuple[type, str]:
    return type(error), str(error)[:20]
