"""A client's private connection in front of a Redis Cluster: it behaves like one to a single Redis.

session ──write()──> CommandSplitter ─> Dispatcher ─> Exchange ─> links to the nodes
session <──data_received()── replies in request order <── Exchange
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from rlproxy.resp.requests import COMMAND, MALFORMED, NEED_MORE
from rlproxy.upstream.cluster.command_splitter import CommandSplitter
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.request import Request

MAX_UNSENT: Final = 262144  # bytes of commands that wait here before the session is paused
MAX_UNKNOWN: Final = 16384  # bytes of an incomplete command of a client that is not logged in


class ClusterConnection:
    """One connection: an asyncio.Transport for `protocol`."""

    def __init__(
        self, exchange: Exchange, dispatcher: Dispatcher, protocol: asyncio.Protocol
    ) -> None:
        self._exchange = exchange
        self._dispatcher = dispatcher
        self._protocol = protocol
        self._splitter = CommandSplitter()
        self._full = False  # the protocol is paused
        self._waits = False  # the next command waits for replies
        self._sends_no_more = False  # the client has sent its last command
        self._closed = False
        exchange.wake = self._woken

    # -- as a transport ---------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See asyncio.WriteTransport."""
        if self._closed or self._sends_no_more:
            return
        self._splitter.feed(data)
        self._route()
        self._exchange.flush()
        if self._exchange.out or self._exchange.leaving or self._sends_no_more:
            self._exchange.loop.call_soon(self._woken)
        self._apply_full()

    def write_eof(self) -> None:
        """See asyncio.WriteTransport. The nodes answer what was sent, and end what blocks."""
        self._sends_no_more = True
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
        splitter, exchange = self._splitter, self._exchange
        exchange.take_map()
        while not (exchange.ended or exchange.leaving):
            code = COMMAND if self._waits else splitter.next()
            self._waits = False
            if code == NEED_MORE:
                if splitter.unread() > MAX_UNKNOWN and (
                    error := self._dispatcher.setup.login_error()
                ):
                    exchange.answer(error)
                    exchange.leaving = True
                break
            if code == COMMAND:
                if not self._dispatcher.send(splitter.argv, splitter.written):
                    self._waits = True
                    break
            elif code == MALFORMED:
                self._send_mistake()
                break
        if not self._waits:
            splitter.forget()
        splitter.release()

    def _send_mistake(self) -> None:
        """Let the home node see a malformed command: it writes the error and closes.

        A node with other limits may wait for the rest instead: it sees the end of the connection.
        """
        mistake = Request(self._splitter.rest())
        mistake.blocks = True
        self._exchange.send(self._exchange.links.home(), mistake)
        self._sends_no_more = True

    def _apply_full(self) -> None:
        exchange = self._exchange
        waits = self._waits or not exchange.logged_in
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
        if self._waits or self._splitter.unread():
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
        if self._sends_no_more:
            exchange.finish()
        leaves = exchange.leaving or (self._sends_no_more and not self._waits)
        if exchange.ended or (leaves and not exchange.queue):
            self.close()
        else:
            self._apply_full()
