"""RL.BLOCK through the proxy: by lane and in place, in transactions, and its order."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.algorithms import ALGORITHMS

from tests.harness import ON_ONE_ENGINE, Proxy, RedisServer, command, numbers
from tests.integration.started import by_lane_of

pytestmark = ON_ONE_ENGINE
NAMES = [name.decode() for name in ALGORITHMS]
LIFTED = [0, 0, 0, -1, 0]


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_algorithm_by_lane_and_in_place(
    redis_server: RedisServer, proxy: Proxy, algorithm: str
) -> None:
    algo = ("ALGO", algorithm)
    requests = [
        ("RL.HIT", "k", 3, 600, *algo),
        ("RL.BLOCK", "k", 3600, *algo),
        ("RL.HIT", "k", 3, 600, *algo),
        ("RL.PEEK", "k", 5, 60, *algo),
        ("rl.block", "k", 1800, "ms", *algo),
        ("RL.BLOCK", "k", 0, *algo),
        ("RL.HIT", "k", 3, 600, *algo),
        ("RL.RESET", "k"),
    ]
    with redis_server.raw() as admin, proxy.raw() as raw:
        expected = [
            [0, 3, 2, -1],
            [1, 0, 0, 3600],
            [1, 3, 0, 3600],
            [1, 5, 0, 3600],
            [1, 0, 0, 1800],
            LIFTED[:4],
            [0, 3, 1, -1],
        ]

        def run(by_transaction: bool) -> list[object]:
            words = [command(*request) for request in requests]
            if not by_transaction:
                raw.send(b"".join(words))
                return [raw.reply() for _ in words]
            raw.send(command("MULTI") + b"".join(words) + command("EXEC"))
            assert raw.reply() == "OK"
            assert [raw.reply() for _ in words] == ["QUEUED"] * len(words)
            found = raw.reply()
            assert isinstance(found, list)
            return found

        for way in ("the first connection", "a lane", "MULTI", "after a lost script"):
            if way == "a lane":
                by_lane_of(redis_server, raw, "warm", admin)
            if way == "after a lost script":
                admin.ask("SCRIPT", "FLUSH")
            found = run(way == "MULTI")
            assert [numbers(reply)[:4] for reply in found[:-1]] == expected, way
            assert found[-1] == 1


def test_a_wrong_block_aborts_its_transaction(proxy: Proxy) -> None:
    with proxy.raw() as raw:
        raw.ask("MULTI")
        assert "t is not a valid number" in str(raw.ask("RL.BLOCK", "k", "x"))
        assert str(raw.ask("EXEC")).startswith("EXECABORT")


def test_the_blocks_of_a_client_keep_their_order(redis_server: RedisServer, proxy: Proxy) -> None:
    """Also where the script is missing in the middle of a pipeline."""
    with redis_server.raw() as admin, proxy.raw() as raw:
        by_lane_of(redis_server, raw, "warm", admin)
        for turn in range(20):
            if turn % 5 == 0:
                admin.ask("SCRIPT", "FLUSH")
            among = command("GET", "x") if turn % 2 else b""
            hit = command("RL.HIT", f"o{turn}", 10, 600)
            raw.send((command("RL.BLOCK", f"o{turn}", 60) + among + hit) * 3)
            raw.send(command("RL.BLOCK", f"o{turn}", 0) + hit)
            replies = [raw.reply() for _ in range((9 if among else 6) + 2)]
            found = [numbers(reply)[0] for reply in replies if reply is not None]
            assert found == [1] * 6 + [0, 0], turn
