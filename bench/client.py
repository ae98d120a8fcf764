"""One connection to a port of this machine, with replies parsed by hiredis."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Final

import hiredis
from rlproxy.resp.encoding import bulks

from .errors import BenchError

TIMEOUT_S: Final = 60.0  # seconds for each reply
READ_BYTES: Final = 1 << 16
PIPELINE: Final = 1000  # commands written before their replies are read


class Client:
    """A connection. Raises BenchError if it can't be opened, and OSError if it is lost."""

    def __init__(self, port: int) -> None:
        try:
            self.sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        except OSError as error:
            raise BenchError(f"cannot connect to port {port}: {error}") from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def receive(self) -> list[object]:
        """Read once, and return the replies that are complete.

        Raises BenchError on an error reply or if the connection is closed.
        """
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise BenchError("a connection was closed before it answered")
        self._reader.feed(data)
        found: list[object] = []
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise BenchError(f"a command was answered with: {reply}")
            found.append(reply)
        return found

    def ask(self, *words: bytes) -> object:
        """Return the reply to one command. Raises BenchError on an error reply or none."""
        return self.ask_all([words])[0]

    def ask_all(self, commands: Iterable[Sequence[bytes]]) -> list[object]:
        """Return the replies to all commands, pipelined. Raises as ask()."""
        found: list[object] = []
        requests = [bulks(*words) for words in commands]
        try:
            for first in range(0, len(requests), PIPELINE):
                batch = requests[first : first + PIPELINE]
                self.sock.sendall(b"".join(batch))
                while len(found) < first + len(batch):
                    found += self.receive()
        except OSError as error:
            raise BenchError(f"a connection was lost: {error}") from None
        return found

    def text(self, *words: bytes) -> str:
        """Return the reply to one command, which must be a string. Raises as ask()."""
        reply = self.ask(*words)
        if not isinstance(reply, bytes):
            raise BenchError(f"{words[0].decode()} answered {reply!r}")
        return reply.decode("utf-8", "replace")

    def fields(self, *words: bytes) -> dict[str, str]:
        """Return the fields of a reply in the format of INFO. Raises as ask()."""
        lines = self.text(*words).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)
