"""server: what no test of a whole process can cause."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from rlproxy.config.config import Config
from rlproxy.process.channel import Channel
from rlproxy.process.resources import Resources
from rlproxy.process.server import Server
from rlproxy.process.wiring import Wiring


def server(wiring: object, channel: object) -> Server:
    """Return a worker that has `wiring` and nothing else."""
    made = Server(Config(), 0, cast("Resources", None), cast("Channel", channel))
    made._wiring = cast("Wiring", wiring)
    return made


def fails(*_: float) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("failing", ["tick", "close_idle", "sweep"])
async def test_what_fails_is_logged_and_the_rest_done_all_the_same(
    caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    done: list[str] = []
    each = {name: partial(done.append, name) for name in ("close_idle", "sweep")}
    parts = SimpleNamespace(**each, tick=lambda _: done.append("tick"))
    setattr(parts, failing, fails)
    wiring = SimpleNamespace(telemetry=parts, upstream=parts, clients=parts)
    channel = SimpleNamespace(check=lambda: "the supervisor has ended")
    made = server(wiring, channel)
    task = asyncio.create_task(made._tick())
    async with asyncio.timeout(5.0):
        await made._stop.wait()
    task.cancel()
    assert caplog.messages == ["unexpected error"]
    assert done == [name for name in ("tick", "close_idle", "sweep") if name != failing]
