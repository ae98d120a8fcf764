"""What the classes of one session have in common: the objects that they act on. No I/O."""

from __future__ import annotations

from rlproxy.session.call import Caller
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.context import WorkerContext
from rlproxy.session.lane_calls import LaneCalls
from rlproxy.session.private_stream import PrivateStream


class SessionParts:
    """One client's unread requests, and the two ways that they leave by.

    caller: the session, as lanes see it.
    to_client: the list that replies leave by.
    """

    __slots__ = ("caller", "context", "lanes", "private", "requests")

    def __init__(self, context: WorkerContext, caller: Caller, to_client: list[bytes]) -> None:
        self.context = context
        self.caller = caller
        self.requests = ClientRequests()
        self.private = PrivateStream(context, caller, to_client)
        self.lanes = LaneCalls(context, to_client)


class SessionPart:
    """The base of Router, LaneHits, Sharing, HeldHit and FailOpen, which act on SessionParts."""

    __slots__ = ("_caller", "_context", "_lanes", "_private", "_requests")

    def __init__(self, parts: SessionParts) -> None:
        self._context = parts.context
        self._caller = parts.caller
        self._requests = parts.requests
        self._private = parts.private
        self._lanes = parts.lanes

    def let_go(self, nobody: Caller) -> None:
        """Release the session."""
        self._caller = nobody
