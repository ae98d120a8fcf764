"""Other proxies in front of a Redis Cluster, one thread each: those that are installed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from .client import Client
from .errors import BenchError
from .model.nodes import LOOK_S, READY_S, Cluster, Proxy
from .processes import Process, free_port

PREDIXY: Final = "predixy"
CLUSTER_PROXY: Final = "redis-cluster-proxy"
PEERS: Final = (PREDIXY, CLUSTER_PROXY)  # their programs have the same names
SLOTS_SEEN: Final = 100  # keys that a peer must find the nodes of before it counts as ready

_PREDIXY_CONFIG: Final = """\
Bind 127.0.0.1:{port}
WorkerThreads 1
LogInfoSample 0
Authority {{
    Auth {{
        Mode admin
    }}
}}
ClusterServerPool {{
    RefreshInterval 1
    Servers {{
{servers}
    }}
}}
"""


@contextmanager
def running(upstream: Cluster) -> Iterator[dict[str, Proxy]]:
    """Run each installed peer in front of the cluster; they end with the context.

    Raises BenchError if one does not serve all nodes within READY_S seconds.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="rlproxy-bench-")))
        found: dict[str, Proxy] = {}
        for name in filter(shutil.which, PEERS):
            port = free_port()
            process = Process(_argv(name, upstream, port, home / "peer.conf"), home / f"{name}.log")
            stack.callback(process.close)
            process.await_port(port)
            _await_nodes(process, port)
            found[name] = Proxy(port, 1, process)
        yield found


def _argv(name: str, upstream: Cluster, port: int, config: Path) -> list[str]:
    addresses = [f"127.0.0.1:{node.port}" for node in upstream.nodes]
    if name == PREDIXY:
        servers = "\n".join(f"        + {address}" for address in addresses)
        config.write_text(_PREDIXY_CONFIG.format(port=port, servers=servers))
        return [name, str(config)]
    argv = [name, "--bind", "127.0.0.1", "--port", str(port), "--threads", "1"]
    return [*argv, "--log-level", "error", addresses[0]]


def _await_nodes(process: Process, port: int) -> None:
    """Wait until keys of all nodes are answered: a peer accepts clients before it has the slots."""
    end = time.monotonic() + READY_S
    while True:
        try:
            with Client(port) as client:
                client.ask_all([b"GET", b"%d" % key] for key in range(SLOTS_SEEN))
        except BenchError:
            process.check(end)
            time.sleep(LOOK_S)
        else:
            return
