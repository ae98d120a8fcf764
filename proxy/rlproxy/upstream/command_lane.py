"""The lane of one identity for ordinary commands that read, or for those that write (--share).

    Part ──take()──> the commands of all parts, in one list ──(once a tick)──> one write
    Part <── the replies, each to the first part that is not complete

When the connection is lost, the parts get their commands back, as far as they are not answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.resp.commands import SHARED_READ
from rlproxy.resp.replies import ReplyFramer
from rlproxy.session.call import Caller, Part
from rlproxy.upstream.lane import LaneContext, LaneKey, ServerLane, resume_all, touch

# Commands that wait for the end of the tick. More are written at once: Redis begins with them.
MAX_UNSENT: Final = 64
MAX_SHARED_REPLY: Final = 65536  # bytes of a read's reply; larger ones go over other connections


class CommandLane(ServerLane):
    """The parts of batches on one lane.

    not_run: called with the error for a command; returns whether its client sends it again.
    """

    def __init__(
        self, context: LaneContext, key: LaneKey, not_run: Callable[[bytes], bool] | None = None
    ) -> None:
        super().__init__(context, key)
        self._not_run = not_run
        self._commands: list[bytes] = []  # of the unsent parts
        self._unsent: list[Part] = []
        self._inflight: list[Part] = []
        self._declines = key.kind == SHARED_READ  # whether large replies are skipped
        self._declining = False  # whether the reply being received is skipped

    def take(self, part: Part) -> None:
        self._commands.extend(part.commands)
        self._unsent.append(part)
        self.room -= len(part.commands)
        self._schedule(len(self._commands), MAX_UNSENT)

    def _flush(self) -> None:
        transport = self._transport
        count = len(self._commands)
        if transport is None or count == 0:
            return
        self._write(transport, self._commands, count)
        self._inflight.extend(self._unsent)
        self._commands.clear()
        self._unsent.clear()

    def _answer(self, framer: ReplyFramer, touched: list[Caller]) -> None:
        ended = 0  # parts
        while True:
            reply = b"" if self._declining else self._frame(framer)
            if len(reply) == 0:
                if not self._declined(framer):
                    break
                self._inflight[ended].batch.large = True
            elif reply[0] == 45 and self._failed(reply):
                reply = b""
            self._times.answered += 1
            part = self._inflight[ended]
            part.replies.append(reply)
            if len(part.replies) == len(part.commands):
                ended += 1
                _end(part, touched)
        del self._inflight[:ended]

    def _declined(self, framer: ReplyFramer) -> bool:
        """Skip the reply to a read that is too large. Returns whether it was skipped to its end."""
        large = len(framer.buf) - framer.pos > MAX_SHARED_REPLY
        owed = self._times.unanswered() > 0
        if not self._declining and not (large and self._declines and owed):
            return False
        self._declining = framer.skip(1, False) == 0
        return not self._declining

    def _failed(self, error: bytes) -> bool:
        """Act on the error for a command. Returns whether its client sends it again."""
        if error.startswith(b"-READONLY"):
            self._context.server.on_read_only()
        return self._not_run is not None and self._not_run(error)

    def _hand_back(self) -> None:
        touched: list[Caller] = []
        for part in self._inflight:
            part.lose(written=True)
            _end(part, touched)
        for part in self._unsent:
            part.lose(written=False)
            _end(part, touched)
        self._inflight.clear()
        self._unsent.clear()
        self._commands.clear()
        self._declining = False
        resume_all(touched)

    def unanswered(self) -> int:
        return self._times.unanswered() + len(self._commands)


def _end(part: Part, touched: list[Caller]) -> None:
    """End `part`. Add its caller to `touched` if it is the last one of its batch."""
    batch = part.end()
    if batch.open == 0:
        touch(batch.caller, touched)
