"""States in which a server answers commands with an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.harness import Raw, command, wait_until


@contextlib.contextmanager
def _busy(look: Raw, other: Raw) -> Iterator[None]:
    look.ask("CONFIG", "SET", "lua-time-limit", 1)
    other.send(command("EVAL", "while true do end", 0))

    def is_busy() -> bool:
        return str(look.ask("PING")).startswith("BUSY")

    wait_until(is_busy, "a script is busy")
    try:
        yield
    finally:
        assert look.ask("SCRIPT", "KILL") == "OK"
        other.reply()


# The error of each, what begins it and what ends it.
TROUBLES: dict[str, tuple[str, ...]] = {
    "OOM": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "MASTERDOWN": (
        *("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"),
        *("REPLICAOF NO ONE", "CONFIG SET replica-serve-stale-data yes"),
    ),
    "NOREPLICAS": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    "BUSY": (),  # see _busy()
}


@contextlib.contextmanager
def trouble(error: str, look: Raw, other: Raw) -> Iterator[None]:
    """Have the server of `look` answer with this error. A script of `other` makes it busy."""
    if error == "BUSY":
        with _busy(look, other):
            yield
        return
    lines = TROUBLES[error]
    half = len(lines) // 2
    for line in lines[:half]:
        assert look.ask(*line.split()) == "OK"
    try:
        yield
    finally:
        for line in lines[half:]:
            assert look.ask(*line.split()) == "OK"
