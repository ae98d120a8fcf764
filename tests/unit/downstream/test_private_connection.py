"""private_connection: when it is read, with a client that only records."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from rlproxy.downstream.connection import PrivateConnection
from rlproxy.fairness.budget import LARGE
from rlproxy.observability.counters import Counters
from rlproxy.session import waits

from tests.unit.downstream.bench import Transport


class Session:
    """What the private connection reads of a session."""

    def __init__(self) -> None:
        self.requests = self
        self.slow = False
        self.wait = waits.NOTHING
        self.private = self.slots = self
        self.sends_again = False
        self.received = b""

    def upstream_received(self, data: bytes) -> None:
        self.received += data

    def awaits_lane(self) -> bool:
        return self.sends_again


class Client:
    """A client that records the calls of its private connection.

    busy: the work of the tick is spent.
    calls: names of the methods that were called.
    """

    def __init__(self) -> None:
        self.session = Session()
        self.stats = Counters()
        self.busy = self.resting = False
        self.calls: list[str] = []
        self.lost: list[object] = []

    def has_read(self, _size: int) -> None:
        self.calls.append("has_read")
        self.resting = self.busy

    def flush(self) -> None:
        self.calls.append("flush")

    def upstream_lost(self, private: PrivateConnection) -> None:
        self.lost.append(private)


class Connected:
    """An open private connection of a client that records."""

    def __init__(self) -> None:
        self.client = Client()
        self.transport = Transport()
        self.private = PrivateConnection(cast("Any", self.client))
        self.private.connection_made(cast("asyncio.Transport", self.transport))


# -- its life --------------------------------------------------------------------------------------


def test_open_connections_are_counted() -> None:
    connected = Connected()
    assert connected.client.stats.private == 1
    connected.private.connection_lost(None)
    assert connected.client.stats.private == 0
    assert connected.client.lost == [connected.private]


def test_nothing_is_written_before_and_after() -> None:
    client = Client()
    private = PrivateConnection(cast("Any", client))
    for act in (private.write_eof, private.abort, private.close, private.read):
        act()
    private.write(b"x")
    assert client.stats.upstream_out == 0
    connected = Connected()
    connected.private.write(b"four")
    connected.private.connection_lost(None)
    connected.private.write(b"more")
    assert connected.transport.written == b"four"
    assert connected.client.stats.upstream_out == 4


def test_the_end_of_file_is_passed_on() -> None:
    connected = Connected()
    connected.private.write_eof()
    assert connected.transport.ended


def test_closing_and_aborting() -> None:
    connected = Connected()
    connected.private.close()
    assert (connected.transport.closed, connected.transport.aborted) == (True, False)
    connected.private.abort()
    assert connected.transport.aborted


def test_redis_that_takes_no_more_bytes() -> None:
    connected = Connected()
    connected.private.pause_writing()
    assert connected.private.full
    connected.private.resume_writing()
    assert not connected.private.full
    assert connected.client.calls == ["flush", "flush"]


# -- when it is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "wait", "resting", "reads"),
    [
        (False, waits.NOTHING, False, True),
        (True, waits.NOTHING, False, False),
        (True, waits.HELD, False, True),  # it only carries replies to the proxy's own calls
        (False, waits.NOTHING, True, False),
        (True, waits.HELD, True, False),
    ],
)
def test_it_is_read_as_the_state_of_the_client_requires(
    slow: bool, wait: int, resting: bool, reads: bool
) -> None:
    connected = Connected()
    session = connected.client.session
    session.slow, session.wait = slow, wait
    connected.client.resting = resting
    connected.private.read()
    assert connected.transport.reading == reads
    session.slow, connected.client.resting = False, False
    connected.private.read()
    assert connected.transport.reading


@pytest.mark.parametrize(
    ("size", "busy", "rests"),
    [(LARGE, True, False), (LARGE + 1, True, True), (LARGE + 1, False, False)],
)
def test_a_large_read_waits_for_its_turn_where_the_work_is_spent(
    size: int, busy: bool, rests: bool
) -> None:
    connected = Connected()
    connected.client.busy = busy
    connected.private.data_received(b"x" * size)
    assert len(connected.client.session.received) == size
    assert ("has_read" in connected.client.calls) == (size > LARGE)
    assert connected.client.resting == rests
    assert connected.transport.reading == (not rests)
    assert connected.client.calls[-1] == "flush"
