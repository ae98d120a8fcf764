"""downstream: what is decided there without a socket, with the clock handed in."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from proxy import downstream, scripts
from proxy.calls import Settings
from proxy.config import Address, Config, Upstream
from proxy.doors import Doors
from proxy.downstream import MAX_TURN, Downstream, Shared
from proxy.grammar import Grammar
from proxy.peers import NOBODY, Peer
from proxy.quiet import Repeats
from proxy.replies import bulks
from proxy.session import MAX_WORK, UPSTREAM_OPEN, WORK_OF_OURS
from proxy.upstream import Target

GRAMMAR = Grammar(scripts.load())
CONFIG = Config((Address("127.0.0.1", 1),), Upstream(Address("redis", 6379)))
PING = bulks(b"PING")


class Clock(asyncio.BaseEventLoop):
    """A loop that never runs, and tells the time it is told."""

    now = 1000.0

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        self.soon.append(callback)

    def create_task(self, coro: Any, **_: Any) -> asyncio.Task[Any]:
        coro.close()
        return cast("asyncio.Task[Any]", self.create_future())

    def __del__(self) -> None:
        self.close()


class Transport:
    """Takes what it is given; `waits` of it are not gone yet."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.written = b""
        self.waits = 0
        self.closed = self.aborted = False
        self.reading = True
        self.high = 0
        self.sock = sock

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("127.0.0.1", 7), "socket": self.sock}[name]

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.waits

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Bench:
    def __init__(self, **changes: object) -> None:
        config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
        self.clock = Clock()
        self.said: list[str] = []
        told = Repeats(self.clock.time, lambda line, _: self.said.append(line))
        settings = Settings(GRAMMAR, lambda _: None, "redis:6379")
        doors = Doors(config, "redis:6379", 10_000)
        target = Target(Address("redis", 6379), 1.0)
        self.shared = Shared(self.clock, settings, target, doors, config, told)

    def client(self, sock: socket.socket | None = None, peer: Peer | None = None) -> Client:
        return Client(self, sock, peer)

    def after(self, seconds: float) -> None:
        """A sweep, so many seconds later."""
        self.clock.now += seconds
        self.shared.sweep()


class Client:
    def __init__(self, bench: Bench, sock: socket.socket | None, peer: Peer | None) -> None:
        self.transport = Transport(sock)
        self.protocol = Downstream(bench.shared, peer)
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]


def test_idle() -> None:
    bench = Bench(idle_timeout_s=10.0)
    silent, half = bench.client(), bench.client()
    bench.after(9.9)
    half.protocol.data_received(PING[:5])
    bench.after(0.2)
    assert silent.transport.closed
    assert not half.transport.closed
    bench.after(9.9)
    assert half.transport.closed
    assert not bench.said


def test_nobody_is_idle_who_waits_for_an_answer() -> None:
    bench = Bench(idle_timeout_s=10.0)
    client = bench.client()
    client.protocol.data_received(PING)  # (Redis is never there)
    bench.after(100)
    assert not client.transport.closed


def test_many_clients_are_looked_at_in_turn() -> None:
    bench = Bench(idle_timeout_s=10.0)
    clients = [bench.client() for _ in range(5000)]
    closed = []
    for _ in range(9):
        bench.after(11)
        closed.append(sum(client.transport.closed for client in clients))
    assert closed == [625, 1250, 1875, 2500, 3125, 3750, 4375, 5000, 5000]


def test_without_an_idle_timeout() -> None:
    bench = Bench()
    client = bench.client()
    bench.after(1e6)
    assert not client.transport.closed


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_who_reads_nothing_is_cut() -> None:
    bench = Bench(write_timeout_s=10.0)
    client, other = bench.client(), bench.client()
    client.transport.waits = 5
    bench.after(50)  # (the first sweep that sees it)
    bench.after(9.9)
    assert not client.transport.aborted
    bench.after(0.2)
    assert client.transport.aborted
    assert not other.transport.aborted
    line = "cut 1 client(s) that read nothing for 10 s (the latest: 127.0.0.1:7)"
    assert bench.said == [line]


def test_who_reads_a_little_is_not() -> None:
    bench = Bench(write_timeout_s=10.0)
    client = bench.client()
    for waits in range(20, 0, -1):
        client.transport.waits = waits
        bench.after(9)
    client.transport.waits = 0
    bench.after(9)
    client.transport.waits = 1  # waits anew
    bench.after(9)
    bench.after(9.9)
    assert not client.transport.aborted
    bench.after(9)
    assert client.transport.aborted


def test_what_the_kernel_gives_away_counts(pair: tuple[socket.socket, socket.socket]) -> None:
    bench = Bench(write_timeout_s=10.0)
    client = bench.client(pair[0])
    client.transport.waits = 5
    for _ in range(3):
        pair[0].send(b"x" * 4096)
    for _ in range(3):
        bench.after(9)
        pair[1].recv(4096)
    bench.after(9)
    assert not client.transport.aborted
    bench.after(10)
    assert client.transport.aborted


def test_without_a_write_timeout() -> None:
    bench = Bench(write_timeout_s=0.0)
    client = bench.client()
    client.transport.waits = 5
    bench.after(50)
    bench.after(1e6)
    assert not client.transport.aborted


def test_all_of_it_may_change_while_they_are_served() -> None:
    bench = Bench(max_clients=2)
    clients = [bench.client() for _ in range(3)]
    assert clients[2].transport.written == b"-ERR max number of clients reached\r\n"
    assert [client.transport.closed for client in clients] == [False, False, True]
    bench.shared.reconfigure(
        dataclasses.replace(
            CONFIG, max_clients=3, idle_timeout_s=5.0, deny_command=("ping",), write_timeout_s=3.0
        )
    )
    assert not bench.client().transport.closed
    assert bench.client().transport.closed
    client = clients[0]
    client.protocol.data_received(PING)
    client.protocol._session.upstream_failed("no")
    client.protocol.pump()
    assert client.transport.written.startswith(b"-NOPERM command 'ping' is denied")
    bench.after(5)
    assert client.transport.closed


def test_who_was_turned_away_is_counted_nowhere() -> None:
    bench = Bench(max_clients=2, max_clients_per_address=1)
    left = 0

    def leave() -> None:
        nonlocal left
        left += 1

    bench.shared.on_leave = leave
    here, twice = bench.client(), bench.client()
    unix = bench.client(peer=NOBODY)
    full = bench.client(peer=NOBODY)
    assert [each.transport.closed for each in (here, twice, unix, full)] == [False, True] * 2
    assert bench.shared.addresses == {"127.0.0.1": 1}
    for each in (twice, full):
        each.protocol.connection_lost(None)
    assert left == 2  # (whoever counts connections has counted these)
    assert bench.shared.addresses == {"127.0.0.1": 1}
    here.protocol.connection_lost(None)
    assert bench.shared.addresses == {}
    assert not bench.client().transport.closed
    assert [line.partition(" (the")[0] for line in bench.said] == [
        "turned away 1 client(s): max number of clients of one address reached",
        "turned away 1 client(s): max number of clients reached",
    ]


def test_how_much_may_be_left_unread_and_when_a_silent_one_is_asked(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert Bench(max_unread=12345).client().transport.high == 12345
    for seconds, expected in ((30, (1, 30, 10)), (1, (1, 1, 1)), (0, None)):
        with socket.socket() as sock:
            before = kept(sock)
            Bench(tcp_keepalive_s=seconds).client(sock)
            assert kept(sock) == (expected or before)
    Bench().client(pair[0])  # a unix socket has nothing of it
    assert downstream.unacknowledged(pair[0]) == 0


def kept(sock: socket.socket) -> tuple[int, int, int]:
    """Whether it is kept alive, and with which times."""
    tcp = socket.IPPROTO_TCP
    return (
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        sock.getsockopt(tcp, socket.TCP_KEEPIDLE),
        sock.getsockopt(tcp, socket.TCP_KEEPINTVL),
    )


def writes_to(client: Client, pings: list[int]) -> None:
    """Redis is there; how many PINGs are in each write is added to `pings`."""

    class Redis(Transport):
        def write(self, data: bytes) -> None:
            pings.append(data.count(b"PING"))

    client.protocol._session.upstream = UPSTREAM_OPEN
    client.protocol._upstream = cast("asyncio.Transport", Redis())
    client.protocol._link = downstream._Upstream(client.protocol)


def test_a_full_read_is_a_turn() -> None:
    """uvloop would read the same client 32 times in a row before anybody else."""
    bench = Bench()
    client = bench.client()
    writes_to(client, [])
    client.protocol.data_received(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n" + b"x" * (MAX_TURN - 100))
    assert client.transport.reading
    for _ in range(3):
        client.protocol.data_received(b"x" * MAX_TURN)
        assert not client.transport.reading
        (rested,) = bench.clock.soon
        bench.clock.soon.clear()
        rested()
        assert client.transport.reading


def test_a_long_pipeline_is_cut_into_turns() -> None:
    """Who sends thousands of requests at once does not keep the others waiting for all of them."""
    bench = Bench()
    client = bench.client()
    sent: list[int] = []
    writes_to(client, sent)
    client.protocol.data_received(PING * (2 * MAX_WORK + 5))
    assert sent == [MAX_WORK]
    while bench.clock.soon:
        (turn,) = bench.clock.soon
        bench.clock.soon.clear()
        turn()
    assert sent == [MAX_WORK, MAX_WORK, 5]
    client.protocol.data_received(bulks(b"RL.HIT", b"wrong") * 1000)
    turns = 1
    while bench.clock.soon:
        (turn,) = bench.clock.soon
        bench.clock.soon.clear()
        turn()
        turns += 1
    assert turns == -(-1000 * (WORK_OF_OURS + 1) // MAX_WORK)
