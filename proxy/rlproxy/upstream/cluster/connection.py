"""A client's private connection in front of a Redis Cluster: it behaves like one to a single Redis.

session ──write()──> CommandSplitter ─> Dispatcher ─> Exchange ─> links to the nodes
session <──data_received()── replies in request order <── Exchange
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import COMMAND, MALFORMED, NEED_MORE
from rlproxy.upstream.cluster.command_splitter import CommandSplitter
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.link import Link

MAX_UNSENT: Final = 262144  # bytes of commands that wait here before the session is paused
MAX_UNKNOWN: Final = 16384  # bytes of an incomplete command of a client that is not logged in
_REPLY_OFF: Final = bulks(b"CLIENT", b"REPLY", b"OFF")


class ClusterConnection:
    """One connection: an asyncio.Transport for `protocol`."""

    def __init__(
        self, exchange: Exchange, dispatcher: Dispatcher, protocol: asyncio.Protocol
    ) -> None:
        self._exchange = exchange
        self._dispatcher = dispatcher
        self._protocol = protocol
        self._splitter = CommandSplitter()
        self._piped: Link | None = None  # behind a malformed command, all bytes go to this link
        self._full = False  # the protocol is paused
        self._waits = NEED_MORE  # COMMAND, MALFORMED: what comes next waits for replies
        self._ended_by_client = False
        self._closed = False
        exchange.wake = self._woken

    # -- as a transport ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._closed:
            return
        if self._piped is not None:
            self._piped.send_raw(data)
        else:
            self._splitter.feed(data)
            self._route()
        self._exchange.flush()
        if self._exchange.out or self._exchange.leaving:
            self._exchange.loop.call_soon(self._woken)
        self._apply_full()

    def write_eof(self) -> None:
        """See asyncio.WriteTransport. The nodes answer what was sent, and end what blocks."""
        self._ended_by_client = True
        self._exchange.loop.call_soon(self._woken)

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._exchange.pause(True)

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._exchange.pause(False)

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self.close()

    def close(self) -> None:
        """See asyncio.BaseTransport."""
        if not self._closed:
            self._closed = True
            self._splitter.rest()
            self._exchange.close()
            self._exchange.loop.call_soon(self._protocol.connection_lost, None)

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: there is no one socket."""
        return default

    # -- routing ----------------------------------------------------------------------------------

    def _route(self) -> None:
        """Send the unread commands, until one must wait for replies."""
        splitter = self._splitter
        self._exchange.take_map()
        while not (self._exchange.ended or self._exchange.leaving):
            code = self._waits if self._waits != NEED_MORE else splitter.next()
            self._waits = NEED_MORE
            if code == NEED_MORE:
                if splitter.unread() > MAX_UNKNOWN and self._dispatcher.setup.login_error():
                    self._pipe()
                break
            if code == COMMAND:
                if not self._dispatcher.send(splitter.argv, splitter.written):
                    self._waits = COMMAND
                    break
            elif code == MALFORMED:
                if self._exchange.queue:
                    self._waits = MALFORMED  # tried again once nothing is owed
                else:
                    self._pipe()  # home writes the error and closes
                break
        splitter.release()

    def _pipe(self) -> None:
        """Send all further bytes of the client to the home node: no other node can take over."""
        links = self._exchange.links
        self._piped = links.home()
        if self._exchange.replies_off():
            self._piped.send_raw(_REPLY_OFF)  # the client's own one was sent to no node
        self._piped.send_raw(self._splitter.rest())
        links.holds_state = lambda _link: True

    def _apply_full(self) -> None:
        exchange = self._exchange
        waits = self._waits != NEED_MORE or not exchange.logged_in
        full = exchange.full() or (waits and self._splitter.unread() > MAX_UNSENT)
        if full != self._full and not self._closed:
            self._full = full
            if full:
                self._protocol.pause_writing()
            else:
                self._protocol.resume_writing()

    # -- replies ----------------------------------------------------------------------------------

    def _woken(self) -> None:
        """Act on replies, and on what else may have changed: route on, and deliver."""
        if self._closed:
            return
        if self._piped is None and (self._waits != NEED_MORE or self._splitter.unread()):
            self._route()
        exchange = self._exchange
        out = exchange.out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._protocol.data_received(data)
        if self._closed:
            return
        exchange.flush()
        if self._ended_by_client:
            exchange.finish()
        leaves = exchange.leaving or (self._ended_by_client and self._waits == NEED_MORE)
        # The protocol may have written a command that is answered here: that wakes this again.
        owes = len(exchange.queue) > 0 or len(exchange.out) > 0
        if exchange.ended or (leaves and not owes):
            self.close()
        else:
            self._apply_full()
