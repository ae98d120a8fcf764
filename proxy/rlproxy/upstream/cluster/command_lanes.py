"""Command lanes (--share) to a cluster: each ordinary command takes the lane to its master.

    for_slot() ──slot of the keys──> the lane of the identity to the slot's master
            └── no key, several slots, a lane that is not ready ──> the client's private connection

The lanes are those of each node's LanePool. No command waits here.
"""

from __future__ import annotations

from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.session.call import Lane
from rlproxy.upstream.cluster.node import Nodes
from rlproxy.upstream.cluster.slot_map import NO_MAP, SlotMap
from rlproxy.upstream.lane import LaneKey, PooledLane, ServerLane


class ClusterCommandLane(PooledLane):
    """The lane of one identity to a cluster for reads, or for writes, as sessions see it.

    It is always ready, and takes no command itself: for_slot() returns the master's lane for each.
    """

    def __init__(self, nodes: Nodes, key: LaneKey) -> None:
        super().__init__(key)
        self.ready = True
        self._nodes = nodes
        self._map: SlotMap = NO_MAP
        self._lanes: list[ServerLane | None] = []  # by the index of the master in the map
        self.take_map()

    def take_map(self) -> None:
        """Take the present map of the cluster."""
        self._map = self._nodes.cluster.map
        self._lanes = [None] * len(self._map.shards)

    def for_slot(self, slot: int) -> Lane | None:
        """Return the lane for a command whose keys are in one slot; see Lane.for_slot()."""
        index = self._map.owners[slot] if slot != NO_SLOT else -1
        if index < 0:
            return None
        lane = self._lanes[index]
        if lane is None or lane.retired:
            node = self._nodes.of(self._map.shards[index].address)
            lane = self._lanes[index] = node.pool.lane(self.key)
            if lane is None:
                return None  # at a limit of lanes
        if lane.ready and lane.room > 0:
            return lane
        lane.wake()
        return None

    def idle(self, since: float) -> bool:
        """See PooledLane.idle(). The nodes close lanes that are unused; it is, once all are closed.

        Forgets the lanes that will not be ready again.
        """
        for index, lane in enumerate(self._lanes):
            if lane is not None and (lane.retired or lane.refused):
                self._lanes[index] = None
        return not any(self._lanes)
