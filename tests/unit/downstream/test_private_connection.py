"""private_connection: when it is read, with a client that only records."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest
from rlproxy.downstream.fan_out_reader import PIECE, STAYS_S
from rlproxy.downstream.private_connection import PrivateConnection
from rlproxy.fairness.budget import LARGE
from rlproxy.observability.counters import Counters
from rlproxy.session.waits import WAIT_HELD, WAIT_NOTHING

from tests.unit.downstream.bench import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Session:
    """What the private connection reads of a session."""

    def __init__(self) -> None:
        self.requests = self
        self.slow = False
        self.wait = WAIT_NOTHING
        self.pushes = False
        self.private = self.slots = self
        self.sends_again = False
        self.received = b""

    def upstream_received(self, data: bytes) -> None:
        self.received += data

    def awaits_lane(self) -> bool:
        return self.sends_again

    def gets_pushes(self) -> bool:
        return self.pushes


class FanOut:
    """A fan-out reader that keeps the turns that it is given.

    crowded: many connections are readable.
    broken: it cannot watch a connection.
    """

    def __init__(self) -> None:
        self.crowded = False
        self.broken = False
        self.turns: dict[int, Callable[[bool], None]] = {}

    def many(self, _size: int) -> bool:
        return self.crowded

    def watch(self, descriptor: int, turn: Callable[[bool], None]) -> None:
        if self.broken:
            raise OSError
        self.turns[descriptor] = turn

    def forget(self, descriptor: int, turn: Callable[[bool], None]) -> None:
        assert self.turns[descriptor] == turn
        del self.turns[descriptor]


class Client:
    """A client that records the calls of its private connection.

    busy: the work of the tick is spent.
    calls: names of the methods that were called.
    """

    def __init__(self) -> None:
        self.session = Session()
        self.stats = Counters()
        self.fan_out = FanOut()
        self.clients = self
        self.now = 1000.0
        self.busy = False
        self.calls: list[str] = []
        self.lost: list[object] = []

    def clock(self) -> float:
        return self.now

    def rests(self, _size: int) -> bool:
        return self.busy

    def queue(self) -> None:
        self.calls.append("queue")

    def flush(self) -> None:
        self.calls.append("flush")

    def upstream_lost(self, private: PrivateConnection) -> None:
        self.lost.append(private)


class Redis(Transport):
    """The transport of a private connection."""

    def can_write_eof(self) -> bool:
        return self.may_end

    may_end = True


class Connected:
    """An open private connection of a client that records."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.client = Client()
        self.transport = Redis(sock)
        self.private = PrivateConnection(cast("Any", self.client))
        self.private.connection_made(cast("asyncio.Transport", self.transport))


@pytest.fixture
def crowd() -> Iterator[Connected]:
    """A subscriber on a real socket, while many are readable."""
    with socket.socket() as sock:
        connected = Connected(sock)
        connected.client.session.pushes = True
        connected.client.fan_out.crowded = True
        yield connected


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


@pytest.mark.parametrize("may_end", [True, False])
def test_the_end_of_file_is_passed_on_where_the_transport_can(may_end: bool) -> None:
    connected = Connected()
    connected.transport.may_end = may_end  # False: TLS
    connected.private.write_eof()
    assert connected.transport.ended == may_end


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
        (False, WAIT_NOTHING, False, True),
        (True, WAIT_NOTHING, False, False),
        (True, WAIT_HELD, False, True),  # it only carries replies to the proxy's own calls
        (False, WAIT_NOTHING, True, False),
        (True, WAIT_HELD, True, False),
    ],
)
def test_it_is_read_as_the_state_of_the_client_requires(
    slow: bool, wait: int, resting: bool, reads: bool
) -> None:
    connected = Connected()
    session = connected.client.session
    session.slow, session.wait = slow, wait
    connected.private.resting = resting
    connected.private.read()
    assert connected.transport.reading == reads
    session.slow, connected.private.resting = False, False
    connected.private.read()
    assert connected.transport.reading


@pytest.mark.parametrize(
    ("size", "busy", "rests"),
    [
        (PIECE, True, False),
        (PIECE + 1, True, False),
        (LARGE, True, False),
        (LARGE + 1, True, True),
        (LARGE + 1, False, False),
    ],
)
def test_a_large_read_waits_for_its_turn_where_the_work_is_spent(
    size: int, busy: bool, rests: bool
) -> None:
    connected = Connected()
    connected.client.busy = busy
    connected.private.data_received(b"x" * size)
    assert len(connected.client.session.received) == size
    assert ("queue" in connected.client.calls) == rests
    assert connected.private.resting == rests
    assert connected.transport.reading == (not rests)
    assert connected.client.calls[-1] == "flush"


# -- fan-out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pushes", "crowded", "broken", "size", "apart"),
    [
        (True, True, False, PIECE + 1, True),
        (True, True, False, PIECE, False),  # too little
        (False, True, False, PIECE + 1, False),  # the client requested it
        (True, False, False, PIECE + 1, False),  # few are readable
        (True, True, True, PIECE + 1, False),  # the connection is ending
    ],
)
def test_many_that_are_readable_together_are_read_by_turns(
    crowd: Connected, pushes: bool, crowded: bool, broken: bool, size: int, apart: bool
) -> None:
    crowd.client.session.pushes = pushes
    fan_out = crowd.client.fan_out
    fan_out.crowded, fan_out.broken = crowded, broken
    crowd.private.data_received(b"x" * size)
    assert bool(fan_out.turns) == apart
    assert crowd.transport.reading == (not apart)


def test_its_turn_reads_it_again(crowd: Connected) -> None:
    crowd.private.data_received(b"x" * 5000)
    ((descriptor, turn),) = crowd.client.fan_out.turns.items()
    assert crowd.transport.sock is not None
    assert descriptor == crowd.transport.sock.fileno()
    turn(False)
    assert crowd.transport.reading


@pytest.mark.parametrize(
    ("many", "later_s", "apart"),
    [
        (False, STAYS_S - 0.1, True),
        (False, STAYS_S, False),
        (True, STAYS_S - 0.1, True),
    ],
)
def test_it_stays_for_a_second(crowd: Connected, many: bool, later_s: float, apart: bool) -> None:
    fan_out = crowd.client.fan_out
    crowd.private.data_received(b"x" * 5000)
    fan_out.crowded = False
    fan_out.turns.popitem()[1](many)
    crowd.client.now += later_s
    crowd.private.data_received(b"x" * 5000)
    assert bool(fan_out.turns) == apart


def test_a_turn_with_more_readable_extends_the_stay(crowd: Connected) -> None:
    fan_out = crowd.client.fan_out
    crowd.private.data_received(b"x" * 5000)
    fan_out.crowded = False
    crowd.client.now += STAYS_S
    fan_out.turns.popitem()[1](True)
    crowd.client.now += STAYS_S / 2
    crowd.private.data_received(b"x" * 5000)
    assert fan_out.turns


def test_without_a_descriptor_it_is_in_no_fan_out(crowd: Connected) -> None:
    crowd.transport.sock = None
    crowd.private.data_received(b"x" * 5000)
    assert not crowd.client.fan_out.turns
    assert crowd.transport.reading


def test_a_connection_that_ends_leaves_the_fan_out(crowd: Connected) -> None:
    crowd.private.data_received(b"x" * 5000)
    assert crowd.client.fan_out.turns
    crowd.private.connection_lost(None)
    assert not crowd.client.fan_out.turns
