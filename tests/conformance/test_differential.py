"""Random streams, cut at random places: the server and the proxy return the same bytes."""

from __future__ import annotations

import random

import pytest

from tests import harness
from tests.conformance.compare import Bench, Swap, case
from tests.fuzz import differential
from tests.fuzz.differential import Differential, Stream, stream
from tests.harness import ON_EVERY_ENGINE, ON_ONE_ENGINE, RedisServer, command

STREAMS = 40


def check(bench: Bench) -> None:
    done = differential.run(bench, 20_260, STREAMS)
    assert done.streams == STREAMS
    assert done.differences == []
    assert done.unsteady <= 2


@ON_EVERY_ENGINE
def test_random_streams(bench: Bench) -> None:
    check(bench)


@ON_ONE_ENGINE
def test_random_streams_of_a_proxy_that_shares(module_server: RedisServer) -> None:
    with harness.proxy(module_server, "--share") as proxy:
        bench = Bench(module_server, proxy)
        check(bench)
        bench.close()


@ON_ONE_ENGINE
def test_difference_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "PATIENCE_S", 0.1)
    row = case("differs", command("PING"), Swap(command("ECHO", "a"), command("ECHO", "b")))
    found = Differential(bench).compare(Stream(row, [9], 0.0, False))
    assert "server" in found
    assert "proxy" in found


@ON_ONE_ENGINE
def test_remaining_state_is_compared(bench: Bench) -> None:
    row = case("differs", Swap(command("SET", "s", "a"), command("SET", "s", "b")))
    assert Differential(bench).compare(Stream(row, [], 0.0, True))


def test_streams_follow_from_the_seed() -> None:
    made = [stream(random.Random(f"1:{number}"), number) for number in range(50)]
    again = [stream(random.Random(f"1:{number}"), number) for number in range(50)]
    assert made == again
    assert len({row.row.pieces for row in made}) > 40
    assert any(row.cuts for row in made)
