"""Cluster lanes: hits by the key's slot, each on the lane of its identity to the slot's master.

    submit() ──slot──┬─> the lane to its master ──────────────────────> node
                     └─> SlotQueue, while the slot is in transition        │ -MOVED, -ASK ...
                             again, calls  <────── _not_run() ─────────────┘

The order invariant: the hits of one client on one key run in the order sent. A slot is in
transition if its owner changes while calls are under way at the former one, which drains: these are
answered first. What the former owner has not run goes to the new one at once, in the order of the
replies. New calls for the slot wait in its queue until then. Calls that got ASK need no queue: all
calls for the slot take the way over the same node, in order. A redirected call waits for the calls
before it that this node must get again, as their script was missing there.

A call waits for at most the hit timeout, counted from the moment at which it first had to wait.

Ordinary commands (--share) do not wait here: what no lane takes, the client's private connection
takes.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

from rlproxy.config.urls import Address
from rlproxy.ratelimit.grammar import Rule
from rlproxy.resp import encoding
from rlproxy.resp.commands import HIT
from rlproxy.resp.key_slot import NO_SLOT
from rlproxy.session.call import Call, Caller, Lane
from rlproxy.upstream.cluster.node import Nodes
from rlproxy.upstream.cluster.node_lane import NodeLane
from rlproxy.upstream.cluster.redirects import AT_ONCE, PAUSE_S
from rlproxy.upstream.cluster.slot_map import NO_MAP, SlotMap
from rlproxy.upstream.lane import LaneKey, PooledLane, ServerLane, resume_all, touch
from rlproxy.upstream.lane_pool import Pool

SERVE_S: Final = 0.001  # seconds between two rounds over the queues
MAX_WAIT_S: Final = 1.0  # longest wait without a hit timeout
_REFUSED: Final = encoding.error("WRONGPASS a node of the cluster does not accept this user")


class SlotQueue:
    """A slot in transition: its calls that wait, and what they wait for.

    again: calls that a node has not run; they go first. With each, the node that ASK has named;
        None where the owner of the slot gets the call.
    calls: calls that no node has got, in order of their `since`. They wait for the `drains`, too.
    drains: the lanes to former owners that have calls of the slot under way, and since when the
        slot waits for these.
    not_before: earliest loop time at which `again` is sent.
    error: the latest error of a node that could not run a call; empty for none.
    """

    def __init__(self) -> None:
        self.again: list[tuple[Call, Address | None]] = []
        self.calls: list[Call] = []
        self.drains: dict[NodeLane, float] = {}
        self.not_before: float = 0.0
        self.error = b""


class ClusterLane(PooledLane):
    """The lane of one identity to a cluster, as sessions see it.

    Its `room` stays as it is: where a node's lane has none, only the calls for this node wait.
    """

    def __init__(self, lanes: ClusterLanes, key: LaneKey) -> None:
        super().__init__(key)
        self.room = lanes.nodes.settings.max_lane_hits
        self._pool = lanes
        self._cluster = lanes.nodes.cluster
        self._loop = lanes.loop
        self._map: SlotMap = NO_MAP
        self._by_shard: list[NodeLane | None] = []  # by the index of the shard in the map
        self._by_address: dict[Address, NodeLane] = {}  # those to former owners included
        self._queues: dict[int, SlotQueue] = {}  # by slot; while there is one, they are served
        self._opening_since: float = self._loop.time()
        self.take_map()

    # -- calls ------------------------------------------------------------------------------------

    def by_sha(self, rule: Rule) -> bool:
        return all(lane.by_sha(rule) for lane in self._by_shard if lane is not None)

    def submit(self, call: Call) -> bytes:
        """Send `call` to the master of its key's slot, or let it wait; see Lane.submit()."""
        slot = call.hash_slot()
        index = self._map.owners[slot]
        lane = self._by_shard[index] if index >= 0 else None
        if lane is None or not lane.usable() or (self._queues and slot in self._queues):
            self._queue_of(call).calls.append(call)
            return b""
        return lane.submit(call)

    def wake(self) -> None:
        """Open the lanes to all masters; see Lane.wake().

        It is ready once the lane to each master that answers is ready. A master that accepts
        connections and does not answer is waited for at most as long as for a hit.
        """
        if self.refused:
            return
        ready = opening = 0
        for index in range(len(self._by_shard)):
            lane = self._lane_at(index)
            if lane is None or lane.refused:
                self._give_up()
                return
            if lane.ready:
                ready += 1
            else:
                lane.wake()
                opening += not lane.circuit.open
        waited_s = self._loop.time() - self._opening_since
        self.ready = ready > 0 and (opening == 0 or waited_s > self._pool.limit_s())

    # -- the map of the cluster -------------------------------------------------------------------

    def take_map(self) -> None:
        """Take the present map of the cluster."""
        self._map = self._cluster.map
        for address, slots in self._cluster.lost.items():
            lane = self._by_address.get(address)
            if lane is not None:
                lane.forget_refusals()
                for slot in slots & lane.slots():
                    self._queue(slot).drains[lane] = self._loop.time()
        self._by_shard = [self._lane_to(shard.address) for shard in self._map.shards]
        if self.ready:
            for lane in self._by_shard:
                if lane is not None and not lane.ready:
                    lane.wake()

    def _lane_to(self, address: Address) -> NodeLane | None:
        """Return the lane to the node at `address`; None at a limit of lanes."""
        known = self._by_address.get(address)
        if known is not None and not known.retired:
            return known
        lane = self._pool.nodes.of(address).pool.lane(self.key)
        if not isinstance(lane, NodeLane):
            return None
        lane.not_run, lane.not_written = self._not_run, self._not_written
        self._by_address[address] = lane
        return lane

    def _lane_at(self, index: int) -> NodeLane | None:
        """Return the lane to the master of this index in the map; None at a limit of lanes."""
        lane = self._by_shard[index]
        if lane is None or lane.retired:
            lane = self._by_shard[index] = self._lane_to(self._map.shards[index].address)
        return lane

    # -- calls that wait --------------------------------------------------------------------------

    def _queue_of(self, call: Call) -> SlotQueue:
        """Return the queue for `call`, which waits from now on if it did not before."""
        call.since = call.since or self._loop.time()
        return self._queue(call.hash_slot())

    def _queue(self, slot: int) -> SlotQueue:
        """Return the queue of a slot in transition."""
        queue = self._queues.get(slot)
        if queue is None:
            if not self._queues:
                self._loop.call_soon(self._serve_queues)
            queue = self._queues[slot] = SlotQueue()
        return queue

    def _not_run(self, lane: NodeLane, call: Call, error: bytes) -> None:
        """Send `call` again, which got `error`, or let it wait in the order of the replies."""
        slot = call.hash_slot()
        call.redirects += 1
        address = self._cluster.redirected(lane.address, error)
        asked = address if error.startswith(b"-ASK") else None
        pauses = address is None or call.redirects > AT_ONCE
        queue = self._queues.get(slot)
        if address is not None and not pauses and (queue is None or not queue.again):
            other = self._lane_to(address)
            if other is not None and other.usable():
                other.submit_again(call, asked is not None)
                return
        queue = self._queue_of(call)
        if pauses:
            queue.error = encoding.clean_error(error) if address is None else b""
            pause_s = min(PAUSE_S, self._pool.limit_s() / 2)  # at least one more try
            queue.not_before = self._loop.time() + pause_s
            self._cluster.refresh()
        queue.again.append((call, asked))

    def _not_written(self, calls: list[Call]) -> None:
        """Let calls wait that were not written when their lane was lost."""
        for call in calls:
            self._queue_of(call).again.append((call, None))

    # -- the queues -------------------------------------------------------------------------------

    def _serve_queues(self) -> None:
        """Send what may go on, and answer what has waited for too long."""
        now, limit_s = self._loop.time(), self._pool.limit_s()
        draining = {lane for queue in self._queues.values() for lane in queue.drains}
        under_way = {lane: lane.slots() for lane in draining}
        for slot, queue in list(self._queues.items()):
            queue.drains = {
                lane: since
                for lane, since in queue.drains.items()
                if now - since < limit_s and slot in under_way[lane]
            }
            self._serve(slot, queue, now, limit_s)
            if not (queue.again or queue.calls or queue.drains):
                del self._queues[slot]
        if self._queues:
            self._loop.call_later(SERVE_S, self._serve_queues)

    def _serve(self, slot: int, queue: SlotQueue, now: float, limit_s: float) -> None:
        """Send the calls of `queue` that may be sent now, and answer those that waited too long."""
        index = self._map.owners[slot]
        lane = self._lane_at(index) if index >= 0 else None
        if now >= queue.not_before:
            self._send_again(lane, queue)
        if lane is None:
            pass
        elif lane.usable():
            if not queue.again and not queue.drains:
                number = min(len(queue.calls), lane.room)
                for call in queue.calls[:number]:
                    lane.submit_again(call, False)
                del queue.calls[:number]
        elif lane.circuit.open:
            limit_s = 0.0  # no call may wait
        else:
            if lane.refused:
                self._give_up()
                limit_s = 0.0
            lane.wake()
        self._answer_late(lane, queue, now, limit_s)

    def _send_again(self, owner: NodeLane | None, queue: SlotQueue) -> None:
        """Send the calls that no node has run, in their order, up to one whose node takes none."""
        sent = 0
        for call, asked in queue.again:
            lane = owner if asked is None else self._lane_to(asked)
            if lane is None or not lane.usable():
                if lane is not None:
                    lane.wake()
                break
            lane.submit_again(call, asked is not None)
            sent += 1
        del queue.again[:sent]

    def _answer_late(
        self, lane: NodeLane | None, queue: SlotQueue, now: float, limit_s: float
    ) -> None:
        """Answer the calls that have waited for `limit_s` seconds."""
        latest = now - limit_s
        # Where the nodes have refused hits for that long, one try is enough.
        tried = now if 0.0 < self._cluster.down_since <= latest else latest
        late = [call for call, _ in queue.again if call.since <= tried]
        if late:
            queue.again = [each for each in queue.again if each[0].since > tried]
        if queue.calls and queue.calls[0].since <= latest:
            late += [call for call in queue.calls if call.since <= latest]
            queue.calls = [call for call in queue.calls if call.since > latest]
        if not late:
            return
        where, why = "the cluster", "no node serves the slot of the key"
        if lane is not None:
            where, why = str(lane.address), lane.circuit.why or "no connection in time"
        error = encoding.unreachable(where, why)
        if lane is not None and limit_s > 0.0 and not lane.ready:
            lane.circuit.timed_out(len(late), latest, now, limit_s)
        refusal = _REFUSED if lane is not None and lane.refused else queue.error
        touched: list[Caller] = []
        for call in late:
            if refusal:
                call.caller.lane_answered(call, refusal)
            else:
                call.caller.lane_failed(call, error, "unreachable")
            touch(call.caller, touched)
        resume_all(touched)

    # -- the end ----------------------------------------------------------------------------------

    def lanes(self) -> list[NodeLane]:
        """Return its lanes to the nodes. Forgets those to nodes that have left."""
        found = self._by_address.items()
        self._by_address = {at: lane for at, lane in found if not lane.retired}
        return list(self._by_address.values())

    def idle(self, since: float) -> bool:
        return not self._queues and all(lane.idle(since) for lane in self.lanes())

    def _give_up(self) -> None:
        """Take no more calls: a node does not accept the identity. The sweep closes this lane."""
        self.refused = True
        self.ready = False

    def retire(self) -> None:
        super().retire()
        self.ready = False
        for lane in self.lanes():
            lane.retire()


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


class ClusterLanes(Pool[ClusterLane | ClusterCommandLane]):
    """The lanes of one process to a cluster, each with lanes to the masters."""

    def __init__(self, nodes: Nodes, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.nodes = nodes
        self.loop = loop
        nodes.cluster.on_change[self._changed] = None

    def limit_s(self) -> float:
        """Return the longest time for which a call waits, in seconds."""
        timeout_s = self.nodes.timeout_s
        return timeout_s if timeout_s < inf else MAX_WAIT_S

    def _made(self, key: LaneKey) -> ClusterLane | ClusterCommandLane:
        return ClusterLane(self, key) if key.kind == HIT else ClusterCommandLane(self.nodes, key)

    def _changed(self) -> None:
        self.nodes.take_map()
        for lane in self.lanes():
            lane.take_map()
        self.nodes.look()
