"""The exchange of one client with the nodes: its requests, and their replies in request order.

    send() ──> links ──> nodes
    out <── queue, in request order <── replied() <── links

A node's MOVED or ASK never leaves: see `redirects`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.link import Link
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.redirects import Redirects
from rlproxy.upstream.cluster.request import Divided, Request, own
from rlproxy.upstream.cluster.routes import BLOCKS_NOT

MAX_OWED: Final = 16384  # commands without a reply, from which on the session is paused
GONE_S: Final = 1.0  # seconds in which a node that has lost its slots must reply
MAX_HELD: Final = 1048576  # bytes of replies that wait for those before them; see _throttle()


class Exchange:
    """The requests and the replies of one client.

    links: the connections to the nodes.
    unsent: links with something to write.
    out: bytes for the client.
    wake: called when `out` or the requests that wait here may have changed.
    clients: the exchanges of the process, by the client id that their clients were shown.
    ended: whether a link was lost whose state, or whose replies, can't be replaced.
    """

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        clients: dict[int, Exchange],
    ) -> None:
        self.cluster = cluster
        self.loop = loop
        self.links = Links(self)
        self.unsent: list[Link] = []
        self.clients = clients
        self.out: list[bytes] = []
        self.wake: Callable[[], None] = lambda: None
        self.ended = False
        self.quitting = False  # the connection ends with the home node's
        self.alone: Request | None = None  # the next commands wait for the reply to this one
        self.at_end: list[Callable[[], object]] = []  # called when the client's connection ends
        self.leaving = False  # it ends once the client has all replies
        self.silent = False  # CLIENT REPLY OFF
        self.skips = False  # CLIENT REPLY SKIP: of the next command
        self.prefix: bytes = b""  # CLIENT CACHING: goes in front of the next command
        # Whether a push, or a message of pub/sub, goes to the client.
        self.passes: Callable[[Link, bytes], bool] = _passes_all
        self.protocol: int = 2
        self.queue: deque[Request] = deque()  # what the client is owed
        self.redirects = Redirects(self)
        self.last: int = 0  # number of the latest request
        self._streaming = False  # the client has a reply in part
        self._after: list[bytes] = []  # pushes that came during that
        self._held: int = 0  # bytes of replies, and of pieces, that wait for those before them
        self._throttled = False

    # -- requests ---------------------------------------------------------------------------------

    def expect(self, request: Request) -> Request:
        """Append `request` to what the client is owed."""
        self.last += 1
        request.number = self.last
        request.silent = (self.silent or self.skips) and not request.subscribes
        self.skips = False
        self.queue.append(request)
        return request

    def send(self, link: Link, request: Request) -> None:
        """Send a command of the client."""
        self.expect(request)
        if self.prefix:
            self._take_prefix([request])
        link.send(request)

    def send_parts(self, links: list[Link], whole: Divided) -> None:
        """Send the parts of `whole`, each to its link."""
        self.expect(whole)
        if self.prefix:
            self._take_prefix(whole.parts)
        for link, part in zip(links, whole.parts, strict=True):
            part.number = whole.number
            link.send(part)

    def _take_prefix(self, requests: list[Request]) -> None:
        prefix, self.prefix = self.prefix, b""
        for request in requests:
            request.front = [*request.front, own(prefix)]

    def answer(self, reply: bytes) -> None:
        """Answer a command of the client without a node."""
        self.done(self.expect(Request(b"")), reply)

    def under_way(self) -> Iterator[Request]:
        """Yield the requests that nodes owe a reply, in request order."""
        for request in self.queue:
            if isinstance(request, Divided):
                yield from (part for part in request.parts if part.link is not None)
            elif request.link is not None:
                yield request

    def known_as(self, shown_id: int) -> None:
        """Have other clients of the process find this one by the id that it was shown."""
        if shown_id not in self.clients:
            self.clients[shown_id] = self
            self.at_end.append(partial(self.clients.pop, shown_id, None))

    def blocked(self) -> Link | None:
        """Return the link on which the client blocks, if its id there is known."""
        for request in self.under_way():
            if request.blocks != BLOCKS_NOT and request.link is not None:
                return request.link if request.link.client_id else None
        return None

    def take_map(self) -> None:
        """Take the cluster's present map. To be called before commands are sent."""
        if self.links.map is not self.cluster.map:
            self.links.follow()
            self.redirects.unsettle()

    def flush(self) -> None:
        """Write what was sent on all links."""
        while self.unsent:  # a link that is full may wake the client
            self.unsent.pop().flush()

    def full(self) -> bool:
        """Return whether the client should send no more for now."""
        return self.links.full or len(self.queue) > MAX_OWED

    def finish(self) -> None:
        """Act on the end of the client's commands: it doesn't wait for a command that blocks."""
        head = self.queue[0] if self.queue else None
        if head is not None and head.blocks != BLOCKS_NOT and head.link is not None:
            head.link.finish()

    def close(self) -> None:
        """End the client: close all links, and let all replies go."""
        self.ended = True
        for call in self.at_end:
            call()
        self.wake = lambda: None
        self.links.close()
        # Links refer to their exchange: the cycle would keep what waits here.
        self.queue.clear()
        self.out.clear()
        self._after.clear()

    # -- replies ----------------------------------------------------------------------------------

    def replied(self, link: Link, request: Request, frame: bytes) -> None:
        """Take a reply to `request`."""
        if frame[0] == 45 and not request.dropped:
            refused = request.refused
            if refused is None:
                if self.redirects.take(link, request, frame):
                    return
            elif refused(link, frame):
                return
        if request.answered is not None:
            frame = request.answered(frame)
        if request.dropped:
            return
        if request.frames > 0:
            request.reply += frame
        else:
            self.done(request, request.reply + frame)

    def done(self, request: Request, reply: bytes) -> None:
        """Take the whole reply to `request`."""
        request.reply = reply
        request.done = True
        self._held += len(reply)
        whole = request.part_of
        if whole is not None:
            if not whole.part_done():
                return
            self._held -= whole.join()
            whole.done = True
            self._held += len(whole.reply)
        queue, out = self.queue, self.out
        while queue and queue[0].done:
            request = queue.popleft()
            self._held -= len(request.reply)
            if not request.silent:
                out.append(request.reply)

    def streams(self, request: Request) -> bool:
        """Return whether the client gets the reply to `request` while it is being received."""
        return len(self.queue) > 0 and self.queue[0] is request and request.streams()

    def hold(self, size: int) -> None:
        """Count `size` more bytes of incomplete replies that wait, or fewer."""
        self._held += size

    def streamed(self, request: Request, piece: bytes, ended: bool) -> None:
        """Take a piece of the reply to `request`."""
        if not request.silent:
            self.out.append(piece)
        self._streaming = not ended
        if ended:
            self.out += self._after
            self._after.clear()
            self.done(request, b"")

    def unrequested(self, link: Link, frame: bytes) -> None:
        """Take a push, or any frame that is no reply."""
        if not self.passes(link, frame):
            return
        (self._after if self._streaming else self.out).append(frame)

    def batch_over(self) -> None:
        """Act on the replies that have been taken."""
        self.take_map()
        self.redirects.go_on()
        if self._throttled or self._held > MAX_HELD:
            self._throttle()
        self.wake()

    def _throttle(self) -> None:
        """While too many replies wait for the next one, read only the links that owe that one."""
        self._throttled = self._held > MAX_HELD and not self.redirects.pending
        head = self.queue[0] if self.queue else None
        following = head.parts if isinstance(head, Divided) else [head]
        links = [request.link for request in following if request is not None]
        for link in self.links.by_address.values():
            link.throttled = self._throttled and link not in links
            link.read()

    def link_full(self) -> None:
        """Take note that `full` of a link has changed."""
        self.links.look_at_full()
        self.wake()

    def failed(self, link: Link, error: bytes) -> None:
        """Answer all that `link` owes with `error`, and close it."""
        owed = [request for request in link.owed if not request.dropped]
        link.owed.clear()
        self.links.forget(link)
        if self.links.holds_state(link):
            self.ended = True
        for request in owed:
            request.link = None
            self.done(request, error)

    def nodes_left(self, addresses: set[Address]) -> None:
        """Act on nodes that are no masters any more; one that doesn't reply may never do so."""
        for link in self.links.by_address.values():
            if link.address in addresses and link.owed:
                self.loop.call_later(GONE_S, self._expire, link, link.owed[0])

    def _expire(self, link: Link, request: Request) -> None:
        current = self.links.by_address.get(link.address) is link
        waits = current and link.owed and link.owed[0] is request
        if waits and link.address not in self.cluster.map.index:
            self.lost(link)

    def lost(self, link: Link) -> None:
        """Handle the loss of `link`; `owed` has the requests whose outcome is unknown."""
        if not self.links.forget(link):
            return
        self.cluster.refresh()
        owes = any(not request.dropped for request in link.owed)
        if owes or self.links.holds_state(link) or self.quitting:
            self.ended = True
        self.wake()


def _passes_all(_link: Link, _frame: bytes) -> bool:
    return True
