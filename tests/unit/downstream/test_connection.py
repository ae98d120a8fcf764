"""Decisions of a client connection without a socket; the test sets the clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import cast

import pytest
from rlproxy.downstream import lingering_close
from rlproxy.downstream.connection import MAX_TURNED_AWAY, WORK_OF_READ
from rlproxy.downstream.lingering_close import FULL_READ, LINGER_S, LOOK_S, MAX_DISCARDED, TAKES_S
from rlproxy.fairness.budget import CLIENT_WORK, TICK_WORK, WORK_OF_OURS
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits

from tests.unit.downstream.bench import PING, Bench, Transport, connected, writes_to


def test_idle() -> None:
    bench = Bench(idle_timeout_s=10.0)
    silent, half = bench.client(), bench.client()
    bench.after(9.9)
    half.protocol.data_received(PING[:5])
    bench.after(0.2)
    assert silent.transport.closed
    assert not half.transport.closed
    bench.after(10)  # since the first sweep after its bytes
    assert half.transport.closed
    assert not bench.said


def test_a_client_that_waits_for_a_reply_is_not_idle() -> None:
    bench = Bench(idle_timeout_s=10.0)
    client = bench.client()
    client.protocol.data_received(PING)  # (Redis is never there)
    bench.after(100)
    assert not client.transport.closed


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


def test_a_client_that_reads_nothing_is_cut() -> None:
    bench = Bench(write_timeout_s=10.0)
    client, other = bench.client(), bench.client()
    client.transport.waits = 5
    bench.after(50)  # (the first sweep that sees it)
    bench.after(9.9)
    assert not client.transport.aborted
    bench.after(0.2)
    assert client.transport.aborted
    assert not other.transport.aborted
    line = "clients cut: 1; they read nothing for 10 s (the latest: 127.0.0.1:7)"
    assert bench.said == [line]


def test_a_client_that_reads_a_little_is_not_cut() -> None:
    bench = Bench(write_timeout_s=10.0)
    client = bench.client()
    for unwritten in range(20, 0, -1):
        client.transport.waits = unwritten
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


def test_few_of_those_turned_away_linger() -> None:
    bench = Bench(max_clients=1)
    first = bench.client()
    turned_away = [bench.client() for _ in range(MAX_TURNED_AWAY + 1)]
    assert [client.transport.ended for client in turned_away] == [True] * MAX_TURNED_AWAY + [False]
    assert turned_away[-1].transport.closed
    turned_away[0].protocol.connection_lost(None)
    assert bench.client().transport.ended
    assert not first.transport.ended


class Closing:
    """A client whose connection closes behind an error that it may not have read."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.bench = Bench()
        self.client = self.bench.client(sock)
        self.transport = self.client.transport
        self.client.protocol.data_received(PING)
        self.client.protocol.session.upstream_lost()
        self.client.protocol.flush()
        assert self.transport.ended
        assert not self.transport.closed

    def after(self, seconds: float) -> None:
        """Let `seconds` pass; the connection looks every LOOK_S."""
        for _ in range(round(seconds / LOOK_S)):
            self.bench.clock.now += LOOK_S
            looks, self.bench.clock.later = self.bench.clock.later, []
            for look in looks:
                look()


def test_a_closing_connection_waits_for_its_client_a_second() -> None:
    closing = Closing()
    closing.after(LINGER_S - LOOK_S)
    assert not closing.transport.closed
    closing.after(LOOK_S)
    assert closing.transport.closed


def test_a_closing_connection_waits_until_all_is_acknowledged(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    closing = Closing(pair[0])
    pair[0].send(b"x" * 4096)
    closing.after(3 * LINGER_S)
    assert not closing.transport.closed
    pair[1].recv(4096)
    closing.after(LINGER_S)
    assert closing.transport.closed
    closing = Closing()
    closing.transport.waits = 1
    closing.after(TAKES_S - LOOK_S)
    assert not closing.transport.closed
    closing.after(LOOK_S)
    assert closing.transport.aborted


def test_a_closing_connection_discards_so_much() -> None:
    closing = Closing()
    lingers = closing.transport.protocol
    assert isinstance(lingers, asyncio.Protocol)
    assert lingers is not closing.client.protocol
    for _ in range(MAX_DISCARDED // FULL_READ):
        lingers.data_received(b"x" * FULL_READ)
        assert not closing.transport.reading  # others come first
        closing.bench.turn()
        assert closing.transport.reading
    lingers.data_received(b"x" * FULL_READ)
    assert not closing.transport.reading
    assert not closing.bench.clock.soon
    assert lingers.eof_received() is False
    lingers.connection_lost(None)
    assert not closing.bench.clients.clients


def test_a_silent_client_and_one_that_sends_no_more_are_closed_at_once() -> None:
    bench = Bench(idle_timeout_s=10.0)
    silent, ended = bench.client(), bench.client()
    ended.protocol.eof_received()
    assert ended.transport.closed
    bench.after(10)
    assert silent.transport.closed
    assert not silent.transport.ended


def test_the_bound_of_unread_replies(pair: tuple[socket.socket, socket.socket]) -> None:
    assert Bench(max_unread=12345).client().transport.high == 12345
    client = Bench().client(pair[0])  # a unix socket
    assert lingering_close.unacknowledged(cast("asyncio.Transport", client.transport)) == 0


def test_a_full_read_is_a_turn() -> None:
    """uvloop would read the same client 32 times in a row before anybody else."""
    bench = Bench()
    client = bench.client()
    writes_to(client, [])
    client.protocol.data_received(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n" + b"x" * (FULL_READ - 100))
    assert client.transport.reading
    for _ in range(3):
        client.protocol.data_received(b"x" * FULL_READ)
        assert not client.transport.reading
        bench.turn()
        assert client.transport.reading


def test_a_long_pipeline_is_cut_into_turns() -> None:
    """A client that sends thousands of requests at once delays the others by one turn."""
    bench = Bench()
    client = bench.client()
    sent: list[int] = []
    writes_to(client, sent)
    client.protocol.data_received(PING * (2 * CLIENT_WORK + 5))
    assert sent == [CLIENT_WORK]
    while bench.clock.soon:
        bench.turn()
    assert sent == [CLIENT_WORK, CLIENT_WORK, 5]
    client.protocol.session.upstream_received(b"+PONG\r\n" * (2 * CLIENT_WORK + 5))
    client.protocol.data_received(bulks(b"RL.HIT", b"wrong") * 1000)
    assert not client.transport.reading  # it has enough in hand
    turns = 1
    while bench.clock.soon:
        bench.turn()
        turns += 1
    assert client.transport.reading
    assert turns == -(-1000 * (WORK_OF_OURS + 1) // CLIENT_WORK)


def wrong(number: int) -> bytes:
    """Hits that the proxy answers itself."""
    return bulks(b"RL.HIT", b"wrong") * number


@pytest.mark.heavy
def test_many_long_pipelines_share_a_turn() -> None:
    """With any number of clients that send thousands of requests, one turn of the loop does the
    work of two or three of them. Each has its turn; a client that sends little waits for none.
    """
    bench = Bench()
    clients = [bench.client() for _ in range(20)]
    for client in [*clients, good := bench.client()]:
        writes_to(client, [])

    def done() -> list[int]:
        return [client.transport.written.count(b"\n") for client in clients]

    for client in clients:
        client.protocol.data_received(wrong(1000))
    before = sum(done())
    most = (TICK_WORK + CLIENT_WORK) // WORK_OF_OURS
    assert before <= most
    turns = 0
    while bench.clock.soon:
        good.protocol.data_received(wrong(1))
        bench.turn()
        turns += 1
        assert good.transport.written.count(b"\n") == turns
        assert 0 < sum(done()) - before <= most or before == 20_000
        before = sum(done())
        if before < 15_000:
            assert max(done()) - min(done()) <= 2 * CLIENT_WORK // WORK_OF_OURS
    assert done() == [1000] * 20


def test_a_client_that_has_left_is_not_queued() -> None:
    bench = Bench()
    clients = [bench.client() for _ in range(4)]
    for client in clients:
        writes_to(client, [])
        client.protocol.data_received(wrong(1000))
    clients[0].protocol.connection_lost(None)
    while bench.clock.soon:
        bench.turn()
    assert not bench.clients.scheduler._queue
    assert not bench.clients.scheduler.serving
    assert clients[3].transport.written.count(b"\n") == 1000


def test_while_clients_drain_no_further_commands_are_read() -> None:
    bench = Bench()
    client = bench.client()
    connected(client, Transport())
    client.protocol.data_received(PING)
    bench.clients.draining = True
    client.protocol.flush()
    assert not client.transport.reading
    client.protocol.session.upstream_received(b"+PONG\r\n")
    client.protocol.flush()
    assert client.transport.written == b"+PONG\r\n"
    assert client.protocol._closing


def test_the_end_of_a_client_that_holds_a_hit_and_is_not_read_is_noticed() -> None:
    bench = Bench()
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        with server.accept()[0] as ours:
            client = bench.client(ours)
            connected(client, Transport())
            client.protocol.data_received(bulks(b"RL.HIT", b"k", b"1", b"1", b"WAIT", b"9"))
            client.protocol.data_received(bulks(b"PING") * 20_000)
            assert client.protocol.session.wait == waits.HELD
            assert not client.transport.reading
            bench.after(1)
            assert not client.protocol.session.requests.eof
            theirs.close()
            bench.after(1)
            assert client.protocol.session.requests.eof


def test_where_much_is_read_each_has_a_turn_to_send_more() -> None:
    bench = Bench()
    clients = [bench.client() for _ in range(40)]
    for client in clients:
        writes_to(client, [])
        client.protocol.data_received(b"*2\r\n$4\r\nECHO\r\n$10000000\r\n")
        client.protocol.data_received(b"x" * (FULL_READ // 2))

    def reading() -> int:
        return sum(client.transport.reading for client in clients)

    allowed = -(-TICK_WORK // WORK_OF_READ)
    assert reading() < 10
    for _ in range(3):
        before = reading()
        bench.turn()
        assert 0 < reading() - before <= allowed
    while bench.clock.soon:
        bench.turn()
    assert reading() == 40
