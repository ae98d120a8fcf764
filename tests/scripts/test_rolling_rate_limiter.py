"""The contract of rolling-rate-limiter (npm), expressed as STRICT and GAP of LOG and ZLOG.

Its refused actions count, `minDifference` is GAP, `wouldLimit` is RL.PEEK, `clear` is DEL; its
windows are half open too. Its times are milliseconds (MS). Four things differ on purpose:

- It keeps every attempt, rlproxy the newest max. With one action at a time the results are equal:
  the newest max determine whether max of them are in the window, and which expires first (last
  test).
- Its answer to an admitted action contains the wait for the next one. Here retry_after is -1 then,
  and a peek returns the wait.
- Its `wouldLimit` returns the state after the action, a refused one counted. RL.PEEK returns the
  current state: `actionsRemaining` is one more, and the wait is that of the action itself.
- Its `wouldLimit` trims the key and prolongs its TTL. RL.PEEK writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import ON_TWO_ENGINES
from tests.scripts.calls import Caller, at
from tests.scripts.window_model import Rule

MILLISECOND = 1000
ALGORITHMS = ["LOG", "ZLOG"]


@dataclass
class Limiter:
    """A rolling-rate-limiter of `limit` actions in `interval` ms, `difference` ms apart."""

    client: redis.Redis
    algorithm: str
    limit: int
    interval: int
    difference: int = 0

    def __post_init__(self) -> None:
        self.rule = Rule(
            ((self.limit, self.interval * MILLISECOND),),
            self.difference * MILLISECOND,
            strict=True,
            unit_us=MILLISECOND,
        )
        self.client.delete("1", "2")

    def ask(self, mode: str, time_us: int, user: str) -> tuple[bool, int, int]:
        """Return (blocked, milliseconds until the next or the refused action is admitted,
        remaining); mode hit or peek.
        """
        call = Caller(self.client, self.algorithm, user)
        reply = call(time_us, *self.rule.argv(mode, 1))
        limited, _, remaining, retry_ms, _ = reply
        if not limited and mode == "hit":
            retry_ms = call(time_us, *self.rule.argv("peek", 1))[3]
        return bool(limited), max(0, retry_ms), remaining

    def blocked(self, mode: str, ms: int, user: str) -> bool:
        return self.ask(mode, at(0) + ms * MILLISECOND, user)[0]


# The published cases: max, interval, minDifference; then time, user, call, blocked. "hit" is
# limit(), "peek" is wouldLimit().
VERDICTS: dict[str, tuple[tuple[int, int, int], list[tuple[int, str, str, bool]]]] = {
    "no more than max within the interval": (
        (2, 10, 0),
        [
            (0, "1", "hit", False),
            (1, "1", "peek", False),
            (1, "1", "hit", False),
            (9, "1", "peek", True),
            (10, "1", "peek", False),
            (10, "1", "hit", False),
        ],
    ),
    "blocked actions count": (
        (3, 10, 0),
        [
            (0, "1", "hit", False),
            (0, "1", "hit", False),
            (0, "1", "hit", False),
            (9, "1", "hit", True),
            (9, "1", "hit", True),
            (10, "1", "hit", False),
            (10, "1", "hit", True),
        ],
    ),
    "actions less than minDifference apart": (
        (4, 10, 2),
        [
            (0, "1", "hit", False),
            (0, "1", "hit", True),
            (1, "1", "hit", True),
            (3, "1", "hit", False),
            (3, "1", "hit", True),
        ],
    ),
    "separate users": (
        (2, 5, 0),
        [
            (0, "1", "hit", False),
            (0, "1", "hit", False),
            (0, "1", "hit", True),
            (1, "2", "hit", False),
            (1, "2", "hit", False),
            (1, "2", "hit", True),
            (5, "1", "hit", False),
            (5, "2", "hit", True),
        ],
    ),
}

# The published cases: time, call; blocked, milliseconds until allowed, actions remaining. A comment
# gives the published figures of peeks, where they differ.
INFO: dict[str, tuple[tuple[int, int, int], list[tuple[int, str, tuple[bool, int, int]]]]] = {
    "without minDifference": (
        (3, 10, 0),
        [
            (0, "hit", (False, 0, 2)),
            (4, "hit", (False, 0, 1)),
            (5, "hit", (False, 5, 0)),
            (8, "hit", (True, 6, 0)),
            (11, "peek", (True, 3, 0)),  # 4: the peek counted as a refused action
            (17, "peek", (False, 0, 2)),  # 1 remaining, after the action
        ],
    ),
    "with minDifference": (
        (3, 10, 2),
        [
            (0, "hit", (False, 2, 2)),
            (4, "hit", (False, 2, 1)),
            (5, "hit", (True, 5, 0)),
            (8, "hit", (True, 6, 0)),
            (11, "peek", (True, 3, 0)),  # 4, as above
            (17, "peek", (False, 0, 2)),  # 2 until the action after it, 1 remaining
        ],
    ),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", VERDICTS)
def test_published_verdicts(client: redis.Redis, algorithm: str, name: str) -> None:
    options, lines = VERDICTS[name]
    limiter = Limiter(client, algorithm, *options)
    for number, (ms, user, mode, blocked) in enumerate(lines):
        assert limiter.blocked(mode, ms, user) == blocked, f"line {number}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", INFO)
def test_published_info(client: redis.Redis, algorithm: str, name: str) -> None:
    options, lines = INFO[name]
    limiter = Limiter(client, algorithm, *options)
    for number, (ms, mode, info) in enumerate(lines):
        assert limiter.ask(mode, at(0) + ms * MILLISECOND, "1") == info, f"line {number}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", VERDICTS)
def test_cleared_limiter_is_unused(client: redis.Redis, algorithm: str, name: str) -> None:
    options, lines = VERDICTS[name]
    limiter = Limiter(client, algorithm, *options)
    for ms, user, mode, _ in lines:
        limiter.blocked(mode, ms, user)
    client.delete("1")
    assert limiter.ask("hit", at(0), "1") == (False, *limiter_after_one(*options))


def limiter_after_one(limit: int, interval: int, difference: int) -> tuple[int, int]:
    return interval if limit == 1 else difference, limit - 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_refused_hits_keep_the_limiter_blocked(
    client: redis.Redis, algorithm: str
) -> None:
    limiter = Limiter(client, algorithm, 3, 10)
    verdicts = [limiter.blocked("hit", ms, "1") for ms in range(0, 60, 3)]
    assert verdicts == [False] * 3 + [True] * 17
    assert not limiter.blocked("hit", 57 + 4, "1")  # 51 has left
    kind = client.llen if algorithm == "LOG" else client.zcard
    assert kind("1") == 3  # not 21


@dataclass
class Reference:
    """rolling-rate-limiter's own computation: every attempt kept, newest last."""

    limit: int
    interval_us: int
    difference_us: int
    attempts: list[int] = field(default_factory=list)

    def attempt(self, time_us: int) -> tuple[bool, int, int]:
        """Return (blocked, milliseconds until allowed, remaining)."""
        before = [moment for moment in self.attempts if moment > time_us - self.interval_us]
        self.attempts = [*before, time_us]
        too_soon = bool(before) and time_us - before[-1] < self.difference_us
        waits_us = [self.difference_us]
        if len(self.attempts) >= self.limit:
            waits_us.append(self.attempts[-self.limit] + self.interval_us - time_us)
        wait_ms = -(-max(waits_us) // MILLISECOND)
        blocked = too_soon or len(before) >= self.limit
        return blocked, wait_ms, max(0, self.limit - len(self.attempts))


@ON_TWO_ENGINES
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    limit=st.integers(1, 5),
    # A busy machine may expire a shorter key before its time to live is removed.
    interval=st.integers(1, 12).map(lambda tenths: tenths * 100),
    difference=st.integers(0, 6).map(lambda tenths: tenths * 100),
    steps_us=st.lists(
        st.one_of(
            st.integers(0, 12).map(lambda tenths: tenths * 100 * MILLISECOND),
            st.integers(0, 400 * MILLISECOND),
        ),
        min_size=10,
        max_size=40,
    ),
)
def test_newest_max_stamps_decide_as_all_attempts_do(
    client: redis.Redis,
    algorithm: str,
    limit: int,
    interval: int,
    difference: int,
    steps_us: list[int],
) -> None:
    difference = min(difference, interval)  # a GAP is at most the window
    limiter = Limiter(client, algorithm, limit, interval, difference)
    reference = Reference(limit, interval * MILLISECOND, difference * MILLISECOND)
    time_us = at(0)
    for step_us in steps_us:
        time_us += step_us
        assert limiter.ask("hit", time_us, "1") == reference.attempt(time_us)
