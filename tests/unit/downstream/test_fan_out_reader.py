"""Connections that are read a few per tick, with pipes as connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Iterator

import pytest
from rlproxy.downstream.fan_out_reader import MANY, PER_TURN, FanOutReader

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="there is no epoll here")


class Pipe:
    """A connection; `had` has the arguments of its turns."""

    def __init__(self, fan_out: FanOutReader) -> None:
        self.reads, self.writes = os.pipe()
        self.had: list[bool] = []
        self.fan_out = fan_out

    def watch(self) -> None:
        self.fan_out.watch(self.reads, self.turn)

    def turn(self, crowded: bool) -> None:
        self.had.append(crowded)

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


class Bench:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.fan_out = FanOutReader(self.loop)
        self.pipes: list[Pipe] = []

    def pipe(self) -> Pipe:
        self.pipes.append(Pipe(self.fan_out))
        return self.pipes[-1]

    def turn(self) -> None:
        """One of the loop's."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.fan_out.close()
    for pipe in made.pipes:
        with contextlib.suppress(OSError):
            pipe.close()
    made.loop.close()


def test_readers_after_much_input_in_a_tick_are_fan_out_readers(bench: Bench) -> None:
    fan_out = bench.fan_out
    assert not fan_out.many(10 * MANY)  # one that brings much is none
    assert fan_out.many(1)
    bench.turn()
    assert [fan_out.many(MANY // 4) for _ in range(7)] == [False] * 5 + [True] * 2


def test_a_few_are_read_in_a_turn_and_each_once(bench: Bench) -> None:
    pipes = [bench.pipe() for _ in range(2 * PER_TURN + 1)]
    for pipe in pipes:
        pipe.watch()
    bench.turn()
    assert not any(pipe.had for pipe in pipes)
    for pipe in pipes:
        os.write(pipe.writes, b"x")
    counts = []
    for _ in range(5):
        bench.turn()
        counts.append(sum(len(pipe.had) for pipe in pipes))
    assert counts[-1] == len(pipes)
    assert all(after - before <= PER_TURN for before, after in zip([0, *counts], counts))  # noqa: B905
    assert all(len(pipe.had) == 1 for pipe in pipes)
    assert sum(pipe.had == [True] for pipe in pipes) == 2 * PER_TURN  # the last was alone
    pipes[0].watch()  # it is still readable
    bench.turn()
    bench.turn()
    assert pipes[0].had == [True, False] or pipes[0].had == [False, False]
