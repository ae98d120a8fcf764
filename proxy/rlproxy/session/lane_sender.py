"""What the two ways of a client's requests to lanes have in common. No I/O."""

from __future__ import annotations

from rlproxy.session.call import Caller
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.context import WorkerContext
from rlproxy.session.lane_calls import LaneCalls
from rlproxy.session.private_stream import REFRESH_S, PrivateStream
from rlproxy.session.reply_order import ReplyOrder


class LaneSender:
    """The parts of a session that a sender to lanes works on."""

    __slots__ = ("_caller", "_context", "_lanes", "_order", "_private", "_requests")

    def __init__(
        self,
        context: WorkerContext,
        caller: Caller,
        requests: ClientRequests,
        private: PrivateStream,
        lanes: LaneCalls,
        order: ReplyOrder,
    ) -> None:
        self._context = context
        self._caller = caller
        self._requests = requests
        self._private = private
        self._lanes = lanes
        self._order = order

    def _begin(self) -> None:
        """Prepare for calls: keep the private connection, and expect the lanes' replies."""
        self._private.keep_alive(REFRESH_S)
        self._order.expect(self._lanes)
