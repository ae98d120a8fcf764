"""redis-benchmark as a load generator: its arguments and its output."""

from __future__ import annotations

import csv
import shutil
from typing import Final

from .errors import BenchError
from .processes import run
from .rows import Command

NAME: Final = "redis-benchmark"


def executable() -> str | None:
    """Return the path of redis-benchmark; None if it is not installed."""
    return shutil.which(NAME)


def rate(
    port: int,
    command: Command,
    pipeline: int,
    keys: int,
    requests: int,
    clients: int,
    limit_s: float,
    cluster: bool = False,
) -> float:
    """Measure commands per second of `requests` times `command`.

    cluster: the server at `port` is a node of a cluster, all of which get commands; `{tag}` in the
        key becomes a tag of each one's slots.
    Raises BenchError on an error reply, without a server or after `limit_s` seconds.
    """
    argv = [NAME, "-p", str(port), "-c", str(clients), "-n", str(requests), "-r", str(keys)]
    argv += ["-P", str(pipeline), "--csv", *(["--cluster"] if cluster else [])]
    argv += [word.decode() for word in command]
    return parse(run(argv, limit_s))


def parse(output: str) -> float:
    """Return commands per second from the --csv or -q output of any version.

    Raises BenchError if the output contains no rate.
    """
    lines = [line for line in output.replace("\r", "\n").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    if last.startswith('"'):
        found = next(csv.reader([last]))
        header = next(csv.reader([lines[-2]])) if len(lines) > 1 else []
        column = header.index("rps") if "rps" in header else 1
        text = found[column] if column < len(found) else ""
    else:
        before = last.partition(" requests per second")[0]
        text = before.rpartition(" ")[2] if before != last else ""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BenchError(f"redis-benchmark printed no rate: {last[:80]!r}")
    return value
