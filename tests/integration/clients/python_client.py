"""A load client for Python's libraries: `python_client.py LIBRARY PORT SECONDS CONNECTIONS`."""

from __future__ import annotations

import asyncio
import importlib
import random
import socket
import sys
import threading
import time
from collections import Counter
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


def threaded(connect: Any, end: float) -> None:
    """One connection of a library with redis-py's interface."""
    client = connect()
    try:
        turn = random.randrange(3)
        while time.monotonic() < end:
            turn += 1
            if turn % 3 == 0:
                for _ in range(4):
                    words = hit()
                    note(words, client.execute_command(*words))
                continue
            many = batch() if turn % 3 == 1 else [hit() for _ in range(4)]
            pipe = client.pipeline(transaction=turn % 3 == 2)
            for words in many:
                pipe.execute_command(*words)
            for words, reply in zip(many, pipe.execute(), strict=True):
                note(words, reply)
    except Exception as error:
        errors.append(repr(error))
    finally:
        client.close()


def packed(words: Words) -> bytes:
    """A request of these words."""
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


async def streams(port: int, end: float) -> None:
    """hiredis' parser over asyncio streams."""
    import hiredis

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parser = hiredis.Reader()
    replies: list[Any] = []

    async def take(count: int) -> list[Any]:
        while len(replies) < count:
            data = await reader.read(65536)
            if not data:
                raise ConnectionError("closed")
            parser.feed(data)
            while (reply := parser.gets()) is not False:
                replies.append(reply)
        taken = replies[:count]
        del replies[:count]
        return taken

    try:
        turn = random.randrange(3)
        while time.monotonic() < end:
            turn += 1
            if turn % 3 == 0:
                for _ in range(4):
                    words = hit()
                    writer.write(packed(words))
                    note(words, (await take(1))[0])
            elif turn % 3 == 1:
                many = batch()
                writer.write(b"".join(packed(words) for words in many))
                for words, reply in zip(many, await take(len(many)), strict=True):
                    note(words, reply)
            else:
                many = [hit() for _ in range(4)]
                writer.write(b"".join(packed(w) for w in [("MULTI",), *many, ("EXEC",)]))
                got = await take(6)
                if got[:5] != [b"OK"] + [b"QUEUED"] * 4:
                    raise ConnectionError(f"MULTI got {got}")
                for words, reply in zip(many, got[5], strict=True):
                    note(words, reply)
    except Exception as error:
        errors.append(repr(error))
    finally:
        writer.close()


class Sockets:
    """A client of a few lines over a blocking socket, with as much of redis-py's interface."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), 20)
        self._file = self._sock.makefile("rb")
        self._queue: list[Words] | None = None
        self._transaction = False

    def _reply(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        raise ConnectionError(repr(line))

    def execute_command(self, *words: str | int) -> Any:
        """Send now, or queue in a pipeline."""
        if self._queue is not None:
            self._queue.append(words)
            return None
        self._sock.sendall(packed(words))
        return self._reply()

    def pipeline(self, transaction: bool) -> Sockets:
        """Begin to queue."""
        self._queue, self._transaction = [], transaction
        return self

    def execute(self) -> list[Any]:
        """Send what is queued."""
        many, self._queue = self._queue or [], None
        if self._transaction:
            self._sock.sendall(b"".join(packed(w) for w in [("MULTI",), *many, ("EXEC",)]))
            for _ in range(len(many) + 1):
                self._reply()
            taken = self._reply()
            assert isinstance(taken, list)
            return taken
        self._sock.sendall(b"".join(packed(words) for words in many))
        return [self._reply() for _ in many]

    def close(self) -> None:
        """Close it."""
        self._file.close()
        self._sock.close()


def main() -> None:
    """See the head of the package."""
    library, port, seconds, connections = sys.argv[1], *map(int, sys.argv[2:])
    end = time.monotonic() + seconds
    if library == "hiredis":

        async def by_streams() -> None:
            await asyncio.gather(*(streams(port, end) for _ in range(connections)))

        asyncio.run(by_streams())
    else:
        if library == "sockets":
            connect: Any = lambda: Sockets(port)  # noqa: E731
        else:
            client = getattr(importlib.import_module(library), library.capitalize())
            connect = lambda: client(port=port, socket_timeout=20)  # noqa: E731
        threads = [
            threading.Thread(target=threaded, args=(connect, end)) for _ in range(connections)
        ]
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
