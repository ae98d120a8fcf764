"""The lane to one node of a cluster: it gives back the calls that the node has not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlproxy.config.urls import Address
from rlproxy.ratelimit.denial_cache import MOST_S
from rlproxy.session.call import Call
from rlproxy.upstream.cluster.cluster import Cluster
from rlproxy.upstream.cluster.redirects import redirect
from rlproxy.upstream.lane import DEAD, LaneKey, SharedLane

if TYPE_CHECKING:
    from rlproxy.upstream.cluster.lanes import ClusterLane
    from rlproxy.upstream.lane_pool import LanePool

MAX_UNSENT: Final = 64  # ordinary commands that wait for the end of the tick
SLACK_S: Final = 0.01  # difference between the loop's clock and that of the denial cache, at most
# Errors of a node that has not run a call, which may run if it is sent again.
_NOT_RUN: Final = (
    *(b"-MOVED ", b"-ASK "),
    *(b"-TRYAGAIN", b"-CLUSTERDOWN", b"-LOADING", b"-MASTERDOWN"),
)


class NodeLane(SharedLane):
    """The lane of one identity to one node, for hits.

    Calls that another node should run go to `owner`. So do those that were not written when the
    connection was lost: later calls of their clients may be under way on other nodes, so they
    can't move to private connections.
    """

    owner: ClusterLane | None = None

    def __init__(self, pool: LanePool, key: LaneKey, number: int, address: Address) -> None:
        super().__init__(pool, key, number)
        self.address = address
        self.where = str(address)
        self.circuit = pool.timeouts.circuit

    def usable(self) -> bool:
        """Return whether a call submitted now is sent in this tick."""
        return self.ready and self.room > 0 and not self.circuit.open

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
        owner = self.owner
        if owner is None or not error.startswith(_NOT_RUN):
            return super()._goes_again(call, error)
        if self._denials is not None:
            self._denials.reopen(call)
        owner.redirected(self, call, error)
        return True

    def submit(self, call: Call) -> bytes:
        """See Lane.submit()."""
        trusts_at = call.caller.trusts_at
        if trusts_at > 0.0:
            if self._pool.loop.time() < trusts_at:
                self.submit_again(call, False)
                return b""
            call.caller.trusts_at = 0.0
        return super().submit(call)

    def _hit_reply(self, call: Call, frame: bytes) -> bytes:
        """See SharedLane.

        What the client has written on another node may not have been reported yet. All refusals
        remembered before are over after MOST_S.
        """
        if call.caller.fenced:
            call.caller.trusts_at = self._pool.loop.time() + MOST_S + SLACK_S
        return super()._hit_reply(call, frame)

    def _hand_back(self, written: list[Call], unsent: list[Call]) -> None:
        owner = self.owner
        super()._hand_back(written, [] if owner is not None else unsent)
        if owner is not None:
            owner.unwritten(self, unsent)

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


class ShareLane(NodeLane):
    """The lane of one identity to one node, for ordinary commands.

    A command that the node has not run goes back to its caller, whose private connection follows
    redirects. LaneCalls.move_to() keeps the order of those behind it.
    """

    def __init__(
        self, pool: LanePool, key: LaneKey, number: int, address: Address, cluster: Cluster
    ) -> None:
        super().__init__(pool, key, number, address)
        self._cluster = cluster

    def _most_unsent(self) -> int:
        return MAX_UNSENT

    def _hands_back_after(self, call: Call, error: bytes) -> bool:
        if not error.startswith(_NOT_RUN):
            return super()._hands_back_after(call, error)
        slot, address = redirect(error, self.address)
        if address is None:
            self._cluster.refresh()
        elif error.startswith(b"-MOVED"):
            self._cluster.moved(slot, address)
        call.caller.lane_returned(call)
        return True
