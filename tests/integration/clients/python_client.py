"""A load client for Python's libraries:
`python_client.py LIBRARY[-PROTOCOL] PORT SECONDS CONNECTIONS`.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

Words = tuple[str | int, ...]
seen: Counter[tuple[str, int, int, int]] = Counter()
errors: list[str] = []


def hit() -> Words:
    """A hit on one of the keys."""
    number = random.randrange(20)
    return ("RL.HIT", f"exact:{number}", 2 + 3 * number, 40 + 25 * number, "MS")


def note(words: Words, reply: Any) -> None:
    """Count one reply to `words`."""
    if words[0] == "PING":
        if reply not in (True, b"PONG", "PONG"):
            errors.append(f"PING got {reply!r}")
        return
    if not isinstance(reply, list) or len(reply) != 5:
        errors.append(f"{words} got {reply!r}")
        return
    limited, limit, remaining, retry, _ = reply
    if (limited, retry == -1) not in ((0, True), (1, False)) or retry == 0:
        errors.append(f"{words} got {reply!r}")
    seen[str(words[1]), limited, limit, remaining] += 1


def batch() -> list[Words]:
    """Twelve hits with a PING after each third one."""
    out: list[Words] = []
    for index in range(12):
        out.append(hit())
        if index % 3 == 2:
            out.append(("PING",))
    return out


def turns(end: float) -> Iterator[tuple[str, list[Words]]]:
    """What one connection sends until `end`, and how."""
    turn = random.randrange(3)
    while time.monotonic() < end:
        turn += 1
        how = ("one by one", "pipeline", "transaction")[turn % 3]
        yield how, batch() if how == "pipeline" else [hit() for _ in range(4)]


def threaded(client: Any, end: float) -> None:
    """One connection of a library with redis-py's interface."""
    try:
        for how, many in turns(end):
            if how == "one by one":
                for words in many:
                    note(words, client.execute_command(*words))
                continue
            pipe = client.pipeline(transaction=how == "transaction")
            for words in many:
                pipe.execute_command(*words)
            for words, reply in zip(many, pipe.execute(), strict=True):
                note(words, reply)
    except Exception as error:
        errors.append(repr(error))
    finally:
        client.close()


async def awaited(client: Any, end: float) -> None:
    """The same of redis.asyncio."""
    try:
        for how, many in turns(end):
            if how == "one by one":
                for words in many:
                    note(words, await client.execute_command(*words))
                continue
            pipe = client.pipeline(transaction=how == "transaction")
            for words in many:
                pipe.execute_command(*words)
            for words, reply in zip(many, await pipe.execute(), strict=True):
                note(words, reply)
    except Exception as error:
        errors.append(repr(error))
    finally:
        await client.aclose()


async def all_awaited(clients: list[Any], end: float) -> None:
    """Run all clients at once."""
    await asyncio.gather(*(awaited(client, end) for client in clients))


def main() -> None:
    """See the head of the package."""
    name, port, seconds, connections = sys.argv[1], *map(int, sys.argv[2:])
    end = time.monotonic() + seconds
    library, _, protocol = name.partition("-")
    module = importlib.import_module(library)
    made = getattr(module, library.partition(".")[0].capitalize())
    clients = [
        made(port=port, socket_timeout=20, protocol=int(protocol or 2)) for _ in range(connections)
    ]
    if library.endswith("asyncio"):
        asyncio.run(all_awaited(clients, end))
    else:
        threads = [threading.Thread(target=threaded, args=(each, end)) for each in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for (key, limited, limit, remaining), count in seen.items():
        print(key, limited, limit, remaining, count)
    for error in errors[:20]:
        print("ERROR", error)


if __name__ == "__main__":
    main()
