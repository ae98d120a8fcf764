"""WATCH, MULTI and EXEC: all commands of a transaction go to one node, that of its first key.

MULTI        answered here; sent in front of the first command
no key yet   home; with the first key, the transaction moves to the key's node
another slot CROSSSLOT, and EXEC is answered EXECABORT, as by Redis
EXEC is redirected: the whole transaction is sent again; with WATCH, EXEC is answered nil
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulks
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.redirects import MAX_REDIRECTS, redirect
from rlproxy.upstream.cluster.request import NO_SLOT, Request, own

CROSSSLOT: Final = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
_ABORTED: Final = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
_NESTED: Final = b"-ERR MULTI calls can not be nested\r\n"
_WATCH_INSIDE: Final = b"-ERR WATCH inside MULTI is not allowed\r\n"
_MULTI: Final = bulks(b"MULTI")
_DISCARD: Final = bulks(b"DISCARD")


class Opened:
    """One transaction, from MULTI to the reply to EXEC.

    link: where its commands go; None before the first one.
    commands: those that are queued.
    aborted: the proxy itself rejected a command.
    elsewhere: the node that a redirect of a queued command named, and whether by ASK.
    watched: keys were watched before it.
    """

    __slots__ = ("aborted", "commands", "elsewhere", "link", "slot", "tries", "watched")

    def __init__(self, link: Link | None, slot: int) -> None:
        self.link = link
        self.slot = slot
        self.watched = link is not None
        self.commands: list[bytes] = []
        self.aborted = False
        self.elsewhere: tuple[Address, bool] | None = None
        self.tries: int = 0


class Transaction:
    """The transactions and the watched keys of one client.

    now: the open transaction; None outside of MULTI.
    """

    __slots__ = ("_exchange", "_watch", "_watch_slot", "now")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.now: Opened | None = None
        self._watch: Link | None = None
        self._watch_slot: int = NO_SLOT

    def uses(self, link: Link) -> bool:
        """Return whether `link` holds an open transaction or watched keys."""
        return link is self._watch or (self.now is not None and self.now.link is link)

    def forget(self) -> None:
        """Forget all, as RESET does."""
        self.now = self._watch = None
        self._watch_slot = NO_SLOT

    # -- outside of MULTI -------------------------------------------------------------------------

    def watch(self, slot: int, written: bytes) -> bool:
        """Send WATCH. Returns False if it must wait."""
        exchange, now = self._exchange, self.now
        if now is not None:
            if now.link is not None:
                exchange.send(now.link, _unguided(written))
            else:
                exchange.answer(_WATCH_INSIDE)
            return True
        if slot == NO_SLOT:
            exchange.send(exchange.home(), Request(written))
            return True
        if self._watch is not None and slot != self._watch_slot:
            exchange.answer(CROSSSLOT)
            return True
        link = self._watch if self._watch is not None else exchange.of_slot(slot)
        if not exchange.redirects.may_send(slot, link):
            return False
        request = Request(written, slot)
        self._watch, self._watch_slot = link, slot
        request.answered = self._watched(request)
        exchange.send(link, request)
        return True

    def _watched(self, request: Request) -> Callable[[bytes], bytes]:
        def answered(frame: bytes) -> bytes:
            if request.target is not None and self._watch is not None:
                self._watch = self._exchange.link(request.target)  # it was redirected
            return frame

        return answered

    def unwatch(self, written: bytes) -> None:
        """Send UNWATCH."""
        exchange = self._exchange
        link = self._watch if self._watch is not None else exchange.home()
        self.forget()
        exchange.send(link, _unguided(written))

    def multi(self, written: bytes, words: int) -> None:
        """Begin a transaction."""
        exchange, now = self._exchange, self.now
        if words != 1:
            exchange.send(exchange.home(), _unguided(written))
        elif now is None:
            self.now = Opened(self._watch, self._watch_slot)
            if self._watch is not None:
                exchange.send_own(self._watch, _MULTI)
            exchange.answer(OK)
        elif now.link is not None:
            exchange.send(now.link, _unguided(written))
        else:
            exchange.answer(_NESTED)

    # -- inside of MULTI --------------------------------------------------------------------------

    def queue(self, now: Opened, slot: int, written: bytes) -> bool:
        """Send a command of the transaction. Returns False if it must wait."""
        exchange = self._exchange
        if slot != NO_SLOT and slot != now.slot:
            if now.slot != NO_SLOT:
                now.aborted = True
                exchange.answer(CROSSSLOT)
                return True
            link = exchange.of_slot(slot)
            if not exchange.redirects.may_send(slot, link):
                return False
            now.slot = slot
            self._move(now, link)
        elif now.link is None:
            self._move(now, exchange.home())
        link_now = now.link
        assert link_now is not None
        request = Request(written, now.slot)
        request.refused = lambda link, frame: self._queue_refused(now, request, link, frame)
        now.commands.append(written)
        exchange.send(link_now, request)
        return True

    def _move(self, now: Opened, link: Link) -> None:
        """Have the transaction at `link`."""
        exchange = self._exchange
        if now.link is link:
            return
        if now.link is not None:
            exchange.send_own(now.link, _DISCARD)
        now.link = link
        self._begin(now, link, False)

    def _begin(self, now: Opened, link: Link, asking: bool) -> None:
        multi = own(_MULTI)
        multi.asking = asking  # it applies to the whole transaction then
        link.send(multi)
        for written in now.commands:
            self._exchange.send_own(link, written)

    def _queue_refused(self, now: Opened, request: Request, link: Link, frame: bytes) -> bool:
        """Take the error for a queued command: a redirect is followed when EXEC comes."""
        slot, address = redirect(frame, link.address)
        if address is None:
            return False
        asking = frame.startswith(b"-ASK")
        if not asking:
            self._exchange.cluster.moved(slot, address)
        now.elsewhere = (address, asking)
        self._exchange.done(request, _QUEUED)
        return True

    def execute(self, written: bytes) -> None:
        """Send EXEC."""
        exchange, now = self._exchange, self.now
        if now is None:
            exchange.send(exchange.home(), _unguided(written))
            return
        self.forget()
        if now.aborted:
            if now.link is not None:
                exchange.send_own(now.link, _DISCARD)
            exchange.answer(_ABORTED)
            return
        if now.link is None:
            self._move(now, exchange.home())
        link = now.link
        assert link is not None
        request = Request(written, now.slot)
        request.refused = lambda link, frame: self._execute_refused(now, request, link, frame)
        exchange.send(link, request)

    def _execute_refused(self, now: Opened, request: Request, link: Link, frame: bytes) -> bool:
        """Take the error for EXEC: after a redirect, the node has discarded the transaction."""
        exchange = self._exchange
        slot, address = redirect(frame, link.address)
        asking = frame.startswith(b"-ASK")
        if address is not None and not asking:
            exchange.cluster.moved(slot, address)
        elif address is None and now.elsewhere is not None and frame.startswith(b"-EXECABORT"):
            address, asking = now.elsewhere
            now.elsewhere = None
        now.tries += 1
        if address is None or now.tries > MAX_REDIRECTS:
            return False
        if now.watched:
            exchange.done(request, b"_\r\n" if exchange.protocol == 3 else b"*-1\r\n")
            return True
        exchange.redirects.unsettle()
        now.link = exchange.link(address)
        self._begin(now, now.link, asking)
        now.link.send(request)
        return True

    def discard(self, written: bytes) -> None:
        """Send DISCARD."""
        exchange, now = self._exchange, self.now
        if now is None:
            exchange.send(exchange.home(), _unguided(written))
            return
        self.forget()
        if now.link is not None:
            exchange.send(now.link, _unguided(written))
        else:
            exchange.answer(OK)


def _unguided(written: bytes) -> Request:
    """A request whose errors go to the client as they are."""
    request = Request(written)
    request.refused = lambda _link, _frame: False
    return request
