"""The commands of a part as calls, for fake lanes that keep calls and answer them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from rlproxy.resp.encoding import LOST
from rlproxy.session.call import Call, Part


class PartCaller:
    """Passes what becomes of the calls on to their part, as a lane does.

    It has the methods of a Caller, which is no base for interpreted classes once it is compiled.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._batch = part.batch

    def lane_answered(self, call: Call, reply: bytes) -> None:
        """The node has run the command, or answers b"": it has not. LOST: no reply will come."""
        part = self._part
        if reply == LOST:
            self._batch.large = True
            reply = b""
        part.replies.append(reply)
        if len(part.replies) == len(part.commands):
            part.end()

    def lane_returned(self, call: Call) -> None:
        """The lane has not written the command, or its node has not run it."""
        self.lane_answered(call, b"")

    def lane_declined(self, call: Call) -> None:
        """The reply is too large."""
        self._batch.large = True
        self.lane_answered(call, b"")

    def resume(self) -> None:
        """See Caller.resume()."""
        if self._batch.open == 0:
            self._batch.caller.resume()


@dataclass(eq=False)
class _PartCall:
    """What fake lanes use of a Call."""

    caller: PartCaller
    key: bytes


def calls_of(part: Part) -> list[Call]:
    """Return the calls for the commands of `part`, in order."""
    caller = PartCaller(part)
    return [cast("Call", _PartCall(caller, command)) for command in part.commands]
