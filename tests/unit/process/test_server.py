"""server: what no test of a whole process can cause."""

from __future__ import annotations

import asyncio
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


async def test_a_failed_sweep_is_logged_and_the_channel_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.0)

    def fails() -> None:
        raise ZeroDivisionError

    wiring = SimpleNamespace(upstream=SimpleNamespace(close_idle=fails))
    monkeypatch.setattr(module, "Wiring", lambda *_: wiring)
    resources = cast("Resources", SimpleNamespace(listeners=None))
    channel = cast("Channel", SimpleNamespace(check=lambda: "the supervisor has ended"))
    stop = StopSignals(supervised=True)
    task = asyncio.create_task(Server(Config(), 0, resources, channel, stop)._sweep())
    async with asyncio.timeout(5.0):
        await stop.requested.wait()
    task.cancel()
    assert caplog.messages[0] == "unexpected error"
