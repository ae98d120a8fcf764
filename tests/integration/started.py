"""A proxy started with any command line, its output in files, for tests of start and end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests import harness, prefork
from tests.harness import DEADLINE_S, START_S, Raw, RedisServer, wait_until
from tests.info import clients, lane_calls


class Started:
    """`python -m rlproxy ARGS`, started by fork unless there is a stdin or another module.

    fresh: as a user starts it, with its own command line.
    """

    def __init__(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        module: str = "rlproxy",
        stdin: int = subprocess.DEVNULL,
        fresh: bool = False,
    ) -> None:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("RLPROXY_")}
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        environment = {**kept, "RLPROXY_LOG_FORMAT": "text", **(env or {})}
        files = self._output.fileno(), self._log.fileno()
        self._process: prefork.Forked | subprocess.Popen[bytes]
        if not fresh and module == "rlproxy" and stdin == subprocess.DEVNULL:
            self._process = prefork.start(list(args), environment, *files)
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=stdin,
                stdout=files[0],
                stderr=files[1],
                env=environment,
                cwd=harness.ROOT,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def output(self) -> str:
        """The text it has written to stdout."""
        return _content(self._output.fileno())

    def log(self) -> str:
        """The text it has written to stderr, without harness.FEW_FILES."""
        return harness.FEW_FILES.sub("", self.whole_log())

    def whole_log(self) -> str:
        """The text it has written to stderr."""
        return _content(self._log.fileno())

    def logged(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until stderr matches `pattern`."""
        end = time.monotonic() + deadline_s
        while True:
            ended = self._process.poll() is not None
            found = re.search(pattern, self.log())
            if found:
                return found
            assert not ended, f"ended without {pattern!r}: {self.log()}"
            assert time.monotonic() < end, f"no {pattern!r} in: {self.log()}"
            time.sleep(0.005)

    def port(self) -> int:
        """The port of the first TCP listener; waits for the banner."""
        self.logged(r"  (try|first)  .*\n", START_S)
        return int(self.logged(r"listening on .*?127\.0\.0\.1:(\d+)")[1])

    def raw(self) -> Raw:
        """A connection to the first TCP listener."""
        return Raw(self.port())

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for the process and return its exit code."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """End the process; fail if it wrote a traceback."""
        if self.running():
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        if self.running():
            self._process.kill()
            self._process.wait()
        log = self.log()
        self._output.close()
        self._log.close()
        assert "Traceback" not in log, log


def _content(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode()


@contextlib.contextmanager
def started(
    *args: str,
    env: dict[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    fresh: bool = False,
) -> Iterator[Started]:
    """Run a proxy and end it afterwards; see Started."""
    made = Started(*args, env=env, stdin=stdin, fresh=fresh)
    try:
        yield made
    finally:
        made.close()


def ended(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a proxy that is expected to exit."""
    with started(*args) as made:
        code = made.wait()
        return code, made.output(), made.log()


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[int]:
    """The port of a server that sends these bytes to each client, or nothing, at the client's first
    bytes.
    """
    with contextlib.ExitStack() as clients, socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock = clients.enter_context(listening.accept()[0])
                    sock.recv(64)
                    sock.sendall(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


class UnixRaw(Raw):
    """A raw client connection to a unix socket."""

    def __init__(self, path: str | Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(str(path))
        self.closed = False
        self._buffer = bytearray()


def ask_once(port: int, *words: bytes | str | int) -> object:
    """The reply to one command on a new connection."""
    with Raw(port) as raw:
        return raw.ask(*words)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def children(pid: int) -> list[int]:
    """The processes that `pid` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def client_list(server: RedisServer, raw: Raw | None = None) -> list[dict[str, str]]:
    """CLIENT LIST of the server, without the connection that sends it."""
    with contextlib.ExitStack() as stack:
        used = raw or stack.enter_context(server.raw())
        me = str(used.ask("CLIENT", "ID"))
        return [row for row in clients(used) if row["id"] != me]


def lanes(server: RedisServer, raw: Raw | None = None) -> list[dict[str, str]]:
    """The lanes among the server's clients."""
    return [row for row in client_list(server, raw) if row["name"] == "rlproxy-lane"]


def private(server: RedisServer, raw: Raw | None = None) -> list[dict[str, str]]:
    """The clients that are not the proxy's own connections."""
    return [row for row in client_list(server, raw) if not row["name"].startswith("rlproxy-")]


def by_lane(server: RedisServer, raw: Raw, admin: Raw | None = None) -> None:
    """Hit the key `warm` with `raw` until its hits go by lane."""
    by_lane_of(server, raw, "warm", admin)


def by_lane_of(server: RedisServer, raw: Raw, key: str, admin: Raw | None = None) -> None:
    """Hit `key` with `raw` until its hits go by lane, and by EVALSHA."""

    def went() -> bool:
        before = lane_calls(admin or server)
        for _ in range(2):  # the script of the first may be missing; then the second goes by EVAL
            reply = raw.ask("RL.HIT", key, 1_000_000, 3600)
            assert isinstance(reply, list) or str(reply).startswith("UPSTREAMDOWN"), reply
        return lane_calls(admin or server) >= before + 2

    wait_until(went, "a hit goes by lane")


def by_lane_as_eval(server: RedisServer, raw: Raw, admin: Raw) -> None:
    """As by_lane(), where the proxy can't load its scripts."""

    def went() -> bool:
        for _ in range(2):  # the first may take the client's own connection
            assert isinstance(raw.ask("RL.HIT", "warm", 1_000_000, 3600), list)
        return any(lane["cmd"] == "eval" for lane in lanes(server, admin))

    wait_until(went, "a hit goes by lane")


def stopped_listening(made: Started) -> None:
    """Wait until it accepts no more connections."""
    port = made.port()

    def refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # it was closed while this connection was in its queue
            return False
        return False

    wait_until(refused, "it refuses connections")
