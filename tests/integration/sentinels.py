"""A master, its replicas and the Sentinels that watch them, for tests of failover."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests import harness
from tests.harness import Raw, RedisServer, free_port, wait_until

NAME = "mymaster"
DOWN_AFTER_MS = 500
# Seconds to wait for an action of the Sentinels. A Sentinel whose process was stalled for 2 s
# enters TILT mode and takes no action for 30 s.
ACTION_S = 60.0
NEVER_MS = 60_000  # a busy machine must not look like a failure
# Milliseconds. A Sentinel tolerates a server in the wrong role for four publish periods. That must
# be longer than the second in which the leader notices the promotion. It promotes no replica that
# has been silent for three info periods or five ping periods.
_MEETING = ("info-period", 100, "ping-period", 100, "ask-period", 100, "publish-period", 100)
_MET = ("info-period", 1000, "ping-period", 500, "publish-period", 600)


class Sentinel:
    """One Sentinel process."""

    def __init__(
        self,
        executable: str,
        master: int,
        quorum: int,
        password: str = "",
        more: tuple[str, ...] = (),
    ) -> None:
        """`password` is required by this Sentinel and by the servers; `more` are lines of its
        configuration.
        """
        self.port = free_port()
        self._executable = executable
        self._password = password
        self._directory = tempfile.mkdtemp(prefix="rlproxy-test-")
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            *more,
            f"port {self.port}",
            f"dir {self._directory}",
            f"logfile {self._directory}/log",
            f"sentinel monitor {NAME} 127.0.0.1 {master} {quorum}",
            f"sentinel down-after-milliseconds {NAME} {NEVER_MS}",
            f"sentinel failover-timeout {NAME} 3000",
        ]
        if password:
            lines += [f"requirepass {password}", f"sentinel sentinel-pass {password}"]
            lines += [f"sentinel auth-pass {NAME} {password}"]
        (Path(self._directory) / "conf").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start it with the state it had when it ended, and wait until it answers."""
        self._process = subprocess.Popen(
            [self._executable, str(Path(self._directory) / "conf"), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, "the Sentinel answers")
        self.ask("SENTINEL", "DEBUG", *_MEETING)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, AssertionError):
            return self.ask("PING") == "PONG"
        return False

    def raw(self) -> Raw:
        """Return a new connection that is logged in."""
        raw = Raw(self.port)
        if self._password:
            raw.ask("AUTH", self._password)
        return raw

    def ask(self, *words: bytes | str | int) -> object:
        """Return the reply to one command."""
        with self.raw() as raw:
            return raw.ask(*words)

    def facts(self) -> dict[bytes, bytes]:
        """Return the fields of SENTINEL MASTER."""
        found = self.ask("SENTINEL", "MASTER", NAME)
        assert isinstance(found, list), found
        return dict(zip(found[::2], found[1::2], strict=True))

    def master(self) -> int:
        """The port of the master that this Sentinel reports."""
        found = self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        assert isinstance(found, list), found
        return int(found[1])

    def log(self) -> str:
        """The text of its log."""
        return (Path(self._directory) / "log").read_text()

    def stop(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


class Group:
    """A master (`servers[0]` at first), its replicas and the Sentinels."""

    def __init__(
        self, engine: str, replicas: int = 2, sentinels: int = 3, password: str = ""
    ) -> None:
        executable = harness.engines()[engine]
        args: tuple[str, ...] = ("--repl-diskless-sync-delay", "0")
        if password:
            args += ("--requirepass", password, "--masterauth", password)
        first = RedisServer(engine, executable, args)
        of = (*args, "--replicaof", "127.0.0.1", str(first.port))
        self.servers = [first, *(RedisServer(engine, executable, of) for _ in range(replicas))]
        self._password = password
        quorum = sentinels // 2 + 1
        self.sentinels = [
            Sentinel(executable, first.port, quorum, password) for _ in range(sentinels)
        ]

    def start(self) -> None:
        """Start all processes and wait until they have found each other."""
        for each in self.servers:
            each.start()
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(self.complete, "all know each other")
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "DEBUG", *_MET)

    def complete(self) -> bool:
        """Whether all replicas replicate and all Sentinels have seen that."""
        with self.servers[0].raw() as raw:
            if self._password:
                raw.ask("AUTH", self._password)
            text = raw.ask("INFO", "replication")
        assert isinstance(text, bytes)
        if text.count(b"state=online") != len(self.servers) - 1:
            return False
        for each in self.sentinels:
            facts = each.facts()
            if facts[b"flags"] != b"master":
                return False
            if int(facts[b"num-slaves"]) != len(self.servers) - 1:
                return False
            if int(facts[b"num-other-sentinels"]) != len(self.sentinels) - 1:
                return False
        return True

    def kill(self, server: RedisServer) -> None:
        """Kill the master with SIGKILL; the Sentinels soon consider it down."""
        server.stop()
        self._down_after(DOWN_AFTER_MS)

    def keep(self) -> None:
        """Allow no further failover except on demand."""
        self._down_after(NEVER_MS)

    def leave_replicas_alone(self, on: bool = True) -> None:
        """Let the Sentinels tolerate a server in the wrong role, and its clients, for a minute."""
        for each in self.sentinels:
            each.ask("SENTINEL", "DEBUG", "publish-period", 15_000 if on else 600)

    def _down_after(self, ms: int) -> None:
        for each in self.sentinels:
            assert each.ask("SENTINEL", "SET", NAME, "down-after-milliseconds", ms) == "OK"

    def demote(self) -> None:
        """Send SENTINEL FAILOVER until one of them completes."""
        first = self.sentinels[0]
        old = first.master()

        def done() -> bool:
            if first.master() != old:
                return True
            if b"failover_in_progress" not in first.facts()[b"flags"]:
                first.ask("SENTINEL", "FAILOVER", NAME)
            return False

        wait_until(done, "a replica is promoted", ACTION_S)

    def url(self, *only: Sentinel, name: str = NAME, scheme: str = "redis+sentinel") -> str:
        """The value of --upstream with all Sentinels, or `only` these."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in only or self.sentinels)
        return f"{scheme}://{hosts}/{name}"

    def server(self, port: int) -> RedisServer:
        """The server at `port`."""
        return next(each for each in self.servers if each.port == port)

    def close(self) -> None:
        """End all processes."""
        for sentinel in self.sentinels:
            sentinel.close()
        for each in self.servers:
            each.close()


@contextlib.contextmanager
def group(
    engine: str, replicas: int = 2, sentinels: int = 3, password: str = ""
) -> Iterator[Group]:
    """Run a group and end it afterwards."""
    made = Group(engine, replicas, sentinels, password)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Switch:
    """The time of the first +switch-master that any Sentinel publishes, and its port."""

    def __init__(self, sentinels: list[Sentinel]) -> None:
        self._sentinels = sentinels
        self.at = 0.0  # time.monotonic()
        self.port = 0  # port of the new master
        self._done = threading.Event()
        self._raws = [each.raw() for each in sentinels]
        self._threads = [
            threading.Thread(target=self._listen, args=(raw,), daemon=True) for raw in self._raws
        ]
        for raw in self._raws:
            raw.ask("SUBSCRIBE", "+switch-master")
        for thread in self._threads:
            thread.start()

    def _listen(self, raw: Raw) -> None:
        with contextlib.suppress(Exception):
            raw.sock.settimeout(harness.DEADLINE_S)
            message = raw.reply()
            at = time.monotonic()
            if isinstance(message, list) and not self._done.is_set():
                self.at = at
                self.port = int(bytes(message[2]).split()[4])
                self._done.set()

    def wait(self) -> int:
        """Wait for the event and return the port of the new master."""
        in_time = self._done.wait(harness.DEADLINE_S)
        assert in_time, "\n".join(each.log()[-2000:] for each in self._sentinels)
        return self.port

    def close(self) -> None:
        """Stop listening."""
        for raw in self._raws:
            with contextlib.suppress(OSError):
                # closing the socket would not wake the reading thread
                raw.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(harness.DEADLINE_S)
        for raw in self._raws:
            raw.close()
