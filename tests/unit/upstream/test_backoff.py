"""backoff: pauses between attempts."""

from __future__ import annotations

import random

import pytest
from rlproxy.upstream.backoff import Backoff


def test_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    made = Backoff(0.1, 1.0)
    assert [made.pause_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    made.reset()
    assert made.pause_s() == 0.1


def test_backoff_takes_a_half_off_at_most() -> None:
    for _ in range(1000):
        made = Backoff(2.0, 8.0)
        assert 1.0 < made.pause_s() <= 2.0
        assert 2.0 < made.pause_s() <= 4.0
