"""The redirected requests of one client: each is sent again, to the node that has its slot now.

    MOVED, ASK, TRYAGAIN ──take()──> pending ──send_pending()──> the new owner
                                        │ one slot waits until nothing of it is under way
    the client's next commands ─────────┴─ wait while drained() is false, for their slot or for all

The order invariant: a client's commands on one slot run in the order sent, also while it moves.
A redirect, or a change of the map, drains: the client's next command waits until those sent before
are answered. So do commands that change the connection. Source: the Redis Cluster specification,
"Redirection and resharding".

A node may refuse a command with several keys, or an EXEC, because one of the keys has moved. It
then runs the next command, whose only key has not moved. So both kinds drain their slot.

The script of a client can return the error `MOVED 1 HOST:PORT`, and so can the command of a module.
Such a redirect is followed only if it reads as the node's own, and to no server that is not a node
of the cluster.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.command_splitter import words_of
from rlproxy.upstream.cluster.discovery import node_address
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.request import Request, under_way

MAX_REDIRECTS: Final = 100  # of one command
PAUSE_S: Final = 0.05  # before a command that was answered TRYAGAIN is sent again
AT_ONCE: Final = 5  # redirects of one command that are followed without that pause
MAX_UNKNOWN: Final = 20  # the same that may name a new node, while the nodes are queried for it
_ENDLESS: Final = encoding.error(
    f"TRYAGAIN the nodes of the cluster redirected this command {MAX_REDIRECTS} times"
)
# The index of the timeout in the words of each blocking command, in seconds. BEHIND_BLOCK: it is
# the word behind BLOCK, in milliseconds.
BEHIND_BLOCK: Final = 0
TIMEOUTS: Final[dict[bytes, int]] = {
    **dict.fromkeys(b"BLPOP BRPOP BRPOPLPUSH BLMOVE BZPOPMIN BZPOPMAX".split(), -1),
    **dict.fromkeys(b"BLMPOP BZMPOP".split(), 1),
    **dict.fromkeys(b"XREAD XREADGROUP".split(), BEHIND_BLOCK),
}
# Least timeout of a blocking command that goes again. Redis 6.2 rounds 0.001 down to 0: for ever.
_LEAST_S: Final = 0.002
# As nodes of all versions write it.
_TRY_AGAIN: Final = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
_REDIRECTS: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN ")
_UNBLOCKED: Final = b"-UNBLOCKED force "  # so a node that becomes a replica unblocks its clients
# Errors after which the masters may be other ones. FLUSHALL has no key: a former master redirects
# it nowhere.
_OTHER_MASTERS: Final = (b"-CLUSTERDOWN", b"-READONLY")


def is_redirect(frame: bytes) -> bool:
    """Return whether a reply means that the node hasn't run the command, and it is sent again."""
    return frame.startswith(_REDIRECTS)


class Redirects:
    """The redirected requests of one client.

    queue: the requests that the client is owed a reply for, in order.
    resumed: called when a pause is over; calls send_pending().
    pending: those that are to be sent again.
    """

    def __init__(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        links: Links,
        queue: deque[Request],
        resumed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._loop = loop
        self._links = links
        self._queue = queue
        self._resumed = resumed
        self.pending: list[Request] = []
        self._paused = False
        self._drains: dict[int, int] = {}  # by slot, the number of the last request to wait for

    def take(self, node: Address, request: Request, frame: bytes) -> bytes:
        """Take a request that `node` answered with an error.

        Returns the reply for the client; empty if the request is sent again.
        """
        if not (is_redirect(frame) or (request.blocks and frame.startswith(_UNBLOCKED))):
            if frame.startswith(_OTHER_MASTERS):
                self._cluster.refresh()
            return frame
        if request.forgeable and not self._reads_real(node, request, frame):
            return frame
        request.redirected += 1
        if request.redirected > MAX_REDIRECTS:
            return _ENDLESS
        self._follow(node, request, frame)
        return b""

    def _reads_real(self, node: Address, request: Request, frame: bytes) -> bool:
        """Return whether a redirect that may be forged is one that `node` would write."""
        slot, address = redirect(frame, node)
        if address is None:
            return frame == _TRY_AGAIN
        if address == node or request.slot not in (slot, NO_SLOT):
            return False
        return self._is_node(address) or request.redirected < MAX_UNKNOWN

    def _is_node(self, address: Address | None) -> bool:
        """Return whether a node of the cluster is known at `address`."""
        cluster = self._cluster
        return address in cluster.unlisted or address in cluster.map.addresses()

    def _follow(self, node: Address, request: Request, frame: bytes) -> None:
        """Have `request` sent again after a redirect by `node`."""
        _, address = redirect(frame, node)
        request.target = None if request.forgeable and not self._is_node(address) else address
        self._cluster.refresh()
        request.asking = request.target is not None and frame.startswith(b"-ASK")
        if request.target is None or request.redirected > AT_ONCE:
            self._pause()
        if request.blocks:
            now = self._loop.time()
            passed_s, request.blocks_from = now - request.blocks_from, now
            request.written = with_remaining_timeout(request.written, passed_s)
        self.pending.append(request)
        self.drain()

    def close(self) -> None:
        """Send nothing again: the client has ended."""
        self.pending.clear()
        self._resumed = lambda: None

    def drain(self, slot: int = NO_SLOT) -> None:
        """Send no further command on `slot` before those sent so far are answered.

        NO_SLOT: no further command at all.
        """
        if self._queue:
            self._drains[slot] = self._queue[-1].number

    def drained(self, slot: int = NO_SLOT) -> bool:
        """Return whether all that drain() waits for is answered."""
        queue, drains = self._queue, self._drains
        if not queue:
            drains.clear()
        return not drains or queue[0].number > drains.get(slot, 0)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._resumed()

    def send_pending(self) -> None:
        """Send again what may be sent: of each slot in order, once nothing of it is under way."""
        if not self.pending or self._paused:
            return
        links = self._links
        busy = {request.slot for request in under_way(self._queue)}
        target_of_slot: dict[int, tuple[Address | None, bool]] = {}
        left: list[Request] = []
        self.pending.sort(key=lambda request: request.number)
        for request in self.pending:
            where = (request.target, request.asking)
            elsewhere = target_of_slot.setdefault(request.slot, where) != where
            if request.slot in busy or elsewhere:
                busy.add(request.slot)  # those behind it wait, too
                left.append(request)
                continue
            target = request.target
            link = links.to(target) if target is not None else links.of_slot(request.slot)
            request.target = link.address
            link.send(request)
        self.pending = left


def timeout_at(words: list[bytes]) -> int:
    """Return the index of the timeout of a blocking command; 0 if it does not block."""
    at = TIMEOUTS[words[0].upper()]
    if at != BEHIND_BLOCK:
        return at % len(words)
    at = 1
    while at + 1 < len(words):
        word = words[at].upper()
        if word == b"BLOCK":
            return at + 1
        if word == b"STREAMS":
            break
        at += 3 if word == b"GROUP" else 1
    return 0


def with_remaining_timeout(written: bytes, passed_s: float) -> bytes:
    """Return a blocking command with what remains of its timeout.

    written: the command as an array of bulks.
    passed_s: time that it has blocked.
    """
    words = words_of(written)
    at = timeout_at(words)
    unit_s = 0.001 if TIMEOUTS[words[0].upper()] == BEHIND_BLOCK else 1.0
    try:
        timeout_s = float(words[at]) * unit_s
    except ValueError:
        return written
    if timeout_s <= 0.0:
        return written
    left_s = timeout_s - passed_s
    if unit_s < 1.0:
        words[at] = b"%d" % max(1, round(left_s / unit_s))
    else:
        words[at] = b"%.3f" % max(left_s, _LEAST_S)
    return encoding.bulks(*words)


def redirect(frame: bytes, node: Address) -> tuple[int, Address | None]:
    """Read a MOVED or ASK: the slot, and the node that it names. None for other errors.

    node: the node that wrote it. Nodes may leave out their host: `MOVED 8579 :19202`.
    """
    words = frame[1:].split()
    if len(words) < 3 or words[0] not in (b"MOVED", b"ASK") or not words[1].isdigit():
        return NO_SLOT, None
    host, _, port = words[2].rpartition(b":")
    if not port.isdigit():
        return NO_SLOT, None
    return int(words[1]), node_address(host, int(port), node.host)
