"""The sixth integer of a refusal, the time for which it stays valid, on real servers with an
injected clock.

A cache that keeps a refusal for that time, and counts its times down, answers as the script would.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.harness import ON_ONE_ENGINE, RedisServer
from tests.scripts import string_models, window_model
from tests.scripts.calls import CLOCK_ARGUMENT, SECOND, START_US, Caller, at, script_of
from tests.scripts.string_models import Ask, bucket, window

LOGS = ("LOG", "ZLOG")
WINDOWS = ("FIXED", "COUNTER")
BUCKETS = ("TOKEN", "LEAKY", "GCRA")
ALGORITHMS = LOGS + WINDOWS + BUCKETS
TEN_YEARS_US = 315_360_000 * SECOND
HOUR = 3600 * SECOND
SLOW_US = 300_000  # the time the machine may take between two commands
SEEDS = 8
STEPS = 30


@dataclass(frozen=True)
class Hit:
    """A rule of one algorithm, and its properties used here."""

    algorithm: str
    limits: tuple[tuple[int, int], ...]  # (max, window in µs); of a bucket its rate and BURST
    burst: int | None = None
    gap_us: int = 0
    strict: bool = False
    penalty_us: int = 0

    @property
    def plain(self) -> bool:
        """One limit, and no other reason to refuse."""
        return len(self.limits) == 1 and not self.gap_us and not self.strict and not self.penalty_us

    @property
    def longest_us(self) -> int:
        """The longest time for which it stores anything."""
        if self.algorithm in BUCKETS:
            ((count, window_us),) = self.limits
            return (self.burst or count) * (window_us // count + 1)
        return max(window_us for _, window_us in self.limits)

    @property
    def most(self) -> int:
        """The hits that a new limiter admits at once."""
        return self.burst or min(limit for limit, _ in self.limits)

    def argv(self, mode: str = "hit", amount: int = 1, unit_us: int = 1) -> list[object]:
        """The script's ARGV."""
        if self.algorithm in LOGS:
            rule = window_model.Rule(
                self.limits, self.gap_us, self.strict, self.penalty_us, unit_us
            )
            return list(rule.argv(mode, amount))
        ((count, window_us),) = self.limits
        if self.algorithm in BUCKETS:
            rate = bucket(count, window_us, self.burst)
        else:
            rate = window(count, window_us)
        hit = mode == "hit"
        penalty_us, strict = (self.penalty_us, self.strict) if hit else (0, False)
        ask = Ask(amount, mode, unit_us, penalty_us, strict)
        return ask.argv(self.algorithm, rate)


def three_a_minute(algorithm: str, **words: Any) -> Hit:
    return Hit(algorithm, ((3, 60 * SECOND),), **words)


class Limiter:
    """A script and a key; every call in microseconds unless a parameter sets another unit."""

    def __init__(self, client: redis.Redis, algorithm: str) -> None:
        self.client: Any = client
        self.caller = Caller(client, algorithm)
        self.client.delete("k")

    def ask(
        self, clock: int, hit: Hit, mode: str = "hit", amount: int = 1, unit_us: int = 1
    ) -> list[int]:
        """The five integers; `stays` and `wrote` describe the same call."""
        return self.caller(clock, *hit.argv(mode, amount, unit_us))

    @property
    def stays(self) -> int:
        """The sixth integer of the latest call, 0 without one."""
        return self.caller.stays_us

    @property
    def wrote(self) -> bool:
        """Whether it wrote: every write sets a time to live."""
        return self.caller.ttl_ms >= 0

    def fill(self, clock: int, hit: Hit) -> None:
        """As many hits as are admitted."""
        while (self.ask(clock, hit, "peek"))[0] == 0:
            assert self.ask(clock, hit)[0] == 0
            clock += hit.gap_us

    def replies_later(self, clocks: list[int], hit: Hit, mode: str = "hit") -> list[list[int]]:
        """The whole replies to the same call at these times; none of them may write."""
        argv = hit.argv(mode)
        argv += [""] * (CLOCK_ARGUMENT - 1 - len(argv))
        sha = self.caller.script.sha.decode()
        with self.client.pipeline(transaction=False) as pipe:
            pipe.dump("k")
            for clock in clocks:
                pipe.evalsha(sha, 1, "k", *argv, clock)
            pipe.dump("k")
            pipe.pttl("k")
            before, *found, after, ttl_ms = pipe.execute()
        assert before == after
        assert ttl_ms == -1  # as Caller has left it
        return list(found)


@pytest.fixture(params=ALGORITHMS)
def limiter(client: redis.Redis, request: pytest.FixtureRequest) -> Limiter:
    return Limiter(client, request.param)


# -- any traffic -----------------------------------------------------------------------------------


def hits_of(algorithm: str) -> list[Hit]:
    """Rules on one key; the first few are the most frequent."""
    second, five = (3, SECOND), (5, 5 * SECOND)
    plain = [Hit(algorithm, (each,)) for each in (second, five, (1, 1000), (2, 999_999))]
    penalties = [
        Hit(algorithm, (second,), penalty_us=2 * SECOND),
        Hit(algorithm, (second,), penalty_us=1000),
        Hit(algorithm, (five,), penalty_us=SECOND),
        Hit(algorithm, ((1, 60 * SECOND),), penalty_us=100 * SECOND),
    ]
    hits = [*plain, *penalties]
    if algorithm in BUCKETS:
        hits += [Hit(algorithm, (second,), 1), Hit(algorithm, (five,), 9)]
        hits += [Hit(algorithm, ((7, SECOND),), 2), Hit(algorithm, ((999, SECOND),), 3)]
        hits += [Hit(algorithm, (five,), 2, penalty_us=3 * SECOND)]
        hits += [Hit(algorithm, ((3_000_000, SECOND),), 1)]  # 333 ns
    if algorithm == "COUNTER":
        hits += [Hit(algorithm, ((7, SECOND),)), Hit(algorithm, ((28, TEN_YEARS_US),))]
    if algorithm in ("FIXED", *LOGS):
        hits += [
            Hit(algorithm, (second,), strict=True),
            Hit(algorithm, (second,), strict=True, penalty_us=SECOND),
        ]
    if algorithm in LOGS:
        hits += [
            Hit(algorithm, (second, five)),
            Hit(algorithm, (five, second)),
            Hit(algorithm, ((2, SECOND), (3, 2 * SECOND), (4, 20 * SECOND))),
            Hit(algorithm, (five, (3, 3 * SECOND), (9, 10 * SECOND)), gap_us=100_000),
            Hit(algorithm, (five,), gap_us=SECOND),
            Hit(algorithm, (five,), gap_us=5 * SECOND),
            Hit(algorithm, (second,), gap_us=200_000),
            Hit(algorithm, (five,), gap_us=SECOND, penalty_us=SECOND // 2),
            Hit(algorithm, (second, five), gap_us=1000, strict=True, penalty_us=2000),
        ]
    return hits


class Traffic:
    """Random calls on one key; a refusal with a sixth integer is checked again during that time."""

    def __init__(self, limiter: Limiter, seed: int) -> None:
        self.limiter = limiter
        self.random = random.Random(seed)
        self.hits = hits_of(str(limiter.caller.script.header["algo"]))
        self.usual = self.random.choice(self.hits)
        self.clock = START_US
        self.retry = self.stays = 0  # of the latest refusal
        self.seen = 0

    def step(self) -> None:
        pick = self.random.random()
        hit = self.usual if pick < 0.8 else self.random.choice(self.hits)
        self.move(hit)
        kind = self.random.random()
        if kind < 0.06:
            self.limiter.ask(self.clock, hit, "refund", self.random.randint(1, 3))
        elif kind < 0.1:
            self.limiter.ask(self.clock, hit, "hit", 2)
        else:
            self.check(hit, self.limiter.ask(self.clock, hit))

    def move(self, hit: Hit) -> None:
        """Let time pass, sometimes up to a time in a reply; or set the clock."""
        near = self.random.randint(-1, 1)
        moves = {
            "none": 0,
            "little": self.random.randint(0, 3000),
            "part": self.random.randint(0, hit.longest_us // 2),
            "retry": self.retry + near,
            "stays": self.stays + near,
            "back": -self.random.randint(0, hit.longest_us),
            "far back": -hit.longest_us - self.random.randint(0, SECOND),
            "on": 2 * hit.longest_us + near,
        }
        weights = [30, 12, 6, 5, 8, 2, 1, 1]
        (move,) = self.random.choices(list(moves), weights)
        moved = self.clock + moves[move]
        if START_US - HOUR < moved < START_US + 2 * TEN_YEARS_US:
            self.clock = moved

    def check(self, hit: Hit, reply: list[int]) -> None:
        limiter, stays, wrote = self.limiter, self.limiter.stays, self.limiter.wrote
        details = f"{reply} {stays} at {self.clock}: {hit}"
        limited, limit, remaining, retry, reset = reply
        assert (stays > 0) == (limited == 1 and retry > 0 and not wrote), details
        assert stays <= max(0, retry), details
        if not stays:
            return
        self.retry, self.stays, self.seen = retry, stays, self.seen + 1
        spans = [span for span in (0, 1, stays // 2, stays - 1) if span < stays]
        for span, later in zip(
            spans, limiter.replies_later([self.clock + span for span in spans], hit), strict=True
        ):
            aged = [1, limit, remaining, retry - span, reset - span, stays - span]
            assert later == aged, f"{details}, then {later} after {span}"
        self.not_too_short(hit, remaining, retry, details)

    def not_too_short(self, hit: Hit, remaining: int, retry: int, details: str) -> None:
        (then,) = self.limiter.replies_later([self.clock + self.stays], hit, "peek")
        if self.stays == retry:
            assert then[0] == 0, details
        elif len(hit.limits) == 1 and not self.punished():
            assert hit.gap_us, details  # otherwise it is refused for one reason only
            assert then[2] > remaining, details

    def punished(self) -> bool:
        """Whether a penalty may be running."""
        kind, client = self.limiter.caller.script.header["algo"], self.limiter.client
        if kind == "LOG":
            return bool(client.lindex("k", 0)[:1] == b"-")
        if kind == "ZLOG":
            return bool(client.zrange("k", 0, 0)[0][:1] == b"-")
        return b"!" in client.get("k")


@ON_ONE_ENGINE
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refusal_stays_valid_for_its_sixth_integer(client: redis.Redis, algorithm: str) -> None:
    seen = 0
    for seed in range(SEEDS):
        traffic = Traffic(Limiter(client, algorithm), seed)
        try:
            for _ in range(STEPS):
                traffic.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += traffic.seen
    assert seen > SEEDS * STEPS // 6


# -- known cases -----------------------------------------------------------------------------------


def test_sixth_integer_of_a_plain_rule_is_retry_after(limiter: Limiter) -> None:
    hit = three_a_minute(limiter.caller.script.header["algo"])
    limiter.fill(START_US, hit)
    clock = at(7.000_001)
    for _ in range(3):
        reply = limiter.ask(clock, hit)
        assert reply[:3] == [1, 3, 0]
        assert limiter.stays == reply[3] > 0
        clock += limiter.stays - 1
        assert limiter.ask(clock, hit)[:4] == [1, 3, 0, 1]
        assert limiter.stays == 1
        clock += 1
        assert limiter.ask(clock, hit)[0] == 0
        assert limiter.stays == 0
        limiter.fill(clock, hit)


@pytest.mark.parametrize("unit_us", [1000, SECOND])
def test_only_replies_in_microseconds_have_a_sixth_integer(limiter: Limiter, unit_us: int) -> None:
    """Any reason to refuse: Caller itself would fail at a sixth integer in another unit."""
    algorithm = str(limiter.caller.script.header["algo"])
    for hit in hits_of(algorithm):
        limiter.client.delete("k")
        refused = 0
        for clock in (0, 0.000_001, 0.000_9, 0.1, 0.2, 0.200_001, 0.9):
            for _ in range(hit.most + 1 if clock == 0 else 1):
                for mode in ("hit", "peek"):
                    refused += limiter.ask(at(clock), hit, mode, unit_us=unit_us)[0]
        assert refused or hit.longest_us < 10_000
        assert limiter.stays == 0


def test_sixth_integer_ends_with_a_penalty_that_another_would_follow(limiter: Limiter) -> None:
    """The running penalty began under another rule; under this one a new penalty begins then."""
    algorithm = str(limiter.caller.script.header["algo"])
    short = Hit(algorithm, ((3, SECOND),), penalty_us=1000)
    limiter.fill(at(0), short)
    ends = limiter.ask(at(0), short)[3]
    hit = Hit(algorithm, ((1, 60 * SECOND),), penalty_us=600 * SECOND)
    assert limiter.ask(at(0.1), hit)[3] > ends - SECOND // 10
    assert limiter.stays == ends - SECOND // 10
    assert limiter.ask(at(0) + ends, hit)[3] == 600 * SECOND
    assert (limiter.stays, limiter.wrote) == (0, True)


def test_clock_set_back_prolongs_the_sixth_integer_equally(limiter: Limiter) -> None:
    hit = three_a_minute(limiter.caller.script.header["algo"])
    limiter.fill(at(0), hit)
    limiter.ask(at(1), hit)
    stays = limiter.stays
    # GCRA's time is ahead of the clock by the largest amount its rule allows.
    back = 1 if limiter.caller.script.header["algo"] == "GCRA" else 5
    limiter.ask(at(1 - back), hit)
    assert limiter.stays == stays + back * SECOND


@pytest.mark.parametrize("algorithm", LOGS)
def test_sixth_integer_of_a_gap_ends_when_the_limit_changes(
    client: redis.Redis, algorithm: str
) -> None:
    limiter = Limiter(client, algorithm)
    hit = Hit(algorithm, ((5, 60 * SECOND),), gap_us=30 * SECOND)
    limiter.ask(at(0), hit)
    assert limiter.ask(at(10), hit) == [1, 5, 4, 20 * SECOND, 50 * SECOND]
    assert limiter.stays == 20 * SECOND
    limiter.ask(at(40), hit)
    # At 60 one more hit will be left, though the gap lasts until 70.
    assert limiter.ask(at(50), hit) == [1, 5, 3, 20 * SECOND, 50 * SECOND]
    assert limiter.stays == 10 * SECOND
    assert limiter.ask(at(60), hit) == [1, 5, 4, 10 * SECOND, 40 * SECOND]
    assert limiter.stays == 10 * SECOND


@pytest.mark.parametrize("algorithm", LOGS)
def test_sixth_integer_lasts_until_one_of_several_limits_changes(
    client: redis.Redis, algorithm: str
) -> None:
    limiter = Limiter(client, algorithm)
    two = Hit(algorithm, ((2, SECOND), (4, 60 * SECOND)))
    for clock in (0, 0, 2, 2.5):
        assert limiter.ask(at(clock), two)[0] == 0
    # Both are full; the first one is reported until 3.
    assert limiter.ask(at(2.5), two) == [1, 2, 0, 57_500_000, SECOND]
    assert limiter.stays == SECOND // 2
    assert limiter.ask(at(3), two) == [1, 4, 0, 57 * SECOND, 59_500_000]
    assert limiter.stays == SECOND // 2  # the first limit has more left then, which no reply shows
    assert limiter.ask(at(4), two) == [1, 4, 0, 56 * SECOND, 58_500_000]
    assert limiter.stays == 56 * SECOND


# -- the key's own time to live, and the right to query it -----------------------------------------


@pytest.mark.parametrize("ttl_ms", [1500, 50_000, 10_000_000])
def test_sixth_integer_does_not_outlast_the_key(limiter: Limiter, ttl_ms: int) -> None:
    """Any client may let it expire sooner than its limiter would."""
    hit = three_a_minute(limiter.caller.script.header["algo"])
    limiter.fill(at(0), hit)
    limiter.client.pexpire("k", ttl_ms)
    reply = limiter.ask(at(1), hit)
    assert reply[0] == 1
    left_us = limiter.caller.ttl_ms * 1000  # just after it
    most_us = min(reply[3], ttl_ms * 1000)
    assert min(reply[3], left_us) <= limiter.stays <= most_us
    assert left_us > ttl_ms * 1000 - SLOW_US


@pytest.fixture
def without_pttl(client: redis.Redis, module_server: RedisServer) -> Iterator[redis.Redis]:
    """A user with every right except that to PTTL."""
    admin: Any = client
    admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-pttl")
    with redis.Redis(port=module_server.port, username="app", password="pw") as made:
        yield made
    admin.execute_command("ACL", "DELUSER", "app")


def test_without_the_right_to_pttl_there_is_no_sixth_integer(
    limiter: Limiter, without_pttl: redis.Redis
) -> None:
    algorithm = str(limiter.caller.script.header["algo"])
    hit = three_a_minute(algorithm)
    limiter.fill(at(0), hit)
    expected = limiter.ask(at(1), hit)
    assert limiter.stays > 0
    user: Any = without_pttl
    argv = hit.argv()
    argv += [""] * (CLOCK_ARGUMENT - 1 - len(argv)) + [at(1)]
    before = limiter.client.dump("k")
    assert user.evalsha(script_of(algorithm).sha.decode(), 1, "k", *argv) == expected
    assert limiter.client.dump("k") == before


# -- LEAKY with WAIT -------------------------------------------------------------------------------


def test_sixth_integer_of_a_waiting_hit_is_the_time_to_hold(client: redis.Redis) -> None:
    caller = Caller(client, "LEAKY")
    client.delete("k")
    rule = string_models.bucket(1, 60 * SECOND, 5)
    wait = Ask(unit=1, wait_us=100 * SECOND)

    def ask(clock: float, ask: Ask = wait) -> list[int]:
        found = caller(at(clock), *ask.argv("LEAKY", rule))
        assert caller.stays_us == 0
        return found

    assert ask(0) == [0, 5, 4, -1, 60 * SECOND, 0]
    assert ask(10) == [0, 5, 3, -1, 60 * SECOND, 50 * SECOND]
    # Refused without a write: no time to hold, and no time for which that stays valid.
    assert ask(11) == [1, 5, 3, 9 * SECOND, 109 * SECOND, 0]
    assert ask(11, Ask(unit=1, wait_us=100 * SECOND, penalty_us=SECOND))[5] == 0
    assert ask(12)[5] == 0
