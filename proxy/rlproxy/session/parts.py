"""What the parts of one session share: unread requests, private connection, lane calls. No I/O."""

from __future__ import annotations

from rlproxy.session.call import Caller
from rlproxy.session.client_requests import ClientRequests
from rlproxy.session.context import WorkerContext
from rlproxy.session.lane_calls import LaneCalls
from rlproxy.session.private_stream import PrivateStream


class SessionBase(Caller):
    """One client's unread requests, and the two ways that they leave by.

    The base of Session.

    to_client: the list that replies leave by.
    """

    def __init__(self, context: WorkerContext) -> None:
        super().__init__()
        self.context = context
        self.to_client: list[bytes] = []
        self.requests = ClientRequests()
        self.private = PrivateStream(context, self, self.to_client)
        self.lanes = LaneCalls(context, self.to_client, self.private.state)

    def held_finished(self) -> None:
        """Go on: the held hit has its reply."""
        raise NotImplementedError


class OwnCalls(Caller):
    """The sender of calls that the session itself makes for its client."""

    def __init__(self, session: SessionBase) -> None:
        super().__init__()
        self.flush = session.flush
        self.fenced = True  # no remembered refusal: the client may have written the key
        self._session = session

    def resume(self) -> None:
        self._session.resume()


class SessionPart:
    """The base of Router, Sharing and FailOpen, which act on SessionBase."""

    def __init__(self, session: SessionBase) -> None:
        self._context = session.context
        self._requests = session.requests
        self._private = session.private
        self._lanes = session.lanes
