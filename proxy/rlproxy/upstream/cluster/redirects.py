"""The redirected requests of one client: each is sent again, to the node that has its slot now.

    MOVED, ASK, TRYAGAIN ──take()──> pending ──send_pending()──> the new owner
                                        │ one slot waits until nothing of it is under way
    the client's next commands ─────────┴─ wait while drained() is false, for all slots or theirs

The order invariant: a client's commands on one slot run in the order sent, also while it moves.
A redirect, or a change of the map, drains: the client's next command waits until those sent before
are answered. So do commands that change the connection. Source: the Redis Cluster specification,
"Redirection and resharding".

A node may refuse a command with several keys, or an EXEC, because one of the keys has moved. It
then runs the next command, whose only key has not moved. So both kinds drain their slot.

The script of a client can return the error `MOVED 1 HOST:PORT`, and so can a module. It is followed
if it reads as the node's own, to nodes that the cluster lists only, and changes no map.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.upstream.cluster.command_splitter import words_of
from rlproxy.upstream.cluster.discovery import redirect
from rlproxy.upstream.cluster.links import Links
from rlproxy.upstream.cluster.request import UNKNOWN_SLOT, Request, under_way

ALL_SLOTS: Final = -2  # and the commands without a key, whose slot is NO_SLOT
MAX_REDIRECTS: Final = 100  # of one command
PAUSE_S: Final = 0.05  # before a command, or a hit, that no node could run is sent again
AT_ONCE: Final = 5  # redirects of one command or hit that are followed without that pause
_ENDLESS: Final = encoding.error(
    f"TRYAGAIN the nodes of the cluster redirected this command {MAX_REDIRECTS} times"
)
# The word of a blocking command that is its timeout, in seconds. Of all others it is the one behind
# BLOCK, in milliseconds.
_TIMEOUTS: Final[dict[bytes, int]] = {
    **dict.fromkeys(b"BLPOP BRPOP BRPOPLPUSH BLMOVE BZPOPMIN BZPOPMAX".split(), -1),
    **dict.fromkeys(b"BLMPOP BZMPOP".split(), 1),
}
# Least timeout of a blocking command that goes again. Redis 6.2 rounds 0.001 down to 0: for ever.
_LEAST_S: Final = 0.002
# As nodes of all versions write it.
_TRY_AGAIN: Final = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
_REDIRECTS: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN ")
_UNBLOCKED: Final = b"-UNBLOCKED force "  # by a node that becomes a replica
# Errors after which the masters may be other ones. FLUSHALL has no key: a former master redirects
# it nowhere.
_OTHER_MASTERS: Final = (b"-CLUSTERDOWN", b"-READONLY")


def is_redirect(frame: bytes) -> bool:
    """Return whether a reply means that the node hasn't run the command, and it is sent again."""
    return frame.startswith(_REDIRECTS)


class Redirects:
    """The redirected requests of one client.

    queue: the requests that the client is owed a reply for, in order.
    pending: those that are to be sent again.
    """

    def __init__(self, links: Links, queue: deque[Request]) -> None:
        self._cluster = links.cluster
        self._loop = links.loop
        self._links = links
        self._queue = queue
        self.pending: list[Request] = []
        self._paused = False
        self._drains: dict[int, int] = {}  # by slot, the number of the last request to wait for

    def take(self, node: Address, request: Request, frame: bytes) -> bytes:
        """Take a request that `node` answered with an error.

        Returns the reply for the client; empty if the request is sent again.
        """
        unblocked = request.blocks_since > 0.0 and frame.startswith(_UNBLOCKED)
        if not (unblocked or is_redirect(frame)):
            if frame.startswith(_OTHER_MASTERS):
                self._cluster.refresh()
            return frame
        slot, address = redirect(frame, node)
        real = address not in (None, node) and request.slot in (slot, UNKNOWN_SLOT)
        if request.forgeable and not (real or frame == _TRY_AGAIN):
            return frame
        request.redirected += 1
        if request.redirected > MAX_REDIRECTS:
            return _ENDLESS
        if request.forgeable:
            listed = address in self._cluster.map.index or address in self._cluster.unlisted
            request.target = address if listed else None
            self._cluster.refresh()
        else:
            request.target = self._cluster.redirected(node, frame)
        request.asking = request.target is not None and frame.startswith(b"-ASK")
        if not self._paused and (request.target is None or request.redirected > AT_ONCE):
            self._paused = True
            self._loop.call_later(PAUSE_S, self._resume)
        if request.blocks_since:
            now = self._loop.time()
            passed_s, request.blocks_since = now - request.blocks_since, now
            request.written = with_remaining_timeout(request.written, passed_s)
        self.pending.append(request)
        self.drain()
        return b""

    def drain(self, slot: int = ALL_SLOTS) -> None:
        """Send no further command on `slot` before those sent so far are answered.

        ALL_SLOTS: no further command at all.
        """
        if self._queue:
            self._drains[slot] = self._queue[-1].number

    def drained(self, slot: int = ALL_SLOTS) -> bool:
        """Return whether all that drain() waits for is answered."""
        drains = self._drains
        if drains and not self._queue:
            drains.clear()
        return not drains or self._queue[0].number > drains.get(slot, 0)

    def _resume(self) -> None:
        self._paused = False
        self._links.owner.batch_over()  # which calls send_pending()

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


def with_remaining_timeout(written: bytes, passed_s: float) -> bytes:
    """Return a blocking command with what remains of its timeout.

    written: the command as an array of bulks.
    passed_s: time that it has blocked.
    """
    words = words_of(written)
    in_ms = words[0].upper() not in _TIMEOUTS
    at = _behind_block(words) if in_ms else _TIMEOUTS[words[0].upper()]
    try:
        timeout_s = float(words[at]) * (0.001 if in_ms else 1.0)
    except ValueError:
        return written
    if timeout_s <= 0.0:
        return written
    left_s = timeout_s - passed_s
    words[at] = b"%d" % max(1, round(left_s * 1000)) if in_ms else b"%.3f" % max(left_s, _LEAST_S)
    return encoding.bulks(*words)


def _behind_block(words: list[bytes]) -> int:
    """Return the index behind BLOCK in XREAD or XREADGROUP; 0, its name, if it does not block."""
    at = 1
    while at + 1 < len(words):
        word = words[at].upper()
        if word == b"BLOCK":
            return at + 1
        if word == b"STREAMS":
            break
        at += 3 if word == b"GROUP" else 1
    return 0
