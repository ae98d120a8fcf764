"""The LOG script on real servers, with the clock injected, against an independent model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy import scripts
from tests.harness import RedisServer

SCRIPT = scripts.load()["sliding_window_log"]
START_US = 1_784_000_000_000_000
SECOND = 1_000_000
TTL_MS: dict[str, int] = {}  # of the keys after the latest call
NOT_LOG = "the key holds no LOG limiter"


@pytest.fixture(scope="module")
def client(module_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=module_server.port) as made:
        made.script_load(SCRIPT.source)
        yield made


def call(
    client: redis.Redis,
    clock_us: int,
    limit: int = 10,
    window_us: int = 60 * SECOND,
    cost: int = 1,
    mode: str = "hit",
    unit: int = SECOND,
    key: str = "k",
) -> list[int]:
    # the key's real time to live must not end it while the injected clock stands still
    with client.pipeline() as pipe:
        pipe.evalsha(SCRIPT.sha.decode(), 1, key, limit, window_us, unit, cost, mode, clock_us)
        pipe.pttl(key)
        pipe.persist(key)
        found, ttl_ms, _ = pipe.execute()
    assert ttl_ms != -1 or mode == "peek" or found[0] == 1 or cost == 0
    assert isinstance(found, list)
    TTL_MS[key] = ttl_ms
    return found


def at(seconds: float) -> int:
    return START_US + round(seconds * SECOND)


@pytest.fixture(autouse=True)
def _empty(client: redis.Redis) -> None:
    client.delete("k")


# -- cases from public sources ------------------------------------------------------------------


def test_ten_per_minute(client: redis.Redis) -> None:
    admitted = [(0, 1), (10, 1), (10, 1), (20, 4), (30, 3)]
    for second, cost in admitted:
        assert call(client, at(second), cost=cost)[0] == 0
    assert call(client, at(50)) == [1, 10, 0, 10, 40]
    assert call(client, at(61))[0] == 0
    assert call(client, at(61))[0] == 1


def test_a_cost_above_the_limit_never_fits(client: redis.Redis) -> None:
    assert call(client, at(0), window_us=120 * SECOND, cost=11) == [1, 10, 10, -1, 0]
    assert client.exists("k") == 0


def test_a_look_after_half_is_taken(client: redis.Redis) -> None:
    assert call(client, at(0), cost=5) == [0, 10, 5, -1, 60]
    assert call(client, at(0), cost=6, mode="peek") == [1, 10, 5, 60, 60]
    assert call(client, at(0), cost=5, mode="peek") == [0, 10, 5, -1, 60]


def test_windows_are_half_open(client: redis.Redis) -> None:
    for _ in range(10):
        assert call(client, at(0))[0] == 0
    assert call(client, at(60) - 1, unit=1000) == [1, 10, 0, 1, 1]
    assert call(client, at(60))[:3] == [0, 10, 9]


def test_cost_zero_takes_and_writes_nothing(client: redis.Redis) -> None:
    assert call(client, at(0), cost=0) == [0, 10, 10, -1, 0]
    assert client.exists("k") == 0


# -- what it writes -----------------------------------------------------------------------------


def test_a_refusal_writes_nothing(client: redis.Redis) -> None:
    for second in range(10):
        call(client, at(second))
    before = client.dump("k")
    changes = client.info("persistence")["rdb_changes_since_last_save"]
    assert call(client, at(20))[0] == 1
    assert client.dump("k") == before
    assert client.info("persistence")["rdb_changes_since_last_save"] == changes


def test_the_key_leaves_by_its_own_ttl(client: redis.Redis) -> None:
    call(client, at(0), window_us=1500 * 1000)
    assert 1490 < TTL_MS["k"] <= 1501
    # a hit from a clock behind the newest stamp keeps the key until that stamp's window is over
    call(client, at(-1), window_us=1500 * 1000)
    assert 2490 < TTL_MS["k"] <= 2501


def test_stamps_are_sixteen_digits(client: redis.Redis) -> None:
    call(client, at(0), cost=3)
    assert client.lrange("k", 0, -1) == [str(START_US).encode()] * 3


def test_large_costs_are_pushed_whole(client: redis.Redis) -> None:
    assert call(client, at(0), limit=1_000_000, cost=100_000)[:3] == [0, 1_000_000, 900_000]
    assert client.llen("k") == 100_000
    assert call(client, at(1), limit=1_000_000, cost=4001)[2] == 895_999
    assert client.llen("k") == 104_001


def test_a_thousand_hits_take_at_most_11_kilobytes(client: redis.Redis) -> None:
    for index in range(1000):
        call(client, at(index / 1000), limit=1000)
    assert client.llen("k") == 1000
    assert (client.memory_usage("k") or 11_001) <= 11_000


def test_without_a_clock_it_asks_the_server(client: redis.Redis) -> None:
    found = client.evalsha(SCRIPT.sha.decode(), 1, "k", 2, 60 * SECOND, SECOND)
    assert found == [0, 2, 1, -1, 60]
    stamp = int(client.lindex("k", 0) or 0)
    seconds, micros = client.time()
    assert 0 <= seconds * SECOND + micros - stamp < 60 * SECOND


# -- foreign values -----------------------------------------------------------------------------

FOREIGN = [
    ("string", lambda c: c.set("k", "5"), "WRONGTYPE"),
    ("hash", lambda c: c.hset("k", "f", "v"), "WRONGTYPE"),
    ("set", lambda c: c.sadd("k", "a"), "WRONGTYPE"),
    ("zset", lambda c: c.zadd("k", {"a": 1}), "WRONGTYPE"),
    ("stream", lambda c: c.xadd("k", {"f": "v"}), "WRONGTYPE"),
    ("hyperloglog", lambda c: c.pfadd("k", "a"), "WRONGTYPE"),
    ("words", lambda c: c.rpush("k", "job-1", "job-2"), NOT_LOG),
    ("short numbers", lambda c: c.rpush("k", "1", "2"), NOT_LOG),
    ("hexadecimal", lambda c: c.rpush("k", "0x34567890123456"), NOT_LOG),
    ("a float", lambda c: c.rpush("k", "1784000000.12345"), NOT_LOG),
    ("newest foreign", lambda c: c.rpush("k", str(START_US), "x"), NOT_LOG),
]


@pytest.mark.parametrize("mode", ["hit", "peek"])
@pytest.mark.parametrize(("name", "make", "error"), FOREIGN, ids=[row[0] for row in FOREIGN])
def test_foreign_values_are_refused_and_left(
    client: redis.Redis, name: str, make: object, error: str, mode: str
) -> None:
    assert callable(make)
    make(client)
    before = client.dump("k")
    with pytest.raises(redis.ResponseError, match=error):
        call(client, at(0), mode=mode)
    assert client.dump("k") == before


# -- clocks -------------------------------------------------------------------------------------


def test_a_step_back_admits_nothing_extra_and_delays_by_as_much(client: redis.Redis) -> None:
    for _ in range(10):
        call(client, at(100))
    # the clock steps back by 30 s: told against the real clock, 90 s are left
    assert call(client, at(70)) == [1, 10, 0, 90, 90]
    assert call(client, at(160))[0] == 0


def test_a_state_far_ahead_is_brought_to_now(client: redis.Redis) -> None:
    for _ in range(4):
        call(client, at(100_000))
    assert call(client, at(0)) == [0, 10, 5, -1, 60]
    assert client.lrange("k", 0, -1) == [str(START_US).encode()] * 5
    assert TTL_MS["k"] <= 60_001


def test_a_peek_at_a_state_far_ahead_writes_nothing(client: redis.Redis) -> None:
    for _ in range(10):
        call(client, at(100_000))
    before = client.dump("k")
    assert call(client, at(0), mode="peek") == [1, 10, 0, 60, 60]
    assert client.dump("k") == before


# -- a changed rule on a live key ---------------------------------------------------------------


def test_a_smaller_max_counts_the_hits_still_held(client: redis.Redis) -> None:
    for second in range(10):
        call(client, at(second))
    assert call(client, at(10), limit=3) == [1, 3, 0, 57, 59]
    assert call(client, at(10), limit=3, mode="peek")[2] == 0


def test_a_shorter_window_counts_the_hits_still_held(client: redis.Redis) -> None:
    for second in range(10):
        call(client, at(second))
    assert call(client, at(10), window_us=5 * SECOND) == [0, 10, 5, -1, 5]


# -- the model ----------------------------------------------------------------------------------


@dataclass
class Model:
    """The promise, written down naively: all stamps, counted by looking at each."""

    stamps: list[int] = field(default_factory=list)

    def call(
        self, clock: int, limit: int, window: int, cost: int, mode: str, unit: int
    ) -> list[int]:
        newest = self.stamps[-1] if self.stamps else clock
        stamps = self.stamps
        if newest - clock > window:
            stamps = [clock] * min(len(stamps), limit)
            newest = clock
            if mode == "hit":
                self.stamps = stamps
        now = max(clock, newest)
        alive = [stamp for stamp in stamps if stamp + window > now]
        reset = alive[-1] + window - clock if alive else 0
        left = max(0, limit - len(alive))
        if cost and len(alive) + cost > limit:
            retry = -1
            if cost <= limit:
                leaver = alive[len(alive) + cost - limit - 1]
                retry = up(leaver + window - clock, unit)
            return [1, limit, left, retry, up(reset, unit)]
        if cost == 0 or mode == "peek":
            return [0, limit, left, -1, up(reset, unit)]
        self.stamps = alive + [now] * cost
        return [0, limit, limit - len(alive) - cost, -1, up(now + window - clock, unit)]


def up(value: int, unit: int) -> int:
    return -(-value // unit)


STEPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 3 * SECOND),
    st.integers(-2 * SECOND, 0),
    st.sampled_from([1_000_000 - 1, 1_000_000, 1_000_001, 20 * SECOND, -30 * SECOND]),
)
CALLS = st.tuples(
    STEPS,
    st.sampled_from(["hit", "hit", "hit", "peek"]),
    st.sampled_from([1, 1, 1, 1, 0, 2, 3, 7]),
    st.integers(0, 9),  # one in ten calls comes with another rule
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=st.integers(1, 6),
    window=st.sampled_from([1000, 999_999, SECOND, 7 * SECOND]),
    unit=st.sampled_from([1000, SECOND]),
    calls=st.lists(CALLS, min_size=1, max_size=40),
)
def test_every_reply_equals_the_models(
    client: redis.Redis,
    limit: int,
    window: int,
    unit: int,
    calls: list[tuple[int, str, int, int]],
) -> None:
    client.delete("k")
    model = Model()
    clock = START_US
    for step, mode, cost, other in calls:
        clock += step
        rule = (limit + 1, window) if other == 9 else (limit, window)
        found = call(client, clock, rule[0], rule[1], cost, mode, unit)
        assert found == model.call(clock, rule[0], rule[1], cost, mode, unit)
        # (a look leaves a state that is too far ahead as it is: what it tells holds for a hit now)
        too_far = model.stamps and model.stamps[-1] - clock > rule[1]
        if found[0] == 1 and found[3] > 0 and not too_far:
            _check_retry_after(client, model, clock, rule, cost, unit, found[3])


def _check_retry_after(
    client: redis.Redis,
    model: Model,
    clock: int,
    rule: tuple[int, int],
    cost: int,
    unit: int,
    retry: int,
) -> None:
    """Waiting as told is enough; a whole unit less is not."""
    assert call(client, clock + retry * unit, *rule, cost, "peek", unit)[0] == 0
    assert call(client, clock + (retry - 1) * unit, *rule, cost, "peek", unit)[0] == 1


@pytest.mark.parametrize("limit", [3, 7, 50])
def test_no_window_ever_holds_more_than_max(client: redis.Redis, limit: int) -> None:
    admitted = []
    clock = START_US
    for index in range(1500):
        clock += (index * 7919) % 90_000
        if call(client, clock, limit, SECOND)[0] == 0:
            admitted.append(clock)
    assert len(admitted) > limit
    for index in range(len(admitted) - limit):
        assert admitted[index + limit] - admitted[index] >= SECOND
