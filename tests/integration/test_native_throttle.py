"""An upstream with a native CL.THROTTLE: the proxy detects it and forwards the command."""

from __future__ import annotations

from tests import harness
from tests.harness import Proxy, RedisServer


def test_native_throttle_command_is_forwarded(proxy: Proxy, redis_server: RedisServer) -> None:
    # The server with CL.THROTTLE is a proxy: COMMAND lists the command, as it does a module's.
    with (
        harness.proxy(f"redis://127.0.0.1:{proxy.port}") as outer,
        redis_server.raw() as direct,
        proxy.raw() as inner,
        outer.raw() as raw,
    ):
        counts = [int(str(each.ask("COMMAND", "COUNT"))) for each in (direct, inner, raw)]
        plain, once, twice = counts
        assert twice - once == once - plain - 1  # all but CL.THROTTLE are forwarded again
        assert raw.ask("CL.THROTTLE", "k", 15, 30, 60) == [0, 16, 15, -1, 2]
        assert raw.ask("MULTI") == "OK"
        assert raw.ask("CL.THROTTLE", "k", 15, 30, 60) == "QUEUED"
        assert raw.ask("RL.THROTTLE", "k", 15, 30, 60) == "QUEUED"
        assert raw.ask("EXEC") == [[0, 16, 14, -1, 4], [0, 16, 13, -1, 6]]
