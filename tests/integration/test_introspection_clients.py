"""redis-cli's help and hints, and clients that send COMMAND before a command they lack: redis-py
and ioredis, alone and against a cluster of one node that announces the proxy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio
from redis.cluster import RedisCluster
from rlproxy.ratelimit.command_entries import ENTRIES

from tests import harness
from tests.harness import DEADLINE_S, ON_EVERY_ENGINE, Proxy, RedisServer, wait_until

CLIENTS = Path(__file__).resolve().parent / "clients"
NAMES = [entry.name.decode() for entry in ENTRIES]
SYNTAX = "key max window [MS] [ALGO name] [COST n]"


# -- redis-cli -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_cli() -> str:
    """A redis-cli that sends COMMAND DOCS."""
    path = shutil.which("redis-cli")
    if path is None:
        pytest.skip("no redis-cli on this machine")
    text = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    match = re.search(r" (\d+)\.", text)
    if match is None or int(match[1]) < 7:
        pytest.skip(f"sends no COMMAND DOCS: {text}")
    return path


def output_of(redis_cli: str, proxy: Proxy, *words: str) -> str:
    """Its output without colours."""
    done = subprocess.run(
        [redis_cli, "-p", str(proxy.port), *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


@ON_EVERY_ENGINE
@pytest.mark.parametrize("options", [[], ["-3"]], ids=["RESP2", "RESP3"])
def test_redis_cli_help_lists_the_commands(
    redis_cli: str, proxy: Proxy, redis_server: RedisServer, options: list[str]
) -> None:
    text = output_of(redis_cli, proxy, *options, "help", "rl.hit")
    if redis_server.version < (7,):  # without COMMAND DOCS, redis-cli shows the result of COMMAND
        assert "RL.HIT key arg arg ...options..." in text
        return
    assert f"RL.HIT {SYNTAX}" in text
    assert "[AND max window [AND max window ...]]" in text
    assert "summary: Counts a hit" in text
    assert "group: module" in text
    if redis_server.version >= (8,):
        return  # its own module commands have no summary: redis-cli 7 may crash on the group
    text = output_of(redis_cli, proxy, *options, "help", "@module")
    for name in NAMES:
        assert name.upper() in text
    assert "GET key\n" in output_of(redis_cli, proxy, *options, "help", "get")


class Terminal:
    """A program in a terminal of 300 columns."""

    def __init__(self, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 300, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "REDISCLI_HISTFILE": "/dev/null"}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self._text = ""

    def until(self, pattern: str) -> None:
        """Wait until the output since the last match matches (colours removed)."""
        end = time.monotonic() + DEADLINE_S
        while True:
            found = re.search(pattern, self._text, re.DOTALL)
            if found:
                self._text = self._text[found.end() :]
                return
            assert time.monotonic() < end, (pattern, self._text)
            if select.select([self._master], [], [], 0.1)[0]:
                text = os.read(self._master, 65536).decode()
                self._text += re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", text)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@ON_EVERY_ENGINE
def test_redis_cli_shows_hints(redis_cli: str, proxy: Proxy, redis_server: RedisServer) -> None:
    with contextlib.closing(Terminal(redis_cli, "-p", str(proxy.port))) as terminal:
        terminal.until(r"> ")
        terminal.type("rl.hit k ")
        if redis_server.version >= (7,):
            terminal.until(r"> rl\.hit k max window \[MS\] \[ALGO name")
        terminal.type("10 60\r")
        terminal.until(r"\(integer\) 10.*\(integer\) 9.*\(integer\) -1.*\(integer\) 60")
        terminal.until(r"> ")
        terminal.type("rl.pe\t")  # completion
        terminal.until(r"(?i)> rl\.peek")


# -- redis-py --------------------------------------------------------------------------------------


@ON_EVERY_ENGINE
@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(proxy: Proxy, redis_server: RedisServer, protocol: int) -> None:
    with (
        redis.Redis(port=proxy.port, protocol=protocol, decode_responses=True) as client,
        redis.Redis(port=redis_server.port, protocol=protocol, decode_responses=True) as direct,
    ):
        theirs: Any = direct.command()
        listed: Any = client.command()
        assert set(listed) - set(theirs) == set(NAMES)
        assert {name: listed[name] for name in theirs} == theirs
        hit = listed["rl.hit"]
        assert (hit["arity"], hit["first_key_pos"], hit["step_count"]) == (-4, 1, 1)
        assert client.command_count() == len(listed)
        assert client.command_getkeys("RL.HIT", "k", 10, 60) == ["k"]
        if redis_server.version >= (7,):
            assert set(NAMES) <= set(client.command_list())


# -- a cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(one_engine: str) -> Iterator[Proxy]:
    """A proxy in front of a node that serves all slots and announces the proxy's address."""
    port = harness.free_port()
    while port > 55_000:  # a node also uses the port 10,000 above
        port = harness.free_port()
    node = RedisServer(
        one_engine, harness.engines()[one_engine], ("--cluster-enabled", "yes"), port
    )
    if node.version < (7,):
        pytest.skip("announces another port only from its start")
    try:
        with harness.proxy_of_node(node.start()) as proxy, node.raw() as raw:
            assert raw.ask("CONFIG", "SET", "cluster-announce-ip", "127.0.0.1") == "OK"
            assert raw.ask("CONFIG", "SET", "cluster-announce-port", proxy.port) == "OK"
            assert raw.ask("CLUSTER", "ADDSLOTS", *range(16384)) == "OK"
            wait_until(lambda: b"state:ok" in bytes(raw.ask("CLUSTER", "INFO")), "all is served")  # type: ignore[call-overload]
            yield proxy
    finally:
        node.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_cluster(cluster: Proxy, protocol: int) -> None:
    with RedisCluster(host="127.0.0.1", port=cluster.port, protocol=protocol) as client:
        assert [node.port for node in client.get_nodes()] == [cluster.port]
        assert client.execute_command("RL.HIT", "k", 5, 60) == [0, 5, 4, -1, 60]
        assert client.execute_command("RL.PEEK", "k", 5, 60) == [0, 5, 4, -1, 60]
        assert client.execute_command("RL.HIT", "other", 5, 60) == [0, 5, 4, -1, 60]
        assert client.execute_command("RL.RESET", "k") == 1
        client.delete("other")


async def test_redis_py_asyncio_cluster(cluster: Proxy) -> None:
    client: Any = redis_asyncio.RedisCluster(host="127.0.0.1", port=cluster.port)
    assert await client.execute_command("RL.HIT", "a", 5, 60) == [0, 5, 4, -1, 60]
    assert await client.execute_command("RL.RESET", "a") == 1
    await client.aclose()


# -- ioredis ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node_js() -> str:
    path = shutil.which("node")
    probe = [path or "node", "-e", 'require("ioredis")']
    if path is None or subprocess.run(probe, capture_output=True, cwd=CLIENTS).returncode:
        pytest.skip("no node, or no ioredis for it (npm install ioredis, NODE_PATH)")
    return path


@pytest.mark.parametrize("kind", ["single", "cluster"])
def test_ioredis(node_js: str, cluster: Proxy, kind: str) -> None:
    done = subprocess.run(
        [node_js, str(CLIENTS / "ioredis_introspection.js"), str(cluster.port), kind],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [0, 5, 4, -1, 60],
        [[None, [0, 5, 3, -1, 60]], [None, [0, 5, 3, -1, 60]]],
        1,
        ["io"],
        ["rl.hit", -4],
        1,
    ]
