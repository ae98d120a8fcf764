"""wait_cover: when WAIT may give its number, and which key is rewritten before it."""

from __future__ import annotations

import pytest
from rlproxy.session.call import Caller
from rlproxy.session.wait_cover import WaitCover, not_covered

from tests.unit.session.bench import FIVE, call_of


@pytest.mark.parametrize("name", [b"WAIT", b"WAITAOF"])
def test_the_error_names_the_command(name: bytes) -> None:
    assert not_covered(name).startswith(b"-ERR %b can't cover" % name)
    assert not_covered(name).endswith(b"\r\n")


NEAR, FAR = b"{k}2", b"b"  # a key of the slot of k, and one of another slot


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
