"""CPU time of the programs of a row, while its commands run."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from .figures import Figure
from .processes import Spent
from .rows import CPU, RATE, Row

MILLION: Final = 1e6
# ends of figures' names, for the CPU time of:
DRIVER: Final = "driver"  # the load generator
REDIS: Final = "redis"  # Redis
SERVERS: Final = "servers"  # Redis and the party together
PARTY: Final = "party"  # the program that clients connect to, if not Redis
SYSTEM: Final = "party system"  # its part in kernel mode
NAMES: Final = (DRIVER, REDIS, SERVERS, PARTY, SYSTEM)


def figures(row: Row) -> dict[str, Figure]:
    """Return figures of seconds per million commands, by NAMES: `hit-1 redis`, `hit-1 party` ..."""
    kind = CPU if row.kind == RATE else f"{row.kind}-{CPU}"
    return {name: Figure(f"{row.name} {name}", kind, "s") for name in NAMES}


def own() -> Spent:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_stime)


@contextlib.contextmanager
def spending(clocks: Mapping[str, Callable[[], Spent]], count: int) -> Iterator[dict[str, float]]:
    """Yield a dict that gets the values of figures() when the block ends.

    clocks: the CPU time so far of DRIVER, REDIS and PARTY, or some of them.
    count: commands that run in the block.
    """
    found: dict[str, float] = {}
    before = {name: read() for name, read in clocks.items()}
    yield found
    spent = {name: read().since(before[name]) for name, read in clocks.items()}
    seconds = {name: each.total for name, each in spent.items()}
    seconds[SERVERS] = sum(each.total for name, each in spent.items() if name != DRIVER)
    if PARTY in spent:
        seconds[SYSTEM] = spent[PARTY].system
    found |= {name: each * MILLION / count for name, each in seconds.items()}
