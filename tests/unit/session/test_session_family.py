"""session: the commands of the family beside RL.HIT, and how looks and CL.THROTTLE travel."""

from __future__ import annotations

import pytest
from rlproxy.ratelimit.scripts import SOURCE
from rlproxy.resp import encoding
from rlproxy.resp.encoding import bulks
from rlproxy.resp.requests import MAX_RL_BYTES

from tests.unit.session.bench import FIVE, GRAMMAR, HIT, PING, PONG, opened, probed

THROTTLE = bulks(b"CL.THROTTLE", b"k", b"15", b"30", b"60")
REFUND = bulks(b"RL.REFUND", b"k", b"10", b"60", b"1")
FAMILY = {
    b"RL.REFUND": REFUND,
    b"RL.BLOCK": bulks(b"RL.BLOCK", b"k", b"60"),
    b"CL.THROTTLE": THROTTLE,
    b"RL.THROTTLE": THROTTLE.replace(b"CL.", b"RL."),
}


def rule_of(request: bytes) -> tuple[bytes, bytes]:
    """What goes before the key and after it, of a request as a script call by EVAL."""
    words = request.split(b"\r\n")[2::2]
    rule = GRAMMAR.rule(request, words[0], words[1:])
    assert rule.error == b""
    return rule.words(SOURCE), rule.tail


@pytest.mark.parametrize("name", FAMILY)
def test_goes_as_a_hit_does(name: bytes) -> None:
    before, after = rule_of(FAMILY[name])
    bench = opened()
    assert bench.send(FAMILY[name]) == before + encoding.bulk(b"k") + after
    assert bench.answer(FIVE) == FIVE
    assert bench.send(FAMILY[name]) == b""  # by lane
    assert len(bench.lane.calls) == 1
    assert bench.settle() == FIVE


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
