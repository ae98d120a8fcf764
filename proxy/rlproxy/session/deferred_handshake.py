"""The deferred handshake: HELLO, AUTH and SELECT that are answered while Redis is away, and sent to
Redis once it is back. No I/O.

    client ──HELLO, AUTH, SELECT──> take() ──> answered as Redis would if it agreed
                                      │
    Redis is back:                 unsent ──one by one──> Redis ──replies──> go on, or the refusal

Where hits are answered without Redis (--on-upstream-failure allow or deny), a client that connects
during an outage must still be able to send hits. The client gets no data from Redis before Redis
has accepted every HELLO, AUTH and SELECT that was answered here.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands, encoding
from rlproxy.resp.commands import Command
from rlproxy.resp.encoding import OK
from rlproxy.resp.requests import RequestFramer
from rlproxy.session.identity import database, of_hello

MAX_COMMANDS: Final = 16  # commands of one client; further ones get the error of any other command
MAX_BYTES: Final = 4096  # total size of these commands
MAX_DATABASES: Final = 100_000  # databases of a server; during an outage their number is unknown

_NAMES: Final = (b"SETNAME", b"SETINFO")  # subcommands of CLIENT
_NOT_HERE: Final = encoding.error("ERR unknown subcommand. Try CLIENT HELP.")


class DeferredHandshake:
    """The commands of one client that were answered here and must still be sent to Redis.

    unsent: those that are not sent yet: each with its arguments, and as the client wrote it.
    refused: the first error of Redis in reply to them.
    """

    def __init__(self) -> None:
        self.unsent: list[tuple[Command, list[bytes], bytes]] = []
        self.refused = b""
        self._protocol = 2

    def answered(self, reply: bytes) -> bytes:
        """Note the reply of Redis to one of them. The client, which has one, gets no other."""
        if reply.startswith(b"-") and not self.refused:
            self.refused = reply
        return b""

    def take(self, requests: RequestFramer, server: bytes, version: bytes) -> bytes:
        """Record the framer's command and return its reply; b"" if it is no part of a handshake.

        server, version: the values for HELLO's reply.
        """
        written = requests.buf[requests.start : requests.pos]
        size = len(written) + sum([len(each[2]) for each in self.unsent])
        if len(self.unsent) >= MAX_COMMANDS or size > MAX_BYTES:
            return b""
        kind = requests.command.kind
        words = requests.arguments()
        if kind == commands.HELLO:
            protocol = _protocol_of(words, self._protocol)
            if not protocol:
                return b""
            self._protocol = protocol
            reply = _hello(protocol, server, version)
        elif kind == commands.AUTH:
            reply = OK if len(words) in (1, 2) else b""
        elif kind == commands.SELECT:
            reply = OK if len(words) == 1 and 0 <= database(words[0]) < MAX_DATABASES else b""
        elif kind == commands.CLIENT and words and words[0].upper() == b"MAINT_NOTIFICATIONS":
            return _NOT_HERE  # the client works without this command, as with most servers
        elif kind == commands.CLIENT:
            reply = OK if words and words[0].upper() in _NAMES else b""
        else:
            reply = b""
        if reply:
            self.unsent.append((requests.command, words, written))
        return reply


def _protocol_of(words: list[bytes], protocol: int) -> int:
    """Return the protocol that HELLO with these arguments selects.

    0: Redis might return an error whatever the user.
    """
    if not words:
        return protocol
    _, certain = of_hello(words)
    return int(words[0]) if certain and words[0] in (b"2", b"3") else 0


def _hello(protocol: int, server: bytes, version: bytes) -> bytes:
    """Return HELLO's reply of a standalone master without modules; the client's id is 0."""
    fields = {
        b"server": server,
        b"version": version,
        b"proto": protocol,
        b"id": 0,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }
    return encoding.encoded(fields, protocol == 3)
