"""An upstream with a CL.THROTTLE of its own: the proxy finds out, and leaves the command to it."""

from __future__ import annotations

from tests import harness
from tests.harness import Proxy, RedisServer


def test_a_server_that_has_it_keeps_it(proxy: Proxy, redis_server: RedisServer) -> None:
    # The server with a CL.THROTTLE of its own is a proxy: COMMAND tells of it, as of a module's.
    with (
        harness.proxy(f"redis://127.0.0.1:{proxy.port}") as outer,
        redis_server.raw() as direct,
        proxy.raw() as inner,
        outer.raw() as raw,
    ):
        counts = [int(str(each.ask("COMMAND", "COUNT"))) for each in (direct, inner, raw)]
        plain, once, twice = counts
        assert twice - once == once - plain - 1  # all but CL.THROTTLE are told again
        assert raw.ask("CL.THROTTLE", "k", 15, 30, 60) == [0, 16, 15, -1, 2]
        assert raw.ask("MULTI") == "OK"
        assert raw.ask("CL.THROTTLE", "k", 15, 30, 60) == "QUEUED"
        assert raw.ask("RL.THROTTLE", "k", 15, 30, 60) == "QUEUED"
        assert raw.ask("EXEC") == [[0, 16, 14, -1, 4], [0, 16, 13, -1, 6]]
