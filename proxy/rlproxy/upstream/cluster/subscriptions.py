"""The subscriptions of one client: channels and patterns at home, shard channels at their node.

Keyspace events are published by each node for its own keys: subscriptions that may match them go to
all masters, and from the others only these events are passed on. MONITOR goes to all masters, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.encoding import bulk, bulks, error
from rlproxy.resp.key_slot import NO_SLOT, key_slot
from rlproxy.resp.replies import elements
from rlproxy.upstream.cluster import gather, routes
from rlproxy.upstream.cluster.exchange import MAX_PER_TICK, Exchange
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.redirects import PAUSE_S, is_redirect
from rlproxy.upstream.cluster.request import Divided, Request, slot_of
from rlproxy.upstream.cluster.routes import Route
from rlproxy.upstream.cluster.transaction import CROSSSLOT, Transactions

_EVENTS: Final = b"__key"  # channels of keyspace events begin so
_GLOB: Final = b"*?[\\"
# The commands that end subscriptions, and those that begin them.
_ENDS: Final = {
    b"UNSUBSCRIBE": b"SUBSCRIBE",
    b"PUNSUBSCRIBE": b"PSUBSCRIBE",
    b"SUNSUBSCRIBE": b"SSUBSCRIBE",
}
_SHARD: Final = b"SSUBSCRIBE"
_NOT_NOW: Final = (
    "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
    "allowed in this context"
)
_ARITY: Final = "ERR wrong number of arguments for '{}' command"


class Subscriptions:
    """The subscriptions of one client."""

    def __init__(self, exchange: Exchange, transactions: Transactions) -> None:
        self._exchange = exchange
        self._transactions = transactions
        self._subscribes = False
        # Channels and patterns by the command that subscribed to them.
        self._channels: dict[bytes, set[bytes]] = {name: set() for name in _ENDS.values()}
        # Of these, those that may match keyspace events.
        self._events: dict[bytes, set[bytes]] = {b"SUBSCRIBE": set(), b"PSUBSCRIBE": set()}
        self._shard_channel: bytes = b""  # the one of the latest PING
        # Shard channels whose slot has moved, with the node's message that the subscription ended.
        self._moved: dict[bytes, bytes] = {}
        self._monitors = False
        exchange.delivers = self._delivers

    def forget(self) -> None:
        """Forget all, as RESET does."""
        for names in (*self._channels.values(), *self._events.values()):
            names.clear()
        self._monitors = False
        self._update()

    def _update(self) -> None:
        """Update what follows from the channels: whether there are any, which links may push."""
        self._subscribes = any(self._channels.values())
        if not self._subscribes and not self._monitors:
            for link in self._exchange.links.by_address.values():
                link.subscribed = ()

    def restricts(self) -> bool:
        """Return whether the client subscribes in RESP2, and may send few other commands."""
        return self._subscribes and self._exchange.protocol == 2

    def send(self, route: Route, args: list[bytes], written: bytes) -> None:
        """Send a command that subscribes or ends that, or any other while restricts()."""
        if route.how == routes.MONITOR and not self.restricts():
            self._monitor(written)
        elif route.name == b"SUNSUBSCRIBE" and not args and self._channels[_SHARD]:
            self._end_shard_channels()
        elif route.name in self._channels or route.name in _ENDS:
            self._change(route.name, args, written)
        elif route.name == b"PING":  # to a node at which the client subscribes
            slot = NO_SLOT if self._at_home() else self._slot_of_shard_channel()
            self._exchange.send(
                self._exchange.links.of_slot(slot), Request(written, on_reply=_pong)
            )
        else:
            self._refuse(route, 1 + len(args), written)

    def _refuse(self, route: Route, count: int, written: bytes) -> None:
        """Answer a command of `count` words, which a client that subscribes may not send.

        Home writes the error, that of an unknown command included, unless it complains about the
        keys first. The node of a shard channel does not get the command: it would run it once the
        slot of the channel has moved.
        """
        shown = route.name.decode("utf-8", "replace").lower().replace(" ", "|")
        wrong = count != route.arity if route.arity > 0 else count < -route.arity
        not_now = error((_ARITY if wrong else _NOT_NOW).format(shown))

        def on_error(_node: Address, _request: Request, frame: bytes) -> bytes:
            return not_now if is_redirect(frame) or frame == CROSSSLOT else frame

        if self._at_home():
            self._exchange.send(self._exchange.links.home(), Request(written, on_error=on_error))
        else:
            self._exchange.answer(not_now)

    def _change(self, name: bytes, args: list[bytes], written: bytes) -> None:
        """Send a command that subscribes or unsubscribes. It has one reply for each channel."""
        exchange = self._exchange
        kind = _ENDS.get(name, name)
        channels, event_channels = self._channels[kind], self._events.get(kind, set())
        named = args or sorted(channels)
        unanswered = iter(named)
        events = [each for each in named if kind != _SHARD and _may_be_events(each)]
        among_events = set(events)

        def on_reply(frame: bytes) -> bytes:
            if not frame.startswith(b"-"):
                channel = next(unanswered, None)
                if channel is not None:
                    (channels.add if kind == name else channels.discard)(channel)
                    if channel in among_events:
                        (event_channels.add if kind == name else event_channels.discard)(channel)
                if kind == _SHARD:
                    frame = _counted(frame, len(channels))
            return frame

        def merge(replies: list[bytes]) -> bytes:
            self._update()  # not before: messages of the other masters may precede their replies
            exchange.loop.call_soon(self._subscribe_new_masters)  # those since the command
            return replies[0]

        request = _subscribing(name, named, slot_of(args) if kind == _SHARD else NO_SLOT)
        request.written = written
        request.on_reply = on_reply
        parts = [(exchange.links.of_slot(request.slot), request)]
        if events:
            parts += [(link, _subscribing(name, events)) for link in self._other_masters()]
            exchange.on_change(self._subscribe_new_masters)
        self._send(parts, merge)

    def _end_shard_channels(self) -> None:
        """Unsubscribe from all shard channels, each at its node."""
        names = self._channels[_SHARD]
        parts = []
        for channel in sorted(names):
            part = _subscribing(b"SUNSUBSCRIBE", [channel], key_slot(channel))
            parts.append((self._exchange.links.of_slot(part.slot), part))

        def merge(replies: list[bytes]) -> bytes:
            names.clear()
            self._update()
            last = len(replies) - 1
            return b"".join([_counted(frame, last - at) for at, frame in enumerate(replies)])

        self._send(parts, merge)

    def _monitor(self, written: bytes) -> None:
        def merge(replies: list[bytes]) -> bytes:
            self._monitors = not gather.is_error(replies[0])
            self._exchange.on_change(self._subscribe_new_masters)
            return replies[0]

        parts = []
        for link in [self._exchange.links.home(), *self._other_masters()]:
            part = _subscribing(b"MONITOR", [])
            part.written = written
            parts.append((link, part))
        self._send(parts, merge)

    def _send(self, parts: list[tuple[Link, Request]], merge: gather.Merge) -> None:
        """Send the parts of a command. The client gets its reply once all nodes have replied.

        Messages wait for it. Lines of MONITOR before it are dropped. CLIENT REPLY turns off errors,
        and no confirmations.
        """
        off, kind = self._exchange.replies_off(), parts[0][1].subscribes
        count = len(parts)  # shown() refers to no part: each part refers to the command
        links = dict.fromkeys(link for link, _ in parts) if kind == b"sunsubscribe" else ()
        marks = [(link, _mark(link)) for link in links]

        def shown(replies: list[bytes]) -> bytes:
            reply = merge(replies[:count])
            return b"" if off and gather.is_error(reply) else reply

        whole = Divided(count + len(marks), shown)
        whole.subscribes = kind
        self._exchange.send_parts(whole, iter([*parts, *marks]))

    # -- keyspace events and MONITOR --------------------------------------------------------------

    def _other_masters(self) -> list[Link]:
        """The links to all masters but home."""
        links = self._exchange.links
        return [link for link in links.masters() if not links.is_home(link)]

    def _subscribe_new_masters(self) -> None:
        """Subscribe to keyspace events, and to MONITOR, at masters that have joined."""
        exchange = self._exchange
        wanted: dict[bytes, set[bytes]] = {b"MONITOR": set()} if self._monitors else {}
        for name, events in self._events.items():
            if events:
                wanted[name] = events
        if not wanted or self._postpones(self._subscribe_new_masters):
            return
        for link in self._other_masters():
            for name, channels in wanted.items():
                if name.lower() not in link.subscribed:
                    link.send(_subscribing(name, list(channels)))
        exchange.flush()

    def _at_home(self) -> bool:
        """Whether the client subscribes at home, and not to shard channels alone."""
        return any(names for kind, names in self._channels.items() if kind != _SHARD)

    def _slot_of_shard_channel(self) -> int:
        """The slot of a shard channel: the same one for as long as the client subscribes to it.

        A set with many removed channels takes long to find its first one.
        """
        names = self._channels[_SHARD]
        if self._shard_channel not in names:
            self._shard_channel = next(iter(names), b"")
        return key_slot(self._shard_channel)

    def _delivers(self, link: Link, frame: bytes) -> bool:
        """Whether a message of `link` goes to the client."""
        if frame[:1] == b"+":  # a line of MONITOR; a replica shows the writes of its master, too
            return self._monitors and self._is_master(link)
        if is_redirect(frame):  # of SUNSUBSCRIBE, which the node's own message has answered
            return False
        words = frame[:4096].split(b"\r\n", 8)
        kind = words[2] if len(words) > 4 else b""
        if kind == b"sunsubscribe":  # the slot has moved: nothing ends for the client
            if not self._moved:
                self._exchange.loop.call_soon(self._resubscribe)
            self._moved[words[4]] = frame
            return False
        if kind not in (b"message", b"pmessage"):
            return True
        channel = words[6] if kind == b"pmessage" and len(words) > 6 else words[4]
        if channel.startswith(_EVENTS):  # a replica publishes the events of its master, too
            return self._is_master(link)
        return self._exchange.links.is_home(link)

    def _is_master(self, link: Link) -> bool:
        return link.address in self._exchange.cluster.map.index

    def _resubscribe(self) -> None:
        """Subscribe to shard channels whose slot has moved: MAX_PER_TICK of them in a tick."""
        if self._postpones(self._resubscribe):
            return
        exchange = self._exchange
        exchange.cluster.refresh()
        for _ in range(min(len(self._moved), MAX_PER_TICK)):
            channel, ended = self._moved.popitem()
            if channel in self._channels[_SHARD]:
                request = _subscribing(_SHARD, [channel], key_slot(channel))
                request.on_reply = partial(self._on_resubscribed, channel, ended)
                exchange.send_own(exchange.links.of_slot(request.slot), request)
        exchange.flush()
        if self._moved:
            exchange.loop.call_soon(self._resubscribe)

    def _on_resubscribed(self, channel: bytes, ended: bytes, frame: bytes) -> bytes:
        """Take the reply. If no node accepts the channel, the client gets the message `ended`."""
        if frame.startswith(b"-"):
            self._channels[_SHARD].discard(channel)
            self._exchange.deliver(ended)
            self._update()
        return frame

    def _postpones(self, again: Callable[[], None]) -> bool:
        """Return whether nothing may be sent now: the client has ended, or `again` is called later.

        Inside MULTI, a node would queue the command. SUNSUBSCRIBE may end what it would begin.
        """
        exchange = self._exchange
        ends = len(exchange.queue) > 0 and exchange.queue[0].subscribes == b"sunsubscribe"
        later = ends or self._transactions.current is not None
        if later:
            exchange.loop.call_later(PAUSE_S, again)
        return later or exchange.ended


def _subscribing(name: bytes, channels: list[bytes], slot: int = NO_SLOT) -> Request:
    """Return the request for a command that subscribes or ends that: one reply for each channel."""
    request = Request(bulks(name, *channels), slot)
    request.frames = max(len(channels), 1)
    request.subscribes = name.lower()
    if name == b"SUNSUBSCRIBE" and channels:
        request.names = set(map(bulk, channels))
    return request


def _mark(link: Link) -> Request:
    """Return a PING that is sent behind SUNSUBSCRIBE, so that its reply ends those before it.

    A node that has just lost the slot has ended the subscription itself. That message is taken for
    the reply; then the redirect that the node writes for the command is none.
    """

    def on_error(node: Address, mark: Request, frame: bytes) -> bytes:
        if not is_redirect(frame):
            return frame
        link.owed.appendleft(mark)
        mark.node = node
        return b""

    return Request(bulks(b"PING"), on_error=on_error)


def _pong(frame: bytes) -> bytes:
    """Return the reply to PING as of a node that subscribes: the channel's slot may have moved."""
    if frame == b"+PONG\r\n":
        frame = bulk(b"")
    return b"*2\r\n" + bulk(b"pong") + frame if frame[:1] == b"$" else frame


def _counted(frame: bytes, count: int) -> bytes:
    """Return the reply for a shard channel with the number of them on all nodes."""
    words = elements([frame])
    if words is None:
        return frame
    words[2] = b":%d\r\n" % count
    return frame[:4] + b"".join(words)


def _may_be_events(name: bytes) -> bool:
    """Whether a channel is one of keyspace events, or a pattern may match some."""
    begin = name[: len(_EVENTS)]
    plain = 0
    while plain < len(begin) and begin[plain] not in _GLOB:
        plain += 1
    return begin == _EVENTS if plain == len(begin) else _EVENTS.startswith(begin[:plain])
