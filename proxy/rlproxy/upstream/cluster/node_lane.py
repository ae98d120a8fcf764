"""The lane to one node of a cluster: a shared lane that gives back what the node has not run."""

from __future__ import annotations

from typing import Final

from rlproxy.config.urls import Address
from rlproxy.session.call import Call
from rlproxy.upstream.lane import DEAD, SharedLane

# Errors of a node that has not run a call, which may run if it is sent again.
_NOT_RUN: Final = (
    *(b"-MOVED ", b"-ASK "),
    *(b"-TRYAGAIN", b"-CLUSTERDOWN", b"-LOADING", b"-MASTERDOWN"),
)


class Redirection:
    """The interface of the owner of node lanes, which sends hits elsewhere."""

    def redirected(self, lane: NodeLane, call: Call, error: bytes) -> None:
        """Take `call`, which the lane's node has not run. The order is that of the replies."""
        raise NotImplementedError

    def unwritten(self, lane: NodeLane, calls: list[Call]) -> None:
        """Take the calls that were not written when the connection was lost."""
        raise NotImplementedError


class NodeLane(SharedLane):
    """The lane of one identity to one node, for hits.

    Calls that another node should run go to `redirection`. So do those that were not written when
    the connection was lost: later calls of their clients may be under way on other nodes, so they
    can't move to private connections.
    """

    redirection: Redirection | None = None
    address: Address = Address()  # of the node

    def submit_again(self, call: Call, asking: bool) -> None:
        """Queue a hit that no node has run; no remembered refusal answers it.

        asking: it follows ASKING, in the same write.
        """
        call.denial = None
        call.expects_ok = asking
        if self._denials is not None:
            self._denials.reopen(call)
        self._queue(call)

    def _goes_again(self, call: Call, error: bytes) -> bool:
        redirection = self.redirection
        if redirection is None or not error.startswith(_NOT_RUN):
            return super()._goes_again(call, error)
        if self._denials is not None:
            self._denials.reopen(call)
        redirection.redirected(self, call, error)
        return True

    def _hit_reply(self, call: Call, frame: bytes) -> bytes:
        fenced = call.caller.fenced
        reply = super()._hit_reply(call, frame)
        call.caller.fenced = fenced  # what the client wrote on another node may not be seen yet
        return reply

    def _hand_back(self, written: list[Call], unsent: list[Call]) -> None:
        redirection = self.redirection
        super()._hand_back(written, [] if redirection is not None else unsent)
        if redirection is not None:
            redirection.unwritten(self, unsent)

    def last(self) -> int:
        """Return the number of the latest call, for has_answered()."""
        return self._times.sent + len(self._again) + len(self._unsent)

    def has_answered(self, last: int) -> bool:
        """Return whether all calls up to number `last` are answered or late.

        The numbers are those of one connection.
        """
        return max(self._times.late, self._times.sent - len(self._inflight)) >= last

    def refused(self) -> bool:
        """Return whether the node does not accept this identity."""
        return self._state == DEAD

    def retry(self) -> None:
        """Let the next wake() connect without a pause: the node answers again."""
        self._retry_at = 0.0

    def forget_refusals(self) -> None:
        """Forget the remembered refusals: keys have moved to another node."""
        if self._denials is not None:
            self._denials.track(self._denials.tracks)
