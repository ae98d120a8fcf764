"""server: what no test of a whole process can cause."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.config import Config
from rlproxy.process import server as module
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources
from rlproxy.process.server import Server, StopSignals


def server(
    monkeypatch: pytest.MonkeyPatch, wiring: object, channel: object, stop: StopSignals
) -> Server:
    """Return a worker that has `wiring` and nothing else."""
    monkeypatch.setattr(module, "Wiring", lambda *_: wiring)
    resources = cast("Resources", None)
    return Server(Config(), 0, resources, cast("Channel", channel), stop)


def fails(*_: float) -> None:
    raise ZeroDivisionError


async def test_a_failed_publication_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    wiring = SimpleNamespace(telemetry=SimpleNamespace(publish=fails))
    await server(monkeypatch, wiring, None, StopSignals(supervised=True))._publish()
    assert caplog.messages == ["unexpected error"]


async def test_a_failed_sweep_is_logged_and_the_channel_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.0)
    wiring = SimpleNamespace(upstream=SimpleNamespace(close_idle=fails))
    channel = SimpleNamespace(check=lambda: "the supervisor has ended")
    stop = StopSignals(supervised=True)
    task = asyncio.create_task(server(monkeypatch, wiring, channel, stop)._sweep())
    async with asyncio.timeout(5.0):
        await stop.requested.wait()
    task.cancel()
    assert caplog.messages[0] == "unexpected error"
