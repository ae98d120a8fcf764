"""session: connections that fail, are lost, or return calls unsent."""

from __future__ import annotations

import pytest
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.session import private_stream, waits

from tests.unit.session.bench import (
    DOWN,
    FIVE,
    HIT,
    PING,
    PONG,
    PUSH,
    WRONG_HIT,
    Bench,
    opened,
    probed,
)


def test_a_value_is_never_taken_for_commands_after_a_failure() -> None:
    bench = Bench()
    bench.send(b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$20\r\nFLUSH")
    bench.session.upstream_failed("refused")
    bench.down()
    bench.send(b"ALL\r\nFLUSHALL\r\nx\r\n" + b"X9\r\nbroken")
    if bench.session.private.status == private_stream.PRIVATE_OPENING:
        bench.session.upstream_opened()
    assert b"FLUSHALL" not in bench.up()


LOSSES = [
    # sent, answered before the loss, and what the client has of it
    (HIT + HIT, b"", b""),
    (HIT + HIT, FIVE, FIVE),
    (PING + HIT + WRONG_HIT + HIT + PING, PONG, PONG),
    (PING + HIT, PONG + FIVE[:5], PONG),
    (HIT + PING, FIVE + PONG[:3], FIVE + PONG[:3]),
    (PING + HIT, PONG[:3], PONG[:3]),
    (bulks(b"MULTI") + HIT, b"+OK\r\n", b"+OK\r\n"),
    (bulks(b"QUIT") + WRONG_HIT, b"+OK\r\n", b"+OK\r\n"),
]


@pytest.mark.parametrize(("sent", "answered", "expected"), LOSSES)
def test_upstream_lost(sent: bytes, answered: bytes, expected: bytes) -> None:
    bench = opened()
    bench.send(sent)
    out = bench.answer(answered) if answered else b""
    bench.session.upstream_lost()
    assert out + bench.down() == expected
    assert bench.session.closed
    assert bench.session.private.status == private_stream.PRIVATE_LOST
    bench.session.receive(PING)
    assert bench.up() == b""


def test_quit_ends_a_client_whose_connection_could_not_be_opened() -> None:
    bench = Bench()
    bench.send(PING + bulks(b"QUIT") + PING)
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN + encoding.OK
    assert bench.session.closed


def test_a_client_that_is_gone_gets_no_error() -> None:
    bench = Bench()
    bench.send(PING)
    bench.session.abandon()
    bench.session.upstream_failed("refused")
    assert bench.down() == b""
    assert bench.session.wait == waits.CLOSE


def test_upstream_lost_inside_a_push() -> None:
    bench = probed()
    bench.send(HIT)
    assert bench.answer(PUSH[:10]) == PUSH[:10]
    bench.session.upstream_lost()
    assert bench.session.closed
    assert bench.settle() == b""  # the client would read it as the rest of the push


def test_upstream_lost_and_then_the_lane_too() -> None:
    bench = probed()
    bench.send(HIT * 2)
    bench.session.upstream_lost()
    one, two = bench.lane.calls
    bench.session.lane_answered(one, FIVE)
    bench.session.lane_returned(two)
    bench.session.resume()
    assert bench.down() in (FIVE, FIVE + encoding.LOST)
    assert bench.session.closed


@pytest.mark.parametrize("state", [b"", b"FOO.BAR"], ids=["plain", "behind an unknown command"])
def test_a_replica_is_reported_by_a_hit_in_every_state(state: bytes) -> None:
    bench = opened()
    reported: list[bytes] = []
    bench.session.context.server.on_read_only = lambda: reported.append(state)
    if state:
        bench.send(bulks(state, b"x") + bulks(state, b"x"))
        bench.answer(b"+OK\r\n" * 2)
    bench.send(HIT + PING)
    assert reported == []
    bench.answer(b"-READONLY You can't write against a read only replica.\r\n" + PONG)
    assert reported == [state]
