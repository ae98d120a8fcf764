"""WATCH, MULTI and EXEC: all commands of a transaction go to one node, that of its first key.

MULTI        answered here, and sent in front of the first command
no key yet   home; with the first key, the transaction moves to the key's node
another slot CROSSSLOT, and EXEC is answered EXECABORT, as by Redis
EXEC is redirected: the whole transaction is sent again; with WATCH, EXEC is answered nil; behind a
             command that was rejected, or above MAX_KEPT, EXECABORT
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import OK, bulks, error
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.upstream.cluster import routes
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.redirects import is_redirect
from rlproxy.upstream.cluster.request import Request, slot_of
from rlproxy.upstream.cluster.routes import Route

MAX_KEPT: Final = 1048576  # bytes of the commands of a transaction that are kept
CROSSSLOT: Final = b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
_WATCH_INSIDE: Final = b"-ERR WATCH inside MULTI is not allowed\r\n"
_ABORTED: Final = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
_NILS: Final = {2: b"*-1\r\n", 3: b"_\r\n"}  # by protocol
_TOO_LARGE: Final = error(
    f"ERR the commands before the first key of a transaction have more than {MAX_KEPT} bytes, "
    "on a Redis Cluster"
)
_DISCARD: Final = bulks(b"DISCARD")
_UNWATCH: Final = bulks(b"UNWATCH")


@dataclass
class Transaction:
    """One transaction, from WATCH, or else MULTI, to the reply to EXEC.

    slot: of its keys; NO_SLOT before the first one.
    link: where its commands go; None before the first one.
    watched: keys were watched before MULTI.
    owner: of the slot, as the first WATCH was answered.
    multi: as the client wrote it; empty before it.
    caching: CLIENT CACHING, which precedes MULTI; empty for none.
    commands: those that are queued, to be sent again. With `watched`, none ever is.
    kept: bytes of these so far. Beyond MAX_KEPT, `commands` is empty: nothing is sent again.
    aborted: a command was rejected, so that EXEC fails.
    rejected_by: the node that has rejected one: it has the error for EXEC.
    error: the first redirect of a queued command, or error of one that was sent again; empty if
        there was none.
    """

    slot: int = NO_SLOT
    link: Link | None = None
    watched: bool = False
    owner: Address | None = None
    multi: bytes = b""
    caching: bytes = b""
    commands: list[bytes] = field(default_factory=list)
    kept: int = 0
    aborted: bool = False
    rejected_by: Address | None = None
    error: bytes = b""

    def keep(self, written: bytes) -> None:
        """Keep a queued command."""
        if not (self.aborted or self.watched):
            self.kept += len(written)
            self.commands.append(written)
            if self.kept > MAX_KEPT:
                self.commands.clear()

    def abort(self) -> None:
        """Keep no commands: they will not run."""
        self.aborted = True
        self.commands.clear()

    def replay(self) -> list[Request]:
        """Return requests of the proxy's own: MULTI and the commands that are queued."""
        return [Request(each, on_reply=self._on_replayed) for each in (self.multi, *self.commands)]

    def _on_replayed(self, frame: bytes) -> bytes:
        if frame.startswith(b"-"):
            self.error = self.error or frame
        return frame

    def on_queue_error(self, node: Address, _request: Request, frame: bytes) -> bytes:
        """Return the reply to a queued command with an error: EXEC follows a redirect."""
        if not is_redirect(frame):
            self.abort()
            self.rejected_by = node
            return frame
        self.error = self.error or frame
        return _QUEUED


class Transactions:
    """The transactions and the watched keys of one client.

    current: the open transaction; None outside of MULTI.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.current: Transaction | None = None
        self._watched: Transaction | None = None  # the one that keys are watched for

    def uses(self, link: Link) -> bool:
        """Return whether `link` holds an open transaction or watched keys."""
        transaction = self.current or self._watched
        return transaction is not None and transaction.link is link

    def forget(self) -> None:
        """Forget all, as RESET does."""
        self.current = self._watched = None

    def send(self, route: Route, args: list[bytes], keys: list[bytes], written: bytes) -> None:
        """Send WATCH, UNWATCH, MULTI, EXEC or DISCARD."""
        exchange, transaction, how = self._exchange, self.current, route.how
        if transaction is None:
            if how == routes.WATCH and keys:
                self._watch_keys(key_slot(keys[0]), written)
            elif how == routes.MULTI and not args:
                self._begin(written)
            elif how == routes.UNWATCH:
                link = self._watched.link if self._watched is not None else None
                self.forget()
                exchange.send(link or exchange.links.home(), Request(written))
            else:
                exchange.send_home(written)
        elif how == routes.EXEC:
            self._exec(transaction, written)
        elif how == routes.DISCARD and not args:
            self._discard(transaction, written)
        elif not route.aborts and slot_of(keys) not in (NO_SLOT, transaction.slot):
            exchange.answer(_WATCH_INSIDE)  # the transaction's node would redirect it, and abort
        else:  # nested MULTI, DISCARD with arguments, or WATCH: the node writes the error
            request = Request(written, on_error=lambda _node, _request, frame: frame)
            self._send(transaction, request)  # no redirect is followed

    # -- outside of MULTI -------------------------------------------------------------------------

    def _watch_keys(self, slot: int, written: bytes) -> None:
        exchange = self._exchange
        first = self._watched is None
        watched = self._watched or Transaction(slot, watched=True)
        if slot != watched.slot:
            exchange.answer(CROSSSLOT)
            return
        watched.link = link = watched.link or exchange.links.of_slot(slot)
        request = Request(written, slot)

        def on_reply(frame: bytes) -> bytes:
            if frame != OK and first:
                self.forget()
            elif request.target is not None and request.target != link.address:  # redirected
                moved_to = exchange.links.to(request.target)
                if first:
                    watched.link = moved_to
                else:  # the keys watched before have moved, so EXEC at their former node fails
                    moved_to.send(Request(_UNWATCH))
            if first:
                watched.owner = exchange.cluster.map.owner(slot)
            return frame

        request.on_reply = on_reply
        self._watched = watched
        exchange.send(link, request)

    def _begin(self, written: bytes) -> None:
        exchange = self._exchange
        self.current = transaction = self._watched or Transaction()
        transaction.multi, transaction.caching = written, exchange.caching
        exchange.caching = b""
        if transaction.link is not None:
            self._open(transaction, transaction.link)
        exchange.answer(OK)

    # -- inside of MULTI --------------------------------------------------------------------------

    def queue(self, transaction: Transaction, keys: list[bytes], written: bytes) -> None:
        """Send a command of the transaction."""
        slots = {*map(key_slot, keys), transaction.slot} - {NO_SLOT}
        if len(slots) > 1:
            self._reject(transaction, CROSSSLOT)
            return
        if slots and transaction.slot == NO_SLOT and transaction.rejected_by is None:
            if transaction.kept > MAX_KEPT:
                self._reject(transaction, _TOO_LARGE)
                return
            transaction.slot = slots.pop()
            link = self._exchange.links.of_slot(transaction.slot)
            if transaction.link is not link:
                if transaction.link is not None:
                    transaction.link.send(Request(_DISCARD))
                self._open(transaction, link)
        on_error = transaction.on_queue_error
        self._send(transaction, Request(written, transaction.slot, on_error=on_error))

    def reject_by_name(self, transaction: Transaction, name: bytes) -> None:
        """Reject the command `name`, which can't be part of a transaction here."""
        text = f"ERR Command not allowed inside a transaction: {name.decode()} on a Redis Cluster"
        self._reject(transaction, error(text))

    def _reject(self, transaction: Transaction, reply: bytes) -> None:
        """Answer a command of the transaction with an error; EXEC fails then."""
        transaction.abort()
        self._exchange.answer(reply)

    def _send(self, transaction: Transaction, request: Request) -> None:
        link = transaction.link or self._open(transaction, self._exchange.links.home())
        transaction.keep(request.written)
        self._exchange.send(link, request)

    def _open(self, transaction: Transaction, link: Link) -> Link:
        """Open the transaction at `link`."""
        transaction.link = link
        if transaction.caching:
            link.send(Request(transaction.caching))
        for request in transaction.replay():
            link.send(request)
        return link

    def _exec(self, transaction: Transaction, written: bytes) -> None:
        """Send EXEC. It ends the transaction even if it has arguments, which are an error."""
        exchange = self._exchange
        link, owner = transaction.link, exchange.cluster.map.owner(transaction.slot)
        # A node redirects no transaction without keys.
        where = link.address if link is not None else None
        moved = transaction.watched and owner not in (transaction.owner, where)
        self.forget()
        reply = b""
        if transaction.aborted:
            if link is None or transaction.rejected_by != where:
                reply = _ABORTED
        elif moved:
            reply = _NILS[exchange.protocol]
        if reply:
            if link is not None:
                link.send(Request(_DISCARD))
            exchange.answer(reply)
            return
        link = link or self._open(transaction, exchange.links.home())
        on_error = partial(self._on_exec_error, transaction)
        exchange.send(link, Request(written, transaction.slot, on_error=on_error))
        exchange.redirects.drain(transaction.slot)

    def _on_exec_error(
        self, transaction: Transaction, node: Address, request: Request, frame: bytes
    ) -> bytes:
        """Take the error for EXEC: the node has discarded the transaction.

        If the client takes the command that failed for queued, it gets that one's error.
        """
        exchange = self._exchange
        failed, transaction.error = transaction.error, b""
        unknown = request.redirected > 0 or is_redirect(failed)
        if failed and unknown and not transaction.aborted and frame.startswith(b"-EXECABORT"):
            frame = failed
        if not is_redirect(frame):
            return frame
        if transaction.aborted or transaction.watched or transaction.kept > MAX_KEPT:
            exchange.cluster.redirected(node, frame)
            changed = transaction.watched and not transaction.aborted
            return _NILS[exchange.protocol] if changed else _ABORTED
        frame = exchange.redirects.take(node, request, frame)
        request.caching, request.front = transaction.caching, transaction.replay()
        return frame

    def _discard(self, transaction: Transaction, written: bytes) -> None:
        self.forget()
        if transaction.link is not None:
            self._exchange.send(transaction.link, Request(written))
        else:
            self._exchange.answer(OK)
