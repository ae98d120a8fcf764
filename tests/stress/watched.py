"""A proxy that reports its number of tasks and sessions: `python -m tests.stress.watched SOCKET
ARGS...` runs `python -m rlproxy ARGS...` and answers each connection to the socket with a line.
"""

from __future__ import annotations

import asyncio.tasks
import contextlib
import gc
import json
import os
import socket
import sys
import threading
from collections import Counter
from typing import Any

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
    tasks: Any = asyncio.tasks
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # changed while it was iterated over
            alive = [task for task in list(tasks._all_tasks) if not task.done()]
            break
    if COLLECTS:
        gc.collect()
    found = [type(each) for each in gc.get_objects()]
    seen = Counter(each.__name__ for each in found)
    seen["ServerLane"] = sum(issubclass(each, ServerLane) for each in found)
    return {"tasks": len(alive), **{name: seen[name] for name in COUNTED if seen[name]}}


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
