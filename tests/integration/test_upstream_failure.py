"""Redis fails: stopped, killed, never started, cut off, full. The replies to hits, and the
recovery.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time

import pytest
from rlproxy.session.missing_script import MAX_BY_SHA

from tests import harness
from tests.gate import gated
from tests.harness import Proxy, Raw, RedisServer, command, is_error, wait_until
from tests.integration.started import by_lane, by_lane_of, lanes, private
from tests.processes import paused

MODES = ("error", "allow", "deny")
TIMEOUT_S = 0.4
TIMEOUT = ("--hit-timeout", "400")
# hits are counted within this time of Redis' return (half a second on an idle machine)
BACK_S = 8.0


def by_mode(mode: str, reply: object, limit: int) -> bool:
    """Whether `reply` is the reply to a hit without Redis."""
    if mode == "error":
        return is_error(reply, "UPSTREAMDOWN ")
    return reply == ([0, limit, limit, -1, 0] if mode == "allow" else [1, limit, 0, 1, 1])


def counted(reply: object, limit: int) -> bool:
    """Whether `reply` is Redis' own admission of a hit that was not the first on its key, or whose
    window is still long.
    """
    return isinstance(reply, list) and reply[:2] == [0, limit] and reply[4] > 0


def failing(
    server: RedisServer, mode: str = "error", *args: str
) -> contextlib._GeneratorContextManager[Proxy]:
    """A proxy with short timeouts."""
    return harness.proxy(server, "--on-upstream-failure", mode, *TIMEOUT, *args)


def recovered_after_s(raw: Raw, begin: float) -> float:
    """Seconds since `begin` until Redis counts a hit of `raw`."""
    wait_until(
        lambda: counted(raw.ask("RL.HIT", "back", 1_000_000, 3600), 1_000_000), "hits are counted"
    )
    return time.monotonic() - begin


# -- what accepts connections is no server ---------------------------------------------------------


def test_connections_that_are_closed_at_once_are_an_outage() -> None:
    """As by a load balancer without a server."""
    allow = ("--on-upstream-failure", "allow")
    with (
        harness.accepting(socket.socket.close) as port,
        harness.proxy(f"redis://127.0.0.1:{port}", *allow, *TIMEOUT) as proxy,
    ):
        wait_until(lambda: "does not answer" in proxy.read_log(), "the circuit is open")
        for _ in range(3):
            with proxy.raw() as raw:
                assert isinstance(raw.ask("HELLO", 3), dict | list)
                assert by_mode("allow", raw.ask("RL.HIT", "k", 5, 60), 5)


# -- Redis answers, and can't run hits -------------------------------------------------------------

# What makes a server answer hits with an error, and what ends that.
CANNOT_RUN: dict[str, tuple[list[tuple[str | int, ...]], list[tuple[str | int, ...]]]] = {
    "OOM": ([("CONFIG", "SET", "maxmemory", 1)], [("CONFIG", "SET", "maxmemory", 0)]),
    "READONLY": ([("REPLICAOF", "127.0.0.1", 1)], [("REPLICAOF", "NO", "ONE")]),
}


@pytest.mark.parametrize(("error", "mode"), [("OOM", "error"), ("READONLY", "allow")])
def test_hits_that_redis_cannot_run_follow_the_mode(
    own_server: RedisServer, mode: str, error: str
) -> None:
    begin, end = CANNOT_RUN[error]
    with failing(own_server, mode) as proxy, proxy.raw() as raw, own_server.raw() as server:
        by_lane(own_server, raw, server)
        for words in begin:
            assert server.ask(*words) == "OK"
        raw.send(command("RL.HIT", "k", 5, 60))  # by lane
        raw.send(command("RL.HIT", "k", 6, 60) + command("ECHO", "x"))  # in its place
        for limit in (5, 6):
            reply = raw.reply()
            assert is_error(reply, error) if mode == "error" else by_mode(mode, reply, limit)
        raw.reply()
        assert is_error(raw.ask("RL.HIT", "k", 0, 60), "ERR value is not an integer")
        logged = f"hits that Redis can't run: 1; {error}. They are answered by"
        assert (logged in proxy.read_log()) == (mode != "error")
        for words in end:
            assert server.ask(*words) == "OK"
        assert recovered_after_s(raw, time.monotonic()) < BACK_S


# -- never started, or gone ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_hits_without_any_server_follow_the_mode(unstarted_server: RedisServer, mode: str) -> None:
    with failing(unstarted_server, mode) as proxy, proxy.raw() as raw:
        where = f"127.0.0.1:{unstarted_server.port}"
        hits: list[tuple[tuple[str | int, ...], int]] = [
            (("RL.HIT", "k", 5, 60), 5),
            (("rl.hit", "k", 5, 60, "ALGO", "GCRA", "BURST", 9, "MS"), 9),
            (("RL.HIT", "k", 5, 60, "COST", 0), 5),
            (("RL.HIT", "k", 6, 60, "WAIT", 5), 6),
            (("CL.THROTTLE", "k", 15, 30, 60), 16),
            (("RL.THROTTLE", "k", 0, 30, 60), 1),
        ]
        for words, limit in hits * 2:
            assert by_mode(mode, raw.ask(*words), limit), words
        for words in (
            ("RL.PEEK", "k", 5, 60),
            ("RL.REFUND", "k", 5, 60, 1),
            ("RL.RESET", "k"),
            ("RL.BLOCK", "k", 60),
            ("RL.HELP",),
            ("GET", "k"),
        ):
            assert is_error(raw.ask(*words), f"UPSTREAMDOWN cannot reach Redis at {where}: "), words
        assert is_error(raw.ask("RL.HIT", "k", 0, 60), "ERR value is not an integer")
        raw.send(
            command("RL.HIT", "k", 7, 60)
            + command("MULTI")
            + command("RL.HIT", "k", 5, 60)
            + command("EXEC")
            + command("RL.HIT", "k", 8, 60)
        )
        assert by_mode(mode, raw.reply(), 7)
        assert is_error(raw.reply(), "UPSTREAMDOWN")
        assert by_mode(mode, raw.reply(), 5)  # MULTI has failed: a hit like any other
        assert is_error(raw.reply(), "UPSTREAMDOWN")
        assert by_mode(mode, raw.reply(), 8)
        unstarted_server.start()
        assert recovered_after_s(raw, time.monotonic()) < BACK_S
        assert raw.ask("ECHO", "x") == b"x"
        log = proxy.read_log()
    assert log.count("does not answer") == 1
    assert (
        f"WARNING Redis at {where} does not answer (connection refused); "
        f"hits are answered by --on-upstream-failure\n"
    ) in log
    assert f"WARNING Redis at {where} is back after " in log
    without = re.search(r" s; hits answered without it: (\d+)\n", log)
    assert without and int(without[1]) >= 19  # 15 hits and 4 others, and what follows


def test_killed_and_restarted_server_serves_hits_again(own_server: RedisServer) -> None:
    with failing(own_server, "deny") as proxy:
        with proxy.raw() as first:
            by_lane(own_server, first)
            own_server.stop()
            assert first.closes()  # its private connection to Redis is closed
        with proxy.raw() as raw:
            assert all(by_mode("deny", raw.ask("RL.HIT", "k", 5, 60), 5) for _ in range(20))
            own_server.start()
            assert recovered_after_s(raw, time.monotonic()) < BACK_S


# -- hung -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "way"), [("error", "lane"), ("allow", "private"), ("deny", "new")]
)
def test_hits_are_answered_when_redis_hangs(own_server: RedisServer, mode: str, way: str) -> None:
    with failing(own_server, mode) as proxy, proxy.raw() as raw, proxy.raw() as other:
        if way == "lane":
            by_lane(own_server, raw)
            by_lane(own_server, other)
            raw.ask("RL.PEEK", "k", 5, 60)  # from now on the lane sends it behind hits
        elif way == "private":
            assert raw.ask("PING") == other.ask("PING") == "PONG"
        with paused(own_server.pid):
            begin = time.monotonic()
            raw.send(command("RL.HIT", "k", 5, 60) * 3 + command("RL.PEEK", "k", 5, 60))
            other.send(command("RL.HIT", "k", 6, 60))
            replies = [raw.reply() for _ in range(4)] + [other.reply()]
            took = time.monotonic() - begin
            assert all(by_mode(mode, reply, 5) for reply in replies[:3])
            assert str(replies[3]) == "UPSTREAMDOWN no answer from Redis within 400 ms"
            assert by_mode(mode, replies[4], 6)
            assert TIMEOUT_S - 0.01 <= took < TIMEOUT_S + 5
            begin = time.monotonic()
            for _ in range(100):
                assert by_mode(mode, raw.ask("RL.HIT", "k", 5, 60), 5)
            assert time.monotonic() - begin < 50 * TIMEOUT_S, "each waited"
            for report in (["RL.STATS"], ["RL.TOP", 5], ["RL.POLICIES"], ["RL.HELP"]):
                assert is_error(raw.ask(*report), "UPSTREAMDOWN")
            raw.send(command("RL.HIT", "k", 5, 60) + command("ECHO", "raw"))
            assert by_mode(mode, raw.reply(), 5)
            other.send(command("ECHO", "other"))
        begin = time.monotonic()
        assert raw.reply() == b"raw"
        assert other.reply() == b"other"
        assert recovered_after_s(raw, begin) < BACK_S
        assert recovered_after_s(other, begin) < BACK_S
        assert raw.ask("ECHO", "x") == b"x"
        log = proxy.read_log()
        assert log.count("(no answer within 400 ms); hits are answered by") == 1, log
        # The late ones, which opened the circuit, are 4 and 1.
        assert re.findall(r" is back after .*: (\d+)\n", log) == ["106"], log


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_clients_whose_handshake_redis_has_not_answered_connect_again(
    own_server: RedisServer, mode: str
) -> None:
    """The first handshake opens the circuit. Its client is closed, and then served."""
    hello, hit = command("HELLO", 3), command("RL.HIT", "k", 5, 60)
    with (
        failing(own_server, mode) as proxy,
        proxy.raw() as first,
        proxy.raw() as blocks,
        paused(own_server.pid),
    ):
        begin = time.monotonic()
        blocks.send(command("BLPOP", "list", 0))
        first.send(hello + hit)
        assert first.closes()
        assert time.monotonic() - begin >= TIMEOUT_S - 0.01
        with proxy.raw() as again:
            assert isinstance(again.ask("HELLO", 3), dict)
            assert by_mode(mode, again.ask("RL.HIT", "k", 5, 60), 5)
            again.send(command("GET", "s"))  # waits, like a client that blocks
            assert again.quiet(0.1, 2 * TIMEOUT_S) == b""
            os.kill(own_server.pid, signal.SIGCONT)
            assert again.reply() is None
        with proxy.raw() as raw:
            assert raw.ask("RPUSH", "list", "x") == 1
        assert blocks.reply() == [b"list", b"x"]


def test_with_error_a_handshake_waits_for_redis(own_server: RedisServer) -> None:
    with failing(own_server, "error") as proxy, proxy.raw() as first, paused(own_server.pid):
        first.send(command("HELLO", 3) + command("RL.HIT", "k", 5, 60))
        wait_until(lambda: "does not answer" in proxy.read_log(), "the circuit is open")
        assert first.quiet(0.1, 2 * TIMEOUT_S) == b""
        os.kill(own_server.pid, signal.SIGCONT)
        assert isinstance(first.reply(), dict)
        assert first.reply() == [0, 5, 4, -1, 60]


def test_late_hits_count_and_their_replies_are_dropped(own_server: RedisServer) -> None:
    with failing(own_server, "allow") as proxy, proxy.raw() as raw, own_server.raw() as admin:
        by_lane(own_server, raw, admin)
        with paused(own_server.pid):
            raw.send(command("RL.HIT", "k", 100, 60) * 80)
            assert [raw.reply() for _ in range(80)] == [[0, 100, 100, -1, 0]] * 80
        assert recovered_after_s(raw, time.monotonic()) < BACK_S
        assert admin.ask("LLEN", "k") == 64  # the maximum on a lane; no more were sent
        assert raw.ask("RL.HIT", "k", 100, 60) == [0, 100, 35, -1, 60]


def test_hit_behind_a_clients_own_command_has_no_timeout(own_server: RedisServer) -> None:
    with failing(own_server, "allow") as proxy, proxy.raw() as raw:
        assert raw.ask("PING") == "PONG"
        raw.send(command("BLPOP", "nothing", "0.5") + command("RL.HIT", "k", 5, 60))
        assert raw.reply() is None
        assert raw.reply() == [0, 5, 4, -1, 60]
        with paused(own_server.pid):
            raw.send(command("ECHO", "a") + command("RL.HIT", "k", 5, 60) + command("ECHO", "b"))
            assert raw.quiet(0.1, 2 * TIMEOUT_S) == b""
        assert [raw.reply() for _ in range(3)] == [b"a", [0, 5, 3, -1, 60], b"b"]
        with paused(own_server.pid):
            raw.send(command("RL.HIT", "k", 5, 60) + command("RL.HIT", "k", 0, 60))
            raw.send(command("RL.HIT", "k", 5, 60) + command("ECHO", "c"))
            assert raw.reply() == [0, 5, 5, -1, 0]
            assert is_error(raw.reply(), "ERR value is not an integer")
            assert raw.reply() == [0, 5, 5, -1, 0]
        assert raw.reply() == b"c"
        assert raw.ask("LLEN", "k") in (3, 4)


def test_wait_time_is_not_a_hit_timeout(own_server: RedisServer) -> None:
    """WAIT's time applies to admission, not to Redis' reply."""
    with failing(own_server, "deny") as proxy, proxy.raw() as raw, proxy.raw() as first:
        by_lane(own_server, raw)
        with paused(own_server.pid):
            raw.send(command("RL.HIT", "w", 5, 60, "WAIT", 30))
            assert raw.reply() == [1, 5, 0, 1, 1]
        assert recovered_after_s(raw, time.monotonic()) < BACK_S
        assert first.ask("RL.HIT", "q", 1, 1) == [0, 1, 0, -1, 1]
        raw.send(command("RL.HIT", "q", 1, 1, "WAIT", 30))
        assert raw.quiet(0.1) == b""  # it sleeps for a second
        with paused(own_server.pid):
            assert raw.quiet(0.1, 2 * TIMEOUT_S) == b""  # and it is not served yet
        assert raw.reply() == [0, 1, 0, -1, 1]


def test_stop_does_not_wait_for_a_hung_server(own_server: RedisServer) -> None:
    with (
        failing(own_server, "error", "--drain-timeout", "15") as proxy,
        proxy.raw() as by_lanes,
        proxy.raw() as own,
    ):
        by_lane(own_server, by_lanes)
        assert own.ask("PING") == "PONG"
        with paused(own_server.pid):
            begin = time.monotonic()
            for raw in (by_lanes, own):
                raw.send(command("RL.HIT", "k", 5, 60))
            time.sleep(0.05)
            proxy.terminate()
            assert is_error(by_lanes.reply(), "UPSTREAMDOWN")
            assert is_error(own.reply(), "UPSTREAMDOWN")
            assert by_lanes.closes()
            assert own.closes()
            assert proxy.wait() == 0
            assert time.monotonic() - begin < 10


# -- cut off --------------------------------------------------------------------------------------


def test_dead_lane_is_no_outage_and_is_replaced(own_server: RedisServer) -> None:
    args = ("--on-upstream-failure", "deny", "--hit-timeout", "400")
    with gated(own_server, *args) as (gate, proxy), proxy.raw() as raw, proxy.raw() as other:
        by_lane(own_server, raw)
        gate.lane().hold()
        assert raw.ask("RL.HIT", "k", 5, 60) == [1, 5, 0, 1, 1]
        assert other.ask("RL.HIT", "o", 5, 60) == [0, 5, 4, -1, 60]  # on its own connection
        begin = time.monotonic()
        while raw.ask("RL.HIT", "k", 1000, 60) == [1, 1000, 0, 1, 1]:
            assert time.monotonic() - begin < 15
        assert "does not answer" not in proxy.read_log()
        assert recovered_after_s(raw, time.monotonic()) < BACK_S


def test_hits_behind_late_ones_on_a_dead_connection_are_answered(own_server: RedisServer) -> None:
    """Redis replies on other connections, so the circuit stays closed."""
    args = ("--on-upstream-failure", "deny", "--hit-timeout", "400")
    with gated(own_server, *args) as (gate, proxy), proxy.raw() as raw:
        by_lane(own_server, raw)
        assert raw.ask("CLIENT", "SETNAME", "own") == "OK"
        own = gate.private(b"SETNAME")
        own.hold()
        raw.send(command("RL.HIT", "k", 5, 60) * (MAX_BY_SHA + 8) + command("ECHO", "a"))
        for _ in range(MAX_BY_SHA + 8):
            assert raw.reply() == [1, 5, 0, 1, 1]
        assert "does not answer" not in proxy.read_log()
        own.release()
        assert raw.reply() == b"a"


# -- full -----------------------------------------------------------------------------------------


def test_server_at_its_client_limit_is_no_outage(own_server: RedisServer) -> None:
    """Clients get the server's error, as without the proxy."""
    with failing(own_server, "allow") as proxy, proxy.raw() as old, own_server.raw() as admin:
        by_lane(own_server, old, admin)
        room = len(private(own_server, admin)) + len(lanes(own_server, admin)) + 2
        assert admin.ask("CONFIG", "SET", "maxclients", room) == "OK"
        for words in (("RL.HIT", "k", 5, 60), ("GET", "k"), ("HELLO", 3)):
            with proxy.raw() as raw:
                assert is_error(raw.ask(*words), "ERR max number of clients reached")
                assert raw.closes()
        assert counted(old.ask("RL.HIT", "x", 5, 60), 5)
        assert admin.ask("CONFIG", "SET", "maxclients", 500) == "OK"
        with proxy.raw() as raw:
            assert recovered_after_s(raw, time.monotonic()) < BACK_S
        assert "does not answer" not in proxy.read_log()


def test_new_connections_that_end_unanswered_are_reported(own_server: RedisServer) -> None:
    with gated(own_server) as (gate, proxy), proxy.raw() as old:
        by_lane(own_server, old)
        gate.closes_new = True
        with proxy.raw() as raw:
            raw.send(command("PING"))
            assert raw.closes()
        why = "it refuses new connections: connection closed by the server"
        wait_until(lambda: why in proxy.read_log(), "it is reported")
        assert counted(old.ask("RL.HIT", "x", 5, 60), 5)
        gate.closes_new = False
        gate.control().cut()  # or the proxy looks again in 5 s
        back = "the problem is over"
        wait_until(lambda: back in proxy.read_log(), "its end is reported, too")
        assert proxy.read_log().count(why) == 1


# -- limits ---------------------------------------------------------------------------------------


def test_hits_beyond_a_full_lane_use_private_connections(own_server: RedisServer) -> None:
    args = ("--max-lane-hits", "4", "--max-client-hits", "3")
    with harness.proxy(own_server, *args) as proxy, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(proxy.raw()) for _ in range(3)]
        for number, raw in enumerate(raws):
            by_lane_of(own_server, raw, f"warm:{number}")
        with own_server.raw() as admin:
            before = private(own_server, admin)
            assert len(before) == 3
            with paused(own_server.pid):
                for raw in raws:
                    raw.send(command("RL.HIT", "k", 100, 60) * 10)
                time.sleep(0.1)
            replies = [[raw.reply() for _ in range(10)] for raw in raws]
            assert sorted(reply[2] for each in replies for reply in each) == [*range(70, 100)]  # type: ignore[index]
            for each in replies:
                left = [reply[2] for reply in each]  # type: ignore[index]
                assert left == sorted(left, reverse=True)
            (stats,) = [admin.ask("INFO", "commandstats")]
            assert b"cmdstat_eval:" in stats  # type: ignore[operator]
