"""One client's connection to one node of the cluster, and the replies that it owes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from rlproxy.config.urls import Address
from rlproxy.net.tls_stream import last_words
from rlproxy.resp.encoding import content
from rlproxy.resp.replies import PUSH, ReplyFramer
from rlproxy.upstream.cluster.request import Request

MAX_WAITING: Final = 262144  # bytes that wait for the connection before the client is paused
LARGE: Final = 65536  # bytes of an incomplete frame from which on it is taken in pieces
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"


class LinkOwner:
    """The client of links, as a link sees it. This class is that of a client that has ended.

    unsent: links with something to write.
    wake: called when the client may send more, or less.
    """

    def __init__(self) -> None:
        self.unsent: list[Link] = []
        self.wake: Callable[[], None] = lambda: None

    def replied(self, link: Link, request: Request, frame: bytes) -> None:
        """Take a reply to `request`."""

    def piece(self, link: Link, request: Request, data: bytes, ended: bool) -> None:
        """Take a piece of the large reply to `request`."""

    def unrequested(self, link: Link, frame: bytes) -> None:
        """Take a push, or any frame that is no reply."""

    def batch_over(self) -> None:
        """Act on what has been taken."""

    def lost(self, link: Link, error: bytes = b"") -> None:
        """Handle the loss of `link`.

        error: the reply to all that it owes, which no node has run. Empty: the outcome is unknown.
        """


class Link(asyncio.Protocol):
    """The connection of one client to the node at `address`.

    owed: requests that were sent and not answered, in order.
    pieces: of the large reply that is being read, as far as they wait.
    finished: the sending direction is closed.
    subscribed: Request.subscribes of the commands sent here. If it isn't empty, the node may send
        messages, or lines of MONITOR, that are no replies.
    aside: opened for a command of all nodes, at a node that has run no other one.
    idle_since: loop time of the look at which it was idle first; 0 if it has been in use since.
    """

    def __init__(self, owner: LinkOwner, address: Address) -> None:
        self._owner = owner
        self.address = address
        self.owed: deque[Request] = deque()
        self.pieces: list[bytes] = []
        self.subscribed: tuple[bytes, ...] = ()
        self.finished = False
        self.aside = False
        self._in_reply = False  # inside a large reply
        self._begun: list[bytes] = []  # pieces of the large push or message that is being read
        self._paused = False  # the node takes no more bytes for now
        self._out: list[bytes] = []
        self._waiting: int = 0  # bytes in `_out` that wait for the connection, or for a login
        self._logins: list[int] = []  # items of `_out` up to each login whose reply is owed
        self._framer = ReplyFramer()
        self._transport: asyncio.Transport | None = None
        self._reads = True
        self.idle_since: float = 0.0

    def send(self, request: Request) -> None:
        """Send `request` with the next flush(). See Request.number about the proxy's own ones."""
        if request.asking:
            self.send(Request(_ASKING))
        elif request.caching:
            self.send(Request(request.caching))
        for own_request in request.front:
            self.send(own_request)
        if request.subscribes and request.subscribes not in self.subscribed:
            self.subscribed += (request.subscribes,)
        request.node = self.address
        self.idle_since = 0.0
        self.owed.append(request)
        self.send_raw(request.written)

    def send_raw(self, data: bytes) -> None:
        """Send bytes, with the next flush(), that get no reply or whose replies aren't counted."""
        if not self._out:
            self._owner.unsent.append(self)
        self._out.append(data)
        if self._transport is None or self._logins:
            self._waiting += len(data)

    def full(self) -> bool:
        """Return whether the node takes no more bytes for now, or too many wait for it."""
        return self._paused or self._waiting > MAX_WAITING

    def log_in(self, request: Request) -> None:
        """Send `request`, and nothing behind it before logged_in().

        A node that refuses the login would run it as another user.
        """
        self.send(request)
        self._logins.append(len(self._out))

    def logged_in(self) -> None:
        """Send what has waited for the login, which the node has accepted: up to a further one."""
        del self._logins[0]
        self.flush()
        self._owner.wake()

    def flush(self) -> None:
        """Write what was sent, once the connection is open: up to the first login of those owed."""
        transport = self._transport
        if transport is None or self.finished:
            return
        out, self._out = self._out, []
        if self._logins:
            end = self._logins[0]
            out, self._out = out[:end], out[end:]
            self._logins = [up_to - end for up_to in self._logins]
        else:
            self._waiting = 0
        if out:
            transport.write(out[0] if len(out) == 1 else b"".join(out))

    def open(self) -> bool:
        """Return whether the connection is open."""
        return self._transport is not None

    def close(self) -> None:
        """Close the connection. What is not sent, and unread replies, are dropped."""
        self._out.clear()
        self._framer.rest()
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Close the sending direction: a node that blocks the client ends the connection.

        A connection that is being opened, or logged in, stays as it is: the owner is woken later.
        """
        if self._transport is not None and not self._logins and not self.finished:
            self.finished = True
            self._transport.write_eof()

    def read(self, on: bool) -> None:
        """Read the connection, or pause that."""
        if on != self._reads:
            self._reads = on
            if self._transport is not None:
                if on:
                    self._transport.resume_reading()
                else:
                    self._transport.pause_reading()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._reads:
            self._transport.pause_reading()
        self.flush()
        self._owner.wake()

    def pause_writing(self) -> None:
        self._paused = True
        self._owner.wake()

    def resume_writing(self) -> None:
        self._paused = False
        self._owner.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        left = last_words(self._transport) if exc is not None else b""
        if left:
            self.data_received(left)
        self._owner.lost(self)
        self._transport = None

    # -- replies ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. Passes on complete frames, and what may go of an incomplete one."""
        framer, owner = self._framer, self._owner
        framer.feed(data)
        while True:
            if self._in_reply:
                if not self._piece():
                    break
                continue
            frame = framer.frame() if len(self._begun) == 0 else self._collected()
            if not frame:
                if self._begun or len(framer.buf) - framer.pos <= LARGE:
                    break
                self._begin_large()
                continue
            if self._is_unrequested(frame):
                owner.unrequested(self, frame)
            else:
                owner.replied(self, self._took(frame[0] == 45), frame)
        if framer.broken:
            self.close()
        framer.release()
        owner.batch_over()

    def _took(self, error: bool) -> Request:
        """Record a reply to the first request, and return that. An error is the last reply."""
        request = self.owed[0]
        if not error:
            request.frames -= 1
        if error or request.frames <= 0:
            self.owed.popleft()
            request.node = None
        return request

    def _begin_large(self) -> None:
        """Begin to take the incomplete frame in pieces. Those that are no reply are collected."""
        framer = self._framer
        kind = framer.buf[framer.pos : framer.pos + _KIND]
        self._in_reply = kind[0] != PUSH and not self._is_unrequested(kind)
        if not self._in_reply:
            self._begun.append(b"")

    def _collected(self) -> bytes:
        """Collect a piece of a large frame. Returns the frame if that is its last one."""
        framer = self._framer
        start = framer.pos
        ended = framer.skip(1, False, 0) == 1
        self._begun.append(framer.buf[start : framer.pos])
        if not ended:
            return b""
        frame = b"".join(self._begun)
        self._begun.clear()
        return frame

    def _is_unrequested(self, frame: bytes) -> bool:
        """Return whether a frame, or one that begins so, is no reply to the first request."""
        if not self.owed:
            return True
        request = self.owed[0]
        if frame[0] == PUSH:
            return not _is_reply(frame, request)
        return len(self.subscribed) > 0 and _is_message(frame, request)

    def _piece(self) -> bool:
        """Pass on a piece of the large reply. Returns whether the reply has ended."""
        framer, request = self._framer, self.owed[0]
        start = framer.pos
        ended = framer.skip(1, False) == 1
        if ended:
            self._in_reply = False
            self._took(False)
        self._owner.piece(self, request, framer.buf[start : framer.pos], ended)
        return ended


_MESSAGES: Final = (
    b"*3\r\n$7\r\nmessage\r\n",
    b"*4\r\n$8\r\npmessage\r\n",
    b"*3\r\n$8\r\nsmessage\r\n",
)
_SLOT_MOVED: Final = b"*3\r\n$12\r\nsunsubscribe\r\n"
_KIND: Final = 40  # bytes of a frame that contain its first word, if that is one of these


def _is_reply(push: bytes, request: Request) -> bool:
    """Whether a push is a reply to `request`."""
    kind = request.subscribes
    if kind == b"" or push[:_KIND].split(b"\r\n", 3)[2:3] != [kind]:
        return False
    # A node also ends the subscriptions to channels whose slot has moved.
    at = len(_SLOT_MOVED)
    return request.names is None or push[at : content(push, at)[1] + 2] in request.names


def _is_message(frame: bytes, request: Request) -> bool:
    """Whether a frame of a connection that subscribes or monitors is no reply to `request`."""
    if frame[0] == 43:  # a line of MONITOR begins with the time
        return 48 <= frame[1] <= 57
    if frame[0] != 42:
        return False
    return frame.startswith(_MESSAGES) or (
        frame.startswith(_SLOT_MOVED) and not _is_reply(frame, request)
    )
