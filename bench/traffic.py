"""One traffic under one rule: every hit and its reply, and the limiter's state over time.

The scripts run on a real server with the clock as an argument. So 47 seconds of traffic take a
moment, and the result is the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

from rlproxy.ratelimit.algorithms import MICROSECONDS, PEEK

from .calls import GRAMMAR, HIT
from .client import Client
from .errors import BenchError
from .rows import Command

MAX: Final = 10  # the rule: MAX hits per WINDOW_S
WINDOW_S: Final = 10
SECONDS: Final = 47  # length of the traffic
STEP_US: Final = 100_000  # microseconds between two looks at the state

_START_US: Final = 1_784_000_000_000_000  # the clock at the traffic's beginning
_CLOCK_ARGUMENT: Final = 7  # every script takes its clock as ARGV[7]


def _every(first_us: int, step_us: int, count: int) -> list[int]:
    return [first_us + step_us * index for index in range(count)]


# The parts of the traffic: the times of hits in microseconds from the beginning, by name.
PARTS: Final[dict[str, list[int]]] = {
    "a burst across an edge": [0, *_every(8_000_000, 200_000, 9), *_every(10_200_000, 200_000, 10)],
    "12.5 hits per 10 s": _every(13_000_000, 800_000, 20),
    "a pause": [],
    "14 at once": _every(39_000_000, 200_000, 14),
}
TRAFFIC: Final = tuple(at_us for hits in PARTS.values() for at_us in hits)


@dataclass(frozen=True)
class Hit:
    """One hit: its time, whether it was admitted, and how long its reply was held."""

    at_us: int
    admitted: bool
    held_us: int = 0

    @property
    def leaves_us(self) -> int:
        """The time of its reply, in microseconds."""
        return self.at_us + self.held_us


@dataclass(frozen=True)
class State:
    """The limiter's state at one time: limit, remaining hits, and `reset_after`."""

    at_us: int
    limit: int
    remaining: int
    reset_us: int


@dataclass(frozen=True)
class Run:
    """The traffic under one rule. `states` has one for each step, and two around each hit."""

    hits: tuple[Hit, ...]
    states: tuple[State, ...]

    def admitted(self) -> int:
        """Return the number of admitted hits."""
        return sum(hit.admitted for hit in self.hits)

    def worst(self) -> tuple[int, int]:
        """Return the begin (µs) and the hits of the window of WINDOW_S that admitted most.

        The first of several such windows counts.
        """
        times = sorted(hit.leaves_us for hit in self.hits if hit.admitted)
        counts = [
            (sum(begin <= time < begin + WINDOW_S * MICROSECONDS for time in times), -begin)
            for begin in times
        ]
        count, begin = max(counts, default=(0, 0))
        return -begin, count


def run(client: Client, options: str) -> Run:
    """Send the traffic under the rule with `options`, such as `ALGO GCRA BURST 3`.

    The server's data is deleted. Raises BenchError.
    """
    words = [b"k", b"%d" % MAX, b"%d" % WINDOW_S, *options.encode().split()]
    rule = GRAMMAR.rule(b"", HIT, words)
    if rule.limiter is None or rule.script is None:
        raise BenchError(f"{options}: {rule.error.decode().strip()}")
    client.ask(b"FLUSHALL")
    client.ask(b"SCRIPT", b"LOAD", rule.script.source)
    hit = replace(rule.limiter, unit_us=1, shapes=rule.shapes)
    peek = replace(hit, mode=PEEK, strict=False, penalty_us=0, shapes=False)
    times_us = sorted({*range(0, SECONDS * MICROSECONDS + 1, STEP_US), *TRAFFIC})
    events = [
        (at_us, is_hit)
        for at_us in times_us
        for is_hit in ((False, True, False) if at_us in TRAFFIC else (False,))
    ]
    calls: list[Command] = []
    for at_us, is_hit in events:
        argv = (hit if is_hit else peek).argv()
        argv += [b""] * (_CLOCK_ARGUMENT - 1 - len(argv))
        clock = b"%d" % (_START_US + at_us)
        calls.append((b"EVALSHA", rule.script.sha, b"1", b"k", *argv, clock))
        calls.append((b"PERSIST", b"k"))  # the key's TTL counts by Redis' real clock
    hits: list[Hit] = []
    states: list[State] = []
    replies = cast("list[list[int]]", client.ask_all(calls)[::2])
    for (at_us, is_hit), reply in zip(events, replies, strict=True):
        refused, limit, remaining, _, reset_us, *held_us = reply
        if is_hit:
            hits.append(Hit(at_us, not refused, 0 if refused else sum(held_us)))
        else:
            states.append(State(at_us, limit, remaining, reset_us))
    return Run(tuple(hits), tuple(states))
