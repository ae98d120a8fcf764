"""Counts that a server reports by INFO, over a connection to it."""

from __future__ import annotations

import re

from tests.harness import Raw


def _sum(raw: Raw, section: str, pattern: bytes) -> int:
    text = raw.ask("INFO", section)
    assert isinstance(text, bytes), text
    return sum(map(int, re.findall(pattern, text)))


def script_calls(raw: Raw) -> int:
    """Return how many scripts the server has run."""
    return _sum(raw, "commandstats", rb"cmdstat_eval\w*:calls=(\d+)")


def lane_calls(raw: Raw) -> int:
    """Return how many EVALSHAs it has run. While no script is missing, only lanes send them."""
    return _sum(raw, "commandstats", rb"cmdstat_evalsha:calls=(\d+)")


def errors(raw: Raw, code: str) -> int:
    """Return how many errors with this code it has sent (Redis 6.2 and later)."""
    return _sum(raw, "errorstats", rb"errorstat_%b:count=(\d+)" % code.encode())


def blocked_clients(raw: Raw) -> int:
    """Return the number of clients that a command blocks."""
    return _sum(raw, "clients", rb"blocked_clients:(\d+)")
