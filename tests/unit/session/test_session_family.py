"""session: the commands of the family beside RL.HIT, and how looks and CL.THROTTLE travel."""

from __future__ import annotations

from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import MAX_RL_BYTES

from tests.unit.session.bench import FIVE, HIT, PING, PONG, probed

THROTTLE = bulks(b"CL.THROTTLE", b"k", b"15", b"30", b"60")
REFUND = bulks(b"RL.REFUND", b"k", b"10", b"60", b"1")


# -- CL.THROTTLE of the server's own ---------------------------------------------------------------


def test_the_servers_own_throttle_is_forwarded_as_written() -> None:
    for name in (b"CL.THROTTLE", b"cl.throttle", b"Cl.Throttle"):
        bench = probed()
        bench.session.context.server.found.has_throttle = True
        sent = THROTTLE.replace(b"CL.THROTTLE", name)
        assert bench.send(sent) == sent
        assert bench.answer(FIVE) == FIVE
        assert bench.send(b"cl.throttle k nonsense\r\n") == b"cl.throttle k nonsense\r\n"
        assert bench.answer(b"-ERR theirs\r\n") == b"-ERR theirs\r\n"
        bench.send(HIT)  # the session is as plain as before
        assert len(bench.lane.calls) == 1


def test_a_long_one_streams_to_the_server() -> None:
    bench = probed()
    bench.session.context.server.found.has_throttle = True
    long = bulks(b"CL.THROTTLE", b"k", b"x" * (2 * MAX_RL_BYTES))
    cut = MAX_RL_BYTES + 100
    assert bench.send(long[:cut], long[cut:], PING) == long + PING
    assert bench.answer(b"-ERR theirs\r\n", PONG) == b"-ERR theirs\r\n" + PONG
