"""redis-benchmark as a load generator: its arguments and its output."""

from __future__ import annotations

import csv
import shutil
from typing import Final

from .errors import BenchError
from .processes import run
from .rows import LIMIT_S, Command

NAME: Final = "redis-benchmark"


def installed() -> bool:
    """Return whether redis-benchmark is installed."""
    return shutil.which(NAME) is not None


def arguments(
    port: int, command: Command, pipeline: int, keys: int, requests: int, clients: int
) -> list[str]:
    """Return the command line that sends `requests` times `command`."""
    argv = [NAME, "-p", str(port), "-c", str(clients), "-n", str(requests), "-r", str(keys)]
    return [*argv, "-P", str(pipeline), *(word.decode() for word in command)]


def rate(
    port: int,
    command: Command,
    pipeline: int,
    keys: int,
    requests: int,
    clients: int,
    cluster: bool = False,
) -> float:
    """Measure commands per second of `requests` times `command`.

    cluster: the server at `port` is a node of a cluster, all of which get commands; `{tag}` in the
        key becomes a tag of each one's slots.
    Raises BenchError on an error reply, without a server or after LIMIT_S seconds.
    """
    name, *options = arguments(port, command, pipeline, keys, requests, clients)
    return parse(run([name, "--csv", *(["--cluster"] if cluster else []), *options], LIMIT_S))


def parse(output: str) -> float:
    """Return commands per second from the --csv output, which has a header since version 6.2.

    Raises BenchError if the output contains no rate.
    """
    rows = [row for row in csv.reader(output.splitlines()) if row]
    try:
        value = float(rows[-1][1])
    except (IndexError, ValueError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise BenchError(f"redis-benchmark printed no rate: {output[-80:]!r}")
    return value
