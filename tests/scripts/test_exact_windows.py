"""LOG and ZLOG on real servers with an injected clock: known cases, writes, and a model."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import ON_ONE_ENGINE, RedisServer
from tests.lua_headers import algorithm_of
from tests.scripts.calls import SECOND, START_US, Caller, at
from tests.scripts.window_model import Model, Rule

LAST_SEQUENCE = 999_999
TEN_YEARS_US = 315_360_000 * SECOND


@pytest.fixture(params=["LOG", "ZLOG"])
def call(client: redis.Redis, request: pytest.FixtureRequest) -> Caller:
    client.delete("k")
    return Caller(client, str(request.param))


@pytest.fixture
def zlog(client: redis.Redis) -> Caller:
    client.delete("k")
    return Caller(client, "ZLOG")


def rule(
    *limits: tuple[int, float],
    gap: float = 0,
    strict: bool = False,
    penalty: float = 0,
    unit_us: int = SECOND,
) -> Rule:
    """A rule with its times in seconds."""
    return Rule(
        tuple((limit, round(window * SECOND)) for limit, window in limits),
        round(gap * SECOND),
        strict,
        round(penalty * SECOND),
        unit_us,
    )


def hit(call: Caller, clock: int, rule: Rule, cost: int = 1) -> list[int]:
    return call(clock, *rule.argv("hit", cost))


def peek(call: Caller, clock: int, rule: Rule, cost: int = 1) -> list[int]:
    return call(clock, *rule.argv("peek", cost))


def refund(call: Caller, clock: int, rule: Rule, count: int = 1) -> list[int]:
    return call(clock, *rule.argv("refund", count))


def fill(call: Caller, rule: Rule, seconds: Sequence[float]) -> None:
    """One hit at each of these times, in one transaction; all of them must be admitted."""
    assert not any(reply[0] for reply in many(call, [(at(s), rule, 1) for s in seconds]))


def many(call: Caller, hits: Sequence[tuple[int, Rule, int]]) -> list[list[int]]:
    """The replies to many hits (clock, rule, cost), in one transaction."""
    with call.client.pipeline() as pipe:
        for clock, rule, cost in hits:
            pipe.evalsha(*call.words(clock, *rule.argv("hit", cost)))
            pipe.persist(call.key)
        replies: list[list[int]] = pipe.execute()[::2]
    return replies


def state(call: Caller) -> tuple[list[int], int | None]:
    """The stamps of a key, oldest first, and its penalty's end; checks the format."""
    if algorithm_of(call.script) == "LOG":
        elements: list[bytes] = call.client.lrange(call.key, 0, -1)
    else:
        scored: list[tuple[bytes, float]] = call.client.zrange(call.key, 0, -1, withscores=True)
        elements = []
        for member, score in scored:
            assert re.fullmatch(rb"\d{16}-\d{6}|-\d{16}", member)
            elements.append(member[:16] if member[:1] != b"-" else member)
            assert int(elements[-1]) == score
    until = -int(elements.pop(0)) if elements and elements[0][:1] == b"-" else None
    assert all(re.fullmatch(rb"\d{16}", element) for element in elements)
    stamps = [int(element) for element in elements]
    assert stamps == sorted(stamps)
    return stamps, until


def stamps_of(call: Caller) -> list[int]:
    stamps, until = state(call)
    assert until is None
    return stamps


# -- known cases: seconds since the first line, the call, the five integers ------------------------

TEN = rule((10, 60))
PUNISHED = rule((3, 60), penalty=600)
PLAIN = rule((3, 60))
GAP = rule((5, 60), gap=10)
TWO = rule((2, 1), (5, 60))
STRICT = rule((3, 60), strict=True)
STRICT_TWO = rule((2, 1), (4, 60), strict=True)
MILLIS = rule((2, 1.5), unit_us=1000)

Line = tuple[float, Callable[[Caller, int, Rule, int], list[int]], Rule, int, list[int]]
CASES: dict[str, list[Line]] = {
    "ten a minute": [
        (0, hit, TEN, 1, [0, 10, 9, -1, 60]),
        (10, hit, TEN, 1, [0, 10, 8, -1, 60]),
        (10, hit, TEN, 1, [0, 10, 7, -1, 60]),
        (20, hit, TEN, 4, [0, 10, 3, -1, 60]),
        (30, hit, TEN, 3, [0, 10, 0, -1, 60]),
        (50, hit, TEN, 1, [1, 10, 0, 10, 40]),
        (61, hit, TEN, 1, [0, 10, 0, -1, 60]),
        (61, hit, TEN, 1, [1, 10, 0, 9, 60]),
    ],
    "windows are half open": [
        (0, hit, MILLIS, 1, [0, 2, 1, -1, 1500]),
        (0.0005, hit, MILLIS, 1, [0, 2, 0, -1, 1500]),
        (1.499999, hit, MILLIS, 1, [1, 2, 0, 1, 1]),
        (1.499999, hit, MILLIS, 2, [1, 2, 0, 1, 1]),
        (1.5, hit, MILLIS, 2, [1, 2, 1, 1, 1]),
        (1.5, hit, MILLIS, 1, [0, 2, 0, -1, 1500]),
    ],
    "a penalty lasts until the hit would be admitted anyway": [
        (0, hit, rule((1, 60), penalty=5), 1, [0, 1, 0, -1, 60]),
        (10, hit, rule((1, 60), penalty=5), 1, [1, 1, 0, 50, 50]),
        (59.999999, hit, rule((1, 60)), 0, [1, 1, 0, 1, 1]),
        (60, hit, rule((1, 60)), 1, [0, 1, 0, -1, 60]),
    ],
    "a gap": [
        (0, hit, GAP, 1, [0, 5, 4, -1, 60]),
        (3, hit, GAP, 1, [1, 5, 4, 7, 57]),
        (3, peek, GAP, 1, [1, 5, 4, 7, 57]),
        (3, hit, GAP, 0, [0, 5, 4, -1, 57]),
        (3, peek, rule((5, 60)), 1, [0, 5, 4, -1, 57]),
        (9.999999, hit, GAP, 1, [1, 5, 4, 1, 51]),
        (10, hit, GAP, 1, [0, 5, 3, -1, 60]),
        (11, hit, GAP, 4, [1, 5, 3, 49, 59]),
        (11, refund, GAP, 1, [0, 5, 4, -1, 49]),
        (11, hit, GAP, 1, [0, 5, 3, -1, 60]),
        (12, hit, GAP, 6, [1, 5, 3, -1, 59]),
    ],
    "refused hits count under STRICT": [
        (0, hit, STRICT, 1, [0, 3, 2, -1, 60]),
        (10, hit, STRICT, 1, [0, 3, 1, -1, 60]),
        (20, hit, STRICT, 1, [0, 3, 0, -1, 60]),
        (30, hit, STRICT, 1, [1, 3, 0, 40, 60]),
        (40, hit, STRICT, 1, [1, 3, 0, 40, 60]),
        (50, hit, STRICT, 2, [1, 3, 0, 60, 60]),
        (60, hit, STRICT, 4, [1, 3, 0, -1, 50]),
        (61, hit, STRICT, 0, [0, 3, 0, -1, 49]),
        (61, peek, STRICT, 1, [1, 3, 0, 39, 49]),
        (100, hit, STRICT, 1, [0, 3, 0, -1, 60]),
    ],
    "STRICT with AND keeps the newest of the largest max": [
        (0, hit, STRICT_TWO, 1, [0, 2, 1, -1, 1]),
        (0, hit, STRICT_TWO, 1, [0, 2, 0, -1, 1]),
        # 0 0 .5 .5: the longer limit determines the wait
        (0.5, hit, STRICT_TWO, 2, [1, 2, 0, 60, 1]),
        (0.6, hit, STRICT_TWO, 2, [1, 2, 0, 60, 1]),  # .5 .5 .6 .6
        (1.5, peek, STRICT_TWO, 1, [1, 2, 0, 59, 1]),
        (59, peek, STRICT_TWO, 1, [1, 4, 0, 2, 2]),
        (60.5, hit, STRICT_TWO, 1, [0, 2, 1, -1, 1]),
    ],
    "two limits, all or nothing": [
        (0, hit, TWO, 1, [0, 2, 1, -1, 1]),
        (0, hit, TWO, 1, [0, 2, 0, -1, 1]),
        (0.5, hit, TWO, 1, [1, 2, 0, 1, 1]),
        (1, hit, TWO, 1, [0, 2, 1, -1, 1]),
        (1, hit, TWO, 1, [0, 2, 0, -1, 1]),
        (2, hit, TWO, 2, [1, 5, 1, 58, 59]),
        (2, hit, TWO, 1, [0, 5, 0, -1, 60]),
        (3, hit, TWO, 1, [1, 5, 0, 57, 59]),
        (3, hit, TWO, 3, [1, 5, 0, -1, 59]),
        (3, refund, TWO, 1, [0, 5, 1, -1, 58]),
        (3, refund, TWO, 2, [0, 2, 2, -1, 0]),
    ],
    "refunds": [
        (0, refund, TEN, 1, [0, 10, 10, -1, 0]),
        (0, hit, TEN, 6, [0, 10, 4, -1, 60]),
        (5, hit, TEN, 4, [0, 10, 0, -1, 60]),
        (6, refund, TEN, 3, [0, 10, 3, -1, 59]),
        (6, refund, TEN, 2, [0, 10, 5, -1, 54]),
        (6, refund, TEN, 1_000_000_000, [0, 10, 10, -1, 0]),
    ],
    "a clock that steps back admits nothing extra and delays by as much": [
        (100, hit, TEN, 10, [0, 10, 0, -1, 60]),
        (70, hit, TEN, 1, [1, 10, 0, 90, 90]),
        # the largest distance ahead that the rule can produce
        (40, hit, TEN, 1, [1, 10, 0, 120, 120]),
        (159.999999, hit, TEN, 1, [1, 10, 0, 1, 1]),
        (160, hit, TEN, 1, [0, 10, 9, -1, 60]),
        (130, hit, TEN, 1, [0, 10, 8, -1, 90]),  # relative to the clock, counted from 160
        (219, hit, TEN, 9, [1, 10, 8, 1, 1]),
        (220, hit, TEN, 9, [0, 10, 1, -1, 60]),
    ],
    "a smaller max counts the hits still held": [
        *[(s, hit, TEN, 1, [0, 10, 9 - s, -1, 60]) for s in range(10)],
        (10, hit, rule((3, 60)), 1, [1, 3, 0, 57, 59]),
        (10, peek, rule((3, 60)), 1, [1, 3, 0, 57, 59]),
        (10, hit, rule((3, 60)), 0, [0, 3, 0, -1, 59]),
        (10, refund, rule((3, 60)), 1, [1, 3, 0, 56, 58]),
        (10, refund, rule((3, 60)), 7, [0, 3, 1, -1, 51]),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_known_cases(call: Caller, name: str) -> None:
    for number, (second, ask, asked, amount, expected) in enumerate(CASES[name]):
        assert ask(call, at(second), asked, amount) == expected, f"line {number}, at {second}"


def test_arguments_left_out_have_defaults(call: Caller) -> None:
    assert call(None, 2, 60 * SECOND, SECOND) == [0, 2, 1, -1, 60]
    (stamp,) = stamps_of(call)
    seconds, micros = call.client.time()
    assert 0 <= seconds * SECOND + micros - stamp < 60 * SECOND
    assert call(None, 2, 60 * SECOND, SECOND, 2)[:3] == [1, 2, 1]
    assert call(None, 2, 60 * SECOND, SECOND, 1, "peek")[:4] == [0, 2, 1, -1]
    assert call(None, 2, 60 * SECOND, SECOND, 1, "hit") == [0, 2, 0, -1, 60]


# -- writes and their TTL --------------------------------------------------------------------------


def test_peek_runs_as_a_read_only_script(call: Caller, module_server: RedisServer) -> None:
    if module_server.version < (7, 0):
        pytest.skip("EVALSHA_RO came with Redis 7.0")
    hit(call, at(100_000), PUNISHED, 3)
    hit(call, at(100_000), PUNISHED)
    for clock in (at(100_001), at(0), at(200_000)):  # one of them: a state too far ahead
        argv = TEN.argv("peek", 1)
        words = [call.script.sha.decode(), 1, "k", *argv, clock]
        assert call.client.execute_command("EVALSHA_RO", *words) == peek(call, clock, TEN)


def ttl_is(call: Caller, expected_ms: int, started_s: float) -> bool:
    """Whether the call at `started_s` wrote that time to live; time has passed since."""
    spent_ms = round((time.monotonic() - started_s) * 1000) + 2
    return max(0, expected_ms - spent_ms) <= call.ttl_ms <= expected_ms


def commands(call: Caller, ask: Callable[[], list[int]]) -> str:
    """The commands that the script runs, one a line."""
    with call.client.monitor() as monitor:
        ask()
        call.client.echo("asked")
        seen = ""
        while "ECHO" not in seen.upper().split("\n")[-1]:
            seen += "\n" + monitor.next_command()["command"]
    return seen


def ttls_written(call: Caller, ask: Callable[[], list[int]]) -> list[int]:
    """The times to live that the script gives the key, to the millisecond."""
    seen = commands(call, ask)
    return [int(ms) for ms in re.findall(r"(?i)^pexpire k (\d+)$", seen, re.MULTILINE)]


TTLS: list[tuple[str, float, Callable[[Caller, int, Rule, int], list[int]], Rule, int]] = [
    ("a hit", 0, hit, rule((3, 1.5)), 1501),
    ("rounded up", 0, hit, Rule(((3, 1_500_001),)), 1502),
    ("the longest of AND", 0, hit, rule((3, 1.5), (9, 20), (9, 7)), 20_001),
    ("a clock behind the newest stamp", -1, hit, rule((4, 1.5)), 2501),
    ("STRICT", 1, hit, rule((2, 3), strict=True), 3001),
    ("a longer penalty", 1, hit, rule((2, 3), penalty=30), 30_001),
    ("a shorter penalty", 1, hit, rule((2, 30), penalty=3), 29_001),
    ("a repair", -100_000, hit, rule((2, 30)), 30_001),
    ("a refund", 1, refund, rule((2, 30)), 29_001),
]


@pytest.mark.parametrize(
    ("name", "second", "ask", "asked", "expected_ms"), TTLS, ids=[row[0] for row in TTLS]
)
def test_key_expires(
    call: Caller,
    name: str,
    second: float,
    ask: Callable[[Caller, int, Rule, int], list[int]],
    asked: Rule,
    expected_ms: int,
) -> None:
    fill(call, rule((2, 60)), [0, 0])
    assert ttls_written(call, lambda: ask(call, at(second), asked, 1)) == [expected_ms]


# -- the state ----------------------------------------------------------------------------------


def test_a_repair_leaves_the_penalty_of_a_sorted_set_in_place(zlog: Caller) -> None:
    hit(zlog, at(100_000), PUNISHED, 3)
    hit(zlog, at(100_000), PUNISHED)
    seen = commands(zlog, lambda: hit(zlog, at(0), PUNISHED)).upper()
    assert state(zlog) == ([at(0)] * 3, at(100_600))
    assert seen.count("\nZADD ") == 1


def crafted(zlog: Caller, sequences: Sequence[int]) -> None:
    members = {f"{START_US}-{sequence:06}": START_US for sequence in sequences}
    zlog.client.zadd("k", members)


def hits_of_one_microsecond(zlog: Caller, count: int) -> bool:
    """Whether the key holds `count` hits of one microsecond. Past the last sequence number they may
    carry the next microsecond's stamp: a step back of the clock joins up to a million of them, and
    a hit with a later stamp admits no additional hit.
    """
    stamps, _ = state(zlog)
    return len(stamps) == count and set(stamps) <= {START_US, START_US + 1}


@pytest.mark.parametrize(
    "sequences",
    [range(LAST_SEQUENCE - 9, LAST_SEQUENCE + 1), [0, LAST_SEQUENCE], [LAST_SEQUENCE - 1]],
    ids=["the last ten", "first and last", "last but one"],
)
@pytest.mark.parametrize("clock", [at(0), at(-1)], ids=["now", "a clock behind"])
def test_last_sequence_number_loses_no_hit(zlog: Caller, sequences: list[int], clock: int) -> None:
    crafted(zlog, sequences)
    wide = rule((20, 60))
    count = len(sequences)
    for cost in (1, 5, 1):
        count += cost
        assert hit(zlog, clock, wide, cost)[:3] == [0, 20, 20 - count]
        assert hits_of_one_microsecond(zlog, count)
    refund(zlog, clock, wide, 3)
    assert hits_of_one_microsecond(zlog, count - 3)
    assert hit(zlog, clock, wide, 2)[:3] == [0, 20, 21 - count]
    assert hits_of_one_microsecond(zlog, count - 1)
    held = Model(state(zlog)[0])
    assert peek(zlog, clock, wide, 20) == held.call("peek", clock, wide, 20)


def test_last_sequence_number_under_strict(zlog: Caller) -> None:
    crafted(zlog, range(LAST_SEQUENCE - 2, LAST_SEQUENCE + 1))
    strict = rule((4, 60), strict=True)
    for _ in range(5):
        assert hit(zlog, at(0), strict, 3)[0] == 1
        assert hits_of_one_microsecond(zlog, 4)
    assert hit(zlog, at(0), replace(strict, penalty_us=SECOND), 3)[0] == 1
    assert hits_of_one_microsecond(zlog, 4)
    assert (state(zlog)[1] or 0) - at(60) in (0, 1)  # the hit's own end is later than the penalty's


def test_expired_hits_are_removed_from_the_key(call: Caller) -> None:
    for second in range(0, 6000, 60):
        assert hit(call, at(second), TEN, 7)[0] == 0
    assert len(stamps_of(call)) <= 10
    tight = rule((10, 60), gap=5, strict=True)
    assert not many(call, [(at(7000 + s * 0.1), tight, 1) for s in range(1)])[0][0]
    many(call, [(at(7000 + s * 0.1), tight, 3) for s in range(1, 200)])
    assert len(stamps_of(call)) == 10


def test_memory_of_a_thousand_hits(call: Caller) -> None:
    thousand, strict = rule((1000, 60)), rule((1000, 60), strict=True)
    is_log = algorithm_of(call.script) == "LOG"
    fill(call, thousand, [index / 1000 for index in range(1000)])
    assert call.client.memory_usage("k", samples=0) <= (11_000 if is_log else 120_000)
    # Hits that are added and removed leave slack at a list's ends.
    many(call, [(at(1 + index / 1000), strict, 1) for index in range(1700)])
    assert len(stamps_of(call)) == 1000
    assert call.client.memory_usage("k", samples=0) <= (12_000 if is_log else 120_000)


# -- large ones ---------------------------------------------------------------------------------

BOUNDS = {"LOG": (1_000_000, 100_000), "ZLOG": (100_000, 10_000)}  # max, COST


@ON_ONE_ENGINE
def test_largest_max_and_cost(call: Caller) -> None:
    limit, cost = BOUNDS[algorithm_of(call.script)]
    wide = rule((limit, 60))
    for index in range(9):
        assert hit(call, at(index), wide, cost)[:3] == [0, limit, limit - (index + 1) * cost]
    assert hit(call, at(9), wide, 4001)[2] == cost - 4001
    assert hit(call, at(9), wide, cost) == [1, limit, cost - 4001, 51, 60]
    assert refund(call, at(9), wide, 1) == [0, limit, cost - 4000, -1, 60]
    assert hit(call, at(10), wide, cost - 4000) == [0, limit, 0, -1, 60]
    assert hit(call, at(11), replace(wide, strict=True), cost) == [1, limit, 0, 50, 60]
    # The clock steps far back: all stamps are set to the current clock.
    assert hit(call, at(-1000), wide) == [1, limit, 0, 60, 60]
    assert refund(call, at(-1000), wide, 20_001) == [0, limit, 20_001, -1, 60]
    assert hit(call, at(-1000), wide, cost)[:3] == [0, limit, 20_001 - cost] or cost > 20_001
    assert hit(call, at(-940), wide, cost) == [0, limit, limit - cost, -1, 60]
    assert refund(call, at(-940), wide, 1_000_000_000) == [0, limit, limit, -1, 0]
    assert call.client.exists("k") == 0


def test_longest_window_and_penalty(call: Caller) -> None:
    longest = Rule(((1, TEN_YEARS_US),), TEN_YEARS_US, True, TEN_YEARS_US, 1000)
    years_ms = TEN_YEARS_US // 1000
    assert hit(call, at(0), longest) == [0, 1, 0, -1, years_ms]
    assert hit(call, at(0) + 1, longest) == [1, 1, 0, years_ms, years_ms]
    assert state(call) == ([at(0) + 1], at(0) + 1 + TEN_YEARS_US)
    assert hit(call, at(0) + TEN_YEARS_US, longest) == [1, 1, 0, 1, 1]
    assert hit(call, at(0) + TEN_YEARS_US + 1, longest) == [0, 1, 0, -1, years_ms]


# -- foreign values -----------------------------------------------------------------------------

Make = Callable[[Any], object]
TYPES: dict[str, Make] = {
    "string": lambda c: c.set("k", START_US),
    "hash": lambda c: c.hset("k", "f", "v"),
    "set": lambda c: c.sadd("k", START_US),
    "stream": lambda c: c.xadd("k", {"f": "v"}),
    "hyperloglog": lambda c: c.pfadd("k", "a"),
    "list": lambda c: c.rpush("k", START_US),
    "sorted set": lambda c: c.zadd("k", {f"{START_US}-000000": START_US}),
}
LISTS: dict[str, Make] = {
    "words": lambda c: c.rpush("k", "job-1", "job-2"),
    "one empty": lambda c: c.rpush("k", ""),
    "short numbers": lambda c: c.rpush("k", "1", "2"),
    "long numbers": lambda c: c.rpush("k", f"{START_US}0"),
    "hexadecimal": lambda c: c.rpush("k", "0x34567890123456"),
    "a float": lambda c: c.rpush("k", "1784000000.12345"),
    "an exponent": lambda c: c.rpush("k", "17840000000000e2"),
    "blanks": lambda c: c.rpush("k", " 178400000000000"),
    "a negative number": lambda c: c.rpush("k", "-5"),
    "newest foreign": lambda c: c.rpush("k", START_US, "x"),
    "oldest an exponent": lambda c: c.rpush("k", "17840000000000e2", START_US),
    "newest a short number": lambda c: c.rpush("k", START_US, "5"),
    "oldest a short number": lambda c: c.rpush("k", "5", START_US),
    "foreign beside a penalty": lambda c: c.rpush("k", f"-{START_US}", "x"),
}
SETS: dict[str, Make] = {
    "a leaderboard": lambda c: c.zadd("k", {"alice": 10, "bob": 20}),
    "a negative leaderboard": lambda c: c.zadd("k", {"alice": -5, "bob": 20}),
    "places": lambda c: c.geoadd("k", (13.36, 38.11, "Palermo")),
    # rolling-rate-limiter stores such keys.
    "uuids": lambda c: c.zadd("k", {"0b5bd6b6-4d33-4d4c-8c65-5e1c0d1b4f4e": START_US}),
    "stamps alone": lambda c: c.zadd("k", {str(START_US): START_US}),
    "longer": lambda c: c.zadd("k", {f"{START_US}-0000000": START_US}),
    "oldest longer": lambda c: c.zadd("k", {f"{START_US}-0000000": 1, f"{START_US}-000000": 2}),
    "newest longer": lambda c: c.zadd("k", {f"{START_US}-000000": 1, f"0{START_US}-000000": 2}),
    "no digits": lambda c: c.zadd("k", {f"{START_US}-00000x": START_US}),
    "newest foreign": lambda c: c.zadd("k", {f"{START_US}-000000": START_US, "x": START_US + 1}),
    "a penalty's score": lambda c: c.zadd("k", {"x": -START_US}),
    "foreign beside a penalty": lambda c: c.zadd("k", {f"-{START_US}": -START_US, "x": 1}),
}
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
FOREIGN = [
    *[("LOG", name, TYPES[name], WRONGTYPE) for name in TYPES if name != "list"],
    *[("LOG", name, LISTS[name], "the key holds no LOG limiter") for name in LISTS],
    *[("ZLOG", name, TYPES[name], WRONGTYPE) for name in TYPES if name != "sorted set"],
    *[("ZLOG", name, SETS[name], "the key holds no ZLOG limiter") for name in SETS],
]
EVERY = Rule(((3, 60 * SECOND), (9, 90 * SECOND)), SECOND, True, 600 * SECOND)


@pytest.mark.parametrize(
    ("algorithm", "name", "make", "error"), FOREIGN, ids=[f"{row[0]} {row[1]}" for row in FOREIGN]
)
def test_foreign_values_are_refused_and_unchanged(
    client: redis.Redis, algorithm: str, name: str, make: Make, error: str
) -> None:
    client.delete("k")
    call = Caller(client, algorithm)
    make(client)
    before = client.dump("k")
    for asked in (PLAIN, EVERY):
        for ask in (hit, peek, refund):
            with pytest.raises(redis.ResponseError, match=f" {error}$"):
                ask(call, at(0), asked, 1)
    for span_us in (0, SECOND):
        with pytest.raises(redis.ResponseError) as caught:
            call.client.evalsha(*call.block_words(at(0), span_us))
        assert str(caught.value) == error
    assert client.dump("k") == before
    assert client.ttl("k") == -1


# -- no window ever holds more than max ---------------------------------------------------------


@ON_ONE_ENGINE
@pytest.mark.parametrize(
    "limits",
    [((3, 1.0),), ((5, 0.3), (9, 1.0), (30, 7.0)), ((40, 7.0), (2, 0.05), (7, 1.0))],
    ids=["3", "three limits", "a burst's limit last"],
)
@pytest.mark.parametrize("word", ["", "strict"])
def test_no_window_ever_holds_more_than_max(
    call: Caller, limits: tuple[tuple[int, float], ...], word: str
) -> None:
    asked = rule(*limits, strict=word == "strict")
    randoms = random.Random(f"{limits} {word}")
    steps_us = [0] * 6 + [1] * 3 + [500_000, -20_000] * 2 + [8 * SECOND]
    hits = []
    clock = at(0)
    for _ in range(500):
        clock += randoms.choice([*steps_us, *[randoms.randrange(60_000)] * 30])
        hits.append((clock, asked, randoms.choice([1, 1, 1, 1, 2, 3, 5])))
    admitted: list[int] = []
    newest = at(0)  # of all stamps: a step back counts there
    for (clock, _, cost), reply in zip(hits, many(call, hits), strict=True):
        now = max(clock, newest)
        if reply[0] == 0:
            admitted += [now] * cost
        if reply[0] == 0 or (asked.strict and reply[3] > 0):
            newest = now
    for limit, window_us in asked.limits:
        assert len(admitted) > limit
        for first, beyond in zip(admitted, admitted[limit:], strict=False):
            assert beyond - first >= window_us


# -- the model ----------------------------------------------------------------------------------


@dataclass
class Twin:
    """One key on the server and its model: every call goes to both, and they must agree.

    The key never expires on the server (the caller persists it), so the test plays its expiry under
    the injected clock: at any time after it the key may be gone or, if the server's clock stepped,
    still be there. Under windows no longer than those of the last write both must answer as for an
    unused key; under longer windows a remaining key counts its hits.
    """

    caller: Caller
    model: Model = field(default_factory=Model)
    ends_us: int | None = None  # the time at which the key expires by the TTL of the last write
    longest_us: int = 0  # the longest window of that write

    def call(self, mode: str, clock: int, asked: Rule, amount: int) -> list[int]:
        """Return the reply."""
        ended = self.ends_us is not None and clock >= self.ends_us
        dead_ahead = self.model.too_far_ahead(clock, asked)
        started_s = time.monotonic()
        found = self.caller(clock, *asked.argv(mode, amount))
        expected = self.model.call(mode, clock, asked, amount)
        assert found == expected
        if ended and asked.longest_us <= self.longest_us:
            assert found == Model().call(mode, clock, asked, amount)
        self._same_state(clock, asked, repaired=dead_ahead and self.model.wrote)
        if self.model.wrote and self.model.ttl_ms:
            assert ttl_is(self.caller, self.model.ttl_ms, started_s), self.caller.ttl_ms
            self.ends_us = clock + self.model.ttl_ms * 1000
            self.longest_us = asked.longest_us
        elif not self.model.wrote and mode != "refund":
            assert self.caller.ttl_ms in (-1, -2)  # not even an EXPIRE
        return found

    def block(self, clock: int, span_us: int, unit_us: int) -> None:
        """RL.BLOCK, which only ever extends the time to live of hits."""
        left_ms, started_s = -1, time.monotonic()
        if self.ends_us is not None and self.ends_us - clock > 10 * SECOND:
            left_ms = (self.ends_us - clock) // 1000
            self.caller.client.pexpire(self.caller.key, left_ms)  # PERSIST has removed it
        found = self.caller.block(clock, span_us, unit_us)
        assert found == self.model.block(clock, span_us, unit_us)
        assert state(self.caller) == (self.model.stamps, self.model.until)
        expected_ms = self.model.ttl_ms
        if self.model.stamps:
            expected_ms = max(left_ms, expected_ms) if left_ms >= 0 else -1
        if expected_ms > 0:
            assert ttl_is(self.caller, expected_ms, started_s), self.caller.ttl_ms
        else:
            assert self.caller.ttl_ms == (-1 if self.model.stamps else -2)
        if span_us > 0:
            end_us = clock + self.model.ttl_ms * 1000
            self.ends_us = max(self.ends_us or 0, end_us) if self.model.stamps else end_us
        elif not self.model.stamps:
            self.ends_us = None

    def forget(self) -> None:
        """DEL."""
        self.caller.client.delete(self.caller.key)
        self.model.forget()
        self.ends_us = None

    def _same_state(self, clock: int, asked: Rule, repaired: bool) -> None:
        """A write may keep or drop expired hits, and a penalty that is over; the model then adopts
        the server's state.
        """
        model = self.model
        stamps, until = state(self.caller)
        if not model.wrote:
            assert (stamps, until) == (model.stamps, model.until)
            return
        now = max([clock, *model.stamps[-1:]])
        edge_us = now - asked.longest_us
        dead = [stamp for stamp in model.stamps if stamp <= edge_us]
        kept = [stamp for stamp in stamps if stamp <= edge_us]
        assert kept == dead[len(dead) - len(kept) :]
        assert stamps[len(kept) :] == model.stamps[len(dead) :]
        assert not repaired or not kept
        if model.until is not None and model.until > now:
            assert until == model.until
        else:
            assert until in (None, model.until)
        model.stamps, model.until = stamps, until


@dataclass(frozen=True)
class Ask:
    """One call of a random sequence."""

    step: tuple[str, int, int]  # by: microseconds; event: which one, and the offset from it
    mode: str  # hit, peek, refund, block or del
    amount: int
    words: str  # which of gap, strict and penalty are given
    other: int  # another rule, occasionally
    sweep: bool  # an expired key is removed

    def clock(self, clock: int, twin: Twin, asked: Rule) -> int:
        """The time of this call."""
        kind, which, beside = self.step
        if kind == "by":
            return clock + which
        stamps = twin.model.stamps
        times = [stamp + window for stamp in stamps[-8:] for _, window in asked.limits]
        times += [stamps[-1] + asked.gap_us, stamps[-1] - asked.longest_us] if stamps else []
        times += [time_us for time_us in (twin.model.until, twin.ends_us) if time_us is not None]
        return times[which % len(times)] + beside if times else clock


WINDOWS_US = [1000, 300_000, 999_999, SECOND, 7 * SECOND]
STEPS = st.one_of(
    st.tuples(
        st.just("by"),
        st.one_of(
            st.integers(0, 3),
            st.integers(0, 400_000),
            st.integers(0, 3 * SECOND),
            st.integers(-2 * SECOND, 0),
            st.sampled_from([20 * SECOND, 600 * SECOND, -30 * SECOND]),
        ),
        st.just(0),
    ),
    st.tuples(st.just("event"), st.integers(0, 99), st.sampled_from([-1, 0, 0, 1])),
)
ASKS = st.builds(
    Ask,
    step=STEPS,
    mode=st.sampled_from(["hit"] * 7 + ["peek"] * 2 + ["refund", "del", "block", "block"]),
    amount=st.sampled_from([1] * 9 + [2, 2, 3, 4, 7, 0]),
    words=st.sampled_from([""] * 6 + ["gap", "strict", "penalty", "gap strict penalty"]),
    other=st.sampled_from([0] * 12 + [1, 2, 3, 4]),
    sweep=st.booleans(),
)
LIMIT = st.tuples(st.integers(1, 6), st.sampled_from(WINDOWS_US))
LIMITS = st.one_of(
    [st.lists(LIMIT, min_size=size, max_size=size).map(tuple) for size in (1, 1, 1, 2, 9)]
)


def variant(asked: Rule, other: int) -> Rule:
    """Another caller's rule for the same key."""
    (limit, window_us), *rest = asked.limits
    limits = [
        asked.limits,
        ((limit + 2, window_us), *rest),
        ((max(1, limit - 1), window_us), *rest),
        ((limit, max(1000, window_us // 3)),),
        ((limit, window_us * 4), *rest),
    ][other]
    return replace(asked, limits=limits)


@ON_ONE_ENGINE
@pytest.mark.parametrize("algorithm", ["LOG", "ZLOG"])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limits=LIMITS,
    unit_us=st.sampled_from([1, 1000, SECOND]),
    gap_us=st.sampled_from([1000, 250_000, SECOND, 7 * SECOND]),
    penalty_us=st.sampled_from([1000, 400_000, 2 * SECOND, 60 * SECOND]),
    asks=st.one_of(
        st.lists(ASKS, min_size=1, max_size=9), st.lists(ASKS, min_size=20, max_size=50)
    ),
)
def test_every_reply_equals_the_models(
    client: redis.Redis,
    algorithm: str,
    limits: tuple[tuple[int, int], ...],
    unit_us: int,
    gap_us: int,
    penalty_us: int,
    asks: list[Ask],
) -> None:
    twin = Twin(Caller(client, algorithm))
    twin.forget()
    clock = START_US
    for ask in asks:
        asked = variant(Rule(limits, unit_us=unit_us), ask.other)
        asked = replace(
            asked,
            gap_us=min(gap_us, asked.longest_us) if "gap" in ask.words else 0,
            strict="strict" in ask.words,
            penalty_us=penalty_us if "penalty" in ask.words else 0,
        )
        clock = ask.clock(clock, twin, asked)
        if ask.mode == "del" or (ask.sweep and twin.ends_us is not None and clock >= twin.ends_us):
            twin.forget()
        if ask.mode == "del":
            continue
        if ask.mode == "block":
            span_us = [0, 0, 1000, 400_000, 2 * SECOND, 60 * SECOND, TEN_YEARS_US]
            twin.block(clock, span_us[ask.amount % 7], unit_us)
            continue
        amount = max(1, ask.amount) if ask.mode == "refund" else ask.amount
        found = twin.call(ask.mode, clock, asked, amount)
        # A peek leaves a state that is too far ahead: its reply applies to a hit now.
        if found[3] > 0 and not twin.model.too_far_ahead(clock, asked):
            if ask.mode == "refund":
                asked, amount = replace(asked, gap_us=0), 1
            # Waiting `retry_after` suffices, a whole unit less does not.
            wait_us = found[3] * unit_us
            assert peek(twin.caller, clock + wait_us, asked, amount)[0] == 0
            assert peek(twin.caller, clock + wait_us - unit_us, asked, amount)[0] == 1
