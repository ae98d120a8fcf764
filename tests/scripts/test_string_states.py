"""The five string-state scripts on real servers: against their models, and by the contract's cases.

Time in the random sequences. A key's TTL runs by the server's own time, which never jumps; the
clock that judges the state may jump. So a step is either time that passes (both move) or a clock
that jumps (only the clock moves), and a key may be deleted once its TTL has passed by server time.
The assertion then: as long as the clock has not jumped back and the rule is the same, a limiter
whose TTL has passed equals an unused one, so it makes no difference whether the server has removed
it. After a jump back the server expires by real time what the clock would still count. That is
right (the window is over) and is followed, not asserted. A key that outlives its TTL keeps its
state: a clock that jumps back finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import ON_EVERY_ENGINE, ON_ONE_ENGINE
from tests.scripts.calls import CLOCK_ARGUMENT, SECOND, START_US, Caller, at
from tests.scripts.string_models import (
    MODELS,
    NS,
    TEN_YEARS_US,
    Ask,
    Kept,
    Level,
    Model,
    Rule,
    bucket,
    window,
)

WINDOWS = ("FIXED", "COUNTER")
BUCKETS = ("TOKEN", "LEAKY", "GCRA")
ALGORITHMS = WINDOWS + BUCKETS
MILLISECOND = 1000
HOUR = 3600 * SECOND
SLOW_MS = 300  # the time the machine may take between a write and the PTTL after it
EXACT_US = 2**53
CLOCKS_US = (1_100_000_000_000_000, 4_900_000_000_000_000)

RULES = {
    "FIXED": [
        window(1, 1000),
        window(3, SECOND),
        window(7, 999_999),
        window(100, 60 * SECOND),
        window(1, TEN_YEARS_US),
        window(10**9, TEN_YEARS_US),
    ],
    "COUNTER": [
        window(1, 1000),
        window(3, SECOND),
        window(7, 999_999),
        window(100, 60 * SECOND),
        window(999_999, 9_007_200_000),
        window(10**9, 9_007_199),
        window(1, TEN_YEARS_US),
        window(28, TEN_YEARS_US),
    ],
    "BUCKET": [
        bucket(3, SECOND),
        bucket(7, SECOND),
        bucket(999, SECOND),
        bucket(7000, SECOND),
        bucket(5, 60 * SECOND, 2),
        bucket(4, SECOND, 20),
        bucket(3, 1000),
        bucket(10**9, SECOND),  # 1 ns
        bucket(10**9, 1000, 5),  # less than 1 ns, so 1
        bucket(1_000_000, SECOND, 3),  # 1 µs
        bucket(3_000_000, SECOND, 9),  # 333 ns
        bucket(140_000_000, SECOND, 1_000_000),  # 7 ns
        bucket(1, TEN_YEARS_US),
        bucket(7, TEN_YEARS_US),
        bucket(10**9, TEN_YEARS_US),
        bucket(999_999_937, TEN_YEARS_US, 999_999_900),
    ],
}
STATE = {
    "FIXED": r"F\d+:\d{16}",
    "COUNTER": r"C\d{16}:\d+:\d+",
    "TOKEN": r"T\d+:\d{19}",
    "LEAKY": r"L\d+:\d{19}",
    "GCRA": r"\d{19}",
}


def rules_of(algorithm: str) -> list[Rule]:
    return RULES[algorithm if algorithm in WINDOWS else "BUCKET"]


def three_a_minute(algorithm: str) -> Rule:
    make = window if algorithm in WINDOWS else bucket
    return make(3, 60 * SECOND)


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.flushall()


@pytest.fixture(params=ALGORITHMS)
def limiter(client: redis.Redis, request: pytest.FixtureRequest) -> Limiter:
    return Limiter(client, request.param)


class Limiter:
    """A script and a key: calls by rule and Ask."""

    def __init__(self, client: redis.Redis, algorithm: str, key: str = "k") -> None:
        self.algorithm = algorithm
        self.caller = Caller(client, algorithm, key)
        self.client: Any = client
        self.key = key

    def ask(self, clock_us: int, rule: Rule, ask: Ask) -> list[int]:
        return self.caller(clock_us, *ask.argv(self.algorithm, rule))

    def plain(self, clock_us: int, rule: Rule, ask: Ask, command: str = "EVALSHA") -> list[int]:
        """Run the script alone: no other command, and no transaction around it."""
        argv = ask.argv(self.algorithm, rule)
        argv += [""] * (CLOCK_ARGUMENT - 1 - len(argv)) + [clock_us]
        found = self.client.execute_command(
            command, self.caller.script.sha.decode(), 1, self.key, *argv
        )
        assert isinstance(found, list)
        return found

    def hit(self, clock_us: int, rule: Rule, cost: int = 1, **words: Any) -> list[int]:
        return self.ask(clock_us, rule, Ask(cost, **words))

    def peek(self, clock_us: int, rule: Rule, cost: int = 1, **words: Any) -> list[int]:
        return self.ask(clock_us, rule, Ask(cost, "peek", **words))

    def refund(self, clock_us: int, rule: Rule, hits: int, **words: Any) -> list[int]:
        return self.ask(clock_us, rule, Ask(hits, "refund", **words))

    def value(self) -> str:
        return str(self.client.get(self.key).decode())


# -- against the models -------------------------------------------------------------------------


class Pair:
    """A script and its model side by side; each call must agree in everything a caller can see."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.model: Model[Any] = MODELS[limiter.algorithm]()
        self.clock_us = self.real_us = START_US
        self.value: bytes | None = None
        self.written: tuple[Rule, int, int] | None = None  # its rule, its end, its clock's jump

    def call(self, rule: Rule, ask: Ask) -> list[int]:
        """Return the reply of both. Raises AssertionError where they differ."""
        model, before = self.model, self.value
        expected = model.call(rule, self.clock_us, ask)
        found = self.limiter.ask(self.clock_us, rule, ask)
        if ask.wait_us is not None and ask.cost == 0:
            expected = expected[: len(found)]  # a hold of 0 may be omitted
        assert found == expected, f"{before!r} at {self.clock_us}: {ask} under {rule}"
        value = self.value = self.limiter.client.get("k")
        ttl_ms = self.limiter.caller.ttl_ms
        untouched = value == before and ttl_ms == (-2 if value is None else -1)
        if model.ttl_ms is None or (untouched and model.optional):
            assert untouched, f"{before!r} became {value!r}, PTTL {ttl_ms}: {ask}"
            return found
        model.adopt(value)
        assert ttl_ms <= model.ttl_ms, f"{value!r}, PTTL {ttl_ms}"
        assert ttl_ms > model.ttl_ms - SLOW_MS or value is None, f"{value!r}, PTTL {ttl_ms}"
        self.written = (rule, self.real_us + model.ttl_ms * 1000, self.clock_us - self.real_us)
        return found

    def block(self, rule: Rule, span_us: int, unit_us: int) -> None:
        """Block the key or lift its block. Raises AssertionError where script and model differ."""
        model, before, written = self.model, self.value, self.written
        left_ms = -1
        if before is not None and written is not None:
            left_ms = (written[1] - self.real_us) // 1000
            if left_ms > 10 * SLOW_MS:
                self.limiter.client.pexpire("k", left_ms)  # what the caller's PERSIST has removed
            else:
                left_ms = -1
        expected = model.block(self.clock_us, span_us, unit_us)
        found = self.limiter.caller.block(self.clock_us, span_us, unit_us)
        assert found == expected, f"{before!r} at {self.clock_us}: blocked for {span_us}"
        value = self.value = self.limiter.client.get("k")
        model.adopt(value)
        ttl_ms = self.limiter.caller.ttl_ms
        if model.kept is None:
            assert ttl_ms == -2
            self.written = None
            return
        filled = model.kept.state != model.empty()
        expected_ms = left_ms
        if model.ttl_ms is not None:
            end_us, jump_us = self.real_us + model.ttl_ms * 1000, self.clock_us - self.real_us
            if not filled:
                expected_ms = model.ttl_ms
            elif written is not None:
                rule, end_us = written[0], max(end_us, written[1])
                jump_us = max(jump_us, written[2])
                expected_ms = max(left_ms, model.ttl_ms) if left_ms >= 0 else -1
            self.written = (rule, end_us, jump_us)
        assert expected_ms - SLOW_MS < ttl_ms <= expected_ms, f"{value!r}, PTTL {ttl_ms}"

    def end(self, rule: Rule, remove: bool) -> None:
        """The key's time to live has passed, if it has; then remove the key or keep it."""
        if self.written is None or self.real_us < self.written[1]:
            return
        under, _, jump_us = self.written
        if under == rule and self.clock_us - self.real_us >= jump_us:
            unused: Model[Any] = MODELS[self.limiter.algorithm]()
            for ask in (Ask(1, "peek", unit=1), Ask(0, "hit"), Ask(rule.limit, "peek")):
                assert self.model.call(rule, self.clock_us, ask) == unused.call(
                    rule, self.clock_us, ask
                )
        if remove:
            self.forget()

    def forget(self) -> None:
        self.limiter.client.delete("k")
        self.model.kept = self.value = self.written = None

    def move(self, kind: str, number: int, rule: Rule) -> None:
        """Let time pass or the clock jump; every kind includes the exact boundaries."""
        interval_us, near = rule.interval_ns // NS, number % 3 - 1
        horizon_us = self.model.horizon(rule) // NS
        part_us = horizon_us * (number % 1300) // 1000
        ends_us = self.written[1] if self.written else self.real_us
        newest_us = self.clock_us
        if self.model.kept is not None:
            newest_us = self.model.newest(self.model.kept.state) // NS
        passes_us = {
            "little": number % 3000,
            "part": part_us,
            "intervals": interval_us * (number % 4) + near,
            "retry": max(0, self.model.retry_us) + near,
            "reset": self.model.reset_us + near,
            "end": ends_us - self.real_us + near,
        }
        jumps_us = {
            "jump": part_us,
            "back": -(number % 3000),
            "back part": -part_us,
            "back to the horizon": newest_us - horizon_us + near - self.clock_us,
            "far back": -2 * horizon_us - number,
        }
        pass_us = max(0, passes_us.get(kind, 0))
        moved_us = self.clock_us + pass_us + jumps_us.get(kind, 0)
        if CLOCKS_US[0] < moved_us < CLOCKS_US[1]:
            self.clock_us = moved_us
            self.real_us += pass_us


MOVES = ["little", "part", "intervals", "intervals", "retry", "retry", "reset", "end"]
MOVES += ["jump", "back", "back part", "back to the horizon", "far back"]
CALLS = st.tuples(
    st.one_of(st.just("stay"), st.sampled_from(MOVES)),
    st.integers(0, 1 << 20),
    st.sampled_from(
        ["hit"] * 12 + ["peek", "peek", "refund", "refund", "reset", "other rule", "block", "block"]
    ),
    st.sampled_from(["1", "1", "1", "2", "3", "0", "spare", "spare", "half", "max", "more"]),
    st.integers(0, 9),  # which words a hit has
    st.booleans(),  # whether an expired key is removed
)


def cost_of(word: str, rule: Rule, spare: int) -> int:
    named = {"spare": spare, "half": rule.limit // 2 + 1, "max": rule.limit, "more": rule.limit + 1}
    cost = named[word] if word in named else int(word)
    return min(cost, 10**9, TEN_YEARS_US * NS // rule.interval_ns)


def another(rule: Rule, number: int, algorithm: str) -> Rule:
    """Another rule within the bounds of the grammar, mostly a similar one."""
    if number % 5 == 0:
        others = rules_of(algorithm)
        return others[number // 5 % len(others)]
    limit = max(1, [rule.limit + 1, rule.limit - 1, rule.limit // 2, rule.limit * 2][number % 4])
    interval_ns = [rule.interval_ns, rule.interval_ns // 2, rule.interval_ns * 2][number % 3]
    if algorithm in WINDOWS:
        interval_ns = interval_ns // MILLISECOND // NS * MILLISECOND * NS
        interval_ns = min(max(MILLISECOND * NS, interval_ns), TEN_YEARS_US * NS)
        fits = algorithm == "FIXED" or limit * (interval_ns // NS) < EXACT_US
    else:
        interval_ns = max(1, interval_ns)
        fits = limit * interval_ns <= TEN_YEARS_US * NS
    return Rule(limit, interval_ns) if fits and limit <= 10**9 else rule


def measurable(rule: Rule, model: Model[Any]) -> bool:
    """Whether the key's state drains within 20 years: otherwise no server can return the time."""
    level = model.kept.state.hits if model.algorithm == "LEAKY" and model.kept else 0
    return level * rule.interval_ns <= 2 * TEN_YEARS_US * NS


def words_of(number: int, choice: int, ask: Ask, rule: Rule, algorithm: str) -> Ask:
    """`ask` with PENALTY, STRICT or a wait, sometimes."""
    if choice == 9:
        spans = [1000, 1_500_000, max(1000, rule.interval_ns // NS), TEN_YEARS_US]
        ask = replace(ask, penalty_us=spans[number % 4])
    if algorithm == "FIXED" and choice >= 7 and number % 2:
        ask = replace(ask, strict=True)
    if algorithm == "LEAKY" and choice >= 6 and number % 3:
        held = [1000, max(1000, rule.interval_ns // NS), HOUR, min(HOUR, 20_000)]
        ask = replace(ask, wait_us=held[number % 4])
    return ask


def blocked_us(number: int, rule: Rule) -> int:
    """The length of a block: none, short, of the rule, or the longest one."""
    return [0, 0, 1000, 1_500_000, max(1000, rule.interval_ns // NS), TEN_YEARS_US][number % 6]


@ON_ONE_ENGINE
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_reply_and_write_equals_the_models(client: redis.Redis, algorithm: str) -> None:
    limiter = Limiter(client, algorithm)

    @settings(
        max_examples=30,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        rule=st.sampled_from(rules_of(algorithm)),
        unit=st.sampled_from([1, MILLISECOND, SECOND]),
        calls=st.lists(CALLS, min_size=15, max_size=40),
    )
    def run(rule: Rule, unit: int, calls: list[tuple[str, int, str, str, int, bool]]) -> None:
        pair = Pair(limiter)
        pair.forget()
        for move, number, kind, cost_word, choice, remove in calls:
            pair.move(move, number, rule)
            pair.end(rule, remove)
            if kind == "reset":
                pair.forget()
                continue
            if kind == "block":
                pair.block(rule, blocked_us(number, rule), unit)
                continue
            asked = another(rule, number, algorithm) if kind == "other rule" else rule
            if not measurable(asked, pair.model):
                continue
            spare = pair.limiter.peek(pair.clock_us, asked)[2] if cost_word == "spare" else 0
            ask = Ask(cost_of(cost_word, asked, spare), unit=unit)
            if kind in ("peek", "refund"):
                ask = replace(ask, mode=kind, cost=max(ask.cost, int(kind == "refund")))
            else:
                ask = words_of(number, choice, ask, asked, algorithm)
            reply = pair.call(asked, ask)
            if reply[3] > 0 and ask.mode == "hit":
                check_retry_after(pair, asked, ask, reply[3])

    run()


def check_retry_after(pair: Pair, rule: Rule, ask: Ask, retry: int) -> None:
    """Waiting exactly `retry_after` admits the same hit; a unit less does not."""
    look = replace(ask, mode="peek", penalty_us=0, strict=False, wait_us=None)
    if ask.wait_us is not None:
        return  # A peek has no wait: see test_refused_shaped_hit_returns_the_exact_time.
    retry_at, early = pair.clock_us + retry * ask.unit, pair.clock_us + (retry - 1) * ask.unit
    assert pair.limiter.ask(retry_at, rule, look)[0] == 0
    assert pair.limiter.ask(early, rule, look)[0] == 1


# -- rates -----------------------------------------------------------------------------------------


@ON_ONE_ENGINE
@pytest.mark.parametrize("rule", [bucket(3, SECOND), bucket(7, SECOND, 4), bucket(999, SECOND, 50)])
@pytest.mark.parametrize("algorithm", BUCKETS)
def test_no_interval_holds_more_than_capacity_and_refill(
    client: redis.Redis, algorithm: str, rule: Rule
) -> None:
    limiter = Limiter(client, algorithm)
    admitted: list[tuple[int, int]] = []
    clock = START_US
    for index in range(220):
        clock += (index * 7919) % 5 * (rule.interval_ns // NS // 3) + index % 3
        cost = 1 + index * 31 % min(5, rule.limit)
        if limiter.hit(clock, rule, cost)[0] == 0:
            admitted.append((clock, cost))
    assert len(admitted) > 30
    for begin, (since, _) in enumerate(admitted):
        total = 0
        for until, cost in admitted[begin:]:
            total += cost
            assert total <= rule.limit + (until - since) * NS // rule.interval_ns


# -- writes ----------------------------------------------------------------------------------------


def test_refusals_peeks_and_cost_zero_write_nothing(limiter: Limiter) -> None:
    rule, client = three_a_minute(limiter.algorithm), limiter.client
    limiter.hit(at(0), rule, 3)
    client.pexpire("k", 100_000)  # a write without a TTL would remove it

    def state() -> tuple[bytes, int]:
        return client.dump("k"), client.info("persistence")["rdb_changes_since_last_save"]

    before = state()
    asks = [Ask(), Ask(2), Ask(4), Ask(4, penalty_us=SECOND), Ask(0), Ask(0, penalty_us=SECOND)]
    asks += [Ask(mode="peek"), Ask(4, "peek"), Ask(0, "peek")]
    if limiter.algorithm == "FIXED":
        asks += [Ask(0, strict=True), Ask(4, strict=True)]
    if limiter.algorithm == "LEAKY":
        asks += [Ask(wait_us=1000), Ask(4, wait_us=HOUR), Ask(0, wait_us=HOUR)]
    commands = ["EVALSHA"]
    if limiter.client.info("server")["redis_version"] >= "7":
        commands.append("EVALSHA_RO")  # on which a write is an error
    for ask in asks:
        for command in commands:
            assert limiter.plain(at(1), rule, ask, command)[0] == (ask.cost > 0), ask
            assert state() == before, ask
    assert 90_000 < client.pttl("k") <= 100_000


@pytest.mark.parametrize("left_us", [1000, 1001, 1999, 2000, 59_999_001])
def test_ttl_is_the_reset_rounded_up_plus_one_millisecond(limiter: Limiter, left_us: int) -> None:
    # One hit of cost 1 each; COUNTER's state lasts for two windows.
    if limiter.algorithm == "COUNTER":
        rule, expected = window(1, left_us), -(-2 * left_us // 1000) + 1
    else:
        make = window if limiter.algorithm == "FIXED" else bucket
        rule, expected = make(1, left_us), -(-left_us // 1000) + 1
    seen = set()
    for _ in range(10):  # the machine may be late, but not each time
        limiter.client.delete("k")
        limiter.hit(START_US, rule)
        seen.add(limiter.caller.ttl_ms)
    assert max(seen) == expected


def clock_of(client: Any) -> int:
    seconds, micros = client.time()
    return int(seconds) * SECOND + int(micros)


def test_missing_clock_and_options_use_the_servers_time(limiter: Limiter) -> None:
    rule, client = three_a_minute(limiter.algorithm), limiter.client
    sha, argv = limiter.caller.script.sha.decode(), Ask().argv(limiter.algorithm, rule)
    reset = {"FIXED": 60, "COUNTER": 120}.get(limiter.algorithm, 20)
    before_us = clock_of(client)
    assert client.evalsha(sha, 1, "k", *argv[:3]) == [0, 3, 2, -1, reset]
    assert reset * 1000 - SLOW_MS < client.pttl("k") <= reset * 1000 + 1
    stamp_us = int(re.findall(r"\d{16}", limiter.value())[0])
    if limiter.algorithm == "GCRA":
        stamp_us -= 20 * SECOND
    assert before_us <= stamp_us <= clock_of(client)
    assert limiter.caller(None, *argv)[2] == 1


def test_states_have_the_contracts_format(limiter: Limiter) -> None:
    rule, client = three_a_minute(limiter.algorithm), limiter.client
    state = STATE[limiter.algorithm]
    for hits in range(3):
        limiter.hit(at(hits), rule)
        assert re.fullmatch(state, limiter.value())
    limiter.hit(at(3), rule, penalty_us=600 * SECOND)
    assert re.fullmatch(state + f"!{at(603)}", limiter.value())
    assert client.type("k") == b"string"
    largest = {"FIXED": window(10**9, TEN_YEARS_US), "COUNTER": window(10**9, 9_007_199)}.get(
        limiter.algorithm, bucket(10**9, TEN_YEARS_US)
    )
    client.delete("k")
    assert limiter.hit(at(0), largest, 999_999_999, unit=1)[:3] == [0, 10**9, 1]
    assert re.fullmatch(state, limiter.value())
    assert limiter.hit(at(0), largest, unit=1)[:3] == [0, 10**9, 0]
    assert limiter.hit(at(0), largest, unit=1)[0] == 1


def test_strict_counts_stay_whole_numbers_beyond_fourteen_digits(client: redis.Redis) -> None:
    limiter, rule = Limiter(client, "FIXED"), window(3, 60 * SECOND)
    client.set("k", f"F99999999999999:{at(0)}")
    assert limiter.hit(at(1), rule, 2, strict=True) == [1, 3, 0, 59, 59]
    assert limiter.value() == f"F100000000000001:{at(0)}"
    assert limiter.refund(at(1), rule, 10**9)[0] == 1
    assert limiter.value() == f"F99999000000001:{at(0)}"


ORDINARY, LARGEST = 104, 120  # bytes of a key, counts below 10,000 and at their largest
PENALTY_ADDS = {"GCRA": 48}  # its integer without a string object becomes a string


@ON_EVERY_ENGINE
def test_memory_of_a_key(limiter: Limiter) -> None:
    """Bytes of a key of 16 letters; a penalty adds 17 letters to its value, 16 to 32 bytes by the
    servers' size classes.
    """
    algorithm, client, key = limiter.algorithm, limiter.client, "sixteen-letters-"
    window_us = 9_000_000 if algorithm == "COUNTER" else TEN_YEARS_US
    make = window if algorithm in WINDOWS else bucket
    sha = limiter.caller.script.sha.decode()

    def hit(rule: Rule, ask: Ask) -> int:
        # By the server's own clock, so that the key keeps its TTL.
        client.evalsha(sha, 1, key, *ask.argv(algorithm, rule))
        assert client.ttl(key) > 0
        return client.memory_usage(key) or LARGEST + 1

    rule = make(9999, window_us)
    assert hit(rule, Ask(1)) <= ORDINARY
    assert hit(rule, Ask(9998 if algorithm != "TOKEN" else 1)) <= ORDINARY
    assert hit(rule, Ask(9999, penalty_us=HOUR)) <= ORDINARY + 32
    client.delete(key)
    rule = make(10**9, window_us)
    hit(rule, Ask(10**9))
    if algorithm == "COUNTER":  # both counts at their largest
        start = re.findall(r"\d{16}", client.get(key).decode())[0]
        client.set(key, f"C{start}:{10**9 - 2}:{10**9}", px=18_000)
        hit(rule, Ask(1))
    if algorithm == "TOKEN":
        client.delete(key)
        hit(rule, Ask(10_000_000))
    largest = client.memory_usage(key) or LARGEST + 1
    assert largest <= LARGEST
    # 10 years: every end of a penalty has the same number of digits.
    assert hit(rule, Ask(10**9, penalty_us=TEN_YEARS_US)) - largest <= PENALTY_ADDS.get(
        algorithm, 32
    )
    assert re.search(r"!\d{16}$", client.get(key).decode())


@pytest.mark.parametrize("emission_ns", [1, 7, 999, 1001, 333_333_333])
def test_large_levels_age_to_the_nanosecond(client: redis.Redis, emission_ns: int) -> None:
    """A shaper's level of an hour (3.6e12 hits at most), and a billion missing tokens."""
    leaky, token = Limiter(client, "LEAKY"), Limiter(client, "TOKEN")
    level, rule = HOUR * NS // emission_ns, Rule(10**9, emission_ns)
    for index in range(12):
        time_ns = START_US * NS + index * 83
        for limiter, hits, most in ((leaky, level, level), (token, 0, 10**9)):
            passed_ns = (index * 7919 + 1) * emission_ns * (most // 100_000)
            clock_us = (time_ns + passed_ns) // NS + index % 3 - 1
            aged: Model[Any] = MODELS[limiter.algorithm]()
            aged.kept = Kept(Level(hits, time_ns))
            client.set("k", aged.stored(aged.kept) or b"")
            ask = Ask(unit=1, wait_us=HOUR if limiter is leaky else None)
            assert limiter.ask(clock_us, rule, ask) == aged.call(rule, clock_us, ask)
            aged.adopt(limiter.client.get("k"))


@ON_EVERY_ENGINE
def test_out_of_memory_is_an_error_and_takes_nothing(limiter: Limiter) -> None:
    rule, client = three_a_minute(limiter.algorithm), limiter.client
    limiter.hit(at(0), rule, 2)
    before = client.dump("k")
    writing = [(0, Ask()), (0, Ask(2, penalty_us=SECOND)), (0, Ask(1, "refund"))]
    writing += [(-100_000, Ask(3))]  # the repair
    writing += [(0, Ask(2, strict=True))] if limiter.algorithm == "FIXED" else []
    writing += [(0, Ask(wait_us=HOUR))] if limiter.algorithm == "LEAKY" else []
    client.config_set("maxmemory", 1)
    try:
        for second, ask in writing:
            with pytest.raises(redis.ResponseError) as caught:
                limiter.plain(at(second), rule, ask)
            text = str(caught.value)
            assert text == "command not allowed when used memory > 'maxmemory'.", ask
        # Calls that write nothing are answered.
        assert limiter.plain(at(0), rule, Ask(mode="peek"))[:3] == [0, 3, 1]
        assert limiter.plain(at(0), rule, Ask(2))[:3] == [1, 3, 1]
    finally:
        client.config_set("maxmemory", 0)
    assert client.dump("k") == before


# -- clocks and changed rules -------------------------------------------------------------------


def test_refusal_repairs_a_state_too_far_ahead(limiter: Limiter) -> None:
    rule, client = three_a_minute(limiter.algorithm), limiter.client
    limiter.hit(at(100_000), rule, 3)
    before = client.dump("k")
    full = {"FIXED": [1, 3, 0, 60, 60], "COUNTER": [1, 3, 0, 80, 120]}
    expected = full.get(limiter.algorithm, [1, 3, 0, 20, 60])
    assert limiter.peek(at(0), rule) == expected
    assert limiter.hit(at(0), rule, 0) == [0, *expected[1:3], -1, expected[4]]
    assert client.dump("k") == before
    assert limiter.hit(at(0), rule) == expected
    assert client.dump("k") != before
    assert limiter.caller.ttl_ms <= expected[4] * 1000 + 1
    assert limiter.peek(at(0), rule) == expected
    assert limiter.peek(at(expected[3]), rule)[0] == 0


@pytest.mark.parametrize("algorithm", ["TOKEN", "LEAKY"])
def test_penalty_is_not_shortened_by_the_nanoseconds_of_a_state_ahead(
    client: redis.Redis, algorithm: str
) -> None:
    limiter, rule = Limiter(client, algorithm), bucket(3, SECOND)
    limiter.hit(at(0), rule, 3)
    limiter.hit(START_US + 333_334, rule)
    assert limiter.value()[3:] == f"{START_US + 333_333}333"
    # Back to a clock before the state's time, 333,333.333 µs: the penalty runs from there on.
    assert limiter.hit(at(0.2), rule, penalty_us=SECOND, unit=1)[3] == 1_333_334 - 200_000
    assert limiter.value().endswith(f"!{START_US + 1_333_334}")


def test_cost_zero_waits_for_the_penalty_only(limiter: Limiter) -> None:
    make = window if limiter.algorithm in WINDOWS else bucket
    limiter.hit(at(0), make(10, 60 * SECOND), 10)
    limiter.hit(at(0), make(10, 60 * SECOND), penalty_us=30 * SECOND)
    end = int(limiter.value().partition("!")[2])
    # Ten hits are more than three: the limiter alone would refuse for longer than the penalty.
    smaller = make(3, 600 * SECOND)
    assert limiter.hit(at(1), smaller, 3, unit=1)[3] > end - at(1)
    for mode in ("hit", "peek"):
        reply = limiter.ask(at(1), smaller, Ask(0, mode, unit=1))
        assert reply[:4] == [1, 3, 0, end - at(1)]


def test_extreme_change_of_rule_refuses_without_an_error(limiter: Limiter) -> None:
    """A key filled to a billion under one rule is hit under a rule of one hit in ten years."""
    large = {"COUNTER": window(10**9, 9_000_000), "FIXED": window(10**9, 60 * SECOND)}
    rule = large.get(limiter.algorithm, bucket(10**9, 3 * HOUR))
    tiny = (window if limiter.algorithm in WINDOWS else bucket)(1, TEN_YEARS_US)
    limiter.hit(at(0), rule, 10**9)
    for unit in (SECOND, MILLISECOND):
        found = limiter.peek(at(1), tiny, unit=unit)
        assert found[:3] == [1, 1, 0]
        assert min(found[3:]) > 0
    assert limiter.hit(at(1), tiny, penalty_us=SECOND)[:3] == [1, 1, 0]
    assert limiter.refund(at(1), tiny, 10**9)[1] == 1


# -- LEAKY as a shaper --------------------------------------------------------------------------


def test_refused_shaped_hit_returns_the_exact_time(client: redis.Redis) -> None:
    limiter, rule = Limiter(client, "LEAKY"), bucket(7, SECOND)
    for unit in (1, MILLISECOND, SECOND):
        client.delete("k")
        for _ in range(20):
            limiter.hit(at(0), rule, wait_us=HOUR)
        refused = limiter.hit(at(0.1), rule, 2, wait_us=SECOND // 4, unit=unit)
        assert refused[0] == 1
        early = at(0.1) + (refused[3] - 1) * unit
        assert limiter.hit(early, rule, 2, wait_us=SECOND // 4, unit=unit)[0] == 1
        retry_at = at(0.1) + refused[3] * unit
        admitted = limiter.hit(retry_at, rule, 2, wait_us=SECOND // 4, unit=unit)
        assert admitted[0] == 0
        assert SECOND // 4 - unit < admitted[5] <= SECOND // 4


# -- foreign values -----------------------------------------------------------------------------

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
OTHER_TYPES: dict[str, Callable[[Any], object]] = {
    "list": lambda c: c.rpush("k", str(START_US)),
    "hash": lambda c: c.hset("k", "f", "v"),
    "set": lambda c: c.sadd("k", "a"),
    "set of integers": lambda c: c.sadd("k", 1),
    "zset": lambda c: c.zadd("k", {"a": 1}),
    "stream": lambda c: c.xadd("k", {"f": "v"}),
    "geo": lambda c: c.geoadd("k", (13.4, 52.5, "a")),
}
OWN = {
    "FIXED": f"F3:{START_US}",
    "COUNTER": f"C{START_US}:3:4",
    "TOKEN": f"T3:{START_US}000",
    "LEAKY": f"L3:{START_US}000",
    "GCRA": f"{START_US}000",
}
STRINGS = ["", "5", "-5", "3.14", "hello", " ", "\0", "nan", "inf", "0x10", "1e18", "{}"]
STRINGS += [str(START_US // 1000), str(START_US), f"{START_US}00", f"{START_US}0000", "1" * 40]
STRINGS += [f"-{START_US}00", f"+{START_US}00", f" {START_US}00", f"{START_US}00 "]
STRINGS += ["1.5e18" + "0" * 13, f"{START_US}.00", "0x1234567890abcdef0"]
STRINGS += ["F", "C", "T", "L", "F:", "C::", "T:", "L:", "!"]
STRINGS += ["FALSE", "Closed", "Tuesday", "Lima", "F3", "T3", "F3:5", "T3:5", "L3:5", "C5:3:4"]
for state in OWN.values():
    STRINGS += [state + end for end in ("!", "!x", "!-5", " ", "\n", ":1", "!" + state, "x")]
    STRINGS += [begin + state for begin in (" ", "-", "x", "!", "\n")]
    STRINGS += [state + f"!{START_US}" + end for end in ("\n", "!", " ", "x")]
    STRINGS += [state.lower()] if state.lower() != state else []
for letter in "FTL":
    zeros = "" if letter == "F" else "000"
    STRINGS += [
        f"{letter}{count}:{START_US}{zeros}" for count in ("", "-3", "+3", "3.5", "0x3", "a")
    ]


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_other_types_are_refused_and_unchanged(limiter: Limiter, kind: str) -> None:
    OTHER_TYPES[kind](limiter.client)
    refuses(limiter, WRONG_TYPE)


@ON_ONE_ENGINE
def test_foreign_strings_are_refused_and_unchanged(limiter: Limiter) -> None:
    client, wrong = limiter.client, f"the key holds no {limiter.algorithm} limiter"
    own = re.compile(STATE[limiter.algorithm] + r"(!\d+)?")
    for text in [*STRINGS, *OWN.values()]:
        if own.fullmatch(text):
            continue
        client.set("k", text)
        refuses(limiter, wrong)
    client.delete("k")
    client.pfadd("k", "a", "b")  # a HyperLogLog is a string too
    refuses(limiter, wrong)
    client.delete("k")
    client.setbit("k", 1000, 1)
    refuses(limiter, wrong)


def refuses(limiter: Limiter, wrong: str) -> None:
    """Every mode returns the error `wrong` and does not change the key or its TTL."""
    client, rule = limiter.client, three_a_minute(limiter.algorithm)
    client.pexpire("k", 1_000_000)
    before = client.dump("k")
    for ask in (Ask(), Ask(mode="peek"), Ask(mode="refund")):
        with pytest.raises(redis.ResponseError) as caught:
            limiter.plain(START_US, rule, ask)
        assert str(caught.value) == wrong, (before, ask)
    with pytest.raises(redis.ResponseError) as caught:
        client.evalsha(*limiter.caller.block_words(START_US, SECOND))
    assert str(caught.value) == wrong, before
    assert client.dump("k") == before, before
    assert client.pttl("k") > 900_000


def test_valid_states_are_taken_over(limiter: Limiter) -> None:
    """Each state as the contract writes it, with and without a penalty's end."""
    rule = three_a_minute(limiter.algorithm)
    left = {"FIXED": 0, "COUNTER": 0, "TOKEN": 3, "LEAKY": 0, "GCRA": 3}[limiter.algorithm]
    limiter.client.set("k", OWN[limiter.algorithm])
    assert limiter.peek(START_US, rule)[:3] == [int(left == 0), 3, left]
    limiter.client.set("k", OWN[limiter.algorithm] + f"!{at(5)}")
    assert limiter.peek(START_US, rule)[:3] == [1, 3, 0]
    limiter.client.set("k", OWN[limiter.algorithm] + f"!{at(0)}")
    assert limiter.peek(START_US, rule)[:3] == [int(left == 0), 3, left]
