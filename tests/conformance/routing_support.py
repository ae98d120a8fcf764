"""Helpers of the routing tests: hits, and joining a lane reliably."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from tests.harness import Proxy, Raw, command, wait_until
from tests.info import clients
from tests.info import lane_calls as lane_calls

MANY = 1_000_000  # a max that no test reaches
UPSTREAMDOWN = "UPSTREAMDOWN the connection to Redis was lost before it answered"


def hit(key: bytes | str = "k", limit: int = MANY) -> bytes:
    """A hit as bytes."""
    return command("RL.HIT", key, limit, 60)


def admitted(count: int, limit: int = MANY) -> list[int]:
    """The reply to hit number `count` on its key."""
    return [0, limit, limit - count, -1, 60]


def goes_by_lane(client: Raw, look: Raw) -> bool:
    """Whether a hit of `client`, sent now, travels on a lane; its reply is ignored."""
    before = lane_calls(look)
    client.ask("RL.HIT", "warm", MANY, 60)
    return lane_calls(look) > before


def join_lane(client: Raw, look: Raw) -> None:
    """Return when hits of `client` go by lane: two in a row, because the server may count one of a
    lane that was cut just before.
    """
    wait_until(
        lambda: goes_by_lane(client, look) and goes_by_lane(client, look), "a hit goes by lane"
    )


def stays_private(client: Raw, look: Raw, hits: int = 6) -> bool:
    """Whether none of several hits in a row goes by lane, with enough time for a lane to open."""
    for _ in range(hits):
        if goes_by_lane(client, look):
            return False
        time.sleep(0.002)
    return True


def names(look: Raw) -> list[str]:
    """The names of the server's connections."""
    return [row["name"] for row in clients(look)]


def kill_lanes(look: Raw, name: str = "rlproxy-lane") -> int:
    """CLIENT KILL every lane, or the proxy's connections of another name; returns their number."""
    ids = [row["id"] for row in clients(look) if row["name"] == name]
    for number in ids:
        look.ask("CLIENT", "KILL", "ID", number)
    return len(ids)


def load_scripts(look: Raw) -> None:
    """Let the proxy load its scripts, as on each new control connection. With the old one it would
    notice up to 0.5 s later that they are missing.
    """
    assert kill_lanes(look, "rlproxy-control") == 1


@contextlib.contextmanager
def password(look: Raw, word: str) -> Iterator[None]:
    """Require the password `word` of the default user within the block; `look` was connected
    before.
    """
    look.ask("CONFIG", "SET", "requirepass", word)
    try:
        yield
    finally:
        look.ask("CONFIG", "SET", "requirepass", "")


def rounds(proxy: Proxy, count: int = 8) -> None:
    """Run iterations of the proxy's and the server's loop: on return, bytes sent before have been
    read and forwarded.
    """
    with proxy.raw() as other:
        for _ in range(count):
            assert other.ask("PING") == "PONG"
