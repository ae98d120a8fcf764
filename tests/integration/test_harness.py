"""The harness: a forked proxy behaves as one that was started."""

from __future__ import annotations

import os
import signal

import pytest

from tests import harness
from tests.harness import RedisServer, ReplyError


def test_a_proxy_has_an_exit_code(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy:
        proxy.terminate()
        assert proxy.wait() == 0
    with harness.proxy(own_server) as proxy:
        os.kill(proxy.pid, signal.SIGKILL)
        assert proxy.wait() == -signal.SIGKILL


def test_a_proxy_that_does_not_start_shows_its_log(own_server: RedisServer) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        harness.Proxy(f"redis://127.0.0.1:{own_server.port}", "--no-such-option")


def test_a_proxy_has_the_environment_of_its_start(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with harness.proxy(own_server) as proxy, proxy.raw() as raw:
        assert raw.ask("KEYS", "*") == []
    monkeypatch.setenv("RLPROXY_DENY_COMMAND", "keys")
    with harness.proxy(own_server) as proxy, proxy.raw() as raw:
        assert isinstance(raw.ask("KEYS", "*"), ReplyError)
    with (
        harness.proxy(own_server, env={"RLPROXY_DENY_COMMAND": ""}) as proxy,
        proxy.raw() as raw,
    ):
        assert raw.ask("KEYS", "*") == []
