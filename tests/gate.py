"""A gate between a proxy and its server: a relay that holds back what the server sends on one
connection or on all, passes on a part of it, or cuts a connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

from tests import harness
from tests.harness import DEADLINE_S, Proxy, RedisServer, wait_until


class Pipe:
    """One connection of the proxy to the server, through a gate that can hold the server's
    bytes.
    """

    def __init__(self, gate: Gate, down: socket.socket, up: socket.socket) -> None:
        self._gate = gate
        self.delay_s = 0.0  # of every piece from the server
        self.sent = b""  # the first bytes that the proxy sent
        self.held = b""  # bytes from the server since hold()
        self._holding = False
        self._changed = threading.Condition()
        self._down = down
        self._up = up
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._to_server, self._to_proxy)
        ]
        for thread in self._threads:
            thread.start()

    def _to_server(self) -> None:
        try:
            while data := self._down.recv(1 << 16):
                sent = (self.sent + data)[:65536]
                self._gate.sends(self, sent)
                self.sent = sent  # set last: a thread that identifies a lane by it finds it held
                self._up.sendall(data)
            self._up.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()

    def _to_proxy(self) -> None:
        try:
            while data := self._up.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                with self._changed:
                    if self._holding:
                        self.held += data
                        self._changed.notify_all()
                    else:
                        self._down.sendall(data)
            with self._changed:
                self._changed.wait_for(lambda: not self._holding, DEADLINE_S)
            self._down.shutdown(socket.SHUT_WR)
        except OSError:
            self.cut()

    def hold(self) -> None:
        """Hold back bytes from the server."""
        with self._changed:
            self._holding = True

    def until(self, enough: Callable[[bytes], object]) -> None:
        """Wait until the held bytes satisfy `enough`."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.held), DEADLINE_S), self.held

    def release(self, count: int | None = None) -> None:
        """Forward the first `count` held bytes; all of them and later ones if None."""
        with self._changed:
            if count is None:
                self._holding = False
                count = len(self.held)
            data, self.held = self.held[:count], self.held[count:]
            if data:
                with contextlib.suppress(OSError):
                    self._down.sendall(data)
            self._changed.notify_all()

    def cut(self) -> None:
        """Close the connection in both directions."""
        for sock in (self._down, self._up):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it and release its sockets."""
        with self._changed:
            self._holding = False
            self._changed.notify_all()
        self.cut()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        self._down.close()
        self._up.close()


class Gate:
    """A relay in front of a server, on its own port."""

    def __init__(self, port: int) -> None:
        self.pipes: list[Pipe] = []
        self.closes_new = False  # new connections end at once
        self.holds_greetings = False  # no new lane gets an answer
        self._holds_all = False  # nor does any other new connection
        self._lock = threading.Lock()  # else a pipe might hold what release() has just released
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                down, _ = self._listener.accept()
                if self.closes_new:
                    down.close()
                    continue
                try:
                    up = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    down.close()
                    continue
                for sock in (down, up):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:  # release() finds each pipe that holds
                    self.pipes.append(Pipe(self, down, up))

    def sends(self, pipe: Pipe, sent: bytes) -> None:
        """Hold `pipe` if it has to be held, on which the proxy has sent `sent`."""
        with self._lock:
            if self._holds_all or (self.holds_greetings and b"rlproxy-lane" in sent):
                pipe.hold()

    def _last(self, what: str, matches: Callable[[Pipe], bool]) -> Pipe:
        wait_until(lambda: any(matches(pipe) for pipe in self.pipes), what)
        return [pipe for pipe in self.pipes if matches(pipe)][-1]

    def lane(self) -> Pipe:
        """The newest lane."""
        return self._last("a lane", lambda pipe: b"rlproxy-lane" in pipe.sent)

    def lanes(self) -> list[Pipe]:
        """All lanes so far."""
        return [pipe for pipe in self.pipes if b"rlproxy-lane" in pipe.sent]

    def control(self) -> Pipe:
        """The newest control connection."""
        return self._last("a control connection", lambda pipe: b"rlproxy-control" in pipe.sent)

    def private(self, said: bytes = b"") -> Pipe:
        """The newest private connection on which `said` was sent."""
        return self._last(
            "a private connection",
            lambda pipe: pipe.sent != b"" and b"rlproxy-" not in pipe.sent and said in pipe.sent,
        )

    def hold(self) -> None:
        """Hold back all bytes from the server, also on new connections."""
        with self._lock:
            self._holds_all = True
            for pipe in self.pipes:
                pipe.hold()

    def release(self) -> None:
        """Forward all held bytes and later ones."""
        with self._lock:
            self._holds_all = False
            for pipe in self.pipes:
                pipe.release()

    def close(self) -> None:
        """Close it with all its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._listener.close()
        for pipe in self.pipes:
            pipe.close()


@contextlib.contextmanager
def gated(server: RedisServer, *args: str) -> Iterator[tuple[Gate, Proxy]]:
    """A gate in front of `server` and a proxy in front of the gate."""
    gate = Gate(server.port)
    try:
        with harness.proxy(f"redis://127.0.0.1:{gate.port}", *args) as made:
            yield gate, made
    finally:
        gate.close()
