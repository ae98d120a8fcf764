"""The closed-loop load generators: redis-benchmark, and one Python process.

redis-benchmark repeats one command. The process sends several in turn, as prepared requests;
hiredis counts the replies. Its own speed limits the rates that it can measure. So its rows compare
parties with each other, but not with rows of redis-benchmark.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import random
import selectors
import shutil
import time
from collections.abc import Sequence
from typing import Final

from rlproxy.resp.encoding import bulks

from .client import Client
from .errors import BenchError
from .processes import run
from .rows import LIMIT_S, RANDOM, Command

REDIS_BENCHMARK: Final = "redis-benchmark"
MAX_BATCHES: Final = 4096  # prepared batches, which are sent again and again


def has_redis_benchmark() -> bool:
    """Return whether redis-benchmark is installed."""
    return shutil.which(REDIS_BENCHMARK) is not None


def redis_benchmark(
    port: int, command: Command, pipeline: int, keys: int, requests: int, clients: int, *more: str
) -> list[str]:
    """Return the command line that sends `requests` times `command`; `more` are other options."""
    argv = [REDIS_BENCHMARK, *more, "-p", str(port), "-c", str(clients), "-n", str(requests)]
    return [*argv, "-r", str(keys), "-P", str(pipeline), *(word.decode() for word in command)]


def parse(output: str) -> float:
    """Return commands per second from the --csv output, which has a header since version 6.2.

    Raises BenchError if the output contains no rate.
    """
    value = 0.0
    with contextlib.suppress(IndexError, ValueError):
        value = float([row for row in csv.reader(output.splitlines()) if row][-1][1])
    if not 0 < value < float("inf"):
        raise BenchError(f"redis-benchmark printed no rate: {output[-80:]!r}")
    return value


def batches(
    commands: Sequence[Command], pipeline: int, keys: int, count: int, seed: int = 1
) -> list[bytes]:
    """Build batches of requests, each to be sent in one write.

    commands: sent in turn, with RANDOM replaced by twelve digits below `keys`.
    pipeline: commands of one batch.
    count: number of batches, reduced to MAX_BATCHES.
    """
    dice = random.Random(seed)
    turn = list(itertools.islice(itertools.cycle(commands), pipeline))
    return [
        b"".join(bulks(*filled(command, dice.randrange(keys))) for command in turn)
        for _ in range(max(1, min(count, MAX_BATCHES)))
    ]


def filled(command: Command, number: int) -> Command:
    """Return the command with RANDOM replaced by the digits of `number`."""
    digits = b"%012d" % number
    return tuple(word.replace(RANDOM, digits) for word in command)


def rate(
    port: int,
    commands: Sequence[Command],
    pipeline: int,
    keys: int,
    requests: int,
    clients: int,
    *more: str,
) -> float:
    """Measure commands per second of `requests` commands over `clients` connections.

    commands: sent in turn, with RANDOM replaced by twelve digits below `keys`.
    more: other options of redis-benchmark, which sends one command where it is installed.
    Raises BenchError on an error reply, a closed connection or after LIMIT_S seconds.
    """
    if has_redis_benchmark() and len(commands) == 1:
        argv = redis_benchmark(port, commands[0], pipeline, keys, requests, clients, "--csv", *more)
        return parse(run(argv, LIMIT_S))
    count = max(1, requests // pipeline)
    prepared = batches(commands, pipeline, keys, count)
    left_to_send = itertools.islice(itertools.cycle(prepared), count)
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        made = [stack.enter_context(Client(port)) for _ in range(clients)]
        left = dict.fromkeys(made, 0)  # replies that a client waits for
        for client in made:
            selector.register(client.sock, selectors.EVENT_READ, client)
        began = time.perf_counter()
        try:
            for client, batch in zip(made, left_to_send):  # noqa: B905 -- perhaps fewer batches
                client.sock.sendall(batch)
                left[client] = pipeline
            answered = 0
            while answered < count:
                for key, _ in selector.select(LIMIT_S):
                    client = key.data
                    left[client] -= len(client.receive())
                    if not left[client]:
                        answered += 1
                        if batch := next(left_to_send, b""):
                            client.sock.sendall(batch)
                            left[client] = pipeline
                if time.perf_counter() - began > LIMIT_S:
                    raise BenchError(f"a run took more than {LIMIT_S:g} s")
        except OSError as error:
            raise BenchError(f"a connection was lost: {error}") from None
        return count * pipeline / (time.perf_counter() - began)
