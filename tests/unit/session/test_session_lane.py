"""session: hits by lane, the order of their replies, and replies that a lane knows."""

from __future__ import annotations

import pytest
from rlproxy.resp import commands
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits
from rlproxy.session.private_stream import REFRESH_S

from tests.contexts import MAX_CLIENT_HITS
from tests.unit.session.bench import (
    DENIED,
    FIVE,
    HIT,
    KnowingLane,
    in_place,
    numbered,
    unfenced,
)
from tests.unit.session.test_session_faults import Faulty

# -- the fence: clients that wrote on their own connection------------------------------------------


@pytest.mark.parametrize("name", sorted(commands.READS.split()))
def test_what_reads_sets_no_fence(name: bytes) -> None:
    bench = unfenced()
    assert bench.send(bulks(name, b"k")) == bulks(name, b"k")
    assert not bench.session.fenced
    bench.answer(b":1\r\n")
    assert not bench.session.fenced
    bench.send(HIT)
    assert len(bench.lane.calls) == 1


WRITE = [
    *[bulks(name, b"k") for name in sorted(commands.WRITES.split())],
    bulks(b"get", b"k") + bulks(b"del", b"k") + bulks(b"get", b"k"),
    b"set k v\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nv",
    bulks(b"FOO"),
    bulks(b"AUTH", b"pw"),
    bulks(b"HELLO", b"3"),
    bulks(b"SELECT", b"1"),
    bulks(b"RESET"),
    bulks(b"MULTI"),
    bulks(b"MULTI") + bulks(b"EXEC"),
    bulks(b"CLIENT", b"KILL", b"x"),
    bulks(b"SCRIPT", b"FLUSH"),
    bulks(b"SHUTDOWN"),
    bulks(b"RL.RESET", b"k"),
    bulks(b"RL.RESET", b"k", b"l"),
]


@pytest.mark.parametrize("sent", WRITE, ids=lambda data: repr(data[:40]))
def test_what_may_write_sets_the_fence(sent: bytes) -> None:
    bench = unfenced()
    assert bench.send(sent) != b""
    assert bench.session.fenced


def test_a_hit_that_the_lane_gives_back_sets_the_fence() -> None:
    bench = unfenced()
    bench.send(HIT)
    bench.session.lane_returned(bench.lane.calls.pop())
    assert bench.up() == in_place()
    assert bench.session.fenced


# -- replies that a lane knows ---------------------------------------------------------------------


def test_known_replies_behind_unknown_ones_take_room() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1") + numbered(b"full") * 2 * MAX_CLIENT_HITS)
    assert bench.session.wait == waits.ROOM
    assert bench.down() == b""
    assert bench.settle() == FIVE + DENIED * 2 * MAX_CLIENT_HITS
    assert not bench.session.outstanding()


@pytest.mark.parametrize("ignores_empty", [True, False])
def test_a_hit_by_lane_keeps_a_silent_private_connection_open(ignores_empty: bool) -> None:
    bench = Faulty().open()
    bench.session.context.server.found.ignores_empty = ignores_empty
    bench.send(HIT)
    bench.answer(FIVE)
    assert bench.send_at(REFRESH_S - 0.01, HIT) == b""
    assert bench.send_at(REFRESH_S, HIT) == (b"*0\r\n" if ignores_empty else b"")
    assert bench.send_at(REFRESH_S, HIT) == b""
