"""wait_cover: when WAIT may give its number, and which key is rewritten before it."""

from __future__ import annotations

import pytest
from rlproxy.session.call import Caller
from rlproxy.session.wait_cover import WaitCover, not_covered

from tests.unit.session.bench import FIVE, call_of


def written() -> WaitCover:
    """A client whose latest hit went by lane."""
    cover = WaitCover()
    cover.lane_wrote = True
    cover.last_hit = b"$1\r\nk\r\n"
    return cover


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


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_hit_covers_ordinary_writes_on_one_server_only(in_cluster: bool) -> None:
    cover = WaitCover(in_cluster)
    cover.sent_shared()
    assert cover.lane_wrote and not cover.can_rewrite()
    call = call_of(Caller())
    cover.sent(call)
    cover.answered(call, FIVE)
    assert cover.can_rewrite() == (not in_cluster)
