"""The redirected requests of one client: each is sent again, to the node that has its slot now.

    MOVED, ASK, TRYAGAIN ──take()──> pending ──go_on()──> the new owner
                                        │ one slot waits until nothing of it is under way
    the client's next commands ─────────┴─ wait while may_send() is false

After a redirect, and after a change of the map, the client's next command with a key waits until
those sent before are answered. So its commands on one slot run in the order sent, also while the
slot moves. Source: the Redis Cluster specification, "Redirection and resharding".

A node can refuse a command with several keys, or an EXEC, because one key has moved, and run the
next command, whose only key has not. So it is answered before the next one on its slot is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlproxy.config.urls import Address
from rlproxy.resp import encoding
from rlproxy.upstream.cluster.command_splitter import COMMAND, CommandSplitter
from rlproxy.upstream.cluster.request import NO_SLOT, Request
from rlproxy.upstream.cluster.routes import BLOCKS_NOT, BLOCKS_OPTION, timeout_at

if TYPE_CHECKING:
    from rlproxy.upstream.cluster.exchange import Exchange
    from rlproxy.upstream.cluster.link import Link

MAX_REDIRECTS: Final = 100  # of one command
PAUSE_S: Final = 0.05  # before a command that was answered TRYAGAIN is sent again
_ENDLESS: Final = encoding.error(
    f"TRYAGAIN the nodes of the cluster redirected this command {MAX_REDIRECTS} times"
)
_LEAST_S: Final = 0.001  # timeout of a blocking command that goes again: zero would be for ever
# A node that becomes a replica unblocks its clients with the last of these.
_REDIRECTS: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN ", b"-UNBLOCKED force ")


def is_redirect(frame: bytes) -> bool:
    """Return whether a reply means that the node hasn't run the command, and it is sent again."""
    return frame.startswith(_REDIRECTS)


class Redirects:
    """The redirected requests of one client."""

    __slots__ = ("_exchange", "_paused", "_unsettled", "_waits_for", "pending")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.pending: list[Request] = []
        self._paused = False
        self._unsettled: int = 0  # number of the latest request sent before a slot moved
        self._waits_for: dict[int, int] = {}  # by slot: the request that the next one waits for

    def take(self, link: Link, request: Request, frame: bytes) -> bool:
        """Take a request that `link` answered with an error. Returns whether it is sent again."""
        if not is_redirect(frame):
            if frame.startswith(b"-CLUSTERDOWN"):
                self._exchange.cluster.refresh()
            return False
        if frame.startswith(b"-UNBLOCKED") and request.blocks == BLOCKS_NOT:
            return False
        exchange = self._exchange
        request.redirected += 1
        if request.redirected > MAX_REDIRECTS:
            exchange.done(request, _ENDLESS)
            return True
        request.target = self.learn(link, frame)
        request.asking = request.target is not None and frame.startswith(b"-ASK")
        if request.asking:
            request.front = []  # CLIENT CACHING would end the effect of ASKING
        if request.target is None:
            exchange.cluster.refresh()
            self._pause()
        if request.blocks != BLOCKS_NOT:
            now = exchange.loop.time()
            request.written = with_rest(request.written, request.blocks, now - request.blocks_from)
            request.blocks_from = now
        self.pending.append(request)
        self.unsettle()
        return True

    def learn(self, link: Link, frame: bytes) -> Address | None:
        """Take the news in an error of `link`. Returns the node that it names, if it does."""
        slot, address = redirect(frame, link.address)
        if address is not None and not frame.startswith(b"-ASK"):
            self._exchange.cluster.moved(slot, address)
        return address

    def unsettle(self) -> None:
        """Have the commands sent so far answered before the next one with a key is sent."""
        self._unsettled = self._exchange.last

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._exchange.loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._exchange.batch_over()

    def go_on(self) -> None:
        """Send again what may be sent: of each slot in order, once nothing of it is under way."""
        if not self.pending or self._paused:
            return
        exchange = self._exchange
        busy = {request.slot for request in exchange.under_way()}
        target_of_slot: dict[int, tuple[Address | None, bool]] = {}
        left: list[Request] = []
        self.pending.sort(key=_number)
        for request in self.pending:
            where = (request.target, request.asking)
            elsewhere = target_of_slot.setdefault(request.slot, where) != where
            if request.slot in busy or elsewhere or exchange.ended:
                busy.add(request.slot)  # those behind it wait, too
                left.append(request)
                continue
            target = request.target
            link = (
                exchange.links.to(target)
                if target is not None
                else exchange.links.of_slot(request.slot)
            )
            request.target = link.address
            link.send(request)
        self.pending = left
        self.unsettle()

    def precede(self, slot: int) -> None:
        """Have the latest command answered before the next one on `slot` is sent."""
        self._waits_for[slot] = self._exchange.last

    def may_send(self, slot: int) -> bool:
        """Return whether the client's next command, of `slot`, may be sent now."""
        queue = self._exchange.queue
        if not queue:
            self._waits_for.clear()
            return True
        number = queue[0].number
        if number <= self._unsettled:
            return False
        return not self._waits_for or number > self._waits_for.get(slot, 0)


def _number(request: Request) -> int:
    return request.number


def with_rest(written: bytes, blocks: int, passed_s: float) -> bytes:
    """Return a blocking command with the rest of its timeout.

    written: the command as an array of bulks.
    blocks: where its timeout stands; see Route.blocks.
    passed_s: time that it has blocked.
    """
    splitter = CommandSplitter()
    splitter.feed(written)
    if splitter.next() != COMMAND:
        return written
    words = list(splitter.words)
    at = timeout_at(blocks, words[1:]) + 1
    if at == 0:
        return written
    unit_s = 0.001 if blocks == BLOCKS_OPTION else 1.0
    try:
        timeout_s = float(words[at]) * unit_s
    except ValueError:
        return written
    if timeout_s <= 0.0:
        return written
    left_s = max(timeout_s - passed_s, _LEAST_S)
    words[at] = b"%d" % max(1, round(left_s / unit_s)) if unit_s < 1.0 else b"%.3f" % left_s
    return encoding.bulks(*words)


def redirect(frame: bytes, node: Address) -> tuple[int, Address | None]:
    """Read a MOVED or ASK: the slot, and the node that it names. None for other errors.

    node: the node that wrote it. Nodes may leave out their host: `MOVED 8579 :19202`.
    """
    words = frame[1:].split()
    if len(words) < 3 or words[0] not in (b"MOVED", b"ASK") or not words[1].isdigit():
        return NO_SLOT, None
    host, colon, port = words[2].decode("utf-8", "replace").rpartition(":")
    if not colon or not port.isdigit():
        return NO_SLOT, None
    if host in ("", "?"):
        host = node.host
    return int(words[1]), Address(host.strip("[]"), int(port))
