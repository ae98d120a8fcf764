"""The sender of one client's ordinary commands on command lanes (--share). No I/O.

A client without state sends one small command of the table and waits for its reply. That command
may take a connection that other clients use, too: one for reads, one for writes. In front of a
cluster this holds for a short pipeline, whose parts for each node else were a write each.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.resp.requests import COMMAND, NEED_MORE
from rlproxy.session.call import Batch, Lane
from rlproxy.session.parts import SessionBase, SessionPart

MAX_SHARED: Final = 16384  # bytes of the commands that a client sends together
MAX_TOGETHER: Final = 32  # commands of a pipeline on command lanes
PRIVATE_AFTER_LARGE: Final = 1000  # reads sent privately after one whose reply was large


class Sharing(SessionPart):
    """The use of command lanes by one client."""

    def __init__(self, session: SessionBase) -> None:
        super().__init__(session)
        self._stopped = False
        self._private_reads: int = 0  # reads that still go to the private connection

    def note(self) -> None:
        """Note the framer's command: behind one about others on its connection, share nothing.

        These are WAIT, and Valkey's CLIENT CAPA, which has a replica redirect. The proxy itself
        follows the redirects of a cluster.
        """
        requests = self._requests
        kind = requests.command.kind
        if kind == commands.WAIT:
            self._stopped = True
        elif kind == commands.CLIENT and not self._context.server.in_cluster:
            args = requests.arguments()
            if args and args[0].upper() == b"CAPA":
                self._stopped = True

    def had_large_reply(self) -> None:
        """Send the next reads privately: there, a large reply streams as fast as it is read."""
        self._private_reads = PRIVATE_AFTER_LARGE

    def send(self) -> bool:
        """Send the unread commands by command lanes, if all of them are small ordinary ones.

        In a cluster, several commands of one key each go together if all read, or all write.
        Returns whether they were sent.
        """
        requests = self._requests
        if requests.eof or self._stopped or requests.looks_like_ours():
            return False  # an RL command would be framed twice, here and by the router
        requests.release()  # else next() might join buffers and move `start`
        batch = Batch(self._private.caller)
        if not self._gather(batch):
            batch.parts.clear()  # which refer to the batch
            requests.rewind(0)
            return False
        requests.release()
        count = len(batch.parts)
        if count == 0:
            return False
        self._private.keep_alive()
        self._context.stats.commands += count
        self._context.budget.work += count - 1
        if batch.writes:
            self._private.caller.fenced = True
            self._private.cover.sent_shared()
        self._lanes.begin(batch)
        batch.send()
        return True

    def _gather(self, batch: Batch) -> bool:
        """Put the unread commands into `batch`. Returns whether a lane takes each of them."""
        requests = self._requests
        in_cluster = self._context.server.in_cluster
        most = MAX_TOGETHER if in_cluster else 1
        kind: int = commands.PRIVATE  # of all commands so far
        pool: Lane | None = None  # the lane or lanes for this kind
        while (code := requests.next()) != NEED_MORE:
            next_kind = self._kind(code)
            if next_kind == commands.SHARED_READ and self._private_reads > 0:
                self._private_reads -= 1
                return False
            if requests.lenient:
                return False
            if not batch.parts:
                kind = next_kind
                pool = self._lanes.lane_for(kind) if kind != commands.PRIVATE else None
            if pool is None or next_kind != kind or requests.pos > MAX_SHARED:
                return False
            if requests.command.last_key != 1:
                most = 1
            following = requests.pos < len(requests.buf)
            if len(batch.parts) + following >= most:
                return False
            lane = pool.for_slot(requests.hash_slot() if in_cluster else NO_SLOT)
            if lane is None:
                return False
            batch.add(requests.written(), lane)
        batch.writes = kind == commands.SHARED_WRITE
        return True

    def _kind(self, code: int) -> int:
        """The kind of command lane for the framer's command; PRIVATE for none."""
        requests = self._requests
        command = requests.command
        if code != COMMAND:
            return commands.PRIVATE
        if requests.argc > 3 and command.name == b"SET" and b"\nGET" in requests.written().upper():
            return commands.PRIVATE  # its reply may be large
        return command.shared
