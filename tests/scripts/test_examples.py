"""The contract's examples as a client writes them: grammar and script together, with an injected
clock.
"""

from __future__ import annotations

import pytest
import redis
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Grammar

from tests.scripts.calls import SCRIPTS, Caller, at

GRAMMAR = Grammar(SCRIPTS)


def send(client: redis.Redis, seconds: float, command: str) -> list[int]:
    """The reply to `command` at this time; its key is always k."""
    words = command.encode().split()
    rule = GRAMMAR.rule(b"", words[0], words[1:])
    if rule.waits:
        rule = rule.in_microseconds()
    assert rule.error == b"" and rule.limiter is not None
    argv = rule.tail.split(b"\r\n")[1::2]
    call = Caller(client, rule.limiter.algorithm.name.decode())
    return call(at(seconds), *argv)


# name: lines of (seconds since the first line, command, reply)
EXAMPLES: dict[str, list[tuple[float, str, list[int]]]] = {
    "redis-cell on a new key": [(0, "CL.THROTTLE k 15 30 60", [0, 16, 15, -1, 2])],
    "no burst, one in two seconds": [
        (0, "CL.THROTTLE k 0 1 2 1", [0, 1, 0, -1, 2]),
        (0, "CL.THROTTLE k 0 1 2 1", [1, 1, 0, 2, 2]),
        (2, "CL.THROTTLE k 0 1 2 1", [0, 1, 0, -1, 2]),
    ],
    "no burst, three a minute": [
        (0, "CL.THROTTLE k 0 3 60 1", [0, 1, 0, -1, 20]),
        (1, "CL.THROTTLE k 0 3 60 1", [1, 1, 0, 19, 19]),
    ],
    "the last of six resets in one second": [
        *[(0.0, "CL.THROTTLE k 5 6 1", [0, 6, left, -1, 1]) for left in range(5, -1, -1)],
        (0, "CL.THROTTLE k 5 6 1", [1, 6, 0, 1, 1]),
    ],
    "a quantity above the limit": [
        (0, "RL.THROTTLE k 1 1 60 3", [1, 2, 2, -1, 0]),
        (0, "RL.THROTTLE k 1 1 60 0", [0, 2, 2, -1, 0]),
        (0, "RL.THROTTLE k 1 1 60 2", [0, 2, 0, -1, 120]),
    ],
    "GCRA, several costs": [
        (0, "RL.HIT k 10 1 ALGO GCRA COST 0", [0, 10, 10, -1, 0]),
        (0, "RL.HIT k 10 1 ALGO GCRA", [0, 10, 9, -1, 1]),
        (0, "RL.HIT k 10 1 ALGO GCRA COST 2", [0, 10, 7, -1, 1]),
        (0, "RL.HIT k 10 1 ALGO GCRA COST 7", [0, 10, 0, -1, 1]),
    ],
    "LOG, a cost that never fits, and a look": [
        (0, "RL.HIT k 10 120 COST 11", [1, 10, 10, -1, 0]),
        (0, "RL.HIT k 10 120 COST 5", [0, 10, 5, -1, 120]),
        (0, "RL.PEEK k 10 120 COST 6", [1, 10, 5, 120, 120]),
    ],
    "ten a minute and two in three seconds": [
        (0, "RL.HIT k 10 60 AND 2 3", [0, 2, 1, -1, 3]),
        (0, "RL.HIT k 10 60 AND 2 3", [0, 2, 0, -1, 3]),
        (0, "RL.HIT k 10 60 AND 2 3", [1, 2, 0, 3, 3]),
        (3, "RL.HIT k 10 60 AND 2 3 COST 2", [0, 2, 0, -1, 3]),
        (6, "RL.HIT k 10 60 AND 20 3 COST 6", [0, 10, 0, -1, 60]),
        (9, "RL.HIT k 10 60 AND 2 3", [1, 10, 0, 51, 57]),
    ],
    "milliseconds, wherever the word stands": [
        (0, "RL.HIT k 2 1500 COST 2 MS", [0, 2, 0, -1, 1500]),
        (0.25, "RL.HIT k 2 1500 MS", [1, 2, 0, 1250, 1250]),
    ],
    "COUNTER, an estimate": [
        (0, "RL.HIT k 100 60 ALGO COUNTER COST 40", [0, 100, 60, -1, 120]),
        (60, "RL.HIT k 100 60 ALGO COUNTER COST 60", [0, 100, 0, -1, 120]),
        (75, "RL.HIT k 100 60 ALGO COUNTER COST 10", [0, 100, 0, -1, 105]),
        (90, "RL.HIT k 100 60 ALGO COUNTER COST 10", [0, 100, 0, -1, 90]),
        # Forty in the previous window, eighty in this one.
        (90, "RL.HIT k 100 60 ALGO COUNTER", [1, 100, 0, 2, 90]),
        (100, "RL.HIT k 100 60 ALGO COUNTER", [0, 100, 5, -1, 80]),
    ],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_contract(client: redis.Redis, name: str) -> None:
    client.delete("k")
    for seconds, command, reply in EXAMPLES[name]:
        assert send(client, seconds, command) == reply, (seconds, command)


RATES = [f"100000 0.001 ALGO {name.decode()}" for name in ALGORITHMS]
RATES += ["1000000000 1 ALGO TOKEN", "1000000000 1 ALGO GCRA", "10 60 AND 100 3600", "10 60 GAP 1"]
RATES += ["100000000 1 ALGO LEAKY", "100000000 1 ALGO LEAKY WAIT 5"]


@pytest.mark.parametrize("rate", RATES)
def test_an_admitted_hit_leaves_less_than_the_limit(client: redis.Redis, rate: str) -> None:
    """So `remaining` = `limit` is a reply of --on-upstream-failure allow only."""
    client.delete("k")
    replies = [send(client, seconds, f"RL.HIT k {rate}") for seconds in (0, 0, 0, 1.5, 1.5, 9.0)]
    admitted = [reply for reply in replies if reply[0] == 0]
    assert len(admitted) >= 3
    assert all(reply[2] < reply[1] for reply in admitted)
    # The bucket drains in less than a microsecond: reset_after is no sign.
    assert any(reply[4] == 0 for reply in admitted) == ("WAIT" in rate)
