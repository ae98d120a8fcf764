"""Every algorithm counts each hit once: many connections through two proxies hit and refund."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests import harness
from tests.harness import ON_ONE_ENGINE, Proxy, Raw, RedisServer, command

CONNECTIONS = 24
ROUNDS = 12
MAX = 60
LONG_S = 10_000_000  # nothing drains or expires during the test
ROWS = [(f"ALGO {name.decode()}", name.decode()) for name in ALGORITHMS] + [("", "CL.THROTTLE")]


@ON_ONE_ENGINE
@pytest.mark.parametrize(("words", "name"), ROWS, ids=[row[1] for row in ROWS])
def test_stored_hits_equal_admitted_minus_refunded(
    redis_server: RedisServer, proxy: Proxy, words: str, name: str
) -> None:
    rule: list[str | int] = [MAX, LONG_S, *words.split()]
    algorithm = words or "ALGO GCRA"
    hit = command("RL.HIT", "k", *rule)
    if name == "CL.THROTTLE":
        hit = command("CL.THROTTLE", "k", MAX - 1, MAX, LONG_S)
    back = command("RL.REFUND", "k", MAX, LONG_S, 1, *algorithm.split())

    def client(number: int, port: int) -> tuple[int, int]:
        """Run one connection's load; return how many of its hits were admitted and refused."""
        chance = random.Random(number)
        held = refused = 0
        with Raw(port) as raw:
            for _ in range(ROUNDS):
                many = chance.choice([1, 1, 3, 8])
                if chance.random() < 0.2:
                    raw.send(command("MULTI") + hit * many + command("EXEC"))
                    assert [raw.reply() for _ in range(1 + many)] == ["OK"] + ["QUEUED"] * many
                    found = raw.reply()
                else:
                    among = [command("GET", "x")] * (chance.random() < 0.3)
                    raw.send(b"".join([*among, hit * many]))
                    assert [raw.reply() for _ in among] == [None] * len(among)
                    found = [raw.reply() for _ in range(many)]
                assert isinstance(found, list)
                admitted = sum(reply[0] == 0 for reply in found)
                held += admitted
                refused += many - admitted
                while held and chance.random() < 0.7:  # only the client's own hits are refunded
                    raw.send(back)
                    assert isinstance(raw.reply(), list)
                    held -= 1
        return held, refused

    with harness.proxy(redis_server) as second, ThreadPoolExecutor(CONNECTIONS) as pool:
        ports = [proxy.port, second.port] * (CONNECTIONS // 2)
        done = list(pool.map(client, range(CONNECTIONS), ports))
        held = sum(one[0] for one in done)
        assert 0 < held <= MAX
        assert sum(one[1] for one in done) > 0, "no hit was refused: this proves nothing"
        with second.raw() as raw:
            found = raw.ask("RL.PEEK", "k", MAX, LONG_S, *algorithm.split())
            assert isinstance(found, list)
            assert found[1:3] == [MAX, MAX - held]
