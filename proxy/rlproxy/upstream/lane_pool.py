"""Lane pools: the lanes of one process, by identity."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, Generic, TypeVar

from rlproxy.resp.commands import HIT
from rlproxy.session.identity import Identity
from rlproxy.upstream.command_lane import CommandLane
from rlproxy.upstream.hit_lane import HitLane
from rlproxy.upstream.lane import LaneContext, LaneKey, PooledLane, ServerLane

MAX_LANES: Final = 256
MAX_LANES_PER_USER: Final = 32
IDLE_S: Final = 60.0  # seconds without calls after which a lane is closed

L = TypeVar("L", bound=PooledLane)


class Pool(Generic[L]):
    """The lanes of one process, by key. Their number is bounded in total and per user."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, L] = {}

    def _made(self, key: LaneKey) -> L:
        """Return a new lane."""
        raise NotImplementedError

    def lane_of(self, identity: Identity, kind: int, protocol: int) -> L | None:
        """Return the lane of `identity`, made if needed; for `kind` and `protocol` see LaneKey.

        Returns None at a limit of lanes, or for another protocol than 2 and 3.
        """
        return self.lane(LaneKey(*identity.key(), kind, protocol)) if protocol in (2, 3) else None

    def lane(self, key: LaneKey) -> L | None:
        """Return the lane of `key`, made if needed; None at a limit of lanes."""
        lane = self._lanes.get(key)
        if lane is None or lane.retired:
            users = [other.key.user for other in self.lanes()]
            if len(users) >= MAX_LANES or users.count(key.user) >= MAX_LANES_PER_USER:
                return None
            lane = self._lanes[key] = self._made(key)
        return lane

    def lanes(self) -> list[L]:
        """Return all lanes, whether connected or not. Forgets the closed ones."""
        self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.retired}
        return list(self._lanes.values())

    def close_idle(self, since: float) -> None:
        """Close the lanes that are unused since loop time `since`, or that Redis refuses.

        To be called about once a second: an identity that Redis refuses is tried again as often.
        """
        self._retire(self._idle(since))

    def _idle(self, since: float) -> list[L]:
        return [lane for lane in self.lanes() if lane.idle(inf if lane.refused else since)]

    def _retire(self, lanes: list[L]) -> None:
        for lane in lanes:
            del self._lanes[lane.key]
            lane.retire()


class LanePool(Pool[ServerLane]):
    """The lanes of one process to one server."""

    def __init__(self, context: LaneContext) -> None:
        super().__init__()
        self.make: Callable[[LaneContext, LaneKey], ServerLane] = _make
        self.context = context

    def _made(self, key: LaneKey) -> ServerLane:
        return self.make(self.context, key)

    def drained(self) -> bool:
        """Return whether no lane has a call by EVALSHA under way."""
        return all(lane.drained() for lane in self._lanes.values())

    def close_command_lanes(self, since: float) -> None:
        """See close_idle(); the lanes for hits stay."""
        self._retire([lane for lane in self._idle(since) if lane.key.kind != HIT])

    def renew(self) -> None:
        """Close all lanes. Sessions get new ones, which connect to the target's present address."""
        self._retire(self.lanes())


def _make(context: LaneContext, key: LaneKey) -> ServerLane:
    return HitLane(context, key) if key.kind == HIT else CommandLane(context, key)
