"""session: AUTH, whose error Redis may leave out, and what is owed around it."""

from __future__ import annotations

import pytest
from rlproxy.resp.encoding import bulks
from rlproxy.session import waits
from rlproxy.session.connection_state import COUNTED, RAW

from tests.unit.session.bench import FIVE, HIT, PING, PONG, in_place, opened

OK = b"+OK\r\n"
WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
AUTH = bulks(b"AUTH", b"bob", b"pw")
SELECT = bulks(b"SELECT", b"1")
MULTI = bulks(b"MULTI")
EXEC = bulks(b"EXEC")
WRITTEN = {
    "AUTH": AUTH,
    "AUTH of a password": bulks(b"auth", b"pw"),
    "inline": b"auth bob pw\r\n",
    "HELLO": bulks(b"HELLO", b"2", b"AUTH", b"bob", b"pw"),
    "HELLO with a name first": bulks(b"hello", b"2", b"setname", b"n", b"auth", b"bob", b"pw"),
    "of a long password": bulks(b"AUTH", b"bob", b"x" * 100_000),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_goes_when_nothing_is_owed(name: str) -> None:
    bench = opened()
    written = WRITTEN[name]
    assert bench.send(SELECT + PING + written + HIT + PING) == SELECT + PING
    assert bench.answer(OK) == OK
    assert bench.up() == b""
    assert bench.session.wait == waits.EMPTY
    assert bench.answer(PONG) == PONG
    assert bench.up() == written + in_place() + PING
    assert bench.answer(WRONGPASS + FIVE + PONG) == WRONGPASS + FIVE + PONG
    assert not bench.session.outstanding()


@pytest.mark.parametrize("protocol", [2, 3])
def test_where_pushes_may_come_replies_are_not_counted_from_there_on(protocol: int) -> None:
    bench = opened()
    bench.send(bulks(b"HELLO", b"%d" % protocol))
    bench.answer(b"%1\r\n$5\r\nproto\r\n:3\r\n")
    bench.send(bulks(b"CLIENT", b"TRACKING", b"ON"))
    bench.answer(OK)
    assert bench.session.private.state.level == COUNTED
    assert bench.send(AUTH + HIT) == AUTH + in_place()
    assert bench.session.private.state.level == (COUNTED if protocol == 2 else RAW)


def test_where_the_client_has_sent_its_end_of_file_it_goes_at_once() -> None:
    bench = opened()
    blocks = bulks(b"BLPOP", b"q", b"0")
    assert bench.send(blocks + AUTH + HIT) == blocks
    bench.session.receive_eof()
    assert bench.up() == AUTH + in_place()
    assert bench.session.wants_eof
    popped = b"*2\r\n$1\r\nq\r\n$1\r\nx\r\n"
    assert bench.answer(popped + FIVE) == popped + FIVE  # (Redis has left the error out)
    bench.session.upstream_lost()
    assert bench.down() == b""  # so the hit is not reported as lost
