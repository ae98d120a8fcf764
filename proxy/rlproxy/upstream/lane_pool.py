"""The lane pool: the lanes of one process to one server, by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlproxy.session.identity import Identity
from rlproxy.upstream.lane import HITS, LaneContext, LaneKey, SharedLane

MAX_LANES: Final = 256
MAX_LANES_PER_USER: Final = 32
IDLE_S: Final = 60.0  # seconds without calls after which a lane is closed


def at_limit(users: list[bytes | None], user: bytes | None) -> bool:
    """Return whether `user` may have no further lane.

    users: the users of all lanes, one for each lane.
    """
    return len(users) >= MAX_LANES or users.count(user) >= MAX_LANES_PER_USER


class LanePool:
    """The lanes of one process, by identity. Their number is bounded in total and per user."""

    def __init__(self, context: LaneContext) -> None:
        context.loading.drained = self._drained
        context.loading.on_over = self._go_on
        self.make: Callable[[LaneContext, LaneKey, int], SharedLane] = SharedLane
        self.context = context
        self._lanes: dict[LaneKey, SharedLane] = {}

    def lane_of(self, identity: Identity) -> SharedLane | None:
        """Return the lane of `identity` for hits, made if needed; None at a limit of lanes."""
        return self._lane(identity, HITS, 3)

    def share_of(self, identity: Identity, protocol: int, kind: int) -> SharedLane | None:
        """Return the lane of `identity` for ordinary commands, made if needed.

        protocol: the RESP version of the replies.
        kind: READS or WRITES.
        Returns None at a limit of lanes, or for another protocol than 2 and 3.
        """
        return self._lane(identity, kind, protocol) if protocol in (2, 3) else None

    def _lane(self, identity: Identity, kind: int, protocol: int) -> SharedLane | None:
        key = LaneKey(*identity.key(), kind, protocol)
        lane = self._lanes.get(key)
        if lane is not None and (lane.retired or lane.refused):
            del self._lanes[key]
            lane = None
        if lane is None:
            if at_limit([other.key.user for other in self.lanes()], key.user):
                return None
            taken = {other.number for other in self._lanes.values()}
            number = next(at for at in range(1, MAX_LANES + 1) if at not in taken)
            lane = self._lanes[key] = self.make(self.context, key, number)
        return lane

    def _go_on(self) -> None:
        for lane in self.lanes():
            lane.go_on()

    def _drained(self) -> bool:
        return all(lane.drained() for lane in self._lanes.values())

    def lanes(self) -> list[SharedLane]:
        """Return all lanes, whether connected or not. Forgets those that Redis refuses."""
        self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.refused}
        return list(self._lanes.values())

    def close_idle(self) -> None:
        """Close the lanes without calls for IDLE_S."""
        since = self.context.loop.time() - IDLE_S
        self._retire([lane for lane in self.lanes() if lane.idle(since)])

    def close_shares(self, used: bool) -> None:
        """Close the lanes for ordinary commands: those without calls for IDLE_S; all if `used`."""
        since = self.context.loop.time() - IDLE_S
        shares = [lane for lane in self.lanes() if lane.key.kind != HITS]
        self._retire([lane for lane in shares if used or lane.idle(since)])

    def renew(self) -> None:
        """Close all lanes. Sessions get new ones, which connect to the target's present address."""
        self._retire(self.lanes())

    def _retire(self, lanes: list[SharedLane]) -> None:
        for lane in lanes:
            del self._lanes[lane.key]
            lane.retire()
