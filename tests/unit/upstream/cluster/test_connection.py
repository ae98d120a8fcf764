"""connection: when a client of a cluster is not read any further."""

from __future__ import annotations

import asyncio

from rlproxy.upstream.cluster.connection import MAX_UNSENT, ClusterConnection
from rlproxy.upstream.cluster.dispatcher import Dispatcher
from rlproxy.upstream.cluster.face import Face
from rlproxy.upstream.cluster.routes import Routes

from tests.unit.upstream.cluster.test_exchange import Client

PART = b"*2\r\n$4\r\nECHO\r\n$9000000\r\n" + b"x" * MAX_UNSENT  # of a command


class Session(asyncio.Protocol):
    """The session behind a connection; `full`: it may write no more."""

    full = False

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False


async def test_a_client_has_little_unread_until_it_is_known_to_have_logged_in() -> None:
    client, session = Client(), Session()
    dispatcher = Dispatcher(client.exchange, Routes([]), Face("h", 1), splits=True)
    connection = ClusterConnection(client.exchange, dispatcher, session)
    connection.write(PART[:-1000])
    assert not session.full
    connection.write(PART[-1000:])
    assert session.full
    client.nodes[0].reply(b"+PONG\r\n")
    assert not session.full
    connection.write(PART)
    assert not session.full
