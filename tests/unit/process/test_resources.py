"""resources: what a proxy opens at its start, and that it is released."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.net.listeners import ListenError
from rlproxy.process import resources as module
from rlproxy.process.resources import CANNOT_RUN, EMBEDDED_ENDED, Resources
from rlproxy.ratelimit import scripts
from rlproxy.upstream.embedded import EmbeddedError

REDIS = Upstream(Address("h", 1))


class Recorded:
    """Stands for an embedded server and an admin process."""

    url = "http://a/"

    def __init__(self, *_: object) -> None:
        self.calls: list[str] = []
        self.has_ended = False
        self.fails = False

    async def start_embedded(self) -> Upstream:
        if self.fails:
            raise EmbeddedError("no server")
        return Upstream(Address(path="/embedded"))

    def start(self) -> None:
        self.calls.append("start")

    def look(self) -> None:
        self.calls.append("look")

    def stop(self) -> None:
        self.calls.append("stop")

    def ended(self) -> bool:
        return self.has_ended


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # the path of a unix socket is short
    return "s"


def test_all_is_released(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    admin = Recorded()
    monkeypatch.setattr(module, "AdminProcess", lambda *_: admin)
    resources = Resources(
        Config((Address(path=path),), REDIS, admin=Address("127.0.0.1", 0)),
    )
    assert os.path.exists(path)
    assert resources.upstream == REDIS
    assert resources.check() == ""
    resources.ready("Redis 7", "")
    assert resources.check() == ""
    assert admin.calls == ["start", "look"]
    resources.close()
    assert not os.path.exists(path)
    assert admin.calls[-1] == "stop"
    resources.log_end()
    assert caplog.messages[-1].startswith("stopped; it served for 0.")


@pytest.mark.parametrize("fails", [False, True])
async def test_the_embedded_server(path: str, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    class Embedded(Recorded):
        async def start(self) -> Upstream:  # type: ignore[override]
            return await self.start_embedded()

    embedded = Embedded()
    embedded.fails = fails
    monkeypatch.setattr(module, "embedded_of", lambda _: embedded)
    resources = Resources(Config((Address(path=path),), Upstream(None)))
    if fails:
        with pytest.raises(CANNOT_RUN, match="no server"):
            await resources.start()
    else:
        await resources.start()
        assert resources.upstream == Upstream(Address(path="/embedded"))
        assert resources.scripts.keys() == scripts.load().keys()
        assert resources.check() == ""
        embedded.has_ended = True
        assert resources.check() == EMBEDDED_ENDED
    resources.close()
    assert embedded.calls == ["stop"]
    assert not os.path.exists(path)


def test_an_admin_address_in_use_releases_the_others(path: str) -> None:
    config = Config((Address(path=path),), REDIS, admin=Address(path=path))
    with pytest.raises(ListenError, match=r"already in use \(see --admin\)"):
        Resources(config)
    assert not os.path.exists(path)


def test_memory_that_cannot_be_had(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "SharedMemory", fails)
    with pytest.raises(CANNOT_RUN, match=r"^cannot start: Too many open files$"):
        Resources(Config((Address(path=path),), REDIS))
    assert not os.path.exists(path)
