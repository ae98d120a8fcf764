"""The load of a run: a process that sends hits until it is stopped, and that can be paused.

While it is paused nothing is under way, so that counts and CPU times belong to the same hits.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import load, redis_benchmark
from ..errors import BenchError
from ..processes import Process
from ..rows import Command

ENOUGH: Final = 100_000_000  # hits: more than are sent before the load is stopped
LIMIT_S: Final = 120.0  # seconds of the own generator, at most


@dataclass(frozen=True)
class Generator:
    """A running load.

    alive: raises BenchError if it has ended.
    """

    pid: int
    alive: Callable[[], None]

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        self.alive()
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def running(
    port: int, command: Command, clients: int, pipeline: int, keys: int
) -> Iterator[Generator]:
    """Send `command` over `clients` connections, `pipeline` at once, until the context ends."""
    if redis_benchmark.executable() is None:
        with _own(port, command, clients, pipeline, keys) as made:
            yield made
        return
    name = shutil.which(redis_benchmark.NAME) or redis_benchmark.NAME
    argv = [name, "-p", str(port), "-c", str(clients), "-n", str(ENOUGH), "-P", str(pipeline)]
    argv += ["-r", str(keys), "-q", *(word.decode() for word in command)]
    with tempfile.TemporaryDirectory(prefix="rlproxy-bench-") as home:
        process = Process(argv, Path(home, "load.log"))
        made = Generator(process.pid, lambda: process.check(float("inf")))
        try:
            yield made
        finally:
            made.resume()  # a paused process would not end
            process.close()


@contextmanager
def _own(
    port: int, command: Command, clients: int, pipeline: int, keys: int
) -> Iterator[Generator]:
    prepared = load.batches([command], pipeline, keys, load.MAX_BATCHES)
    child = multiprocessing.get_context("fork").Process(
        target=load.rate, args=(port, prepared, pipeline, ENOUGH, clients, LIMIT_S), daemon=True
    )
    child.start()
    assert child.pid is not None

    def alive() -> None:
        if not child.is_alive():
            raise BenchError("the load ended before it was measured")

    made = Generator(child.pid, alive)
    try:
        yield made
    finally:
        if child.is_alive():
            made.resume()
        child.terminate()
        child.join()
