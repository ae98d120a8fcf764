"""python -m bench.load PORT CLIENTS PIPELINE KEYS WORD ...: send a command until it is stopped.

The benchmark's load generator: closed loop, prepared requests, replies counted by hiredis. Its own
speed, that of one Python process, limits the rates it can measure. So its rows compare parties with
each other, but not with rows of another generator.
"""

from __future__ import annotations

import itertools
import random
import selectors
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from rlproxy.resp.encoding import bulks

from .client import Client
from .errors import BenchError
from .rows import LIMIT_S, RANDOM, Command

NAME: Final = "the own generator (one Python process)"
MAX_BATCHES: Final = 4096  # prepared batches, which are sent again and again
MAX_PREPARED: Final = 64 * 1024 * 1024  # bytes of all prepared batches
ENDLESS: Final = 100_000_000  # commands: more than are sent before a load is stopped


def batches(
    commands: Sequence[Command], pipeline: int, keys: int, count: int, seed: int = 1
) -> list[bytes]:
    """Build batches of requests, each to be sent in one write.

    commands: sent in turn, with RANDOM replaced by twelve digits below `keys`.
    pipeline: commands of one batch.
    count: number of batches, reduced to MAX_BATCHES and about MAX_PREPARED bytes.
    """
    dice = random.Random(seed)
    made: list[bytes] = []
    size = 0
    for _ in range(max(1, min(count, MAX_BATCHES))):
        batch = b"".join(
            bulks(*filled(commands[index % len(commands)], dice.randrange(keys)))
            for index in range(pipeline)
        )
        made.append(batch)
        size += len(batch)
        if size > MAX_PREPARED:
            break
    return made


def filled(command: Command, number: int) -> Command:
    """Return the command with RANDOM replaced by the digits of `number`."""
    digits = b"%012d" % number
    return tuple(word.replace(RANDOM, digits) for word in command)


def rate(port: int, prepared: Sequence[bytes], pipeline: int, requests: int, clients: int) -> float:
    """Measure commands per second of `requests` commands over `clients` connections.

    prepared: batches of `pipeline` commands each.
    Raises BenchError on an error reply, a closed connection or after LIMIT_S seconds.
    """
    count = max(1, requests // pipeline)
    batches = itertools.islice(itertools.cycle(prepared), count)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        made = [stack.enter_context(Client(port)) for _ in range(clients)]
        left = dict.fromkeys(made, 0)  # replies that a client waits for
        for client in made:
            selector.register(client, selectors.EVENT_READ, client)
        began = time.perf_counter()
        try:
            for client, batch in zip(made, batches):  # noqa: B905 -- perhaps fewer batches
                client.sock.sendall(batch)
                left[client] = pipeline
            answered = 0
            while answered < count:
                for key, _ in selector.select(LIMIT_S):
                    client = key.data
                    left[client] -= len(client.receive())
                    if not left[client]:
                        answered += 1
                        if batch := next(batches, b""):
                            client.sock.sendall(batch)
                            left[client] = pipeline
                if time.perf_counter() - began > LIMIT_S:
                    raise BenchError(f"a run took more than {LIMIT_S:g} s")
        except OSError as error:
            raise BenchError(f"a connection was lost: {error}") from None
        return count * pipeline / (time.perf_counter() - began)


if __name__ == "__main__":
    _port, _clients, _pipeline, _keys = map(int, sys.argv[1:5])
    _command = tuple(word.encode() for word in sys.argv[5:])
    _prepared = batches([_command], _pipeline, _keys, MAX_BATCHES)
    print("prepared", flush=True)
    rate(_port, _prepared, _pipeline, ENDLESS, _clients)
