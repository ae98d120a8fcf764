"""What clients get that use a cluster through the proxy, as one dict per client: redis-py and
valkey-py here, those of Node in clients/cluster_client.js.

Each client runs the same list of operations. An operation that the client or the server refuses
because of several slots has the result ONE_SLOT.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib
import json
import select
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import Raw
from tests.integration import runtimes

Results = dict[str, Any]

ONE_SLOT = "one slot"
NO_TRANSACTIONS = "no transactions"
HIT = ("RL.HIT", "limit", "5", "60")
IN_TAG = ("RL.HIT", "{tag}limit", "5", "60")
VALUES = {f"key:{number}": str(number) for number in range(6)}
KEYS = list(VALUES)
SHARDED = ["shard:1", "shard:2", "shard:3"]
SCRIPT = "return redis.call('GET', KEYS[1])"
CLIENTS = Path(__file__).resolve().parent / "clients"
LATEST_S = 10.0  # the longest wait for a message, or for a program


@dataclass(frozen=True)
class Way:
    """How a client connects.

    ca: file of the authority, for TLS.
    more: options of the client, by its own names.
    """

    host: str
    port: int
    protocol: int
    ca: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def pushes(self, plain_port: int) -> threading.Timer:
        """Return a timer that pushes an element to `list`, for a client that blocks."""

        def push() -> None:
            with Raw(plain_port) as raw:
                raw.ask("RPUSH", "list", "x")

        return threading.Timer(0.05, push)


def refused(call: Callable[[], Any]) -> Any:
    """Return its result, or why it is refused."""
    try:
        return call()
    except Exception as error:
        text = str(error).lower()
        if "slot" in text or "execabort" in text:
            return ONE_SLOT
        if "transaction is deprecated in cluster mode" in text:
            return NO_TRANSACTIONS
        raise


def normal(value: Any) -> Any:
    """Return a result without the types that a client gives it."""
    if value is True:
        return "OK"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {normal(key): normal(each) for key, each in value.items()}
    return [normal(each) for each in value] if isinstance(value, list | tuple) else value


# -- redis-py and valkey-py ------------------------------------------------------------------------


def python(library: str, kind: str, way: Way, plain_port: int) -> Results:
    """Run a client of redis-py ("redis", "redis.asyncio") or valkey-py ("valkey")."""
    name = library.partition(".")[0].capitalize()
    module = importlib.import_module(library)
    made = getattr(module, f"{name}Cluster" if kind == "cluster" else name)
    tls = {"ssl": True, "ssl_ca_certs": way.ca} if way.ca else {}
    options = {"host": way.host, "port": way.port, "protocol": way.protocol, **tls, **way.more}
    with _runner(library) as run:
        client = made(decode_responses=True, **options)
        try:
            return _use(client, kind == "cluster", run, way.pushes(plain_port))
        finally:
            run(client.aclose() if library.endswith("asyncio") else client.close())


@contextlib.contextmanager
def _runner(library: str) -> Iterator[Callable[[Any], Any]]:
    """Yield what turns the result of a client's method into a value."""
    if not library.endswith("asyncio"):
        yield lambda value: value
        return

    async def awaited(value: Awaitable[Any]) -> Any:
        return await value

    with asyncio.Runner() as runner:
        yield lambda value: runner.run(awaited(value))


def _use(
    client: Any, in_cluster: bool, run: Callable[[Any], Any], pusher: threading.Timer
) -> Results:
    out: Results = {}
    run(client.flushall())
    out["hit"] = run(client.execute_command(*HIT))
    out["set"] = [run(client.set(key, value)) for key, value in VALUES.items()]
    out["get"] = [run(client.get(key)) for key in KEYS]
    out["mset"] = refused(lambda: run(client.mset(VALUES)))
    out["mget"] = refused(lambda: run(client.mget(KEYS)))
    if in_cluster:  # its own ways over several slots
        assert run(client.mget_nonatomic(KEYS)) == list(VALUES.values())
        assert all(run(client.mset_nonatomic(VALUES)))
        resets = refused(lambda: run(client.execute_command("RL.RESET", *KEYS)))
        assert resets == ONE_SLOT
        stats = run(client.execute_command("RL.STATS", target_nodes=client.get_random_node()))
        assert "# Server" in str(stats)
    pipe = client.pipeline() if in_cluster else client.pipeline(transaction=False)
    for key in KEYS:
        pipe.get(key)
    out["pipeline"] = run(pipe.execute_command(*HIT).execute())
    out["transaction"] = refused(lambda: run(_transaction(client).execute()))
    out["crossing"] = refused(lambda: run(_crossing(client).execute()))
    out["keys"] = sorted(run(client.keys("key:*")))
    out["dbsize"] = run(client.dbsize())
    found = client.scan_iter("key:*", count=2)
    out["scan"] = sorted(run(_listed(found)) if hasattr(found, "__anext__") else found)
    digest = run(client.script_load(SCRIPT))
    out["script"] = [run(client.evalsha(digest, 1, key)) for key in KEYS]
    pusher.start()
    out["popped"] = run(client.blpop("list", timeout=int(LATEST_S)))
    pusher.join()
    out |= _messages(client, run)
    out["behind"] = run(client.get(KEYS[1]))
    info = run(client.info())
    out["mode"] = info.get("server_mode") or info["redis_mode"]
    out["del"] = refused(lambda: run(client.delete(*KEYS)))
    out["reset"] = run(client.execute_command("RL.RESET", "limit"))
    if in_cluster:
        out["nodes"] = [f"{node.host}:{node.port}" for node in client.get_nodes()]
    return out


def _transaction(client: Any) -> Any:
    pipe = client.pipeline(transaction=True)
    pipe.set("{tag}a", 1)
    pipe.incr("{tag}a")
    pipe.execute_command(*IN_TAG)
    return pipe


def _crossing(client: Any) -> Any:
    pipe = client.pipeline(transaction=True)
    pipe.set(KEYS[0], 0)
    pipe.set(KEYS[1], 1)
    return pipe


async def _listed(found: Any) -> list[Any]:
    return [each async for each in found]


def _messages(client: Any, run: Callable[[Any], Any]) -> Results:
    """Subscribe, publish and receive: plain channels, patterns and shard channels."""
    out: Results = {}
    sub = client.pubsub()
    run(sub.subscribe("news"))
    run(sub.psubscribe("new*"))
    assert _received(run, sub.get_message, 2) == [["news", 1], ["new*", 2]]
    run(client.publish("news", "m"))
    out["messages"] = _received(run, sub.get_message, 2)
    run(sub.aclose() if hasattr(sub, "aclose") else sub.close())
    sub = client.pubsub()
    read = getattr(sub, "get_sharded_message", sub.get_message)
    for channel in SHARDED:
        run(sub.ssubscribe(channel))
    assert [count for _, count in _received(run, read, len(SHARDED))] == [1, 2, 3]
    for channel in SHARDED:
        run(client.execute_command("SPUBLISH", channel, "m"))
    out["sharded"] = _received(run, read, len(SHARDED))
    for channel in SHARDED:
        run(sub.sunsubscribe(channel))
    assert [count for _, count in _received(run, read, len(SHARDED))] == [2, 1, 0]
    run(sub.aclose() if hasattr(sub, "aclose") else sub.close())
    return out


def _received(run: Callable[[Any], Any], read: Callable[..., Any], count: int) -> list[list[Any]]:
    """Return channel and content of the next `count` messages."""
    found: list[list[Any]] = []
    end = time.monotonic() + LATEST_S
    while len(found) < count and time.monotonic() < end:
        message = run(read(timeout=1))
        if message is not None:  # it may be None before the time is over
            found.append([message["channel"], message["data"]])
    return found


# -- clients of Node -------------------------------------------------------------------------------


def node(library: str, kind: str, way: Way, _plain_port: int) -> Results:
    """Run a client of ioredis or node-redis."""
    process = _node()
    assert process.stdin is not None
    assert process.stdout is not None
    print(
        json.dumps({"library": library, "kind": kind, **vars(way)}), file=process.stdin, flush=True
    )
    assert select.select([process.stdout], [], [], 6 * LATEST_S)[0], "no result"
    found = json.loads(process.stdout.readline())
    assert "error" not in found, found["error"]
    return dict(found)


@functools.cache
def _node() -> subprocess.Popen[str]:
    """Start Node, once for all its clients. It ends with this process."""
    path = runtimes.CLIENTS["ioredis"].path()
    assert path is not None
    process = subprocess.Popen(
        [path, str(CLIENTS / "cluster_client.js")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CLIENTS,
    )
    atexit.register(process.communicate)
    return process
