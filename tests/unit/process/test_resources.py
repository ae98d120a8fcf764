"""resources: what a proxy opens at its start, and that it is released."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rlproxy.config.config import Config, StartError
from rlproxy.config.urls import Address, Upstream
from rlproxy.observability import logs
from rlproxy.process import resources as module
from rlproxy.process.resources import Resources


@pytest.fixture
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a unix socket is short


@pytest.mark.usefixtures("_in_tmp_path")
def test_memory_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "SharedMemory", fails)
    with pytest.raises(StartError, match=r"^cannot start: Too many open files$"):
        Resources(Config((Address(path="s"),), Upstream(Address("h", 1))), Config)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_in_tmp_path")
async def test_an_embedded_server_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> Upstream:
        raise StartError("no server")

    embedded = SimpleNamespace(start=start, stop=lambda: None)
    monkeypatch.setattr(module, "EmbeddedServer", lambda: embedded)
    resources = Resources(Config((Address(path="s"),), Upstream(None)), Config)
    with pytest.raises(StartError, match="no server"):
        await resources.start()
    resources.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "command"),
    [
        (Address("127.0.0.1", 1), "redis-cli -p 1 RL.HIT user:42 5 60"),
        (Address("0.0.0.0", 1), "redis-cli -p 1 RL.HIT user:42 5 60"),
        (Address("::1", 1), "redis-cli -h ::1 -p 1 RL.HIT user:42 5 60"),
        (Address("127.0.0.1", 1, tls=True), "redis-cli --tls -p 1 RL.HIT user:42 5 60"),
        (Address(path="/s"), "redis-cli -s /s RL.HIT user:42 5 60"),
    ],
)
@pytest.mark.usefixtures("_in_tmp_path")
def test_the_banner(caplog: pytest.LogCaptureFixture, address: Address, command: str) -> None:
    caplog.set_level(logging.INFO)
    resources = Resources(
        Config((Address(path="s"),), Upstream(Address("h", 1)), workers=2), Config
    )
    resources.close()
    resources.listeners = cast("Any", SimpleNamespace(addresses=lambda: [address, Address("b", 2)]))
    resources.admin = cast("Any", SimpleNamespace(url="http://a/", start=lambda: None))
    resources.ready("Redis 7 at h")
    (record,) = caplog.records
    plain = record.msg.fields[logs.PLAIN]  # type: ignore[union-attr]
    assert plain[1:] == [
        f"  listening on  {address}, b:2",
        "  in front of   Redis 7 at h",
        "  served by     2 workers",
        "  admin         http://a/",
        f"  try           {command}",
    ]
    assert record.msg.fields["listen"] == [str(address), "b:2"]  # type: ignore[union-attr]
