"""post: what a proxy of one process prepares, and that it is released."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rlproxy.config.config import Config
from rlproxy.config.urls import Address, Upstream
from rlproxy.net.listeners import ListenError
from rlproxy.process import post as module
from rlproxy.process.post import CANNOT_RUN, EMBEDDED_ENDED, LEAVING, READY, alone
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


async def test_all_is_released(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    admin = Recorded()
    monkeypatch.setattr(module, "AdminProcess", lambda *_: admin)
    config = Config((Address(path=path),), REDIS, admin=Address("127.0.0.1", 0))
    async with alone(config, Config) as post:
        assert os.path.exists(path)
        assert (post.worker, post.first, post.upstream) == (0, True, REDIS)
        assert post.look() == ""
        post.report(READY, "Redis 7")
        assert post.look() == ""
        post.report(LEAVING, "")
        assert admin.calls == ["start", "look"]
    assert not os.path.exists(path)
    assert admin.calls[-1] == "stop"
    assert caplog.messages[-1].startswith("stopped; it served for 0.")


async def test_a_failure_is_no_orderly_end(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ZeroDivisionError):
        async with alone(Config((Address(path=path),), REDIS), Config):
            raise ZeroDivisionError
    assert not os.path.exists(path)
    assert not caplog.messages


@pytest.mark.parametrize("fails", [False, True])
async def test_the_embedded_server(path: str, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    class Embedded(Recorded):
        async def start(self) -> Upstream:  # type: ignore[override]
            return await self.start_embedded()

    embedded = Embedded()
    embedded.fails = fails
    monkeypatch.setattr(module, "embedded_of", lambda _: embedded)
    config = Config((Address(path=path),), Upstream(None))
    if fails:
        with pytest.raises(CANNOT_RUN, match="no server"):
            async with alone(config, Config):
                raise AssertionError
    else:
        async with alone(config, Config) as post:
            assert post.upstream == Upstream(Address(path="/embedded"))
            assert post.scripts.keys() == scripts.load().keys()
            embedded.has_ended = True
            assert post.look() == EMBEDDED_ENDED
    assert embedded.calls == ["stop"]
    assert not os.path.exists(path)


async def test_an_admin_address_in_use_releases_the_others(path: str) -> None:
    config = Config((Address(path=path),), REDIS, admin=Address(path=path))
    with pytest.raises(ListenError, match=r"already in use \(see --admin\)"):
        async with alone(config, Config):
            raise AssertionError
    assert not os.path.exists(path)
