"""session: what goes where and in which order replies leave, with a fake lane and fed bytes."""

from __future__ import annotations

import pytest
from rlproxy.fairness.budget import CLIENT_WORK, WORK_OF_REPORT
from rlproxy.ratelimit.hit_replies import TOO_LONG
from rlproxy.resp.encoding import bulks
from rlproxy.session import reply_slots, waits

from tests.contexts import MAX_CLIENT_HITS
from tests.unit.session.bench import (
    ARITY,
    FIVE,
    HIT,
    PING,
    PONG,
    PUSH,
    UNKNOWN,
    WRONG_HIT,
    Bench,
    in_place,
    opened,
    probed,
)

SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"

# -- errors on the private connection --------------------------------------------------------------


def test_errors_of_our_scripts_are_cleaned() -> None:
    sha = b"0" * 40
    bench = opened()
    bench.send(HIT + HIT)
    dirty = b"-OOM no script: " + sha + b", on @user_script:1.\r\n"
    whole = dirty + FIVE
    assert bench.answer(*[whole[at : at + 1] for at in range(len(whole))]) == b"-OOM no\r\n" + FIVE


HUGE_HIT = bulks(b"RL.HIT", b"k" * 70000, b"10", b"60")


def test_a_huge_hit_behind_the_lane_keeps_its_place() -> None:
    bench = probed()
    bench.send(HIT)
    bench.send(HUGE_HIT[:66000], HUGE_HIT[66000:] + HIT)
    assert bench.down() == b""
    assert bench.settle().startswith(FIVE + TOO_LONG)


# -- pushes ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("cut", range(len(SUBSCRIBED)))
def test_an_error_of_ours_comes_before_the_push_that_answers_the_next_command(cut: int) -> None:
    bench = opened()
    bench.send(PING + WRONG_HIT + bulks(b"SUBSCRIBE", b"c"))
    out = bench.answer(PONG + SUBSCRIBED[:cut]) + bench.answer(SUBSCRIBED[cut:])
    assert out == PONG + ARITY + SUBSCRIBED


@pytest.mark.parametrize("cut", range(1, len(PUSH)))
def test_an_error_of_ours_waits_for_the_end_of_a_push_alone(cut: int) -> None:
    bench = opened()
    out = bench.answer(PUSH[:cut])
    bench.send(WRONG_HIT + bulks(b"SUBSCRIBE", b"c"))
    out += bench.answer(PUSH[cut:] + SUBSCRIBED)
    assert out == (PUSH + ARITY if out.startswith(b">") else ARITY + PUSH) + SUBSCRIBED


def test_an_unrequested_reply_is_passed_on_and_ends_the_use_of_lanes() -> None:
    bench = probed()
    assert bench.answer(b"-ERR max clients\r\n") == b"-ERR max clients\r\n"
    assert bench.send(HIT) == in_place()


# -- the end ---------------------------------------------------------------------------------------


def test_end_of_file_before_anything() -> None:
    bench = Bench()
    bench.session.receive_eof()
    assert bench.session.closed


# -- the pipe --------------------------------------------------------------------------------------


def test_malformed_replies_are_passed_on() -> None:
    bench = probed()
    bench.send(PING + PING)
    assert bench.answer(PONG + b"HTTP/1.1 400\r\n") == PONG + b"HTTP/1.1 400\r\n"
    assert bench.send(HIT) == in_place()


# -- the bound on slots ----------------------------------------------------------------------------


@pytest.mark.heavy
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


# -- the work of a client --------------------------------------------------------------------------


def test_nothing_is_answered_behind_quit() -> None:
    bench = opened()
    bench.send(bulks(b"QUIT") + WRONG_HIT * (MAX_CLIENT_HITS + 6))
    out = bench.answer(b"+OK\r\n")
    bench.up()
    assert out + bench.down() == b"+OK\r\n"


def test_status_commands_cost_more_work() -> None:
    bench = opened()
    bench.send(bulks(b"CLIENT", b"REPLY", b"ON"))  # else they would wait for each other's reply
    bench.session.receive(bulks(b"RL.STATS") * 20)
    assert bench.session.wait == waits.TICK
    sent_now = len(bench.session.private.to_redis)
    assert 1 <= sent_now <= CLIENT_WORK // WORK_OF_REPORT + 1
    assert bench.up().count(b"EVAL") == 20


def test_a_client_that_is_gone_has_no_turn() -> None:
    bench = opened()
    bench.send(bulks(b"CLIENT", b"REPLY", b"ON"))  # else they would wait for each other's reply
    bench.session.receive(bulks(b"RL.STATS") * 20)
    assert bench.session.wait == waits.TICK
    sent_now = bench.session.private.to_redis[:]
    bench.session.abandon()
    bench.session.take_turn()
    assert bench.session.private.to_redis == sent_now
