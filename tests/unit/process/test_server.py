"""server: what no test of a whole process can cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.config import Config
from rlproxy.process import server as module
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources
from rlproxy.process.server import Server, StopSignals


async def test_a_failed_publication_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)

    def fails(_: float) -> Any:
        raise ZeroDivisionError

    wiring = SimpleNamespace(telemetry=SimpleNamespace(publish=fails))
    monkeypatch.setattr(module, "Wiring", lambda *_: wiring)
    resources = cast("Resources", SimpleNamespace(listeners=None))
    channel = cast("Channel", None)
    await Server(Config(), 0, resources, channel, StopSignals(supervised=True))._publish()
    assert caplog.messages == ["unexpected error"]
