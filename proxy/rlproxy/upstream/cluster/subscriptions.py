"""The subscriptions of one client: channels and patterns at home, shard channels at their node.

Keyspace events are published by each node for its own keys: subscriptions that may match them go to
all masters, and from the others only these events are passed on.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp.encoding import bulks
from rlproxy.resp.key_slot import key_slot
from rlproxy.upstream.cluster import routes as r
from rlproxy.upstream.cluster.exchange import Exchange
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.request import NO_SLOT, Request, own
from rlproxy.upstream.cluster.routes import Route

_EVENTS: Final = b"__key"  # channels of keyspace events begin so
_GLOB: Final = b"*?[\\"
# By subscribing commands: those that end it.
_ENDS: Final = {
    b"UNSUBSCRIBE": b"SUBSCRIBE",
    b"PUNSUBSCRIBE": b"PSUBSCRIBE",
    b"SUNSUBSCRIBE": b"SSUBSCRIBE",
}


class Subscriptions:
    """The subscriptions of one client.

    only: in RESP2 while it subscribes, a client may send few other commands.
    """

    __slots__ = ("_asked", "_exchange", "_names", "only")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.only = False
        self._names: dict[bytes, set[bytes]] = {name: set() for name in _ENDS.values()}
        self._asked: int = 0  # subscribing commands without a reply
        exchange.passes = self._passes

    def uses(self, link: Link) -> bool:
        """Return whether `link` carries subscriptions."""
        return link.subscribed

    def forget(self) -> None:
        """Forget all, as RESET does."""
        for names in self._names.values():
            names.clear()
        self.only = False
        for link in self._exchange.links.values():
            link.subscribed = False

    def send(self, route: Route, args: list[bytes], written: bytes) -> bool:
        """Send a command that subscribes, ends that, or publishes to a shard channel.

        Returns False if it must wait.
        """
        exchange, name = self._exchange, route.name
        if route.how == r.MONITOR:
            self._monitor(written)
            return True
        if name in self._names:
            if args:
                self._names[name].update(args)
                self.only = exchange.protocol == 2
            return self._ask(route, args, written, len(args))
        kind = _ENDS.get(name)
        if kind is None:  # SPUBLISH, or a command that RESP2 doesn't allow now
            return self._ask(route, args, written, 1, subscribes=False)
        names = self._names[kind]
        if not args and kind == b"SSUBSCRIBE" and names:
            channels = sorted(names)
            names.clear()
            for channel in channels:
                self._ask(route, [channel], bulks(name, channel), 1)
            return True
        count = len(args) or max(1, len(names))
        events = any(_may_be_events(each) for each in names)
        names.difference_update(args or list(names))
        return self._ask(route, args, written, count, events=events)

    def _ask(
        self,
        route: Route,
        args: list[bytes],
        written: bytes,
        count: int,
        *,
        subscribes: bool = True,
        events: bool = False,
    ) -> bool:
        exchange = self._exchange
        slot = key_slot(args[0]) if route.how == r.CHANNEL and args else NO_SLOT
        link = exchange.of_slot(slot)
        if slot == NO_SLOT and not subscribes:
            link = self._subscribed()
        elif not exchange.redirects.may_send(slot, link):
            return False
        request = Request(written, slot)
        if subscribes and (args or route.name in _ENDS):
            request.frames = max(1, count)
            request.subscribes = True
            self._asked += 1
            request.answered = lambda frame: self._answered(request, frame)
            if slot == NO_SLOT and (events or any(_may_be_events(each) for each in args)):
                for other in exchange.masters()[1:]:
                    copy = own(written)
                    copy.frames = request.frames
                    copy.subscribes = True
                    other.send(copy)
        exchange.send(link, request)
        return True

    def _subscribed(self) -> Link:
        """The link that knows that the client subscribes."""
        home = self._exchange.home()
        if home.subscribed:
            return home
        return next((link for link in self._exchange.links.values() if link.subscribed), home)

    def _answered(self, request: Request, frame: bytes) -> bytes:
        if request.frames <= 0 or frame.startswith(b"-"):
            self._asked -= 1
        if self._asked == 0 and not any(self._names.values()):
            self.only = False
            for link in self._exchange.links.values():
                link.subscribed = False
        return frame

    def _monitor(self, written: bytes) -> None:
        exchange = self._exchange
        home, *others = exchange.masters()
        for link in others:
            link.send(own(written))
            link.subscribed = True
        request = Request(written)

        def answered(frame: bytes) -> bytes:
            home.subscribed = True
            return frame

        request.answered = answered
        exchange.send(home, request)

    def _passes(self, link: Link, frame: bytes) -> bool:
        """Whether a message of `link` goes to the client."""
        words = frame[:4096].split(b"\r\n", 8)
        kind = words[2] if len(words) > 4 else b""
        if kind == b"sunsubscribe":  # the slot has moved: nothing ends for the client
            self._again(words[4])
            return False
        if kind not in (b"message", b"pmessage") or self._exchange.is_home(link):
            return True
        channel = words[6] if kind == b"pmessage" and len(words) > 6 else words[4]
        return channel.startswith(_EVENTS)

    def _again(self, channel: bytes) -> None:
        """Subscribe to a shard channel whose slot has moved."""
        exchange = self._exchange
        if channel not in self._names[b"SSUBSCRIBE"]:
            return
        exchange.cluster.refresh()
        slot = key_slot(channel)
        request = Request(bulks(b"SSUBSCRIBE", channel), slot)
        request.subscribes = True
        exchange.expect(request)
        request.silent = True
        exchange.of_slot(slot).send(request)


def _may_be_events(name: bytes) -> bool:
    """Whether a channel is one of keyspace events, or a pattern may match some."""
    plain = 0
    while plain < len(name) and name[plain] not in _GLOB:
        plain += 1
    if plain == len(name):
        return name.startswith(_EVENTS)
    return name[:plain].startswith(_EVENTS) or _EVENTS.startswith(name[:plain])
