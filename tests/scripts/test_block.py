"""RL.BLOCK on real servers with an injected clock: known cases of every algorithm."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Grammar, Rule

from tests.lua_headers import algorithm_of
from tests.scripts.calls import SCRIPTS, SECOND, START_US, Caller, at

GRAMMAR = Grammar(SCRIPTS)
NAMES = [name.decode() for name in ALGORITHMS]
TEN_YEARS_US = 315_360_000 * SECOND
LIFTED = [0, 0, 0, -1, 0]
SLOW_MS = 10_000  # the time the machine may take between a write and the PTTL after it


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.flushall()


@pytest.fixture(params=NAMES)
def call(client: redis.Redis, request: pytest.FixtureRequest) -> Caller:
    return Caller(client, str(request.param))


def rule_of(call: Caller, text: str) -> Rule:
    """The rule of a command without its key and ALGO."""
    name, *words = f"{text} ALGO {algorithm_of(call.script)}".encode().split()
    rule = GRAMMAR.rule(text.encode() + call.script.sha, name, [b"k", *words])
    assert rule.error == b"" and rule.limiter is not None
    return rule


def ask(call: Caller, second: float, text: str) -> list[int]:
    """The reply to a hit, a peek or a refund `second` seconds after the start."""
    limiter = rule_of(call, text).limiter
    assert limiter is not None
    return call(at(second), *limiter.argv())


def contents(call: Caller) -> object:
    """What the key holds."""
    client: Any = call.client
    if algorithm_of(call.script) == "LOG":
        return client.lrange("k", 0, -1)
    if algorithm_of(call.script) == "ZLOG":
        return client.zrange("k", 0, -1, withscores=True)
    return client.get("k")


def changes(call: Caller) -> int:
    return int(call.client.info("persistence")["rdb_changes_since_last_save"])


ANY_HIT = ["RL.HIT 3 60", "RL.HIT 3 60 COST 0", "RL.HIT 1 0.5 PENALTY 5", "RL.HIT 1000 1 COST 9"]


def test_every_hit_is_refused_until_the_block_is_over(call: Caller) -> None:
    assert call.block(at(0), 600 * SECOND) == [1, 0, 0, 600, 600]
    assert 600_001 - SLOW_MS < call.ttl_ms <= 600_001
    before = contents(call)
    for second in (0, 1, 300, 599):
        for text in [*ANY_HIT, "RL.PEEK 3 60"]:
            found = ask(call, second, text)
            assert (found[0], *found[2:]) == (1, 0, 600 - second, 600 - second), text
    assert ask(call, 599, "RL.HIT 3 60 COST 4")[:4] == [1, 3, 0, -1]
    assert ask(call, 599.999, "RL.HIT 3 60")[0] == 1
    assert contents(call) == before
    # Then the key is as if never used, also where it has not expired yet.
    assert ask(call, 600, "RL.PEEK 3 60") == [0, 3, 3, -1, 0]
    assert ask(call, 600, "RL.HIT 3 60 COST 2")[:4] == [0, 3, 1, -1]
    assert ask(call, 600, "RL.HIT 3 60")[:4] == [0, 3, 0, -1]


def test_hits_stay_and_age_under_a_block(call: Caller) -> None:
    ask(call, 0, "RL.HIT 3 60 COST 3")
    before = contents(call)
    refused = ask(call, 0, "RL.PEEK 3 60")
    assert call.block(at(0), 5 * SECOND) == [1, 0, 0, 5, 5]
    found = ask(call, 0, "RL.HIT 3 60")
    assert found == [1, 3, 0, max(5, refused[3]), max(5, refused[4])]
    assert ask(call, 5, "RL.PEEK 3 60")[:3] == [1, 3, 0]
    assert call.block(at(6), 0) == LIFTED
    assert contents(call) == before
    assert ask(call, refused[3], "RL.HIT 3 60")[0] == 0


def test_a_block_replaces_a_block_and_a_penalty(call: Caller) -> None:
    call.block(at(0), 600 * SECOND)
    assert call.block(at(1), 50 * SECOND, 1000) == [1, 0, 0, 50_000, 50_000]
    assert 50_001 - SLOW_MS < call.ttl_ms <= 50_001  # nothing else is in the key
    assert ask(call, 1, "RL.HIT 3 60 MS")[0] == 1
    assert call.block(at(2), 60 * SECOND) == [1, 0, 0, 60, 60]
    assert ask(call, 61.9, "RL.HIT 1 1")[3] == 1
    ask(call, 62, "RL.HIT 1 3600 PENALTY 7200")
    assert ask(call, 62, "RL.HIT 1 3600 PENALTY 7200")[3] == 7200
    call.block(at(63), 4 * SECOND)
    assert ask(call, 66.5, "RL.HIT 1000 3600")[3] == 1
    assert ask(call, 67, "RL.HIT 1000 3600")[0] == 0


def test_lifting_removes_the_block_alone(call: Caller) -> None:
    call.block(at(0), 600 * SECOND)
    assert call.block(at(1), 0) == LIFTED
    assert call.client.exists("k") == 0
    ask(call, 2, "RL.HIT 3 60")
    before, writes = contents(call), changes(call)
    assert call.block(at(3), 0) == LIFTED  # there is no block
    assert contents(call) == before
    assert changes(call) == writes
    call.block(at(3), 600 * SECOND)
    assert call.block(at(4), 0) == LIFTED
    assert contents(call) == before
    # Neither is a block that is over an error, or in the way.
    call.block(at(4), SECOND)
    assert call.block(at(9), 0) == LIFTED
    assert contents(call) == before


def test_nothing_is_lifted_from_a_missing_key(call: Caller) -> None:
    writes = changes(call)
    assert call.block(at(0), 0) == LIFTED
    assert call.client.exists("k") == 0
    assert changes(call) == writes


def test_a_refund_keeps_the_block_and_a_reset_lifts_it(call: Caller) -> None:
    ask(call, 0, "RL.HIT 3 60 COST 2")
    call.block(at(0), 600 * SECOND)
    found = ask(call, 1, "RL.REFUND 3 60 2")
    assert found[:4] == [1, 3, 0, 599]
    assert ask(call, 2, "RL.HIT 3 60")[3] == 598
    call.client.delete("k")
    assert ask(call, 2, "RL.HIT 3 60")[:3] == [0, 3, 2]


@pytest.mark.parametrize("unit", [1, 1000, SECOND])
def test_times_are_rounded_up(call: Caller, unit: int) -> None:
    left = -(-61_234_567 // unit)
    assert call.block(START_US, 61_234_567, unit) == [1, 0, 0, left, left]
    assert 61_236 - SLOW_MS < call.ttl_ms <= 61_236


def test_the_longest_block(call: Caller) -> None:
    assert call.block(at(0), TEN_YEARS_US, 1000)[3:] == [TEN_YEARS_US // 1000] * 2
    assert call.ttl_ms > TEN_YEARS_US // 1000 - SLOW_MS
    assert ask(call, TEN_YEARS_US / SECOND - 1, "RL.HIT 1 1")[3] == 1


@pytest.mark.parametrize("span_us", [SECOND, 600 * SECOND])
def test_the_key_outlives_its_hits_and_the_block(call: Caller, span_us: int) -> None:
    ask(call, 0, "RL.HIT 1 60")
    left_ms = call.ttl_ms
    call.client.pexpire("k", left_ms)
    call.block(at(0), span_us)
    expected = max(left_ms, span_us // 1000 + 1)
    assert expected - SLOW_MS < call.ttl_ms <= expected
    call.block(at(0), span_us)  # the caller has taken the time to live away
    assert call.ttl_ms == -1


def test_a_clock_that_stepped_back_shortens_no_block(call: Caller) -> None:
    ask(call, 100, "RL.HIT 2 60")
    begun = 70 if algorithm_of(call.script) == "GCRA" else 100  # as a PENALTY counts
    left = begun + 600 - 70
    assert call.block(at(70), 600 * SECOND) == [1, 0, 0, left, left]
    assert ask(call, 70, "RL.HIT 2 60")[3] == left
    assert ask(call, begun + 599.9, "RL.HIT 2 60")[3] == 1
    assert ask(call, begun + 600, "RL.HIT 2 60")[0] == 0


@pytest.mark.parametrize("algorithm", ["TOKEN", "LEAKY"])
def test_the_nanoseconds_of_a_time_ahead_shorten_no_block(
    client: redis.Redis, algorithm: str
) -> None:
    call = Caller(client, algorithm)
    ask(call, 0, "RL.HIT 3 1 COST 3")
    ask(call, 0.333334, "RL.HIT 3 1")  # the state's time is 333,333.333 us
    assert call.block(at(0.2), SECOND, 1) == [1, 0, 0, *[1_333_334 - 200_000] * 2]


def test_a_time_that_no_rule_can_have_set_delays_nothing(call: Caller) -> None:
    ask(call, 700_000_000, "RL.HIT 2 60")  # 22 years
    assert call.block(at(0), 600 * SECOND) == [1, 0, 0, 600, 600]
    assert ask(call, 0, "RL.HIT 2 60")[:4] == [1, 2, 0, 600]
    assert ask(call, 600, "RL.HIT 2 60")[0] == 0


def test_a_key_of_another_algorithm_is_refused(client: redis.Redis) -> None:
    for kept in NAMES:
        holder = Caller(client, kept)
        client.delete("k")
        holder.block(at(0), SECOND)
        before = contents(holder)
        for asked in NAMES:
            if asked == kept:
                continue
            strings = not {asked, kept} & {"LOG", "ZLOG"}
            error = f"the key holds no {asked} limiter" if strings else "WRONGTYPE .*"
            wrong = Caller(client, asked)
            for span_us in (0, SECOND):
                with pytest.raises(redis.ResponseError, match=f"^{error}"):
                    wrong.client.evalsha(*wrong.block_words(at(0), span_us))
        assert contents(holder) == before


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("span_us", [0, 5 * SECOND])
def test_out_of_memory_is_an_error_that_changes_nothing(
    call: Caller, blocked: bool, span_us: int
) -> None:
    ask(call, 0, "RL.HIT 3 60 COST 2")
    if blocked:
        call.block(at(0), 600 * SECOND)
    before, words = call.client.dump("k"), call.block_words(at(1), span_us)
    # An element that goes makes room for another one.
    elements = algorithm_of(call.script) in ("LOG", "ZLOG")
    needs_none = elements if blocked else span_us == 0
    call.client.config_set("maxmemory", 1)
    try:
        if needs_none:
            assert call.client.evalsha(*words)[0] == int(span_us > 0)
        else:
            with pytest.raises(redis.ResponseError, match=r"^command not allowed when used"):
                call.client.evalsha(*words)
            assert call.client.dump("k") == before
    finally:
        call.client.config_set("maxmemory", 0)


def test_the_servers_clock_is_the_default(call: Caller) -> None:
    words = call.block_words(0, 600 * SECOND)[:-1]
    assert call.client.evalsha(*words) == [1, 0, 0, 600, 600]
    assert 0 < call.client.pttl("k") <= 600_001
    limiter = rule_of(call, "RL.HIT 3 60").limiter
    assert limiter is not None
    found = call.client.evalsha(call.script.sha.decode(), 1, "k", *limiter.argv())
    assert found[:3] == [1, 3, 0]
    assert 590 <= found[3] <= 600


# -- a block that is answered by a rule ------------------------------------------------------------


@pytest.mark.parametrize("span_us", [0, 1_500_000])
@pytest.mark.parametrize("hits", [0, 3])
def test_a_text_of_both_scripts_replies_as_a_peek(call: Caller, hits: int, span_us: int) -> None:
    """The length of the block has the place of the mode in the ARGV of a peek."""
    name, client = algorithm_of(call.script), call.client
    text = SCRIPTS[scripts.blocking(call.script.name)].source
    limiter = rule_of(call, "RL.PEEK 3 60").limiter
    assert limiter is not None

    def start(key: str) -> Caller:
        made = Caller(client, name, key)
        if hits:
            assert ask(made, 0, f"RL.HIT 3 60 COST {hits}")[0] == 0
        return made

    peeked = start("k")
    peeked.block(at(1), span_us)
    before = contents(peeked)
    expected = ask(peeked, 1, "RL.PEEK 3 60")
    client.delete("k")
    start("k")
    limiter.mode = b"%d" % span_us
    argv: list[object] = list(limiter.argv())
    assert len(argv) <= 6  # a server that requires a password takes no more words
    argv += [""] * (6 - len(argv))
    assert client.eval(text, 1, "k", *argv, at(1)) == expected
    assert contents(call) == before
    # By the server's clock.
    found = client.eval(text, 1, "fresh", *limiter.argv())
    assert found == [
        int(span_us > 0),
        3,
        0 if span_us else 3,
        -(-span_us // SECOND) or -1,
        -(-span_us // SECOND),
    ]
    client.set("k", "foreign")
    with pytest.raises(redis.ResponseError, match=r"WRONGTYPE|the key holds no .* limiter$"):
        client.eval(text, 1, "k", *argv, at(1))
