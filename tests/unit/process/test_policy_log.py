"""The log of policies: what policies in shadow would have refused."""

from __future__ import annotations

import logging

import pytest
from rlproxy.process.policy_log import EVERY_S, LOOK_S, MAX_NAMES, ShadowLog


def test_refusals_in_shadow_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counts: dict[str, int] = {}
    made = ShadowLog(lambda: dict(counts))

    def lines(now: float) -> list[str]:
        caplog.clear()
        made.look(now)
        return [record.getMessage() for record in caplog.records]

    assert lines(0.0) == []
    counts |= {"search": 1200, "login": 3}
    assert lines(LOOK_S - 0.1) == []
    line = "policies in shadow would have refused 1,203 hits: search 1,200, login 3"
    assert lines(LOOK_S) == [line]
    counts["login"] += 2
    assert lines(LOOK_S + EVERY_S - 0.1) == []
    assert lines(LOOK_S + EVERY_S) == ["policies in shadow would have refused 2 hits: login 2"]
    assert lines(LOOK_S + 2 * EVERY_S) == []
    counts["login"] = 0  # the policy was replaced
    assert lines(9 * EVERY_S) == []
    counts |= {f"p{number:02}": 1 for number in range(MAX_NAMES + 1)}
    (found,) = lines(10 * EVERY_S)
    assert found.endswith(
        ": p00 1, p01 1, p02 1, p03 1, p04 1, p05 1, p06 1, p07 1, p08 1, p09 1 and 1 more"
    )
