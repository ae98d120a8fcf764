"""The load of a run: a process that sends hits until it is stopped, and that can be paused.

While it is paused nothing is under way, so that counts and CPU times belong to the same hits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import load, redis_benchmark
from ..processes import Process
from ..rows import Command


@contextmanager
def running(
    port: int, command: Command, clients: int, pipeline: int, keys: int
) -> Iterator[Process]:
    """Send `command` over `clients` connections, `pipeline` at once, until the context ends."""
    if redis_benchmark.installed():
        argv = redis_benchmark.arguments(port, command, pipeline, keys, load.ENDLESS, clients)
    else:
        argv = [sys.executable, "-m", "bench.load", *map(str, (port, clients, pipeline, keys))]
        argv += [word.decode() for word in command]
    with tempfile.TemporaryDirectory(prefix="rlproxy-bench-") as home:
        log = Path(home, "load.log")
        process = Process(argv, log)
        try:
            if not redis_benchmark.installed():
                process.until(lambda: log.stat().st_size > 0)
            yield process
        finally:
            process.resume()  # a paused process would not end
            process.close()
