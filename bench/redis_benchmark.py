"""redis-benchmark as a load generator: its arguments and its output."""

from __future__ import annotations

import contextlib
import csv
import shutil
from typing import Final

from .errors import BenchError
from .rows import Command

NAME: Final = "redis-benchmark"


def installed() -> bool:
    """Return whether redis-benchmark is installed."""
    return shutil.which(NAME) is not None


def arguments(
    port: int, command: Command, pipeline: int, keys: int, requests: int, clients: int, *more: str
) -> list[str]:
    """Return the command line that sends `requests` times `command`; `more` are other options."""
    argv = [NAME, *more, "-p", str(port), "-c", str(clients), "-n", str(requests)]
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
