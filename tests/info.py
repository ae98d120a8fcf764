"""What a server reports of itself by INFO and CLIENT LIST. `server` is the server itself or a
connection to it.
"""

from __future__ import annotations

import re
from typing import Protocol


class Answers(Protocol):
    """A server, or a connection to one."""

    def ask(self, *words: bytes | str | int) -> object:
        """Send one command and return its reply."""


def _sum(server: Answers, section: str, pattern: bytes) -> int:
    text = server.ask("INFO", section)
    assert isinstance(text, bytes), text
    return sum(map(int, re.findall(pattern, text, re.MULTILINE)))


def clients(server: Answers) -> list[dict[str, str]]:
    """Return the rows of CLIENT LIST, by field. One of them is the connection that asks."""
    text = server.ask("CLIENT", "LIST")
    assert isinstance(text, bytes), text
    lines = text.decode().splitlines()
    return [dict(field.partition("=")[::2] for field in line.split(" ")) for line in lines]


def value(server: Answers, section: str, name: str) -> int:
    """Return the number in the field `name`; 0 without this field."""
    return _sum(server, section, rb"^%b:(\d+)" % name.encode())


def calls(server: Answers, command: str) -> int:
    """Return how often it has run `command`, in lower case; of a container "script|load"."""
    return _sum(server, "commandstats", rb"cmdstat_%b:calls=(\d+)" % re.escape(command.encode()))


def lane_calls(server: Answers) -> int:
    """Return how many EVALSHAs it has run. While no script is missing, only lanes send them."""
    return calls(server, "evalsha")


def script_calls(server: Answers) -> int:
    """Return how many scripts it has run."""
    return _sum(server, "commandstats", rb"cmdstat_(?:eval|evalsha)(?:_ro)?:calls=(\d+)")


def stats(proxy: Answers) -> dict[str, str]:
    """Return the fields of a proxy's RL.STATS, by name."""
    text = proxy.ask("RL.STATS")
    assert isinstance(text, bytes), text
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)


def errors(server: Answers, code: str) -> int:
    """Return how many errors with this code it has sent (Redis 6.2 and later)."""
    return _sum(server, "errorstats", rb"errorstat_%b:count=(\d+)" % code.encode())


def blocked_clients(server: Answers) -> int:
    """Return the number of its clients that wait in a command."""
    return value(server, "clients", "blocked_clients")
