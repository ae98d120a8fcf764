"""A proxy in front of a server with injected faults, and clients that check every reply. Shared by
chaos and soak.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Protocol

import redis.asyncio as client_library
from redis import exceptions as errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests import harness, processes
from tests.clusters import Cluster
from tests.harness import RedisServer
from tests.integration.started import Started
from tests.stress import checks
from tests.stress.checks import Tally, Violations

CLIENT = Path(__file__).parent / "ioredis_load.js"
REPLY_TIMEOUT_S = 12.0  # seconds; a client that waits longer for a reply has been forgotten
EPOCH_S = 1.0  # seconds for which a key is hit before its count is checked
FIRST_MAX = 20_000  # of the rules, which are identified by their max
LIVE_S = 3600
AMONG = 6  # the place of an ECHO among twelve hits
RELEASE_S = 5.0  # seconds in which the proxy must have released its clients

# Errors a client may get while the server is unreachable; they reveal no other client's data.
EXPECTED_ERRORS = (
    *("UPSTREAMDOWN", "LOADING", "ERR max number of clients", "READONLY", "MASTERDOWN"),
    *("ERR Protocol error", "EXECABORT", "UNBLOCKED"),
)
LOST = (errors.ConnectionError, errors.TimeoutError, OSError, asyncio.IncompleteReadError, EOFError)


class WatchedProxy(Started):
    """A proxy that reports its resources; see watched.py."""

    def __init__(self, *args: str) -> None:
        self._directory = tempfile.mkdtemp(prefix="rlproxy-stress-")
        self._socket = str(Path(self._directory) / "watch")
        super().__init__(self._socket, *args, module="tests.stress.watched")

    def counts(self) -> dict[str, int]:
        """Its tasks and objects, open files, and resident KB."""
        found: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(self._socket)
            found.update(json.loads(sock.makefile().read()))
        found["fds"] = self.fds()
        found["rss_kb"] = self.rss() // 1024
        return found

    def counts_after(self, base: dict[str, int], names: Collection[str]) -> dict[str, int]:
        """Return the counts once those of `names` are back at `base`, or after RELEASE_S."""
        end = time.monotonic() + RELEASE_S
        while True:
            now = self.counts()
            back = all(now.get(name, 0) <= base.get(name, 0) for name in names)
            if back or time.monotonic() > end:
                return now
            time.sleep(0.1)

    def fds(self) -> int:
        """The number of its open files."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss(self) -> int:
        """Its resident memory in bytes."""
        return processes.memory(self.pid)

    def close(self) -> None:
        """End the process; fail if it wrote a traceback."""
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class World:
    """The server or cluster, the replies its clients got, and the times of the server's starts."""

    def __init__(
        self, engine: str, seed: int, violations: Violations, cluster: Cluster | None = None
    ) -> None:
        self.cluster = cluster
        self.server = cluster.nodes[0] if cluster else _server(engine)
        self.violations = violations
        self.source = random.Random(seed)
        self.seed = seed
        self.life = 0  # counts the server's starts
        self.started_at = 0.0  # the latest of them, in seconds of the wall clock
        self.port = 0  # of the proxy
        self.fails_open = False  # it admits hits without the server
        self.without = 0  # the number of these hits
        self.stop = asyncio.Event()
        self.answered = 0
        self.refused = 0  # replies that report the server unreachable, and lost connections
        self.hits = 0
        self.left_blocked = 0  # BLPOPs that timed out, although a value was pushed to another node
        self.checked = 0  # keys whose count was compared with the server's
        self.errors: dict[str, int] = {}
        self._maxima = iter(range(FIRST_MAX, 90_000))
        self._closing: list[tuple[str, Tally, int]] = []

    def fail(self, kind: str, evidence: str) -> None:
        """Record a violation."""
        self.violations.add(kind, evidence)

    def error(self, error: BaseException) -> None:
        """A client got an error: either an expected one, or a violation."""
        text = f"{type(error).__name__}: {error}"
        self.refused += 1
        kind = text[:60]
        if len(self.errors) < 40 or kind in self.errors:
            self.errors[kind] = self.errors.get(kind, 0) + 1
        if isinstance(error, LOST):
            return
        message = str(error)
        if not any(
            message.startswith(one.removeprefix("ERR ")) or one in message
            for one in EXPECTED_ERRORS
        ):
            self.fail("an unexpected error", text)

    def next_max(self) -> int:
        """A max that no other recent key has."""
        found = next(self._maxima, None)
        if found is None:
            self._maxima = iter(range(FIRST_MAX, 90_000))
            found = next(self._maxima)
        return found

    def client(self, protocol: int = 2, port: int = 0) -> client_library.Redis:
        """A new connection without retries; to `port`, or to the proxy."""
        return client_library.Redis(
            host="127.0.0.1",
            port=port or self.port,
            protocol=protocol,
            decode_responses=True,
            single_connection_client=True,
            socket_timeout=REPLY_TIMEOUT_S,
            socket_connect_timeout=REPLY_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    def finished(self, key: str, tally: Tally, life: int) -> None:
        """No more hits on `key`: it can be checked."""
        self._closing.append((key, tally, life))

    async def check_counts(self) -> None:
        """Compare the server's counts with the replies that clients got."""
        waiting, self._closing = self._closing, []
        if not waiting:
            return
        now = self.life
        try:
            held = await asyncio.to_thread(self._cardinalities, [key for key, _, _ in waiting])
        except (OSError, AssertionError, ValueError):
            self._closing = waiting + self._closing  # it is unreachable: check later
            return
        for (key, tally, life), count in zip(waiting, held, strict=True):
            if isinstance(count, int):
                same = life == now == self.life
                checks.check_count(self.violations, key, tally, count, same)
                self.checked += 1
            elif self.cluster is not None:
                self._closing.append((key, tally, life))  # its slot is moving: check later

    def _cardinalities(self, keys: list[str]) -> list[object]:
        if self.cluster is not None:
            return [_taken(self.cluster, key) for key in keys]
        with harness.Raw(self.server.port) as raw:
            raw.sock.settimeout(5)
            raw.send(b"".join(harness.command("ZCARD", key) for key in keys))
            return [raw.reply() for _ in keys]

    @property
    def closing(self) -> int:
        """The number of keys that wait for their check."""
        return len(self._closing)

    def answers(self) -> bool:
        """Whether the server itself answers."""
        try:
            with harness.Raw(self.server.port) as raw:
                raw.sock.settimeout(0.5)
                raw.send(b"PING\r\n")
                return raw.sock.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def _server(engine: str) -> RedisServer:
    return RedisServer(engine, harness.engines()[engine], ("--maxclients", "2000"))


def _taken(cluster: Cluster, key: str) -> object:
    """Return the count and remove the key, as a slot with fewer keys moves faster.

    Returns an error or None while its slot moves.
    """
    count = None
    with contextlib.suppress(OSError, AssertionError), cluster.owner_of_key(key).raw() as raw:
        count = raw.ask("ZCARD", key)
        if isinstance(count, int):
            raw.ask("UNLINK", key)
    return count


async def command(one: Any, *words: str | int) -> Any:
    """The reply to a command that the library does not have."""
    return await one.execute_command(*words)


async def close(one: Any) -> None:
    """Close a client or a subscription."""
    await one.aclose()


async def until_stopped(
    world: World,
    work: Callable[[client_library.Redis], Awaitable[None]],
    protocol: int,
    reconnects: bool = False,
) -> None:
    """Run `work` with one client, and again with a new one after each lost connection."""
    while not world.stop.is_set():
        one = world.client(protocol)
        try:
            for _ in range(20 if reconnects else 1 << 30):
                if world.stop.is_set():
                    break
                try:
                    await work(one)
                except errors.ResponseError as error:
                    world.error(error)
                    await asyncio.sleep(0.02)
        except LOST as error:
            if isinstance(error, (errors.TimeoutError, TimeoutError)):
                task = type(work).__name__
                world.fail("forgotten", f"{task}: no reply within {REPLY_TIMEOUT_S:g} s: {error}")
            world.error(error)
            await asyncio.sleep(0.02)
        finally:
            with contextlib.suppress(Exception):
                await one.aclose()


class EchoWork:
    """ECHO alone and pipelined, its own key, its own counter, MULTI."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._count = 0
        self._wrote: set[str | None] = {None}
        self._increments = 0

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}:{self._count}"

    async def __call__(self, one: client_library.Redis) -> None:
        world, source = self._world, self._world.source
        kind = source.randrange(5)
        if kind == 0:
            sent = self._next()
            checks.check_echo(world.violations, sent, await one.echo(sent))
            world.answered += 1
        elif kind == 1:
            sents = [self._next() for _ in range(source.randrange(2, 30))]
            pipe = one.pipeline(transaction=False)
            for sent in sents:
                pipe.echo(sent)
            got = await pipe.execute(raise_on_error=False)
            checks.check_order(world.violations, sents, got)
            world.answered += len(got)
        elif kind == 2:
            value = self._next()
            self._wrote.add(value)
            await one.set(self._name, value)
            self._wrote = {None, value}
            checks.check_own_key(
                world.violations, self._name, self._wrote, await one.get(self._name)
            )
            world.answered += 2
        elif kind == 3:
            self._increments += 1
            checks.check_increment(
                world.violations, self._name, self._increments, await one.incr(f"{self._name}:n")
            )
            world.answered += 1
        else:
            sents = [self._next() for _ in range(3)]
            pipe = one.pipeline(transaction=True)
            for sent in sents:
                pipe.echo(sent)
            checks.check_order(world.violations, sents, await pipe.execute())
            world.answered += 5


class HitWork:
    """Hits on its own key, alone, pipelined and among others, that are counted and compared."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._epoch += 1
        self._key = f"{self._name}:{self._epoch}"
        self._max = self._world.next_max()
        self._tally = Tally()
        self._life = self._world.life
        self._until = time.monotonic() + EPOCH_S * (0.5 + self._world.source.random())

    async def __call__(self, one: client_library.Redis) -> None:
        world = self._world
        if time.monotonic() > self._until:
            world.finished(self._key, self._tally, self._life)
            self._begin()
        many = world.source.choice((1, 1, 1, 1, 3, 12, 80))
        words = ("RL.HIT", self._key, self._max, LIVE_S, "ALGO", "ZLOG")
        tally = self._tally
        tally.sent += many
        tally.unknown += many
        if many == 1:
            got = [await _told(command(one, *words))]
        else:
            pipe = one.pipeline(transaction=many == 3)
            for number in range(many):
                if many == 12 and number == AMONG:  # so that they go by the private connection
                    pipe.echo(self._key)
                pipe.execute_command(*words)
            got = await pipe.execute(raise_on_error=False)
            if many == 12:
                checks.check_order(world.violations, [self._key], [got.pop(AMONG)])
        for reply in got:
            world.answered += 1
            if isinstance(reply, errors.ResponseError):
                world.error(reply)  # the outcome stays unknown
                continue
            if world.fails_open and checks.without_redis(self._max, reply):
                world.without += 1  # the outcome is unknown, too
                continue
            admitted = checks.check_hit(world.violations, self._key, self._max, reply)
            if admitted is not None:
                tally.unknown -= 1
                tally.admitted += admitted
        world.hits += many

    def end(self) -> None:
        """Stop hitting."""
        self._world.finished(self._key, self._tally, self._life)


async def _told(reply: Awaitable[Any]) -> Any:
    try:
        return await reply
    except errors.ResponseError as error:
        return error


class ForeignLoad:
    """ioredis, where node has it: the same checks in its own process; it prints a line for each
    key.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, connections: int) -> bool:
        """Start the process; return whether that is possible."""
        node = shutil.which("node")
        if node is None:
            return False
        probe = await asyncio.create_subprocess_exec(
            *(node, "-e", 'require("ioredis")'),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await probe.wait():
            return False
        self._process = await asyncio.create_subprocess_exec(
            *(node, str(CLIENT), str(self._world.port), str(connections)),
            *(["open"] if self._world.fails_open else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        return True

    async def _read(self) -> None:
        world = self._world
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            found = json.loads(line)
            if "violation" in found:
                world.fail(found["violation"], f"ioredis: {found['evidence']}")
            elif "key" in found:
                tally = Tally(found["sent"], found["admitted"], found["unknown"])
                begun_now = found["began_s"] > world.started_at
                life = world.life if begun_now else -1  # otherwise only the upper bound is certain
                world.finished(found["key"], tally, life)
                world.hits += found["sent"]
                world.answered += found["answered"]
                world.without += found["without"]

    async def finish(self) -> None:
        """End the process and read its report."""
        if self._process is None or self._reading is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._reading, 30)
        except TimeoutError:
            self._world.fail("forgotten", "ioredis did not end within 30 s")
            self._process.kill()
        code = await self._process.wait()
        if code:
            self._world.fail("client", f"ioredis ended with exit code {code}")


def log(text: str) -> None:
    """Print a readable line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Judged(Protocol):
    """A run of chaos or soak, as its summary needs it."""

    seed: int
    violations: Violations
    errors: dict[str, int]


@contextlib.asynccontextmanager
async def watched_proxy(
    violations: Violations, url: str, args: list[str]
) -> AsyncIterator[WatchedProxy]:
    """Run a proxy in front of the server at `url`. A traceback in its log is a violation."""
    words = ("--listen", "127.0.0.1:0", "--upstream", url, *args)
    proxy = await asyncio.to_thread(lambda: WatchedProxy(*words))
    try:
        yield proxy
    finally:
        try:
            await asyncio.to_thread(proxy.close)
        except AssertionError as error:
            violations.add("traceback", str(error)[-2000:])


def command_line(name: str, doc: str | None, clients: int, of_clients: str) -> ArgumentParser:
    """Return the options of all runs: of how many clients, and of what they are."""
    parser = ArgumentParser(prog=f"python -m tests.{name}", description=doc)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    engines, default = sorted(harness.engines()), harness.one_engine()
    parser.add_argument("--engine", choices=engines, default=default, help=f"default: {default}")
    parser.add_argument("--clients", type=int, default=clients, help=of_clients)
    parser.add_argument("--proxy-args", default="", help="further arguments of the proxy")
    return parser


def finish(run: Coroutine[Any, Any, int]) -> int:
    """Run to the end; return the exit code."""
    try:
        return asyncio.run(run)
    except KeyboardInterrupt:
        print("stopped before its end: nothing is checked", file=sys.stderr)
        return 130


def verdict(what: str, world: Judged, facts: list[str]) -> int:
    """Print the summary; return the exit code."""
    print(f"\n{what}: seed {world.seed}")
    for fact in facts:
        print(f"  {fact}")
    if world.errors:
        most = sorted(world.errors.items(), key=lambda pair: -pair[1])[:8]
        print("  errors sent to clients: " + "; ".join(f"{count} x {text}" for text, count in most))
    for line in world.violations.lines:
        print(f"  VIOLATION {line}")
    if world.violations:
        print(f"  FAILED: {world.violations.counts} (again: --seed {world.seed})")
        return 1
    print("  all held")
    sys.stdout.flush()
    return 0
