"""The limit of open files: how many sockets this process may have."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

RESERVED: Final = 128  # descriptors for lanes, listening sockets and all else beside clients
OF_A_CLIENT: Final = 2  # descriptors of one client: its socket and its private connection


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit. Returns the limit now in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            return hard
    return soft


def room(limit: int) -> int:
    """Return the number of clients that fit into `limit` open files; below 1: too few to start."""
    if limit == resource.RLIM_INFINITY:
        return 1 << 31
    return (limit - RESERVED) // OF_A_CLIENT
