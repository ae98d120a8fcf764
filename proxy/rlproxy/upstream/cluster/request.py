"""One command of a client on its way through the cluster, and its reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp.key_slot import NO_SLOT, key_slot

UNKNOWN_SLOT: Final = -3  # of a command whose keys are unknown: home redirects it if it has some

OnReply = Callable[[bytes], bytes]
OnError = Callable[[Address, "Request", bytes], bytes]


class Request:
    """One command, or the part of one that goes to one node.

    written: the request as it is sent.
    slot: the slot of its keys; NO_SLOT for a command without keys, or UNKNOWN_SLOT.
    node: the node that owes its reply; None before it is sent and once it is answered.
    reply: what the client gets, once `done`.
    behind: pushes that the client gets behind it.
    kept: bytes that are kept until it is answered; see Exchange.
    silent: the client gets nothing.
    frames: replies that are still to come: to SUBSCRIBE, one for each channel.
    begun: those that have come, if one is still to come.
    subscribes: the first word of its replies, such as `subscribe`, which are pushes in RESP3; empty
        for other commands.
    names: of SUNSUBSCRIBE, its channels as bulk strings. None: it has no arguments.
    number: its place among the client's commands, from 1. 0: it is the proxy's own, and the client
        gets no reply.
    forgeable: see Route.forgeable.
    redirected: replies MOVED, ASK and the like so far.
    target: the node that the latest of them named.
    asking: it is sent behind ASKING.
    caching: the CLIENT CACHING that it is sent behind, unless it is `asking`: each of the two ends
        the effect of the other one.
    front: the proxy's own requests that are sent between these and this one.
    blocks_since: loop time at which a command that may block was sent; 0 for others.
    on_error: called with the node, the request and the node's error. Returns the reply; empty if
        the request is sent again. None: redirects are followed.
    on_reply: called with the reply, behind on_error. Returns what the client gets.
    part_of: the command of which this is a part.
    """

    def __init__(
        self,
        written: bytes,
        slot: int = NO_SLOT,
        forgeable: bool = False,
        on_reply: OnReply | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self.written = written
        self.slot = slot
        self.node: Address | None = None
        self.reply: bytes = b""
        self.behind: bytes = b""
        self.kept: int = 0
        self.done = False
        self.silent = False
        self.forgeable = forgeable
        self.frames: int = 1
        self.begun: list[bytes] | None = None
        self.subscribes: bytes = b""
        self.names: set[bytes] | None = None
        self.number: int = 0
        self.redirected: int = 0
        self.target: Address | None = None
        self.asking = False
        self.caching: bytes = b""
        self.front: list[Request] = []
        self.blocks_since: float = 0.0
        self.on_reply = on_reply
        self.on_error = on_error
        self.part_of: Divided | None = None


class Divided(Request):
    """A command whose parts go to several nodes, or to one node in several slots.

    count: the number of its parts.
    parts: those that are sent.
    merge: returns its reply by those to the parts, in the order of `parts`.
    """

    def __init__(self, count: int, merge: Callable[[list[bytes]], bytes]) -> None:
        super().__init__(b"")
        self.count = count
        self.parts: list[Request] = []
        self.merge = merge
        self._left: int = count

    def add(self, part: Request) -> None:
        """Take a part, which is about to be sent."""
        part.part_of = self
        part.number = self.number
        part.caching = self.caching
        self.parts.append(part)

    def part_done(self) -> bool:
        """Record that one more part is done. Returns whether all are."""
        self._left -= 1
        return self._left == 0

    def merged(self) -> bytes:
        """Return its reply, and release the parts."""
        replies = [part.reply for part in self.parts]
        if self.caching:
            self.asking = any(part.asking for part in self.parts)
        self.parts = []  # they refer to this command: the cycle would keep their replies
        return self.merge(replies)


def under_way(queue: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests in `queue`, and the parts of those, that nodes owe a reply."""
    for request in queue:
        if isinstance(request, Divided):
            yield from (part for part in request.parts if part.node is not None)
        elif request.node is not None:
            yield request


def slot_of(keys: list[bytes]) -> int:
    """Return the slot of the first of `keys`; NO_SLOT if there is none."""
    return key_slot(keys[0]) if keys else NO_SLOT
