"""The limit of open files: how many sockets this process may have."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

RESERVED: Final = 128  # for lanes, listening sockets and whatever is not a client's
OF_A_CLIENT: Final = 2  # its socket and its private connection


def raise_limit() -> int:
    """Allow this process as many open files as it may ask for; how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft


def room(limit: int) -> int:
    """How many clients fit into so many open files."""
    if limit == resource.RLIM_INFINITY:
        return 1 << 31
    return max(1, (limit - RESERVED) // OF_A_CLIENT)
