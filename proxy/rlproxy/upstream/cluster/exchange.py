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
from itertools import islice
from typing import Final

from rlproxy.resp.encoding import INVALIDATE, NO_ROOM
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.link import Link, LinkOwner
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.redirects import Redirects
from rlproxy.upstream.cluster.request import Divided, OnReply, Request, under_way

MAX_PER_TICK: Final = 512  # parts of one command that are sent in one tick
# Bytes of commands without a reply, and of their parts, from which on the session is paused.
MAX_KEPT: Final = 8388608
KEPT: Final = 512  # bytes that a command or a part takes besides its text
MAX_BEHIND: Final = 4096  # bytes of invalidations that follow a reply once more
MAX_HELD: Final = 1048576  # bytes of replies that wait for those before them; see _read()
# Begins a node's reply to bytes that only some servers accept: Valkey from 9.1 checks the line end
# behind a bulk.
_PROTOCOL_ERROR: Final = b"-ERR Protocol error"
# First words of the replies to commands that subscribe. A message before the reply to one that
# ends a subscription belongs before it.
_BEGIN: Final = (b"subscribe", b"psubscribe", b"monitor")
# Has the client forget all keys: behind a reply whose keys no node tracks, though it relies on it,
# where slots have moved, and in the place of more than MAX_BEHIND bytes of invalidations.
_FORGET_ALL: Final = INVALIDATE + b"_\r\n"


class Exchange(LinkOwner):
    """The requests and the replies of one client.

    links: the connections to the nodes.
    out: bytes for the client; `wake` is called after they have changed.
    ended: the client's connection ends now, because a link with state was lost.
    leaving: the client's connection ends behind its last reply: QUIT, or a protocol error.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self.links = Links(cluster, self.loop, self)
        self.out: list[bytes] = []
        self.ended = False
        self.at_end: list[Callable[[], object]] = []  # called when the client's connection ends
        self.leaving = False
        self.logged_in = False  # a node has run a command of the client
        self.silent = False  # CLIENT REPLY OFF
        self.skips = False  # CLIENT REPLY SKIP: of the next command
        self.caching: bytes = b""  # CLIENT CACHING: goes in front of the next command
        # Whether a push, or a message of pub/sub, goes to the client.
        self.delivers: Callable[[Link, bytes], bool] = lambda _link, _frame: True
        self.protocol: int = 2
        self.queue: deque[Request] = deque()  # what the client is owed
        self.redirects = Redirects(self.links, self.queue)
        self._last: int = 0  # number of the latest request
        self._kept: int = 0  # bytes of the requests in `queue`, and of their parts
        self._map = cluster.map  # by which the latest command was sent
        self._streaming = False  # the client has a reply in part
        self._messages: list[bytes] = []  # messages that wait: _holds_messages()
        self._held: int = 0  # bytes of replies, pieces and pushes that wait for those before them
        self._paused = False  # the client doesn't read
        self._all_read = True  # no link is kept from being read

    # -- requests ---------------------------------------------------------------------------------

    def _expect(self, request: Request) -> Request:
        """Append `request` to what waits for a reply, and so has a place in the order."""
        self._last += 1
        request.number = self._last
        self._keep(request, request.written)
        self.queue.append(request)
        return request

    def _keep(self, request: Request, written: bytes) -> None:
        """Count what is kept until `request` is answered: `written`, its text or that of a part."""
        size = KEPT + len(written)
        request.kept += size
        self._kept += size

    def replies_off(self) -> bool:
        """Return whether CLIENT REPLY turns off the reply to the client's next command."""
        return self.silent or self.skips

    def _expect_reply(self, request: Request) -> Request:
        """Append a command of the client, which gets its reply."""
        off = self.replies_off()
        request.silent = off and request.subscribes in (b"", b"monitor")
        self.skips = False
        request.caching, self.caching = self.caching, b""
        return self._expect(request)

    def send(self, link: Link, request: Request) -> None:
        """Send a command of the client."""
        link.send(self._expect_reply(request))

    def send_home(self, written: bytes, on_reply: OnReply | None = None) -> None:
        """Send a command of the client to the home node."""
        self.send(self.links.home(), Request(written, on_reply=on_reply))

    def send_own(self, link: Link, request: Request) -> None:
        """Send a command of the proxy's own in its place among those of the client.

        The client gets no reply. CLIENT REPLY SKIP and CLIENT CACHING wait for the client's next
        command.
        """
        request.silent = True
        link.send(self._expect(request))

    def send_parts(self, whole: Divided, parts: Iterator[tuple[Link, Request]]) -> None:
        """Send the parts of `whole`, each to its link: MAX_PER_TICK of them in a tick."""
        self._expect_reply(whole)
        self._send_some(whole, parts)

    def _send_some(self, whole: Divided, parts: Iterator[tuple[Link, Request]]) -> None:
        for link, part in islice(parts, MAX_PER_TICK):
            whole.add(part)
            self._keep(whole, part.written)
            link.send(part)
        if len(whole.parts) < whole.count:
            self.loop.call_soon(self._send_more, whole, parts)

    def _send_more(self, whole: Divided, parts: Iterator[tuple[Link, Request]]) -> None:
        if not self.ended:
            self._send_some(whole, parts)
            self.flush()

    def answer(self, reply: bytes) -> None:
        """Answer a command of the client without a node. It uses up CLIENT CACHING as others do."""
        self.done(self._expect_reply(Request(b"")), reply)

    # -- the cluster ------------------------------------------------------------------------------

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after changes of the map, until the client ends."""
        if changed not in self.cluster.on_change:
            self.cluster.on_change[changed] = None
            self.at_end.append(partial(self.cluster.on_change.pop, changed))

    def take_map(self) -> None:
        """Drain if the cluster has another map. To be called before commands are sent."""
        if self._map is not self.cluster.map:
            self._map = self.cluster.map
            self.redirects.drain()

    # -- writing and reading ----------------------------------------------------------------------

    def flush(self) -> None:
        """Write what was sent on all links."""
        while self.unsent:  # a link that is full may wake the client
            self.unsent.pop().flush()
        if self._held > MAX_HELD or not self._all_read:
            self._read()

    def pause(self, paused: bool) -> None:
        """Stop reading the nodes, or go on."""
        self._paused = paused
        self._read()

    def _read(self) -> None:
        """Read the nodes unless the client doesn't read.

        While too many replies wait for the next one, only the nodes that owe that one are read.
        """
        throttled = self._held > MAX_HELD and not self.redirects.pending
        following = self._following() if throttled else []
        self._all_read = not (self._paused or throttled)
        for link in self.links.by_address.values():
            link.read(not self._paused and (not throttled or link in following))

    def _following(self) -> list[Link]:
        """Return the links to the nodes that owe the next reply."""
        nodes = {each.node for each in under_way(islice(self.queue, 1))}
        return [link for address, link in self.links.by_address.items() if address in nodes]

    def full(self) -> bool:
        """Return whether the client should send no more for now."""
        links = self.links.by_address.values()
        return self._kept > MAX_KEPT or any(link.full() for link in links)

    def finish(self) -> None:
        """Act on the end of the client's commands: a command that blocks ends without a reply."""
        if self.queue and self.queue[0].blocks_since:
            for link in self._following():
                link.finish()

    # -- replies ----------------------------------------------------------------------------------

    def replied(self, link: Link, request: Request, frame: bytes) -> None:
        is_error = frame[0] == 45
        if not is_error:
            self.logged_in = True
        elif frame.startswith(NO_ROOM):
            self.cluster.on_refused(link.address)
        if is_error and request.number:
            on_error = request.on_error or self.redirects.take
            frame = on_error(link.address, request, frame)
            if not frame:
                if request.begun is not None:  # by a node's message that was no reply
                    request.frames, request.begun = request.frames + len(request.begun), None
                return
            request.frames = 0
            # Behind a protocol error the node closes the link, and what the client has sent since
            # is to run nowhere. A program of the client may return such an error, too.
            if not request.forgeable and frame.startswith(_PROTOCOL_ERROR):
                self.leaving = True
        if request.on_reply is not None:
            frame = request.on_reply(frame)
        if not request.number:
            return
        begun = request.begun
        if request.frames > 0:
            if begun is None:
                request.begun = begun = []
            begun.append(frame)
            return
        if begun is not None:
            begun.append(frame)
            frame, request.begun = b"".join(begun), None
        self.done(request, frame)

    def done(self, request: Request, reply: bytes) -> None:
        """Take the whole reply to `request`."""
        request.reply = reply
        request.done = True
        request.on_reply = None  # which may refer to the request
        self._held += len(reply)
        whole = request.part_of
        if whole is not None:
            if whole.part_done():
                self._held -= sum([len(part.reply) for part in whole.parts])
                self.done(whole, whole.merged())
            return
        queue, out = self.queue, self.out
        while queue and queue[0].done:
            request = queue.popleft()
            self._kept -= request.kept
            self._held -= len(request.reply) + len(request.behind)
            if not request.silent:
                out.append(request.reply)
                if request.asking and request.caching and self.protocol == 3:
                    out.append(_FORGET_ALL)
            if request.behind:
                out.append(request.behind)
        if self._messages and not self._holds_messages():
            self._release_messages()

    def piece(self, link: Link, request: Request, data: bytes, ended: bool) -> None:
        """See LinkOwner. The client gets the pieces as they come if its next reply is this one."""
        pieces = link.pieces
        pieces.append(data)
        self._held += len(data)
        streams = len(self.queue) > 0 and self.queue[0] is request and request.on_reply is None
        if not (ended or streams):
            return
        link.pieces = []
        self._held -= sum(map(len, pieces))
        if not streams:
            self.replied(link, request, b"".join(pieces))
            return
        if not request.silent:
            self.out += pieces
        self._streaming = not ended
        if ended:
            self._release_messages()
            self.done(request, b"")

    def unrequested(self, link: Link, frame: bytes) -> None:
        """See LinkOwner.

        An invalidation must not overtake the value of its key, which may wait for replies of other
        nodes. It leaves at once, and once more behind all that the client is owed now.
        """
        if not self.delivers(link, frame):
            return
        if self._held > 0 and frame.startswith(INVALIDATE):
            self._repeat_behind(frame)
        self.deliver(frame)

    def _repeat_behind(self, frame: bytes) -> None:
        """Have an invalidation leave once more behind all that the client is owed now."""
        if self.queue:
            last = self.queue[-1]
            self._held -= len(last.behind)
            last.behind = last.behind + frame if len(last.behind) < MAX_BEHIND else _FORGET_ALL
            self._held += len(last.behind)

    def forget_keys(self) -> None:
        """Let a client that tracks keys forget all: at once, and behind all that it is owed now."""
        if self.protocol == 3:
            self._repeat_behind(_FORGET_ALL)
            self.deliver(_FORGET_ALL)
            self.loop.call_soon(self.batch_over)

    def deliver(self, frame: bytes) -> None:
        """Pass on a push or a message: behind the reply that the client has in part."""
        if self._holds_messages():
            self._messages.append(frame)
            self._held += len(frame)
        else:
            self.out.append(frame)

    def _holds_messages(self) -> bool:
        """Whether messages wait for the rest of a reply, or for all nodes' replies to SUBSCRIBE."""
        # A command that subscribes is sent once nothing is owed, and the next ones wait for it.
        return self._streaming or (len(self.queue) > 0 and self.queue[0].subscribes in _BEGIN)

    def _release_messages(self) -> None:
        """Let the messages go that wait."""
        self.out += self._messages
        self._held -= sum(map(len, self._messages))
        self._messages.clear()

    def batch_over(self) -> None:
        if not self.ended:
            self.redirects.send_pending()
        self.wake()

    # -- lost links, and the end ------------------------------------------------------------------

    def close(self) -> None:
        """End the client: close all links, and let all replies go."""
        self.ended = True
        for call in self.at_end:
            call()
        self.wake = lambda: None
        self.links.close()
        # The client's objects refer to each other. Cycles would keep them until a full collection.
        self.redirects.pending.clear()
        self.delivers = lambda _link, _frame: False
        self.at_end.clear()
        self.queue.clear()
        self.out.clear()
        self._messages.clear()

    def lost(self, link: Link, error: bytes = b"") -> None:
        if not self.links.forget(link):
            return
        if self._streaming and self.queue[0].node == link.address:
            error = b""  # it would be taken for a part of the reply that the client has in part
        self._held -= sum(map(len, link.pieces))
        link.pieces.clear()
        owed = [request for request in link.owed if request.number]
        link.owed.clear()  # requests of a transaction refer to their link
        if self.links.holds_state(link) or (owed and not error):
            self.ended = True
        if error:
            for request in owed:
                request.node = None
                self.done(request, error)
        else:
            self.cluster.refresh()
        self.batch_over()
