"""The lane for hits to one node of a cluster: it gives back what the node has not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.ratelimit.denial_cache import MAX_LIFE_S
from rlproxy.session.call import Call
from rlproxy.upstream.hit_lane import ANY_KEYS, HitLane
from rlproxy.upstream.lane import LaneContext, LaneKey

# Errors of a node that has not run a call, which may run if it is sent again.
NOT_RUN: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN", b"-CLUSTERDOWN", b"-LOADING", b"-MASTERDOWN")


class NodeLane(HitLane):
    """The lane of one identity to one node, for hits.

    The lane of the cluster sets what these calls do:

    not_run: called with a call that another node should run, and the node's error.
    not_written: called with the calls that were not written when the connection was lost: later
        calls of their clients may be under way on other nodes, so they can't move to private
        connections.
    """

    not_run: Callable[[NodeLane, Call, bytes], None]
    not_written: Callable[[list[Call]], None]

    def __init__(self, context: LaneContext, key: LaneKey) -> None:
        super().__init__(context, key)
        self._wishes.remove(ANY_KEYS)  # no groups: their keys would have to be in one slot
        # What a client has written on another node may not have been reported yet. All refusals
        # remembered before are over after MAX_LIFE_S.
        self._distrusts_s = MAX_LIFE_S
        self.address = context.target.address
        self.circuit = context.timeouts.circuit
        self._slots_again: set[int] = set()  # of the calls in `_again`

    def usable(self) -> bool:
        """Return whether a call submitted now is sent in this tick."""
        return self.ready and self.room > 0 and not self.circuit.open

    def submit_again(self, call: Call, asking: bool) -> None:
        """Queue a hit that no node has run; no remembered refusal answers it.

        asking: it follows ASKING, in the same write.
        """
        call.denial = None
        call.asks = asking
        self._denials.take_back(call)
        self._queue(call)

    def _queue_again(self, call: Call, error: bytes) -> bool:
        """See HitLane._queue_again(). Gives `not_run` the calls that another node should run."""
        slot = call.hash_slot()
        if not self._again:
            self._slots_again.clear()
        if not error.startswith(NOT_RUN):
            queued = super()._queue_again(call, error)
            if queued:
                self._slots_again.add(slot)
            return queued
        self._denials.take_back(call)
        if slot in self._slots_again:
            call.asks = False  # after MOVED: the node may import the slot anew by then
            self._again.append(call)  # the node gets those whose script was missing first
        else:
            self.not_run(self, call, error)
        return True

    def _report_lost(self, written: list[Call], unsent: list[Call]) -> None:
        super()._report_lost(written, [])
        self.not_written(unsent)

    def slots(self) -> set[int]:
        """Return the slots of the calls without a reply, unsent ones included, late ones not."""
        calls = (*self._inflight, *self._again, *self._unsent)
        return {call.hash_slot() for call in calls if not call.late}

    def forget_refusals(self) -> None:
        """Forget the remembered refusals: keys have moved to another node."""
        self._denials.entries = {}
