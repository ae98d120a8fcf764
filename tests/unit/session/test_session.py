"""session: what goes where and in which order replies leave, with a fake lane and fed bytes."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import (
    CLIENT_WORK,
    MAX_CLIENT_HITS,
    WORK_OF_STATUS,
)
from rlproxy.ratelimit import grammar
from rlproxy.resp import commands as c
from rlproxy.resp import encoding as r
from rlproxy.resp.encoding import bulks
from rlproxy.session import connection_state, private_stream, reply_slots
from rlproxy.session.private_stream import REFRESH_S
from rlproxy.session.waits import (
    WAIT_TICK,
)

from tests.unit.session.bench import (
    ARITY,
    DOWN,
    FIVE,
    HIT,
    NOAUTH,
    PING,
    PONG,
    PUSH,
    UNKNOWN,
    WAIT,
    WRONG_HIT,
    Bench,
    FakeLane,
    in_place,
    lane_used,
    opened,
    probed,
)

# -- opening ---------------------------------------------------------------------------------------


def test_nothing_is_opened_before_the_first_command() -> None:
    bench = Bench()
    assert bench.send(b"\r\n*0\r\n*1\r\n$4\r\nPI") == b""
    assert bench.session.private.status == private_stream.NONE
    bench.send(b"NG\r\n")
    assert bench.session.private.status == private_stream.OPENING


def test_what_comes_while_it_opens_waits_and_goes_in_one_write() -> None:
    bench = Bench()
    assert bench.send(PING, HIT, PING) == b""
    bench.session.upstream_opened()
    assert bench.up() == PING + in_place() + PING
    assert bench.answer(PONG + FIVE + PONG) == PONG + FIVE + PONG


def test_bytes_that_wait_are_told() -> None:
    bench = Bench()
    bench.send(PING * 3)
    assert bench.session.requests.unread() == 3 * len(PING)
    assert bench.session.outstanding()


# -- routing ---------------------------------------------------------------------------------------


def test_the_first_hit_goes_as_eval_over_the_private_connection() -> None:
    bench = opened()
    assert bench.send(HIT) == in_place()
    assert bench.lane.calls == []
    assert bench.answer(FIVE) == FIVE
    assert bench.send(HIT) == b""
    assert len(bench.lane.calls) == 1
    assert bench.settle() == FIVE


@pytest.mark.parametrize("refusal", [NOAUTH, b"-LOADING x\r\n", b"+QUEUED\r\n"])
def test_a_hit_that_redis_did_not_run_is_no_probe(refusal: bytes) -> None:
    bench = opened()
    bench.send(HIT)
    assert bench.answer(refusal) == refusal
    assert bench.send(HIT) == in_place()


def test_a_second_hit_waits_for_no_probe() -> None:
    bench = opened()
    assert bench.send(HIT, HIT) == in_place() * 2
    assert bench.answer(FIVE + FIVE) == FIVE * 2
    assert bench.send(HIT) == b""


def test_not_quiescent() -> None:
    bench = probed()
    assert bench.send(PING, HIT) == PING + in_place()
    assert bench.answer(PONG) == PONG
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE + FIVE)
    assert bench.send(HIT) == b""


def test_a_mixed_chunk_is_one_private_write() -> None:
    bench = probed()
    bench.session.receive(HIT + PING + HIT + b"PING\r\n" + HIT)
    assert bench.lane.calls == []
    expected = in_place() + PING + in_place() + b"PING\r\n" + in_place()
    assert bench.up() == expected
    replies = FIVE + PONG + FIVE + PONG + FIVE
    assert bench.answer(*[replies[at : at + 1] for at in range(len(replies))]) == replies


NOT_PLAIN = [
    ([bulks(b"MULTI")], b"+OK\r\n"),
    ([bulks(b"ASKING")], b"+OK\r\n"),
    ([bulks(b"FOO")], b"-ERR unknown command\r\n"),
    ([bulks(b"CLIENT", b"TRACKING", b"ON")], b"+OK\r\n"),
    ([bulks(b"CLIENT", b"REPLY", b"ON")], b"+OK\r\n"),
    ([bulks(b"READONLY")], b"+OK\r\n"),
    ([bulks(b"SUBSCRIBE", b"c")], b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
    ([bulks(b"MONITOR")], b"+OK\r\n"),
    ([bulks(b"REPLCONF", b"CAPA", b"x")], b"+OK\r\n"),
    ([bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON")], b"+OK\r\n"),
    ([bulks(b"AUTH", b"pw")], b"+OK\r\n"),
    ([bulks(b"HELLO", b"3", b"AUTH", b"bob", b"pw", b"SETNAME", b"a b")], b"-ERR name\r\n"),
]


@pytest.mark.parametrize(("sent", "reply"), NOT_PLAIN)
def test_private_behind_what_leaves_state(sent: list[bytes], reply: bytes) -> None:
    bench = probed()
    assert bench.send(*sent) == b"".join(sent)
    assert bench.answer(reply) == reply
    assert bench.send(HIT) == in_place()
    assert bench.lane.calls == []


PLAIN = [
    (bulks(b"GET", b"k"), b"$-1\r\n"),
    (bulks(b"CLIENT", b"SETINFO", b"LIB-NAME", b"x"), b"+OK\r\n"),
    (bulks(b"CLIENT", b"MAINT_NOTIFICATIONS", b"ON"), b"-ERR unknown subcommand\r\n"),
    (bulks(b"HELLO", b"3"), b"%1\r\n+server\r\n+redis\r\n"),
    (bulks(b"SELECT", b"99"), b"-ERR DB index is out of range\r\n"),
    (bulks(b"AUTH", b"x"), b"-WRONGPASS no\r\n"),
    (bulks(b"SCRIPT", b"LOAD", b"return 1"), b"$1\r\nx\r\n"),
    (bulks(b"MULTI") + bulks(b"EXEC"), b"+OK\r\n*0\r\n"),
    (bulks(b"WATCH", b"k"), b"+OK\r\n"),
    (bulks(b"WAIT", b"0", b"0"), b":0\r\n"),
]


@pytest.mark.parametrize(("sent", "reply"), PLAIN)
def test_the_lane_again_behind_what_leaves_none(sent: bytes, reply: bytes) -> None:
    bench = probed()
    assert bench.send(sent) == sent
    assert bench.answer(reply) == reply
    assert bench.send(HIT) == b""
    assert len(bench.lane.calls) == 1


def test_select_is_another_identity() -> None:
    bench = probed()
    bench.send(HIT)
    bench.settle()
    bench.send(bulks(b"SELECT", b"3"))
    bench.answer(b"+OK\r\n")
    bench.send(HIT)
    assert [each.key() for each in bench.identities] == [(None, None, 0), (None, None, 3)]


def test_auth_is_another_identity_and_must_be_probed() -> None:
    bench = probed()
    bench.send(bulks(b"AUTH", b"bob", b"pw"))
    bench.answer(b"+OK\r\n")
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""
    assert bench.identities[-1].key() == (b"bob", b"pw", 0)


def test_reset_ends_every_other_state() -> None:
    bench = probed()
    bench.send(bulks(b"FOO"), bulks(b"RESET"))
    bench.answer(b"-ERR unknown\r\n+RESET\r\n")
    assert bench.send(HIT) == in_place()
    bench.answer(FIVE)
    assert bench.send(HIT) == b""


def test_no_lane_for_this_identity() -> None:
    bench = probed()
    bench.allowed = False
    assert bench.send(HIT) == in_place()


def test_a_lane_that_is_not_ready_is_woken_and_the_hit_goes_private() -> None:
    bench = probed()
    bench.lane.ready = False
    assert bench.send(HIT) == in_place()
    assert bench.lane.woken == 1


def test_a_retired_lane_is_replaced() -> None:
    bench = probed()
    bench.send(HIT)
    bench.settle()
    old, bench.lane = bench.lane, FakeLane()
    old.retired = True
    assert bench.send(HIT) == b""
    assert (len(old.calls), len(bench.lane.calls)) == (0, 1)


def test_a_silent_private_connection_gets_an_empty_request() -> None:
    """Beside the hit, which goes by lane all the same: Redis may close what is silent."""
    bench = probed()
    for begin in (0.0, REFRESH_S, 100.0):
        bench.session.now = begin + REFRESH_S - 0.01
        assert bench.send(HIT) == (b"" if begin < 100.0 else b"*0\r\n")
        assert bench.settle() == FIVE
        bench.session.now = begin + REFRESH_S
        assert bench.send(HIT) == (b"*0\r\n" if begin < 100.0 else b"")
        assert len(bench.lane.calls) == 1
        assert bench.settle() == FIVE
    bench.session.context.server.ignores_empty = False
    bench.session.now = 200.0
    assert bench.send(HIT) == b""


@pytest.mark.parametrize("gap_s", [0.05, 0.3, 0.49, 0.5, 0.7, 2.0])
def test_a_client_with_calls_is_never_silent_for_much_longer_than_it_is_itself(
    gap_s: float,
) -> None:
    bench = probed()
    bench.session.now = last = 100.0
    bench.send(PING)
    bench.answer(PONG)
    for _ in range(100):
        bench.session.now += gap_s
        if bench.send(HIT):
            assert bench.session.now - last < REFRESH_S + gap_s
            last = bench.session.now
        assert bench.settle() == FIVE
    assert bench.session.now - last < REFRESH_S


# -- errors on the private connection --------------------------------------------------------------


def test_a_wrong_hit_is_answered_here_at_its_place() -> None:
    bench = opened()
    assert bench.send(WRONG_HIT) == b""
    assert bench.down() == ARITY
    assert bench.send(PING, WRONG_HIT, PING) == PING * 2
    assert bench.down() == b""
    assert bench.answer(PONG) == PONG + ARITY
    assert bench.answer(PONG) == PONG


def test_a_wrong_hit_in_multi_is_rejected_by_redis_in_our_words() -> None:
    bench = opened()
    sent = bulks(b"MULTI") + WRONG_HIT + bulks(b"EXEC")
    assert bench.send(sent) == sent
    assert bench.answer(b"+OK\r\n" + UNKNOWN + b"-EXECABORT x\r\n") == (
        b"+OK\r\n" + ARITY + b"-EXECABORT x\r\n"
    )


def test_redis_own_refusal_of_a_wrong_hit_stands() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI") + WRONG_HIT)
    assert bench.answer(b"+OK\r\n-LOADING x\r\n") == b"+OK\r\n-LOADING x\r\n"


def test_errors_of_our_scripts_are_cleaned() -> None:
    sha = b"0" * 40
    bench = opened()
    bench.send(HIT + HIT)
    dirty = b"-OOM no script: " + sha + b", on @user_script:1.\r\n"
    whole = dirty + FIVE
    assert bench.answer(*[whole[at : at + 1] for at in range(len(whole))]) == b"-OOM no\r\n" + FIVE


def test_a_clients_own_script_errors_are_not() -> None:
    bench = opened()
    dirty = b"-ERR x script: " + b"0" * 40 + b", on @user_script:1.\r\n"
    bench.send(bulks(b"EVAL", b"x", b"0"))
    assert bench.answer(dirty) == dirty


HUGE_HIT = bulks(b"RL.HIT", b"k" * 70000, b"10", b"60")


@pytest.mark.parametrize("size", [1 << 20, 5000, 66000])
def test_a_hit_of_more_than_64_kb_is_an_error(size: int) -> None:
    bench = probed()
    pieces = [HUGE_HIT[at : at + size] for at in range(0, len(HUGE_HIT), size)]
    assert bench.send(*pieces) == b""
    assert bench.down() == r.TOO_LONG
    assert bench.session.requests.unread() < 100
    assert bench.send(PING) == PING
    assert bench.answer(PONG) == PONG


def test_a_huge_hit_in_multi_aborts_it() -> None:
    bench = opened()
    bench.send(bulks(b"MULTI"))
    bench.answer(b"+OK\r\n")
    short = bulks(b"RL.HIT")
    assert bench.send(HUGE_HIT[:9000], HUGE_HIT[9000:], PING) == short + PING
    assert bench.answer(UNKNOWN + b"+QUEUED\r\n") == r.TOO_LONG + b"+QUEUED\r\n"


def test_a_huge_hit_behind_the_lane_keeps_its_place() -> None:
    bench = probed()
    bench.send(HIT)
    bench.send(HUGE_HIT[:66000], HUGE_HIT[66000:] + HIT)
    assert bench.down() == b""
    assert bench.settle().startswith(FIVE + r.TOO_LONG)


def test_big_values_stream() -> None:
    bench = opened()
    value = bulks(b"SET", b"k", b"v" * 500000)
    sent = b""
    for at in range(0, len(value), 60000):
        sent += bench.send(value[at : at + 60000])
        assert bench.session.requests.unread() == 0
    assert sent == value
    reply = b"$500000\r\n" + b"v" * 500000 + b"\r\n"
    assert bench.answer(b"+OK\r\n") == b"+OK\r\n"
    bench.send(bulks(b"GET", b"k"))
    for at in range(0, len(reply), 60000):
        assert bench.answer(reply[at : at + 60000]) == reply[at : at + 60000]
    assert bench.send(HIT) == in_place()


# -- pushes ----------------------------------------------------------------------------------------


def test_pushes_come_any_time() -> None:
    bench = probed()
    assert bench.answer(PUSH) == PUSH
    bench.send(PING)
    assert bench.answer(PUSH + PONG + PUSH) == PUSH + PONG + PUSH


@pytest.mark.parametrize("cut", range(1, len(PUSH)))
def test_a_reply_of_the_lane_never_cuts_a_push(cut: int) -> None:
    bench = probed()
    bench.send(HIT)
    out = bench.answer(PUSH[:cut])
    bench.session.lane_answered(bench.lane.calls[0], FIVE)
    bench.session.resume()
    out += bench.down()
    out += bench.answer(PUSH[cut:])
    assert out in (PUSH + FIVE, FIVE + PUSH)
    assert not bench.session.outstanding()


@pytest.mark.parametrize("cut", range(1, len(PUSH)))
def test_a_local_error_never_cuts_a_push(cut: int) -> None:
    bench = probed()
    out = bench.answer(PUSH[:cut])
    bench.send(WRONG_HIT)
    out += bench.down()
    out += bench.answer(PUSH[cut:])
    assert out in (PUSH + ARITY, ARITY + PUSH)


def test_half_a_push_keeps_hits_off_the_lane() -> None:
    bench = probed()
    bench.answer(PUSH[:-3])
    assert bench.send(HIT) == in_place()


@pytest.mark.parametrize("behind", [PUSH, PUSH[:5], PUSH[:-3]])
def test_a_push_behind_a_replaced_reply_is_kept(behind: bytes) -> None:
    bench = opened()
    bench.send(bulks(b"CLIENT", b"TRACKING", b"ON"))
    bench.answer(b"+OK\r\n")
    assert bench.send(WRONG_HIT) == WRONG_HIT
    out = bench.answer(UNKNOWN + behind) + bench.answer(PUSH[len(behind) :])
    assert out == ARITY + PUSH


def test_a_push_behind_the_reply_to_the_rewrite() -> None:
    bench = lane_used()
    bench.send(WAIT)
    assert bench.answer(b":1\r\n" + PUSH[:8], PUSH[8:] + b":1\r\n") == PUSH + b":1\r\n"


def test_what_nobody_asked_for_is_passed_on_and_nothing_is_trusted_any_more() -> None:
    bench = probed()
    assert bench.answer(b"-ERR max clients\r\n") == b"-ERR max clients\r\n"
    assert bench.send(HIT) == in_place()


# -- subscribed ------------------------------------------------------------------------------------


def test_replies_of_a_subscriber_are_passed_on_as_they_come() -> None:
    bench = opened()
    bench.send(bulks(b"SUBSCRIBE", b"c"))
    bench.answer(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n")
    assert bench.send(HIT) == in_place()
    message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
    refusal = b"-ERR Can't execute 'eval': only (P|S)SUBSCRIBE are allowed\r\n"
    stream = message + refusal + message[:9]
    assert bench.answer(stream) == stream
    assert bench.answer(message[9:]) == message[9:]


# -- a transaction ---------------------------------------------------------------------------------


def test_hits_inside_multi() -> None:
    bench = probed()
    sent = bench.send(bulks(b"MULTI"), HIT, bulks(b"EXEC"))
    assert sent == bulks(b"MULTI") + in_place() + bulks(b"EXEC")
    replies = b"+OK\r\n+QUEUED\r\n*1\r\n" + FIVE
    assert bench.answer(replies) == replies
    assert bench.send(HIT) == b""


# -- the end ---------------------------------------------------------------------------------------


def test_nothing_is_passed_to_redis_behind_quit_but_bytes() -> None:
    bench = probed()
    assert bench.send(bulks(b"QUIT") + HIT + WRONG_HIT).startswith(bulks(b"QUIT"))
    assert bench.lane.calls == []
    out = bench.answer(b"+OK\r\n")
    bench.session.upstream_lost()
    assert out + bench.down() == b"+OK\r\n"


def test_end_of_file_before_anything() -> None:
    bench = Bench()
    bench.session.receive_eof()
    assert bench.session.closed


def test_end_of_file_is_passed_on() -> None:
    bench = opened()
    bench.send(PING)
    bench.session.receive_eof()
    assert bench.session.wants_eof
    assert bench.answer(PONG) == PONG
    bench.session.upstream_lost()
    assert bench.session.closed


def test_end_of_file_while_it_opens() -> None:
    bench = Bench()
    bench.send(PING)
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert not bench.session.closed
    bench.session.upstream_opened()
    assert bench.up() == PING
    assert bench.session.wants_eof


def test_end_of_file_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.receive_eof()
    assert not bench.session.wants_eof
    assert bench.settle() == FIVE
    assert bench.session.wants_eof


def test_end_of_file_waits_for_what_waits() -> None:
    bench = probed()
    bench.send(HIT * 100)
    bench.session.receive_eof()
    out = b""
    while bench.lane.calls:
        assert not bench.session.wants_eof
        out += bench.settle()
    assert out == FIVE * 100
    assert bench.session.wants_eof


def test_end_of_file_inside_a_command() -> None:
    bench = Bench()
    bench.send(HIT[:-3])
    bench.session.receive_eof()
    assert bench.session.closed
    assert bench.down() == b""


def test_end_of_file_and_no_upstream() -> None:
    bench = Bench()
    bench.send(PING)
    bench.session.receive_eof()
    bench.session.upstream_failed("refused")
    assert bench.down() == DOWN
    assert bench.session.closed


def test_abandon() -> None:
    bench = probed()
    bench.send(HIT)
    bench.session.abandon()
    assert bench.session.closed
    bench.send(PING)
    bench.settle()
    assert bench.up() == b""


# -- the pipe --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [b"*x\r\n", b"*1\r\nfoo\r\n", b'GET "a\r\n'])
def test_malformed_input_makes_a_pipe(wrong: bytes) -> None:
    bench = probed()
    assert bench.send(PING + HIT + wrong + PING) == PING + in_place() + wrong + PING
    assert bench.send(HIT + b"\0\xff") == HIT + b"\0\xff"
    replies = PONG + FIVE + b"-ERR Protocol error\r\nanything \r at all"
    assert bench.answer(replies) == replies
    assert bench.answer(b"*9\r\n") == b"*9\r\n"
    bench.session.upstream_lost()
    assert bench.down() == b""
    assert bench.session.closed


def test_malformed_input_waits_for_the_lane() -> None:
    bench = probed()
    bench.send(HIT)
    assert bench.send(b"*x\r\n", b"more") == b""
    assert bench.settle() == FIVE
    assert bench.up() == b"*x\r\nmore"


def test_malformed_input_in_a_hit_that_is_not_forwarded() -> None:
    bench = opened()
    head = b"*4\r\n$6\r\nRL.HIT\r\n$70000\r\n" + b"k" * 70000 + b"\r\n"
    sent = bench.send(head, b"X")
    assert bench.down() == r.TOO_LONG
    assert b"kkk" not in sent
    assert sent  # something for Redis to judge


@pytest.mark.parametrize("name", [b"MONITOR", b"PSYNC", b"SYNC", b"REPLCONF", b"DEBUG"])
def test_streams_are_passed_on(name: bytes) -> None:
    bench = probed()
    bench.send(PING + bulks(name, b"x") + HIT)
    assert bench.answer(PONG + b"$10\r\nnot ten") == PONG + b"$10\r\nnot ten"
    assert bench.answer(b"\xff:::") == b"\xff:::"
    assert bench.send(WRONG_HIT) == WRONG_HIT


def test_malformed_replies_are_passed_on() -> None:
    bench = probed()
    bench.send(PING + PING)
    assert bench.answer(PONG + b"HTTP/1.1 400\r\n") == PONG + b"HTTP/1.1 400\r\n"
    assert bench.send(HIT) == in_place()


# -- the bound on slots ----------------------------------------------------------------------------


def test_too_many_replies_to_follow() -> None:
    bench = opened()
    pair = bulks(b"SELECT", b"0") + PING
    many = reply_slots.MAX_SLOTS // 2 + 10
    assert bench.send(pair * many) == pair * many
    assert bench.answer(b"+OK\r\n+PONG\r\n" * many) == b"+OK\r\n+PONG\r\n" * many
    assert bench.send(HIT) == in_place()
    assert bench.answer(FIVE) == FIVE


def test_no_local_error_is_lost_among_too_many() -> None:
    bench = opened()
    before, many = reply_slots.MAX_SLOTS - 12, 20
    select = bulks(b"SELECT", b"0")
    sent = bench.send(bulks(b"BLPOP", b"k", b"0") + select * before, (WRONG_HIT + PING) * many)
    forwarded = sent.count(WRONG_HIT)
    assert 0 < forwarded < many
    assert sent.count(PING) == many
    replies = b"*-1\r\n" + b"+OK\r\n" * before
    replies += b"+PONG\r\n" * (many - forwarded) + (UNKNOWN + PONG) * forwarded
    out = bench.answer(replies)
    assert out.count(b"-ERR") == many
    assert out.count(PONG) == many


def test_of_a_line_without_an_end_so_much_is_passed_on_as_shows_it() -> None:
    bench = opened()
    assert bench.send(PING + b"a" * 65_536) == PING
    assert bench.send(b"a" * 200_000) == b"a" * 65_537
    assert bench.send(b"a" * 200_000 + b"\r\n" + PING) == b""
    bench = opened()
    assert bench.send(b"*1\r\n$x" + b"a" * 70_000) == b"*1\r\n$x" + b"a" * 70_000  # not a line


# -- names the tests above rely on -----------------------------------------------------------------


def test_nothing_is_answered_behind_quit() -> None:
    bench = opened()
    bench.send(bulks(b"QUIT") + WRONG_HIT * (MAX_CLIENT_HITS + 6))
    out = bench.answer(b"+OK\r\n")
    bench.up()
    assert out + bench.down() == b"+OK\r\n"


def test_what_the_proxy_tells_of_itself_is_much_work() -> None:
    bench = opened()
    bench.session.receive(bulks(b"RL.STATS") * 20)
    assert bench.session.wait == WAIT_TICK
    told = len(bench.session.private.out)
    assert 1 <= told <= CLIENT_WORK // WORK_OF_STATUS + 1
    assert bench.up().count(b"EVAL") == 20


def test_the_family_is_what_is_tested_here() -> None:
    assert set(c.FAMILY) == {
        *(b"RL.HIT", b"RL.PEEK", b"RL.REFUND", b"RL.RESET", b"RL.BLOCK", b"RL.HELP"),
        *(b"CL.THROTTLE", b"RL.THROTTLE", b"RL.STATS", b"RL.TOP", b"RL.POLICIES"),
    }
    assert set(grammar.OPTIONS) == {b"RL.HIT", b"RL.PEEK", b"RL.REFUND", b"RL.BLOCK"}
    assert connection_state.PLAIN > connection_state.COUNTED > connection_state.RAW
