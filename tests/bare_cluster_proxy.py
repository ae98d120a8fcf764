"""A TCP server whose clients each get one ClusterConnection: the connection alone, without a
session.

with bare_cluster_proxy(cluster) as proxy, proxy.raw() as client:
    client.ask("SET", "key", "value")

Run as a program: `python -m tests.bare_cluster_proxy PORT URL [--no-split]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import cast

from rlproxy.config.urls import parse_upstream
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.target import ClusterTarget

from tests import clusters, processes
from tests.harness import ROOT, START_S, Raw, free_port, wait_until

TIMEOUT_S = 5.0


class Upstream(asyncio.Protocol):
    """What a session does with its connection to Redis, reduced to passing bytes on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def pause_writing(self) -> None:
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._client.transport.is_closing():
            self._client.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.transport.close()


class Client(asyncio.Protocol):
    """One client; what it sends before the cluster is reached is kept."""

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._early = b""
        self._upstream: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._task = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            upstream = await self._target.connect(lambda: Upstream(self))
        except OSError as error:
            self.transport.write(b"-UPSTREAMDOWN %b\r\n" % str(error).encode())
            self.transport.close()
            return
        if self.transport.is_closing():
            upstream.abort()
            return
        self._upstream = upstream
        if self._early:
            upstream.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.write(data)
        else:
            self._early += data

    def eof_received(self) -> bool:
        if self._upstream is not None:
            self._upstream.write_eof()
        return True

    def pause_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream is not None:
            self._upstream.abort()


class BareClusterProxy:
    """The process of such a server, in front of the cluster at `url`."""

    def __init__(self, url: str, *args: str) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bare_cluster_proxy", str(self.port), url, *args],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=ROOT,
        )
        try:
            wait_until(self._accepts, "the bare proxy listens", START_S)
        except BaseException:
            self.close()
            raise

    def _accepts(self) -> bool:
        assert self._process.poll() is None, self.log()
        with contextlib.suppress(OSError):
            Raw(self.port).close()
            return True
        return False

    def log(self) -> str:
        """Return the text that it has written to stderr so far."""
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        return processes.memory(self._process.pid)

    def raw(self) -> Raw:
        """Return a new connection."""
        return Raw(self.port)

    def resp3(self) -> Raw:
        """Return a new connection that uses RESP3."""
        made = self.raw()
        assert isinstance(made.ask("HELLO", 3), dict)
        return made

    def close(self) -> None:
        """End the process; fail if it wrote a traceback."""
        self._process.kill()
        self._process.wait()
        log = self.log()
        self._log.close()
        assert "Traceback" not in log, log


@contextlib.contextmanager
def bare_cluster_proxy(cluster: clusters.Cluster, *args: str) -> Iterator[BareClusterProxy]:
    """Run a bare proxy in front of `cluster`."""
    made = BareClusterProxy(cluster.url, *args)
    try:
        yield made
    finally:
        made.close()


async def serve(port: int, url: str, splits: bool) -> None:
    """Serve clients at `port` until the process ends."""
    cluster = Cluster(parse_upstream(url), TIMEOUT_S)
    cluster.start()
    await asyncio.wait_for(cluster.settled.wait(), TIMEOUT_S)
    target = ClusterTarget("cluster", cluster, lambda _: Face("127.0.0.1", port), splits)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(target), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], "--no-split" not in sys.argv))
