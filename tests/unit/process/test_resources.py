"""resources: what a proxy opens at its start, and that it is released."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.process import resources as module
from rlproxy.process.resources import CANNOT_RUN, Resources
from rlproxy.upstream.embedded import EmbeddedError


def test_memory_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a unix socket is short

    def fails(_: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "SharedMemory", fails)
    with pytest.raises(CANNOT_RUN, match=r"^cannot start: Too many open files$"):
        Resources(Config((Address(path="s"),), Upstream(Address("h", 1))), Config)
    assert not list(tmp_path.iterdir())


async def test_an_embedded_server_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def start() -> Upstream:
        raise EmbeddedError("no server")

    embedded = SimpleNamespace(start=start, stop=lambda: None)
    monkeypatch.setattr(module, "EmbeddedServer", lambda: embedded)
    resources = Resources(Config((Address(path="s"),), Upstream(None)), Config)
    with pytest.raises(CANNOT_RUN, match="no server"):
        await resources.start()
    resources.close()
    assert not list(tmp_path.iterdir())
