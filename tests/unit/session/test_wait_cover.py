"""wait_cover: when WAIT may give its number, and which key is rewritten before it."""

from __future__ import annotations

import pytest
from rlproxy.resp.requests import COMMAND, RequestFramer
from rlproxy.session.call import Call, Caller
from rlproxy.session.wait_cover import WaitCover, not_covered

from tests.unit.session.bench import FIVE, GRAMMAR, call_of


def written() -> WaitCover:
    """A client whose latest hit went by lane."""
    cover = WaitCover(False)
    cover.lane_wrote = True
    cover.last_hit = b"$1\r\nk\r\n"
    return cover


def test_a_new_client_has_written_nothing() -> None:
    cover = WaitCover(False)
    assert not cover.lane_wrote
    assert cover.last_hit == b""
    assert cover.judge(b"WAIT")(b":3\r\n") == b":3\r\n"


def test_the_key_of_the_latest_hit_is_rewritten_by_one_request() -> None:
    request = b"".join(written().rewrite())
    framer = RequestFramer()
    framer.feed(request)
    assert framer.next() == COMMAND
    assert framer.unread() == 0
    name, _, *arguments = request.split(b"\r\n")[2::2]
    assert (name, arguments) == (b"EVAL", [b"1", b"k"])


def test_after_a_rewrite_the_number_is_passed_on() -> None:
    cover = written()
    judged = cover.judge(b"WAIT")
    assert cover.rewritten(b":1\r\n") == b""
    assert not cover.lane_wrote
    assert judged(b":2\r\n") == b":2\r\n"


@pytest.mark.parametrize(
    "reply", [b":0\r\n", b"-NOPERM no\r\n", b"$1\r\n1\r\n", b":10\r\n", b"_\r\n"]
)
def test_without_a_rewrite_the_number_is_replaced_by_an_error(reply: bytes) -> None:
    cover = written()
    judged = cover.judge(b"WAIT")
    assert cover.rewritten(reply) == b""
    assert cover.lane_wrote
    assert judged(b":2\r\n") == not_covered(b"WAIT")
    assert judged(b"*2\r\n:1\r\n:1\r\n") == not_covered(b"WAIT")


def test_redis_own_error_is_passed_on() -> None:
    judged = written().judge(b"WAIT")
    assert judged(b"-ERR value is not an integer\r\n") == b"-ERR value is not an integer\r\n"


def test_a_hit_by_lane_between_the_rewrite_and_the_reply_is_not_covered() -> None:
    cover = written()
    judged = cover.judge(b"WAITAOF")
    cover.rewritten(b":1\r\n")
    cover.lane_wrote = True
    assert judged(b"*2\r\n:1\r\n:1\r\n") == not_covered(b"WAITAOF")


@pytest.mark.parametrize(
    ("text", "reply", "kept"),
    [
        (b"10 60", FIVE, True),
        (b"10 60", b"-WRONGTYPE no\r\n", False),  # Redis gave no access to the key
        (b"peek", FIVE, False),
    ],
)
def test_the_key_of_a_hit_that_redis_ran_is_kept(text: bytes, reply: bytes, kept: bool) -> None:
    call = call_of(Caller(), b"new")
    if text == b"peek":
        call.rule = call.rule.peek()
    cover = written()
    cover.answered(call, reply)
    assert cover.last_hit == (b"$3\r\nnew\r\n" if kept else b"$1\r\nk\r\n")


def test_a_refund_is_covered_as_a_hit_is() -> None:
    refund = GRAMMAR.rule(b"refund", b"RL.REFUND", [b"k", b"10", b"60", b"1"])
    call = Call(Caller(), refund, b"$1\r\nk\r\n")
    cover = WaitCover(False)
    cover.sent(call)
    assert cover.lane_wrote and not cover.can_rewrite()
    cover.answered(call, FIVE)
    assert cover.can_rewrite()


@pytest.mark.parametrize("name", [b"WAIT", b"WAITAOF"])
def test_the_error_names_the_command(name: bytes) -> None:
    assert not_covered(name).startswith(b"-ERR %b can't cover" % name)
    assert not_covered(name).endswith(b"\r\n")


NEAR, FAR = b"{k}2", b"b"  # a key of the slot of k, and one of another slot


@pytest.mark.parametrize(
    ("hits", "in_cluster", "covers"),
    [
        ([b"k"], True, True),
        ([b"k", NEAR], True, True),
        ([b"k", FAR], True, False),
        ([b"k", FAR, b"k"], True, False),
        ([b"k", FAR], False, True),
        ([], True, False),
        ([], False, False),
    ],
)
def test_in_a_cluster_hits_of_one_slot_can_be_covered(
    hits: list[bytes], in_cluster: bool, covers: bool
) -> None:
    cover = WaitCover(in_cluster)
    for key in hits:
        call = call_of(Caller(), key)
        cover.sent(call)
        cover.answered(call, FIVE)
    assert cover.lane_wrote == bool(hits)
    assert cover.can_rewrite() == covers


def test_after_a_rewrite_another_slot_can_be_covered() -> None:
    cover = WaitCover(True)
    for key in (b"k", FAR):
        call = call_of(Caller(), key)
        cover.sent(call)
        assert not cover.can_rewrite()  # Redis has not accepted it
        cover.answered(call, FIVE)
        assert cover.can_rewrite()
        cover.rewritten(b":1\r\n")
        assert not cover.lane_wrote


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_hit_covers_ordinary_writes_on_one_server_only(in_cluster: bool) -> None:
    cover = WaitCover(in_cluster)
    cover.sent_shared()
    assert cover.lane_wrote and not cover.can_rewrite()
    call = call_of(Caller())
    cover.sent(call)
    cover.answered(call, FIVE)
    assert cover.can_rewrite() == (not in_cluster)
