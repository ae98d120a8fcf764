"""The dispatcher: it sends each command to the node of its key, in parts to the nodes of several
slots, to all masters or to home, or answers it. send() decides in this order:

    redirects are repaired, or slots have moved   it waits                      redirects
    it has keys in one slot, as most              their node                    _by_key()
    it changes the connection, a reply is owed    it waits                      routes.ALONE
    it is answered here, before a login           NOAUTH                        connection_setup
    inside MULTI                                  the transaction's node        transaction
    the client subscribes in RESP2                an error for most             subscriptions
    it has keys in several slots                  in parts                      _split()
    all others                                    by its route                  _unusual()
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rlproxy.resp import encoding
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.upstream.cluster import gather, info_reply, routes
from rlproxy.upstream.cluster.client_ids import send_with_ids
from rlproxy.upstream.cluster.connection_setup import ConnectionSetup
from rlproxy.upstream.cluster.exchange import MAX_PER_TICK, Exchange
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.request import UNKNOWN_SLOT, Divided, Request, slot_of
from rlproxy.upstream.cluster.routes import Route, Routes
from rlproxy.upstream.cluster.scan import send_scan
from rlproxy.upstream.cluster.subscriptions import Subscriptions
from rlproxy.upstream.cluster.transaction import CROSSSLOT, Transactions

_TRANSACTION: Final = (routes.MULTI, routes.EXEC, routes.DISCARD, routes.WATCH, routes.UNWATCH)
_BY_SLOT: Final = (routes.SPLIT, routes.SPLIT_ARRAY, routes.SPLIT_PAIRS, routes.ONE_SLOT)
_TO_ALL: Final = (
    *(routes.MASTERS, routes.ALL_MASTERS, routes.ALL_NODES, routes.ALL_UP),
    *(routes.WAIT, routes.INFO),
)


class Dispatcher:
    """The sender of one client's commands.

    splits: DEL, MGET and their kin may have keys in several slots.
    """

    def __init__(self, exchange: Exchange, routes: Routes, face: Face, splits: bool) -> None:
        self._exchange = exchange
        self._links = exchange.links
        self._routes = routes
        self._face = face
        self._splits = splits
        self.transactions = Transactions(exchange)
        self.setup = ConnectionSetup(exchange, face)
        self.subscriptions = Subscriptions(exchange, self.transactions)
        self._links.holds_state = self._holds_state
        exchange.at_end.append(self.transactions.forget)  # objects here form cycles

    def _holds_state(self, link: Link) -> bool:
        if link.open() and self.setup.tracking and not link.aside:  # invalidations may be lost
            return True
        return self.transactions.uses(link) or bool(link.subscribed)

    def send(self, words: list[bytes], written: bytes) -> bool:
        """Send a command, or answer it. Returns False if it must wait for replies.

        words: the command's words.
        written: the same as a request.
        """
        exchange = self._exchange
        if not exchange.redirects.drained():
            return False
        args = words[1:]
        route = self._routes.of(words[0], args)
        how = route.how
        transaction = self.transactions.current
        restricted = self.subscriptions.restricts()
        if how == routes.BY_KEY and transaction is None and not restricted:
            return self._by_key(route, args, written)
        if how & routes.ALONE and exchange.queue:
            return False
        error = self.setup.login_error() if how & routes.HERE else b""
        if error is None:
            return False
        if error:
            exchange.answer(error)
            return True
        if transaction is not None and not how & routes.NOT_QUEUED:
            if how & routes.NOT_INSIDE:
                self.transactions.reject_by_name(transaction, route.name)
            else:
                self.transactions.queue(transaction, _keys(route, args), written)
            return True
        if restricted and how not in (routes.RESET, routes.QUIT):
            self.subscriptions.send(route, args, written)
        elif how in _BY_SLOT:
            return self._split(route, args, words, written)
        else:
            self._unusual(route, args, written)
        if how & routes.ALONE:
            exchange.redirects.drain()
        return True

    def _by_key(self, route: Route, args: list[bytes], written: bytes) -> bool:
        """Send a command to the owner of its first key's slot."""
        exchange = self._exchange
        keys = _keys(route, args)
        slot = slot_of(keys)
        if not exchange.redirects.drained(slot):
            return False
        request = Request(written, slot, route.forgeable)
        if route.blocks:
            request.blocks_since = exchange.loop.time()
        exchange.send(self._links.of_slot(slot), request)
        if len(keys) > 1:
            exchange.redirects.drain(slot)
        return True

    # -- routes other than by key -----------------------------------------------------------------

    def _unusual(self, route: Route, args: list[bytes], written: bytes) -> None:
        exchange = self._exchange
        kept = exchange.caching if route.name.startswith(b"CLIENT ") else b""
        if kept:  # CLIENT CACHING is for the next command of another kind
            exchange.caching = b""
        self._by_route(route, args, written)
        exchange.caching = exchange.caching or kept

    def _by_route(self, route: Route, args: list[bytes], written: bytes) -> None:
        exchange, how = self._exchange, route.how
        if how in _TRANSACTION:
            self.transactions.send(route, args, _keys(route, args), written)
        elif how in (routes.SUBSCRIBE, routes.MONITOR):
            self.subscriptions.send(route, args, written)
        elif how == routes.RESET:
            self.setup.reset(written, self.transactions.forget, self.subscriptions.forget)
        elif how in (routes.SETUP, routes.CLIENT_REPLY, routes.CLIENT_CACHING):
            self.setup.send(route, args, written)
        elif how == routes.CLIENT_IDS:
            send_with_ids(exchange, route, args, written)
        elif how in _TO_ALL:
            self._to_all(route, written)
        elif how == routes.SCAN:
            send_scan(exchange, args, written)
        elif how == routes.CLUSTER:
            exchange.answer(self._face.cluster_reply(args, exchange.protocol))
        elif how == routes.REFUSED:
            exchange.answer(routes.unavailable(route))
        elif how in (routes.OK, routes.QUIT):
            exchange.answer(encoding.OK)
            exchange.leaving = how == routes.QUIT
        else:
            slot = UNKNOWN_SLOT if route.forgeable else NO_SLOT
            exchange.send(self._links.home(), Request(written, slot, route.forgeable))

    def _to_all(self, route: Route, written: bytes) -> None:
        exchange, how = self._exchange, route.how
        if how == routes.WAIT:
            links = self._links.used()
        elif how in (routes.MASTERS, routes.INFO):
            links = self._links.masters()
        else:
            links = self._links.everywhere(replicas=how != routes.ALL_MASTERS)
        merge = partial(info_reply.info, face=self._face) if how == routes.INFO else route.merge
        failed = self._links.errors_of_failed() if how == routes.ALL_NODES else []
        whole = Divided(len(links), lambda replies: merge([*replies, *failed]))
        if how == routes.WAIT:
            whole.blocks_since = exchange.loop.time()
        exchange.send_parts(whole, ((link, Request(written)) for link in links))

    # -- several slots ----------------------------------------------------------------------------

    def _split(self, route: Route, args: list[bytes], words: list[bytes], written: bytes) -> bool:
        """Send a command with keys in several slots as parts, one per slot.

        One with many words has no other command of its client beside it.
        """
        exchange = self._exchange
        if len(args) > MAX_PER_TICK and exchange.queue:
            return False
        by_slot: dict[int, list[int]] = {}
        for at in route.keys(args):
            by_slot.setdefault(key_slot(args[at]), []).append(at)
        if len(by_slot) < 2:
            return self._by_key(route, args, written)
        if not self._splits or route.how == routes.ONE_SLOT:
            exchange.answer(CROSSSLOT)
            return True
        if not all(map(exchange.redirects.drained, by_slot)):
            return False
        step = 2 if route.how == routes.SPLIT_PAIRS else 1
        if len(args) % step:  # a value is missing: a node writes the error if the keys are one
            first = [*args[:2], args[0]]
            return self._by_key(route, first, encoding.bulks(words[0], *first))
        merge = route.merge
        if route.how == routes.SPLIT_ARRAY:
            merge = partial(gather.placed, [at for places in by_slot.values() for at in places])

        def parts() -> Iterator[tuple[Link, Request]]:
            for slot, places in by_slot.items():
                taken = [args[word] for at in places for word in range(at, at + step)]
                part = Request(encoding.bulks(words[0], *taken), slot)
                if len(places) > 1:
                    exchange.redirects.drain(slot)
                yield self._links.of_slot(slot), part

        exchange.send_parts(Divided(len(by_slot), merge), parts())
        if len(args) > MAX_PER_TICK:
            exchange.redirects.drain()
        return True


def _keys(route: Route, args: list[bytes]) -> list[bytes]:
    """The keys of a command."""
    return [args[at] for at in route.keys(args)]
