"""The processes of a run: a cluster of masters, and a proxy in front of it."""

from __future__ import annotations

import itertools
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import cpu, parts
from ..client import Client
from ..errors import BenchError
from ..processes import Process, free_port, resident_bytes

SLOTS: Final = 16_384
BUS_OFFSET: Final = 10_000  # from a node's port to that of its cluster bus
READY_S: Final = 30.0  # seconds until all nodes agree, at most
ANSWERED_S: Final = 0.05  # pause until what was under way is answered
PUBLISHED_S: Final = 0.35  # the same, and until each worker has published its counters
LOOK_S: Final = 0.02  # seconds between two looks while waiting
_CALLS: Final = re.compile(r"^cmdstat_eval(?:sha)?:calls=(\d+)", re.MULTILINE)
_SERVED: Final = ("admitted", "refused", "refused_locally")


@dataclass(frozen=True)
class Node:
    """One master."""

    port: int
    process: Process

    def fields(self, section: str) -> dict[str, str]:
        """Return the fields of INFO `section`. Raises BenchError."""
        with Client(self.port) as client:
            return fields(client.text(b"INFO", section.encode()))

    def script_calls(self) -> int:
        """Return how many scripts it has been called for so far. Raises BenchError."""
        with Client(self.port) as client:
            text = client.text(b"INFO", b"commandstats").replace("\r", "")
        return sum(int(count) for count in _CALLS.findall(text))


@dataclass(frozen=True)
class Cluster:
    """Masters that share all slots evenly, without replicas."""

    nodes: Sequence[Node]

    @property
    def url(self) -> str:
        """The value of --upstream."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def ask_all(self, *words: bytes) -> None:
        """Send a command to each node. Raises BenchError."""
        for node in self.nodes:
            with Client(node.port) as client:
                client.ask(*words)


@dataclass(frozen=True)
class Proxy:
    """A running proxy."""

    port: int
    workers: int
    process: Process

    def stats(self) -> dict[str, str]:
        """Return the fields of RL.STATS. Raises BenchError."""
        with Client(self.port) as client:
            return fields(client.text(b"RL.STATS"))

    def settled(self) -> Mapping[str, str]:
        """Return the fields of RL.STATS, some time after the last hit.

        A worker sees the counters of the others late. Raises BenchError if hits have failed.
        """
        time.sleep(PUBLISHED_S if self.workers > 1 else ANSWERED_S)
        stats = self.stats()
        if (served := sum(int(stats[name]) for name in _SERVED)) != int(stats["hits"]):
            raise BenchError(f"of {stats['hits']} hits only {served} were admitted or refused")
        return stats

    def resident_bytes(self) -> int:
        """Return the resident memory of all its processes."""
        return sum(map(resident_bytes, cpu.family(self.process.pid)))


def fields(text: str) -> dict[str, str]:
    """Return the fields of a text in the format of INFO."""
    return dict(line.split(":", 1) for line in text.replace("\r", "").split("\n") if ":" in line)


@contextmanager
def cluster(executable: str, masters: int) -> Iterator[Cluster]:
    """Run a cluster of `masters`, which ends with the context. Raises BenchError."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlproxy-bench-")))
        nodes: list[Node] = []
        for number in range(masters):
            port, own = _port(), home / str(number)
            own.mkdir()
            argv = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            argv += ["--appendonly", "no", "--cluster-enabled", "yes", "--dir", str(own)]
            process = Process(argv, own / "log")
            stack.callback(process.close)
            nodes.append(Node(port, process))
        for node in nodes:
            node.process.await_port(node.port)
        made = Cluster(nodes)
        _join(made)
        yield made


@contextmanager
def proxy(upstream: Cluster, workers: int) -> Iterator[Proxy]:
    """Run a proxy in front of the cluster, which ends with the context. Raises BenchError."""
    argv = [sys.executable, "-m", "rlproxy", "--listen", "127.0.0.1:0", "--upstream", upstream.url]
    argv += ["--workers", str(workers)]
    with tempfile.TemporaryDirectory(prefix="rlproxy-bench-") as home:
        process = Process(argv, Path(home, "proxy.log"), parts.environ(parts.PROXY))
        try:
            yield Proxy(parts.announced(process), workers, process)
        finally:
            process.close()


def _port() -> int:
    """Return a free port whose bus port is free, too."""
    while True:
        port = free_port()
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port + BUS_OFFSET))
            return port


def _join(made: Cluster) -> None:
    """Give out the slots, and wait until every node serves all of them."""
    count = len(made.nodes)
    bounds = [index * SLOTS // count for index in range(count + 1)]
    first_port = b"%d" % made.nodes[0].port
    for epoch, (node, (first, end)) in enumerate(
        zip(made.nodes, itertools.pairwise(bounds), strict=True), 1
    ):
        with Client(node.port) as client:
            client.ask(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % epoch)
            client.ask(b"CLUSTER", b"ADDSLOTS", *(b"%d" % slot for slot in range(first, end)))
            if epoch > 1:
                client.ask(b"CLUSTER", b"MEET", b"127.0.0.1", first_port)
    end_s = time.monotonic() + READY_S
    for node in made.nodes:
        while not _knows_all(node, count):
            node.process.check(end_s)
            time.sleep(LOOK_S)


def _knows_all(node: Node, masters: int) -> bool:
    with Client(node.port) as client:
        found = fields(client.text(b"CLUSTER", b"INFO"))
    return found["cluster_state"] == "ok" and found["cluster_known_nodes"] == str(masters)
