"""python -m bench.load PORT CLIENTS PIPELINE KEYS WORD ...: send a command until it is stopped.

The benchmark's load generator: closed loop, prepared requests, replies counted by hiredis. Its own
speed, that of one Python process, limits the rates it can measure. So its rows compare parties with
each other, but not with rows of another generator.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Final, cast

import hiredis
import uvloop
from rlproxy.resp.encoding import bulks

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
    return uvloop.run(_rate(port, prepared, pipeline, requests, clients))


async def _rate(
    port: int, prepared: Sequence[bytes], pipeline: int, requests: int, clients: int
) -> float:
    loop = asyncio.get_running_loop()
    run = _Run(prepared, pipeline, max(1, requests // pipeline), loop.create_future())
    made: list[_Client] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(clients):
                made.append(
                    (await loop.create_connection(lambda: _Client(run), "127.0.0.1", port))[1]
                )
            began = time.perf_counter()
            for client in made:
                client.next()
            await run.done
            elapsed = time.perf_counter() - began
    except TimeoutError:
        raise BenchError(f"a run took more than {LIMIT_S:g} s") from None
    except OSError as error:
        raise BenchError(f"cannot connect to port {port}: {error}") from None
    finally:
        run.over = True
        for client in made:
            client.close()
    return run.batches * pipeline / elapsed


class _Run:
    """The state that all clients of one run share."""

    def __init__(
        self, prepared: Sequence[bytes], pipeline: int, count: int, done: asyncio.Future[None]
    ) -> None:
        self.prepared = prepared
        self.pipeline = pipeline
        self.batches = count
        self.done = done
        self.over = False
        self._sent = 0
        self._answered = 0

    def take(self) -> bytes:
        """Return the next batch; empty if all are sent."""
        if self._sent == self.batches:
            return b""
        self._sent += 1
        return self.prepared[self._sent % len(self.prepared)]

    def answered(self) -> None:
        """Record that one batch has all its replies."""
        self._answered += 1
        if self._answered == self.batches and not self.done.done():
            self.done.set_result(None)

    def failed(self, why: str) -> None:
        """End the run with an error."""
        if not self.over and not self.done.done():
            self.done.set_exception(BenchError(why))


class _Client(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._reader = hiredis.Reader()
        self._left = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def next(self) -> None:
        """Send a batch if one is left."""
        batch = self._run.take()
        if batch and self._transport is not None:
            self._left = self._run.pipeline
            self._transport.write(batch)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            if isinstance(reply, Exception):
                self._run.failed(f"a command was answered with: {reply}")
                return
            self._left -= 1
            if self._left == 0:
                self._run.answered()
                self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.failed("a connection was closed before the run was over")

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


if __name__ == "__main__":
    _port, _clients, _pipeline, _keys = map(int, sys.argv[1:5])
    _command = tuple(word.encode() for word in sys.argv[5:])
    _prepared = batches([_command], _pipeline, _keys, MAX_BATCHES)
    print("prepared", flush=True)
    rate(_port, _prepared, _pipeline, ENDLESS, _clients)
