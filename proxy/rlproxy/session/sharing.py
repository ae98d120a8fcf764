"""Ordinary commands on shared connections (--share). No I/O.

A client without state sends one small command of the table and waits for its reply. That command
may take a connection that other clients use, too: one for reads, one for writes.
"""

from __future__ import annotations

from typing import Final

from rlproxy.resp import commands as c
from rlproxy.resp.requests import COMMAND, NEED_MORE
from rlproxy.session.call import shared
from rlproxy.session.parts import SessionPart, SessionParts
from rlproxy.session.private_stream import REFRESH_S

MAX_SHARED: Final = 16384  # bytes of an ordinary command on a shared connection
PRIVATE_AFTER_LARGE: Final = 1000  # reads sent privately after one whose reply was large


class Sharing(SessionPart):
    """The use of shared connections by one client."""

    __slots__ = ("_private_reads", "_stopped")

    def __init__(self, parts: SessionParts) -> None:
        super().__init__(parts)
        self._stopped = False
        self._private_reads: int = 0  # reads that still go to the private connection

    def stop(self) -> None:
        """Send all further commands privately: the client uses WAIT."""
        self._stopped = True

    def had_large_reply(self) -> None:
        """Send the next reads privately: there, a large reply streams as fast as it is read."""
        self._private_reads = PRIVATE_AFTER_LARGE

    def send(self) -> bool:
        """Send the unread bytes by a shared connection, if they are one small ordinary command.

        Returns whether they were sent.
        """
        requests = self._requests
        if requests.eof or self._stopped:
            return False
        requests.release()  # else next() might join buffers and move `start`
        start = requests.pos
        code = requests.next()
        if code == NEED_MORE:
            return False
        how = self._kind(code)
        lane = None
        written = b""
        if how != c.PRIVATE:
            state = self._private.state
            lane = self._lanes.lane_for(how, state.identity, state.protocol)
            if lane is not None:
                written = requests.buf[requests.start : requests.pos]
                lane = lane.chosen(written)
        if lane is None:
            requests.rewind(start)
            return False
        requests.release()
        self._private.keep_alive(REFRESH_S)
        self._context.stats.commands += 1
        call = shared(self._caller, how, written)
        self._lanes.append(call)
        if not requests.command.reads:
            self._caller.fenced = True
            self._private.cover.sent_shared()
        lane.submit(call)
        return True

    def _kind(self, code: int) -> int:
        """The kind of shared connection for the framer's command; PRIVATE for none."""
        requests = self._requests
        command = requests.command
        how = command.shared if code == COMMAND else c.PRIVATE
        if how == c.SHARED_READ and self._private_reads > 0:
            self._private_reads -= 1
            return c.PRIVATE
        size = requests.pos - requests.start
        if size > MAX_SHARED or requests.lenient or requests.pos < len(requests.buf):
            return c.PRIVATE
        if how != c.PRIVATE and requests.argc > 3 and command.name.upper() == b"SET":
            written = requests.buf[requests.start : requests.pos]
            if b"\nGET" in written.upper():
                return c.PRIVATE  # its reply may be large
        return how
