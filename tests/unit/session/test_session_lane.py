"""session: hits by lane, the order of their replies, and replies that a lane knows."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import (
    MAX_CLIENT_HITS,
)
from rlproxy.ratelimit import help_text
from rlproxy.ratelimit.scripts import LOADED
from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.session.private_stream import MAX_LANE_CALL
from rlproxy.session.waits import (
    WAIT_LANE,
)

from tests.unit.session.bench import (
    ARITY,
    DENIED,
    FIVE,
    HIT,
    NOAUTH,
    PING,
    PONG,
    PUSH,
    UNKNOWN,
    WRONG_HIT,
    KnowingLane,
    in_place,
    numbered,
    opened,
    probed,
    unfenced,
)

# -- order on the lane -----------------------------------------------------------------------------


def test_replies_leave_in_the_order_of_the_hits() -> None:
    bench = probed()
    bench.send(HIT * 3)
    first, second, third = bench.lane.calls
    bench.session.lane_answered(third, b":3\r\n")
    bench.session.lane_answered(second, b":2\r\n")
    assert bench.down() == b""
    bench.session.lane_answered(first, b":1\r\n")
    assert bench.down() == b":1\r\n:2\r\n:3\r\n"


def test_local_errors_keep_their_place() -> None:
    bench = probed()
    assert bench.send(WRONG_HIT + HIT + WRONG_HIT + HIT + WRONG_HIT) == b""
    assert bench.down() == ARITY
    assert len(bench.lane.calls) == 2
    bench.session.lane_answered(bench.lane.calls[0], b":1\r\n")
    assert bench.down() == b":1\r\n" + ARITY
    bench.session.lane_answered(bench.lane.calls[1], b":2\r\n")
    assert bench.down() == b":2\r\n" + ARITY
    assert not bench.session.outstanding()


def test_what_is_no_hit_waits_until_the_lane_owes_nothing() -> None:
    bench = probed()
    bench.send(HIT * 2)
    assert bench.send(PING, HIT) == b""
    bench.session.lane_answered(bench.lane.calls[0], FIVE)
    bench.session.resume()
    assert bench.up() == b""
    bench.session.lane_answered(bench.lane.calls[1], FIVE)
    bench.session.resume()
    assert bench.up() == PING + in_place()
    assert bench.down() == FIVE * 2


def test_at_most_so_many_calls_of_one_client_are_on_the_lane() -> None:
    bench = probed()
    bench.send(HIT * 200)
    assert len(bench.lane.calls) == MAX_CLIENT_HITS
    out = b""
    rounds = 0
    while bench.lane.calls:
        out += bench.settle()
        rounds += 1
        assert len(bench.lane.calls) <= MAX_CLIENT_HITS
    assert out == FIVE * 200
    assert rounds == 4
    assert bench.up() == b""


def test_a_long_call_takes_the_private_connection() -> None:
    """So what one client has on the lane is bounded in bytes, too."""
    bench = probed()
    size = MAX_LANE_CALL - len(bulks(b"RL.HIT", b"", b"10", b"60")) - 3
    for longer, on_lane in ((0, True), (1, False)):
        hit = bulks(b"RL.HIT", b"k" * (size + longer), b"10", b"60")
        assert len(hit) == MAX_LANE_CALL + longer
        sent = bench.send(HIT + hit + HIT)
        assert len(bench.lane.calls) == (3 if on_lane else 0)
        assert sent.count(b"EVAL\r\n") == (0 if on_lane else 3)
        bench.settle()


def test_the_window_opens_again_when_half_is_answered() -> None:
    bench = probed()
    bench.send(HIT * 100)
    for call in bench.lane.calls[:31]:
        bench.session.lane_answered(call, FIVE)
    bench.session.resume()
    assert len(bench.lane.calls) == 64
    bench.session.lane_answered(bench.lane.calls[31], FIVE)
    bench.session.resume()
    assert len(bench.lane.calls) == 96


def test_more_than_the_window_and_then_another_command() -> None:
    bench = probed()
    bench.send(HIT * (MAX_CLIENT_HITS + 1), PING + HIT)
    assert bench.settle() == FIVE * MAX_CLIENT_HITS
    assert bench.lane.calls == []
    assert bench.up() == in_place() + PING + in_place()
    assert bench.answer(FIVE + PONG + FIVE) == FIVE + PONG + FIVE


@pytest.mark.parametrize("cut", [1, 5, 20, len(HIT) - 1])
def test_a_hit_cut_behind_the_full_window(cut: int) -> None:
    bench = probed()
    bench.send(HIT * MAX_CLIENT_HITS + HIT[:cut], HIT[cut:] + PING)
    assert bench.settle() == FIVE * MAX_CLIENT_HITS
    assert bench.up() == in_place() + PING


def test_a_hit_in_pieces() -> None:
    bench = probed()
    for at in range(len(HIT)):
        assert bench.send(HIT[at : at + 1]) == b""
    assert len(bench.lane.calls) == 1
    call = bench.lane.calls[0]
    assert call.key == b"$1\r\nk\r\n"
    assert bench.settle() == FIVE


@pytest.mark.parametrize(
    "written",
    [
        b"rl.hit k 10 60\r\n",
        b"*4\rX$6\rXRL.HIT??$1\rXk??$2\rX10??$2\rX60??",
        bulks(b"Rl.hIt", b"k", b"10", b"60"),
    ],
)
def test_hits_in_other_writings_are_the_same_call(written: bytes) -> None:
    bench = probed()
    bench.send(HIT + written)
    one, other = bench.lane.calls
    assert other.key == one.key
    assert other.rule.words(LOADED) == one.rule.words(LOADED)
    assert other.rule.tail == one.rule.tail


def test_reset_of_limiters_is_del_on_the_private_connection() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.RESET", b"a", b"b")) == bulks(b"DEL", b"a", b"b")
    assert bench.answer(b":1\r\n") == b":1\r\n"
    assert bench.send(PING, bulks(b"rl.reset", b"a")) == PING + bulks(b"DEL", b"a")
    assert bench.answer(PONG, b":0\r\n") == PONG + b":0\r\n"
    bench.send(bulks(b"RL.RESET"))
    assert bench.down() == ARITY.replace(b"rl.hit", b"rl.reset")
    assert bench.send(HIT) == b""


def test_reset_of_limiters_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    assert bench.send(bulks(b"RL.RESET", b"k")) == b""
    assert bench.settle() == FIVE
    assert bench.up() == bulks(b"DEL", b"k")


def test_help() -> None:
    bench = probed()
    assert bench.send(bulks(b"RL.HELP")) == help_text.CALL
    assert bench.answer(b"*1\r\n+a\r\n") == b"*1\r\n+a\r\n"
    bench.send(bulks(b"RL.HELP", b"x"))
    assert bench.down() == ARITY.replace(b"rl.hit", b"rl.help")


def test_help_is_refused_where_a_hit_would_be() -> None:
    bench = opened()
    assert bench.send(bulks(b"RL.HELP")) == help_text.CALL
    assert bench.answer(NOAUTH) == NOAUTH


def test_help_inside_multi_aborts_it() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI"))
    bench.answer(b"+OK\r\n")
    assert bench.send(bulks(b"RL.HELP")) == bulks(b"RL.HELP")
    assert bench.answer(UNKNOWN) == b"-ERR RL.HELP is not allowed in transactions\r\n"


# -- the fence: who has written on its own connection ----------------------------------------------


@pytest.mark.parametrize("name", sorted(c.READS.split()))
def test_what_reads_sets_no_fence(name: bytes) -> None:
    bench = unfenced()
    assert bench.send(bulks(name, b"k")) == bulks(name, b"k")
    assert not bench.session.fenced
    bench.answer(b":1\r\n")
    assert not bench.session.fenced
    bench.send(HIT)
    assert len(bench.lane.calls) == 1


WRITE = [
    *[bulks(name, b"k") for name in sorted(c.WRITES.split())],
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


def test_a_hit_in_place_sets_the_fence() -> None:
    bench = unfenced()
    assert bench.send(bulks(b"GET", b"k") + HIT) == bulks(b"GET", b"k") + in_place()
    assert bench.session.fenced


def test_a_hit_that_the_lane_gives_back_sets_the_fence() -> None:
    bench = unfenced()
    bench.send(HIT)
    bench.session.lane_returned(bench.lane.calls.pop())
    assert bench.up() == in_place()
    assert bench.session.fenced


def test_hits_by_lane_leave_the_fence_alone() -> None:
    bench = unfenced()
    for fenced in (False, True):
        bench.session.fenced = fenced
        bench.send(HIT, bulks(b"RL.PEEK", b"k", b"10", b"60"))
        assert bench.settle() == FIVE * 2
        assert bench.session.fenced == fenced  # it is the lane that lifts it


def test_what_waits_for_the_lane_has_not_written_yet() -> None:
    bench = unfenced()
    bench.send(HIT, bulks(b"DEL", b"k"))
    assert not bench.session.fenced
    bench.settle()
    assert bench.up() == bulks(b"DEL", b"k")
    assert bench.session.fenced


# -- a lane whose scripts may be missing one by one ------------------------------------------------


def fixed(key: bytes) -> bytes:
    return bulks(b"RL.HIT", key, b"10", b"60", b"ALGO", b"FIXED")


def test_calls_of_different_scripts_go_to_such_a_lane_one_after_the_other() -> None:
    bench = probed()
    bench.lane.mixes = False
    assert bench.send(numbered(b"1"), numbered(b"2") + fixed(b"3"), numbered(b"4")) == b""
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"1"), r.bulk(b"2")]
    assert bench.settle() == FIVE * 2
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"3")]
    assert bench.settle() == FIVE
    assert [call.key for call in bench.lane.calls] == [r.bulk(b"4")]
    assert bench.settle() == FIVE
    assert bench.up() == b""


def test_and_together_to_any_other() -> None:
    bench = probed()
    bench.send(numbered(b"1") + fixed(b"2"), numbered(b"3"))
    assert len(bench.lane.calls) == 3
    assert bench.settle() == FIVE * 3


# -- replies that a lane knows ---------------------------------------------------------------------


def test_a_known_reply_is_passed_on_at_once() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    assert bench.send(numbered(b"full")) == b""
    assert bench.lane.calls == []
    assert bench.down() == DENIED
    assert not bench.session.outstanding()
    assert not bench.session.fenced


def test_a_known_reply_keeps_its_place_behind_unknown_ones() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"), numbered(b"full"), numbered(b"2"), numbered(b"full"))
    assert bench.down() == b""
    first, second = bench.lane.calls
    bench.session.lane_answered(second, FIVE)
    assert bench.down() == b""
    bench.session.lane_answered(first, r.five(0, 10, 1, -1, 60))
    assert bench.down() == r.five(0, 10, 1, -1, 60) + DENIED + FIVE + DENIED
    assert not bench.session.outstanding()


def test_known_replies_and_wrong_hits_in_one_chunk() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    full = numbered(b"full")
    bench.send(full + WRONG_HIT + full + numbered(b"1") + WRONG_HIT + full)
    assert bench.down() == DENIED + ARITY + DENIED
    assert bench.settle() == FIVE + ARITY + DENIED


def test_any_number_of_known_replies_goes_at_once() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    many = 3 * MAX_CLIENT_HITS + 1
    bench.send(numbered(b"full") * many)
    assert bench.down() == DENIED * many
    assert not bench.session.outstanding()
    assert bench.session.requests.unread() == 0
    assert bench.send(PING) == PING


def test_known_replies_behind_unknown_ones_take_room() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1") + numbered(b"full") * 2 * MAX_CLIENT_HITS)
    assert bench.session.wait == WAIT_LANE
    assert bench.down() == b""
    assert bench.settle() == FIVE + DENIED * 2 * MAX_CLIENT_HITS
    assert not bench.session.outstanding()


def test_a_known_reply_waits_for_the_end_of_a_push() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"))
    assert bench.answer(PUSH[:9]) == PUSH[:9]
    bench.send(numbered(b"full"))
    assert bench.settle() == b""
    bench.send(numbered(b"full"))
    assert bench.down() == b""
    assert bench.answer(PUSH[9:]) == PUSH[9:] + FIVE + DENIED * 2


def test_what_no_lane_was_asked_is_no_write_that_wait_speaks_of() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    wait = bulks(b"WAIT", b"1", b"0")
    bench.send(numbered(b"full"))
    assert bench.send(wait) == wait
    bench.answer(b":0\r\n")


def test_known_replies_behind_what_a_lane_gives_back() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1") + numbered(b"full") + numbered(b"2"))
    for call in bench.lane.calls:
        bench.session.lane_returned(call)
    assert bench.up() == in_place(b"1") + in_place(b"2")
    other = r.five(0, 10, 1, -1, 60)
    assert bench.answer(FIVE + other) == FIVE + DENIED + other


def test_a_client_that_ends_with_known_replies() -> None:
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"full"))
    bench.session.receive_eof()
    assert bench.session.wants_eof
    bench = unfenced(KnowingLane(full=DENIED))
    bench.send(numbered(b"1"), numbered(b"full"))
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert bench.settle() == FIVE + DENIED
    assert bench.session.wants_eof
