"""What a client sets up on its connection: login, protocol, name and the like, on every link.

The home node decides. What it accepts is repeated on the client's other links, and sent first on
each further one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.resp.encoding import OK, bulks, error
from rlproxy.upstream.cluster import client_ids, routes
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.request import Request
from rlproxy.upstream.cluster.routes import Route

_NOAUTH: Final = b"-NOAUTH"
_NO_REDIRECT: Final = error(
    "ERR CLIENT TRACKING with REDIRECT is not available through rlproxy on a Redis Cluster"
)


class ConnectionSetup:
    """The set-up of one client's connection."""

    def __init__(self, exchange: Exchange, face: Face) -> None:
        self._exchange = exchange
        self._face = face
        self._setup = exchange.links.setup
        self._query: Request | None = None  # the PING of login_error()

    def login_error(self) -> bytes | None:
        """Return the error of a client that has to log in first; empty if it has logged in.

        None: that is unknown until home has answered a PING, and the next commands wait. A PING
        that is lost refuses nothing: behind a refused MULTI, its commands would run one by one.
        """
        exchange = self._exchange
        if exchange.logged_in:
            return b""
        query = self._query
        if query is None:
            self._query = query = Request(bulks(b"PING"), on_reply=self._pinged)
            exchange.send_own(exchange.links.home(), query)
            exchange.redirects.drain()
        if not query.done:
            return None
        self._query = None
        return query.reply if query.reply.startswith(_NOAUTH) else b""

    def _pinged(self, frame: bytes) -> bytes:
        if not frame.startswith(_NOAUTH):
            self._exchange.logged_in = True
        return frame

    def send(self, route: Route, args: list[bytes], written: bytes) -> None:
        """Send a command that sets something up."""
        if route.how == routes.CLIENT_REPLY:
            self._reply(args, written)
        elif route.how == routes.CLIENT_CACHING:
            self._cache(args, written)
        elif route.name in (b"AUTH", b"HELLO"):
            self._log_in(route.name, args, written)
        elif route.name == b"SELECT":
            self._set(route.name, written)
        else:
            self._set_state([word.upper() for word in args], written)

    @property
    def tracking(self) -> bytes:
        """The CLIENT TRACKING that is in force, in upper case; empty if it is off."""
        written = self._setup.get(b"TRACKING", b"").upper()
        return written if b"\r\nON\r\n" in written else b""

    def _log_in(self, name: bytes, args: list[bytes], written: bytes) -> None:
        exchange = self._exchange

        def on_reply(frame: bytes) -> bytes:
            if frame.startswith(b"-"):
                words = [word.upper() for word in args[1:]] if name == b"HELLO" else []
                if b"AUTH" in words and frame.startswith(b"-ERR "):
                    exchange.leaving = True  # Redis 6.2 and 7.0 may have logged the client in
                return frame
            if name == b"AUTH":
                self._setup[b"AUTH"] = written
            else:
                self._take_hello(args)
                home = exchange.cluster.map.numbers.get(exchange.links.home().address, 0)
                frame = client_ids.shown_hello(self._face.hello_reply(frame), home)
            if args:
                exchange.links.set_up_others()
            return frame

        self._exchange.send_home(written, on_reply)

    def _take_hello(self, args: list[bytes]) -> None:
        """Take a HELLO that the home node has accepted."""
        if args:
            self._exchange.protocol = 3 if args[0] == b"3" else 2
            self._setup[b"HELLO"] = bulks(b"HELLO", args[0])
        at = 1
        while at < len(args):
            option = args[at].upper()
            if option == b"AUTH":
                self._setup[b"AUTH"] = bulks(b"AUTH", *args[at + 1 : at + 3])
                at += 3
            else:
                self._setup[b"SETNAME"] = bulks(b"CLIENT", b"SETNAME", *args[at + 1 : at + 2])
                at += 2

    def reset(self, written: bytes, *forget: Callable[[], None]) -> None:
        """Send RESET; each of `forget` is called when it is answered."""

        def on_reply(frame: bytes) -> bytes:
            if frame.startswith(b"+RESET"):
                for key in self._setup:
                    self._setup[key] = b""
                self._exchange.caching = b""
                self._exchange.protocol = 2
                self._exchange.logged_in = False
                self._query = None
                if self._exchange.silent:  # else behind CLIENT REPLY SKIP
                    self._exchange.queue[0].silent = False
                self._exchange.silent = self._exchange.skips = False
                for call in forget:
                    call()
                self._exchange.links.leave_others()
            return frame

        self._exchange.send_home(written, on_reply)

    def _set(self, key: bytes, written: bytes) -> None:
        """Send a command to the home node and, once that has accepted it, on all other links."""
        exchange = self._exchange

        def on_reply(frame: bytes) -> bytes:
            if frame == OK:
                if key == b"TRACKING":  # off, or all keys
                    for prefixes in [each for each in self._setup if each.startswith(key)]:
                        del self._setup[prefixes]
                self._setup[key] = written
                for link in exchange.links.others():
                    link.send(Request(written))
                if self.tracking:
                    exchange.on_change(self._map_changed)
                    self._map_changed()
            return frame

        self._exchange.send_home(written, on_reply)

    def _set_state(self, words: list[bytes], written: bytes) -> None:
        """Send CLIENT SETNAME, TRACKING and the like; `words` are their arguments in upper case."""
        if words[0] == b"TRACKING" and b"REDIRECT" in words:
            self._exchange.answer(_NO_REDIRECT)
            return
        several = words[0] == b"SETINFO"  # it sets one of several attributes
        key = b" ".join(words[: 1 + several])
        if key == b"TRACKING" and b"PREFIX" in words and b"BCAST" in self.tracking:
            key += written  # the prefixes of several commands add up
        self._set(key, written)

    def _cache(self, args: list[bytes], written: bytes) -> None:
        """Have the next command take CLIENT CACHING along: YES with OPTIN, NO with OPTOUT."""
        word = args[1].upper() if len(args) == 2 else b""
        option = {b"YES": b"\r\nOPTIN\r\n", b"NO": b"\r\nOPTOUT\r\n"}.get(word)
        if option is not None and option in self.tracking:
            self._exchange.answer(OK)
            self._exchange.caching = written
        else:
            self._exchange.send_home(written)

    def _map_changed(self) -> None:
        """Let the client forget its keys if a node that it uses has lost slots.

        The new owner tracks no key that was missing when the client read it. With BCAST, a link to
        each master suffices, which sends the invalidations for its keys.
        """
        exchange, tracking = self._exchange, self.tracking
        if exchange.ended or not tracking:
            return
        if b"BCAST" in tracking:
            exchange.links.masters()
        elif any(node in exchange.links.by_address for node in exchange.cluster.lost):
            exchange.forget_keys()

    def _reply(self, args: list[bytes], written: bytes) -> None:
        """Answer CLIENT REPLY: nodes always reply, and the client gets what it wants."""
        exchange = self._exchange
        mode = args[1].upper() if len(args) == 2 else b""
        if mode == b"ON":
            exchange.silent = exchange.skips = False
            exchange.answer(OK)
        elif mode == b"OFF":
            exchange.silent = True
        elif mode == b"SKIP":
            exchange.skips = not exchange.silent
        else:
            exchange.send_home(written)
