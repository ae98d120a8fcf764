"""The deferred handshake: HELLO, AUTH and SELECT that are answered while Redis is away, and sent
to Redis once it is back. No I/O.

    client ──HELLO, AUTH, SELECT──> take() ──> answered as Redis would if it agreed
                                      │
    Redis is back:                  begin() ──> Redis ──replies──> heard() ──> go on, or the refusal

Where hits are answered without Redis (--on-upstream-failure allow or deny), a client that comes
meanwhile must get as far as its first hit. Nothing that Redis holds is told to it before Redis
itself has heard, and agreed to, everything that was taken on trust.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.framing import ReplyFramer, RequestFramer
from rlproxy.session.connection_state import database

MAX_COMMANDS: Final = 16  # of one client; further ones get the error that others get
MAX_BYTES: Final = 4096  # of them
MOST_DATABASES: Final = 100_000  # that a server may have, for all that is known of it

_OK: Final = b"+OK\r\n"
_NOT_HERE: Final = r.error("ERR unknown subcommand. Try CLIENT HELP.")


class DeferredHandshake:
    """The commands of one client that are still to be said to Redis."""

    __slots__ = ("_protocol", "_replies", "_said", "_size", "_unheard", "replies", "unsent")

    def __init__(self) -> None:
        # as they came, and whether Redis must agree
        self._said: list[tuple[bytes, bool]] = []
        self._size = 0
        self._protocol = 2
        self._unheard = 0
        self._replies = ReplyFramer()
        self.unsent = 0  # of those that begin() gave out
        self.replies: list[bytes] = []  # bytes of Redis, for heard()

    def take(self, requests: RequestFramer, server: bytes, version: bytes) -> bytes:
        """The reply to the framer's command, which is remembered; nothing if it is no part of a
        greeting. `server` and `version` are what HELLO tells.
        """
        written = requests.buf[requests.start : requests.pos]
        if len(self._said) >= MAX_COMMANDS or self._size + len(written) > MAX_BYTES:
            return b""
        kind = requests.command.kind
        words = requests.arguments()
        if kind == c.HELLO:
            protocol = _asked_for(words, self._protocol)
            if not protocol:
                return b""
            self._protocol = protocol
            reply = _hello(protocol, server, version)
        elif kind == c.AUTH:
            reply = _OK if len(words) in (1, 2) else b""
        elif kind == c.SELECT:
            reply = _OK if len(words) == 1 and 0 <= database(words[0]) < MOST_DATABASES else b""
        elif kind == c.CLIENT and words and words[0].upper() in c.CLIENT_IF_REFUSED:
            return _NOT_HERE  # (its client does without, as with most servers)
        elif kind == c.CLIENT:
            reply = _OK if _names_itself(words) else b""
        else:
            reply = b""
        if reply:
            self._said.append((written, kind != c.CLIENT))
            self._size += len(written)
        return reply

    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not self._said

    def begin(self) -> bytes:
        """What is to be said to Redis before anything else; its replies belong into `replies`."""
        self._unheard = self.unsent = len(self._said)
        self._replies = ReplyFramer()
        self.replies.clear()
        return b"".join([written for written, _ in self._said])

    def heard(self) -> bytes:
        """Look at what has come in `replies`: Redis' refusal of what it must agree to."""
        framer = self._replies
        framer.feed(b"".join(self.replies))
        self.replies.clear()
        while self._unheard > 0:
            frame = framer.frame()
            if not frame:
                break
            _, must = self._said[-self._unheard]
            self._unheard -= 1
            if must and frame.startswith(b"-"):
                return frame
        return b""

    def over(self) -> bool:
        """Whether Redis has answered everything."""
        return self._unheard == 0


def _asked_for(words: list[bytes], protocol: int) -> int:
    """The protocol that HELLO with these arguments speaks from then on; 0 where Redis might answer
    with an error, whoever asks.
    """
    if not words:
        return protocol
    if words[0] not in (b"2", b"3"):
        return 0
    at = 1
    while at < len(words):
        word = words[at].upper()
        if word == b"AUTH" and at + 2 < len(words):
            at += 3
        elif word == b"SETNAME" and at + 1 < len(words) and _is_name(words[at + 1]):
            at += 2
        else:
            return 0
    return int(words[0])


def _names_itself(words: list[bytes]) -> bool:
    """Whether CLIENT with these arguments says no more than who the client is."""
    word = words[0].upper() if words else b""
    if word == b"SETNAME":
        return len(words) == 2 and _is_name(words[1])
    if word != b"SETINFO" or len(words) != 3:
        return False
    return words[1].upper() in (b"LIB-NAME", b"LIB-VER") and _is_name(words[2])


def _is_name(word: bytes) -> bool:
    """Whether Redis would take it for a name."""
    return all(33 <= byte <= 126 for byte in word)


def _hello(protocol: int, server: bytes, version: bytes) -> bytes:
    """HELLO's reply, as of a server that nobody else speaks to."""
    parts = [b"%7\r\n" if protocol == 3 else b"*14\r\n"]
    parts += [r.bulk(b"server"), r.bulk(server), r.bulk(b"version"), r.bulk(version)]
    parts += [r.bulk(b"proto"), b":%d\r\n" % protocol, r.bulk(b"id"), b":0\r\n"]
    parts += [r.bulk(b"mode"), r.bulk(b"standalone"), r.bulk(b"role"), r.bulk(b"master")]
    parts += [r.bulk(b"modules"), b"*0\r\n"]
    return b"".join(parts)
