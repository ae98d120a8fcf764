"""Moves bytes as a session's owner does: into either side, and out of it."""

from __future__ import annotations

from rlproxy.session import waits
from rlproxy.session.session import Session


class Sides:
    """The client's side and Redis' side of `session`."""

    session: Session

    def send(self, *data: bytes) -> bytes:
        """Send from the client; return the bytes for the private connection."""
        for each in data:
            self.session.receive(each)
        return self.up()

    def answer(self, *data: bytes) -> bytes:
        """Reply from Redis on the private connection; return the bytes for the client."""
        for each in data:
            self.session.upstream_received(each)
        return self.down()

    def up(self) -> bytes:
        while self.session.wait == waits.TICK:  # its owner gives it its share of the ticks
            self.session.take_turn()
        out = b"".join(self.session.private.to_redis)
        self.session.private.to_redis.clear()
        return out

    def down(self) -> bytes:
        out = b"".join(self.session.to_client)
        self.session.to_client.clear()
        return out
