"""A proxy that reports its number of tasks and sessions: `python -m tests.stress.watched SOCKET
ARGS...` runs `python -m rlproxy ARGS...` and answers each connection to the socket with a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import threading
from collections import Counter

from rlproxy.cli import main
from rlproxy.upstream.lane import ServerLane

COUNTED = (
    *("Session", "ClientConnection", "ServerLane", "Link", "Exchange", "Waiter", "Call"),
    *("Transport", "TCPTransport"),
)
# With WATCHED_COLLECTS=no, what only a collection would free is counted.
COLLECTS = os.environ.get("WATCHED_COLLECTS") != "no"


def counts() -> dict[str, int]:
    """Unfinished tasks, and live objects by type."""
    if COLLECTS:
        gc.collect()
    objects = gc.get_objects()
    tasks = sum(issubclass(type(each), asyncio.Task) and not each.done() for each in objects)
    found = list(map(type, objects))
    del objects
    seen = Counter(each.__name__ for each in found)
    seen["ServerLane"] = sum(issubclass(each, ServerLane) for each in found)
    return {"tasks": tasks, **{name: seen[name] for name in COUNTED if seen[name]}}


def answer(listening: socket.socket) -> None:
    """Serve for ever."""
    while True:
        asking, _ = listening.accept()
        with asking:
            asking.sendall(json.dumps(counts()).encode() + b"\n")


if __name__ == "__main__":
    if not COLLECTS:
        gc.disable()
    made = socket.socket(socket.AF_UNIX)
    made.bind(sys.argv[1])
    made.listen()
    threading.Thread(target=answer, args=(made,), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
