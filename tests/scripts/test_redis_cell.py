"""The GCRA script against redis-cell's own test table, its end-to-end test and the cases of
CL.THROTTLE.

Facts from brandur/redis-cell (src/cell/mod.rs `it_rate_limits` and `it_creates_rates_...`,
tests/e2e.rs): limit = max_burst + 1, emission interval = period / count, rounded down to whole
nanoseconds. Where this project differs on purpose, a comment in the test gives the reason.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.scripts.calls import SECOND, START_US, Caller, at
from tests.scripts.string_models import NS, Ask, Rule

MILLISECOND = 1000
DAY, HOUR, MINUTE = 86_400, 3600, 60


@pytest.fixture
def cell(client: redis.Redis) -> Cell:
    client.flushall()
    return Cell(client)


class Cell:
    """CL.THROTTLE on the key `k`, translated to a script call as the proxy does."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self.caller = Caller(client, "GCRA")

    def __call__(
        self,
        clock_us: int,
        max_burst: int,
        count: int,
        period_s: int,
        quantity: int = 1,
        unit: int = SECOND,
    ) -> list[int]:
        rule = Rule(max_burst + 1, period_s * SECOND * NS // count)
        return self.caller(clock_us, *Ask(quantity, unit=unit).argv("GCRA", rule))


# -- redis-cell's own ---------------------------------------------------------------------------

# milliseconds since the start, quantity, limited, remaining, retry_after and reset_after in ms;
# under max_burst 4 at 1 per second
TABLE = [
    # More than the limit is never admitted.
    (0, 6, 1, 5, -1, 0),
    # One after the other, until nothing is left.
    (0, 1, 0, 4, -1, 1000),
    (0, 1, 0, 3, -1, 2000),
    (0, 1, 0, 2, -1, 3000),
    (0, 1, 0, 1, -1, 4000),
    (0, 1, 0, 0, -1, 5000),
    (0, 1, 1, 0, 1000, 5000),
    (3000, 1, 0, 2, -1, 3000),
    (3100, 1, 0, 1, -1, 3900),
    (4000, 1, 0, 1, -1, 4000),
    (8000, 1, 0, 4, -1, 1000),
    (9500, 1, 0, 4, -1, 1000),
    # Quantity 0 is a peek.
    (9500, 0, 0, 4, -1, 1000),
    # Several at once.
    (9500, 2, 0, 2, -1, 3000),
    # More than is left.
    (9500, 5, 1, 2, 3000, 3000),
]


def test_redis_cells_own_table(cell: Cell) -> None:
    for row, (ms, quantity, limited, remaining, retry, reset) in enumerate(TABLE):
        clock = START_US + ms * MILLISECOND
        found = cell(clock, 4, 1, 1, quantity, MILLISECOND)
        assert found == [limited, 5, remaining, retry, reset], row


@pytest.mark.parametrize(
    ("count", "period_s", "emission_ms"),
    [
        (24, DAY, HOUR * 1000),
        (6, HOUR, 600_000),
        (6, MINUTE, 10_000),
        (6, 2 * MINUTE, 20_000),
        (5, 1, 200),
    ],
)
def test_redis_cells_rates(cell: Cell, count: int, period_s: int, emission_ms: int) -> None:
    # The proxy refuses a rate of zero, which redis-cell refuses in the module.
    assert cell(at(0), 0, count, period_s, 1, MILLISECOND) == [0, 1, 0, -1, emission_ms]
    assert cell.client.get("k") == str(START_US * NS + emission_ms * 1_000_000).encode()


# -- the examples of CL.THROTTLE ----------------------------------------------------------------


def test_remainders_below_a_millisecond_round_up(cell: Cell) -> None:
    # On purpose: redis-cell drops a remainder below a millisecond and would return 0 s here.
    assert cell(at(0), 4, 500_000, 1, 2) == [0, 5, 3, -1, 1]
    assert cell(at(0), 4, 500_000, 1, 4) == [1, 5, 3, 1, 1]
    assert cell(at(0), 4, 500_000, 1, 4, 1) == [1, 5, 3, 2, 4]


def test_quantity_zero_does_not_write(cell: Cell) -> None:
    # On purpose: redis-cell handles it as an admitted hit and rewrites value and TTL.
    assert cell(at(0), 1, 1, 10, 0) == [0, 2, 2, -1, 0]
    assert cell.client.exists("k") == 0
    cell(at(0), 1, 1, 10, 2)
    cell.client.pexpire("k", 1_000_000)
    before = cell.client.dump("k")
    # As in redis-cell, a quantity of 0 is always admitted, even where nothing is left.
    argv = Ask(0).argv("GCRA", Rule(2, 10 * SECOND * NS))
    sha = cell.caller.script.sha.decode()
    assert cell.client.evalsha(sha, 1, "k", *argv, START_US) == [0, 2, 0, -1, 20]
    assert cell.client.dump("k") == before
    assert cell.client.pttl("k") > 900_000


# -- issues of redis-cell's users ------------------------------------------------------------------


@pytest.mark.parametrize(("max_burst", "count", "period_s"), [(6000, 6000, 1), (1000, 1000, 60)])
def test_high_rates_persist_the_key_and_never_exceed_the_limit(
    cell: Cell, max_burst: int, count: int, period_s: int
) -> None:
    # redis-cell #50: a TTL rounded down to whole milliseconds lost the key at once.
    limit, emission_ns = max_burst + 1, period_s * 1_000_000_000 // count
    clock = START_US
    for index in range(200):
        found = cell(clock, max_burst, count, period_s)
        assert found[0] == 0
        assert found[2] == limit - 1 if index == 0 else found[2] < limit
        clock += (index % 3) * emission_ns // NS
        value = int(cell.client.get("k") or 0)
        assert value >= clock * NS - 2 * emission_ns
    assert cell(clock + SECOND * period_s * 2, max_burst, count, period_s, 0)[2] == limit


def test_more_than_a_thousand_a_second_is_exact(cell: Cell) -> None:
    # redis-cell #11, #80
    assert cell(at(0), 9999, 10_000, 1, 10_000) == [0, 10_000, 0, -1, 1]
    assert cell(at(0) + 99, 9999, 10_000, 1)[0] == 1
    assert cell(at(0) + 100, 9999, 10_000, 1)[0] == 0


def test_live_key_of_redis_cell_is_taken_over_and_handed_back(cell: Cell) -> None:
    tat_ns = START_US * NS + 2_500_000_001
    cell.client.set("k", tat_ns, px=2500)
    assert cell(at(0), 4, 1, 1, 0, MILLISECOND) == [0, 5, 2, -1, 2501]
    assert cell(at(0), 4, 1, 1, 1, MILLISECOND) == [0, 5, 1, -1, 3501]
    assert cell.client.get("k") == str(tat_ns + 1_000_000_000).encode()
    # An expired key that still exists, as within the last millisecond of its TTL.
    cell.client.set("k", START_US * NS - 1)
    assert cell(at(0), 4, 1, 1) == [0, 5, 4, -1, 1]
