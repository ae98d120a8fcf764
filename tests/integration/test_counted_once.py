"""While scripts vanish and connections are cut under load, every hit counts once, every reply is
its request's, and no client sees NOSCRIPT.

Each worker hits its own key, which is never full, each hit with a distinct max. `limit` in the
reply identifies the request, and `limit - remaining` the hit's place in the server's list: no place
may occur twice. Between the hits there are ECHOs of unique texts, invalid hits, and BLPOPs that
hold up what follows; the bytes are sent in pieces. During the load the scripts are flushed every 25
ms, and lanes, private connections and the proxy's control connection are killed every 50 ms. At
the end the list of each key holds every hit that was answered. Every other hit in it is one whose
answer was lost with a connection or was -UPSTREAMDOWN.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import harness, info
from tests.harness import Raw, RedisServer, wait_until
from tests.integration.started import client_list, private

SECONDS = 1.5  # at least
BLPOP: Final = ("BLPOP", "nothing-here", "0.005")
WRONG: Final = ("RL.HIT", "wrong", 0, 60, "MS")
WRONG_REPLY: Final = "value is not an integer or out of range"
Words = tuple[str | int, ...]
_echoes = itertools.count()


@dataclass
class Worker:
    """One worker's record of its key."""

    number: int
    sent: int = 0
    admitted: int = 0
    unknown: int = 0
    cuts: int = 0
    places: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"once:{self.number}"

    def hit(self) -> Words:
        """A hit that differs from all recent ones of this worker."""
        self.sent += 1
        return ("RL.HIT", self.key, 100_000 + self.sent % 9973, 3600)

    def batch(self, kind: int) -> list[Words]:
        """One write: hits, hits and commands, a transaction, or one hit."""
        if kind == 0:
            return [self.hit() for _ in range(random.randint(1, 16))]
        if kind == 1:
            return [self.other() if random.random() < 0.4 else self.hit() for _ in range(12)]
        if kind == 2:
            inside = [self.hit(), ("ECHO", f"echo-{next(_echoes)}"), self.hit()]
            return [("MULTI",), *inside, ("EXEC",)]
        return [self.hit()]

    def other(self) -> Words:
        """Another command."""
        chance = random.random()
        return BLPOP if chance < 0.05 else WRONG if chance < 0.4 else ("ECHO", f"e{next(_echoes)}")

    def note(self, words: Words, reply: Any) -> None:
        """Check one reply to `words`."""
        if words[0] == "ECHO":
            if reply not in (words[1], str(words[1]).encode()):
                self.problems.append(f"{words} got {reply!r}")
            return
        if words is BLPOP:
            if reply is not None:
                self.problems.append(f"{words} got {reply!r}")
            return
        if words is WRONG:
            if not isinstance(reply, Exception) or WRONG_REPLY not in str(reply):
                self.problems.append(f"{words} got {reply!r}")
            return
        if isinstance(reply, Exception):
            if str(reply).startswith("UPSTREAMDOWN "):
                self.unknown += 1
            else:
                self.problems.append(f"{words} got {reply!r}")
            return
        if not isinstance(reply, list) or len(reply) != 5:
            self.problems.append(f"{words} got {reply!r}")
            return
        limited, limit, remaining, retry, _ = reply
        place = limit - remaining
        if (limited, limit, retry) != (0, words[2], -1) or place in self.places:
            self.problems.append(f"{words} got {reply!r} at place {place}")
        self.places.add(place)
        self.admitted += 1

    def cut(self, unanswered: list[Words]) -> None:
        """The connection ended before these were answered."""
        self.cuts += 1
        self.unknown += sum(words[0] == "RL.HIT" and words is not WRONG for words in unanswered)


def packed(words: Words) -> bytes:
    return harness.command(*words)


# -- workers --------------------------------------------------------------------------------------


async def by_streams(worker: Worker, port: int, over: threading.Event) -> None:
    """hiredis' parser over asyncio streams: sees every reply in order."""
    while not over.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        parser = hiredis.Reader()
        owed: list[Words] = []
        try:
            while not over.is_set():
                kind = random.randrange(4)
                many = owed = worker.batch(kind)
                if kind == 1:
                    many = owed = many + worker.batch(0) + worker.batch(1)
                await write_in_pieces(writer, b"".join(packed(words) for words in many))
                got: list[Any] = []
                while len(got) < len(many):
                    data = await asyncio.wait_for(reader.read(65536), harness.DEADLINE_S)
                    if not data:
                        raise ConnectionResetError
                    parser.feed(data)
                    while (reply := parser.gets()) is not False:
                        if kind != 2:
                            worker.note(many[len(got)], reply)
                            owed = many[len(got) + 1 :]
                        got.append(reply)
                if kind == 2:
                    transaction(worker, many, got)
                owed = []
                if parser.has_data():
                    worker.problems.append("more replies than requests")
        except ConnectionError:
            worker.cut(owed)
        except TimeoutError:
            worker.problems.append(f"no reply: {owed}")
            return
        finally:
            writer.close()


async def write_in_pieces(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write the bytes, sometimes cut, so that replies begin before all requests are sent."""
    while len(data) > 40 and random.random() < 0.5:
        at = random.randrange(1, len(data))
        writer.write(data[:at])
        await asyncio.sleep(random.random() * 0.002)
        data = data[at:]
    writer.write(data)


def transaction(worker: Worker, many: list[Words], got: list[Any]) -> None:
    """All replies to MULTI ... EXEC."""
    inside = many[1:-1]
    if got[0] != b"OK" or got[1:-1] != [b"QUEUED"] * len(inside) or not isinstance(got[-1], list):
        worker.problems.append(f"{many} got {got}")
        return
    if len(got[-1]) != len(inside):
        worker.problems.append(f"{many} got {got}")
        return
    for words, reply in zip(inside, got[-1], strict=True):
        worker.note(words, reply)


def by_raw(worker: Worker, port: int, over: threading.Event) -> None:
    """Blocking sockets, without a library."""
    while not over.is_set():
        owed: list[Words] = []
        with Raw(port) as raw:
            try:
                while not over.is_set():
                    owed = worker.batch(random.choice((0, 1, 3)))
                    raw.send(b"".join(packed(words) for words in owed))
                    while owed:
                        worker.note(owed[0], raw.reply())
                        del owed[0]
            except Exception as error:
                if not raw.closed:
                    worker.problems.append(repr(error))
                    return
                worker.cut(owed)


def by_library(worker: Worker, port: int, over: threading.Event) -> None:
    """redis-py, which reconnects automatically."""
    client: Any = redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=20)
    while not over.is_set():
        kind = random.randrange(3)
        many = worker.batch(3 if kind == 2 else kind)
        try:
            if kind == 2:
                try:
                    worker.note(many[0], client.execute_command(*many[0]))
                except redis.ResponseError as error:
                    worker.note(many[0], error)
                continue
            pipe = client.pipeline(transaction=kind == 0)
            for words in many:
                pipe.execute_command(*words)
            for words, reply in zip(many, pipe.execute(raise_on_error=False), strict=True):
                worker.note(words, reply)
        except redis.ConnectionError:
            worker.cut(many)
        except Exception as error:
            worker.problems.append(repr(error))
            break
    client.close()


# -- the disturbance ------------------------------------------------------------------------------


class Disturber:
    """Flushes the scripts every 25 ms; kills connections of the named types every 50 ms."""

    def __init__(self, server: RedisServer, kill_private: bool) -> None:
        self.server = server
        self.kill_private = kill_private
        self._stop = threading.Event()
        self.killed = {"lane": 0, "control": 0, "private": 0}
        self._threads = [threading.Thread(target=f) for f in (self._flush, self._kill)]
        for thread in self._threads:
            thread.start()

    def _flush(self) -> None:
        with self.server.raw() as raw:
            assert raw.ask("CLIENT", "SETNAME", "rlproxy-not-the-flusher") == "OK"
            while not self._stop.wait(0.025):
                assert raw.ask("SCRIPT", "FLUSH") == "OK"

    def _kill(self) -> None:
        with self.server.raw() as raw:
            turn = 0
            while not self._stop.wait(0.05):
                turn += 1
                rows = client_list(self.server, raw)
                by_sort: dict[str, list[str]] = {"lane": [], "control": [], "private": []}
                for row in rows:
                    name = row["name"]
                    sort = (
                        name.removeprefix("rlproxy-") if name.startswith("rlproxy-") else "private"
                    )
                    by_sort.get(sort, []).append(row["id"])
                victims = []
                if turn % 2:  # every other time, or there would hardly ever be a lane
                    victims += [("lane", number) for number in by_sort["lane"]]
                elif self.kill_private:
                    few = random.sample(by_sort["private"], min(5, len(by_sort["private"])))
                    victims += [("private", number) for number in few]
                if turn % 8 == 0:
                    victims += [("control", number) for number in by_sort["control"]]
                for sort, number in victims:
                    self.killed[sort] += raw.ask("CLIENT", "KILL", "ID", number) == 1

    def end(self) -> None:
        """Stop."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)


@pytest.mark.parametrize("kill_private", [True, False], ids=["all-killed", "lanes-killed"])
def test_every_hit_counts_once(own_server: RedisServer, kill_private: bool) -> None:
    numbers = itertools.count()
    workers: list[Worker] = []

    def made(count: int) -> Iterator[Worker]:
        for _ in range(count):
            workers.append(Worker(next(numbers)))
            yield workers[-1]

    with harness.proxy(own_server) as proxy:
        port = proxy.port
        over = threading.Event()
        threads = [
            threading.Thread(target=work, args=(worker, port, over))
            for work in (by_raw, by_library)
            for worker in made(8)
        ]

        async def in_loop() -> None:
            await asyncio.gather(*(by_streams(worker, port, over) for worker in made(24)))

        for thread in threads:
            thread.start()
        disturber = Disturber(own_server, kill_private)
        threads.append(threading.Thread(target=until_enough, args=(over, workers, disturber)))
        threads[-1].start()
        try:
            asyncio.run(in_loop())
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
            disturber.end()
        wait_until(lambda: all_disconnected(own_server), "nothing runs any more")
        check(own_server, workers, disturber)


def all_disconnected(server: RedisServer) -> bool:
    """Whether no client of the proxy is connected any more."""
    return not private(server)


def missing(workers: list[Worker], disturber: Disturber) -> str:
    """The events that have not happened often enough to prove anything."""
    killed = disturber.killed
    for worker in workers:
        if worker.admitted < 20:
            return f"{worker.key} did next to nothing"
    if killed["lane"] < 10 or killed["control"] < 3:
        return f"{killed}"
    if disturber.kill_private:
        if killed["private"] < 30:
            return f"{killed}"
        if sum(worker.cuts for worker in workers) < 20:
            return "hardly a client was cut"
    if info.errors(disturber.server, "NOSCRIPT") < 5:
        return "no script was missed: nothing was mended"
    return ""


def until_enough(over: threading.Event, workers: list[Worker], disturber: Disturber) -> None:
    """End it after SECONDS, or later where the machine is slow."""
    end = time.monotonic() + 8 * SECONDS
    over.wait(SECONDS)
    while time.monotonic() < end and missing(workers, disturber):
        over.wait(0.2)
    over.set()


def check(server: RedisServer, workers: list[Worker], disturber: Disturber) -> None:
    problems = [text for worker in workers for text in worker.problems]
    assert problems == []
    assert missing(workers, disturber) == ""
    admitted = unknown = 0
    with server.raw() as raw:
        for worker in workers:
            held = raw.ask("LLEN", worker.key)
            assert isinstance(held, int)
            assert worker.admitted <= held <= worker.admitted + worker.unknown, worker.key
            assert max(worker.places) <= held
            admitted += worker.admitted
            unknown += worker.unknown
    assert unknown < 0.5 * admitted, "too many answers were lost to prove anything"
    if not disturber.kill_private:
        assert not any(worker.cuts for worker in workers), "a lost lane closed a client"
