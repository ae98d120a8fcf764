"""Connections that break, stall or half close, and the replies that clients still get.

A gate between proxy and server holds back the server's replies, byte by byte if required, and cuts
connections at the moment a test chooses.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests import harness
from tests.conformance.routing_support import (
    MANY,
    UPSTREAMDOWN,
    admitted,
    hit,
    join_lane,
)
from tests.gate import Gate, gated
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command

LOST = ReplyError(UPSTREAMDOWN)


class Bench:
    """A client on a lane, and the gate's ends of its lane and private connection."""

    def __init__(self, server: RedisServer, gate: Gate, proxy: Proxy) -> None:
        self.server = server
        self.gate = gate
        self.proxy = proxy
        self.look = server.raw()
        self.look.ask("FLUSHALL")
        self.tracker: Raw | None = None
        self.client = proxy.raw()
        self.client.ask("HELLO", 3)
        join_lane(self.client, self.look)
        self.private = gate.private()
        self.lane = gate.lane()

    def forwarded(self, count: int = 8) -> None:
        """Return when bytes released before have been forwarded."""
        with self.proxy.raw() as other:
            for _ in range(count):
                other.ask("PING")

    def hold_a_hit(self, key: str = "k") -> None:
        """Send a hit whose reply the gate holds on the lane."""
        self.lane.hold()
        self.client.send(hit(key))
        self.lane.until(lambda held: held.endswith(b":60\r\n"))

    def send_half_a_push(self) -> bytes:
        """Let the client receive 12 bytes of a push; return the whole push."""
        number = self.client.ask("CLIENT", "ID")
        assert isinstance(number, int)
        self.tracker = tracker = self.server.raw()
        tracker.ask("HELLO", 3)
        tracker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        tracker.ask("GET", "t")
        join_lane(self.client, self.look)
        self.hold_a_hit()
        self.private.hold()
        self.look.ask("SET", "t", 1)
        self.private.until(lambda held: held.endswith(b"t\r\n"))
        push = self.private.held
        self.private.release(12)
        assert self.client.exactly(12) == push[:12]
        return push

    def close(self) -> None:
        self.gate.holds_greetings = False  # one that failed must not affect the next
        for pipe in self.gate.pipes:
            pipe.release()
        for raw in (self.look, self.client, self.tracker):
            if raw is not None:
                raw.close()


@pytest.fixture(scope="module")
def behind_gate(module_server: RedisServer) -> Iterator[tuple[Gate, Proxy]]:
    with gated(module_server) as made:
        yield made


@pytest.fixture
def bench(redis_server: RedisServer, behind_gate: tuple[Gate, Proxy]) -> Iterator[Bench]:
    made = Bench(redis_server, *behind_gate)
    yield made
    made.close()


def counted(look: Raw, key: str = "k") -> object:
    return look.ask("LLEN", key)


# -- the lane is lost -----------------------------------------------------------------------------


def test_hit_on_a_lost_lane_gets_an_error_and_its_client_stays(bench: Bench) -> None:
    bench.hold_a_hit()
    bench.client.send(command("INCR", "n"))
    bench.lane.cut()
    assert bench.client.reply() == LOST
    assert bench.client.reply() == 1
    assert counted(bench.look) == 1
    assert bench.client.ask("RL.HIT", "k", MANY, 60) == admitted(2)
    join_lane(bench.client, bench.look)


def test_killed_idle_lane_costs_no_hit(bench: Bench) -> None:
    for index in range(1, 6):
        bench.gate.lane().cut()
        bench.forwarded(2)
        assert bench.client.ask("RL.HIT", "k", MANY, 60) == admitted(index)
    join_lane(bench.client, bench.look)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "late"])
def test_lane_without_a_handshake_reply_delays_no_hit(bench: Bench, cut: bool) -> None:
    bench.gate.holds_greetings = True
    bench.lane.cut()
    bench.forwarded(2)
    hits = 0
    while hits < 30 or bench.gate.lane() is bench.lane:  # it is opened again after a pause
        hits += 1
        assert bench.client.ask("RL.HIT", "k", MANY, 60) == admitted(hits)
    bench.forwarded(8)
    bench.gate.holds_greetings = False
    if cut:
        bench.gate.lane().cut()
    else:
        bench.gate.lane().release()
    for _ in range(10):
        hits += 1
        assert bench.client.ask("RL.HIT", "k", MANY, 60) == admitted(hits)
    join_lane(bench.client, bench.look)


# -- the private connection is lost ---------------------------------------------------------------


def test_killed_private_connection_closes_the_client_after_the_lanes_replies(
    bench: Bench,
) -> None:
    bench.hold_a_hit()
    bench.client.send(hit())
    bench.private.cut()
    bench.forwarded()
    bench.lane.release()
    assert [bench.client.reply() for _ in range(2)] == [admitted(1), admitted(2)]
    assert bench.client.line() == b"" and bench.client.closed


def test_client_whose_private_connection_is_lost_is_closed(bench: Bench) -> None:
    bench.private.hold()
    bench.client.send(hit() + hit() + command("ECHO", "x") + hit())
    bench.private.until(lambda held: held.count(b"*5") == 3)
    bench.private.cut()
    assert bench.client.line() == b"" and bench.client.closed
    assert counted(bench.look) == 3


@pytest.mark.parametrize("order", ["plc", "lpc", "pcl", "lcp", "cpl", "clp"])
def test_loss_of_both_connections_at_once_leaves_no_client_waiting(
    bench: Bench, order: str
) -> None:
    """p: the private connection is cut; l: the lane is; c: the client sends a hit."""
    act: dict[str, Callable[[], None]] = {
        "p": bench.private.cut,
        "l": bench.lane.cut,
        "c": lambda: bench.client.send(hit()),
    }
    os.kill(bench.proxy.pid, signal.SIGSTOP)
    for step in order:
        act[step]()
        time.sleep(0.02)
    os.kill(bench.proxy.pid, signal.SIGCONT)
    assert bench.client.closes()


# -- half a push ----------------------------------------------------------------------------------


def test_lost_lane_during_a_partial_push(bench: Bench) -> None:
    push = bench.send_half_a_push()
    os.kill(bench.proxy.pid, signal.SIGSTOP)
    bench.lane.cut()
    time.sleep(0.02)
    bench.client.send(hit("j"))
    time.sleep(0.02)
    os.kill(bench.proxy.pid, signal.SIGCONT)
    bench.forwarded()
    bench.private.release()
    assert bench.client.exactly(len(push) - 12) == push[12:]
    assert bench.client.reply() == LOST
    assert bench.client.reply() in (admitted(1), LOST)
    assert bench.client.ask("ECHO", "end") == b"end"


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
def test_truncated_push_closes_the_connection(bench: Bench, answered: bool) -> None:
    bench.send_half_a_push()
    if answered:
        bench.lane.release()
        bench.forwarded()
    bench.private.cut()
    assert bench.client.quiet(0.01, harness.DEADLINE_S) == b""
    assert bench.client.closed


def test_partial_header_of_a_push_delays_no_reply(bench: Bench) -> None:
    number = bench.client.ask("CLIENT", "ID")
    assert isinstance(number, int)
    with bench.server.raw() as tracker:
        tracker.ask("HELLO", 3)
        tracker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        tracker.ask("GET", "t")
        join_lane(bench.client, bench.look)
        bench.private.hold()
        bench.look.ask("SET", "t", 1)
        bench.private.until(lambda held: held.endswith(b"t\r\n"))
        bench.private.release(2)
        bench.forwarded()
        assert bench.client.ask("RL.HIT", "k", MANY, 60) == admitted(1)
        bench.private.release()
        assert bench.client.reply() == [b"invalidate", [b"t"]]


# -- order while the lane is stalled ---------------------------------------------------------------


def test_other_commands_wait_for_the_lane(bench: Bench) -> None:
    bench.hold_a_hit()
    bench.client.send(command("SET", "s", 1) + hit() + command("GET", "s"))
    bench.client.send(command("RL.HIT", "k") + hit())
    bench.forwarded()
    assert bench.look.ask("EXISTS", "s") == 0
    bench.lane.release()
    wrong = ReplyError("ERR wrong number of arguments for 'rl.hit' command")
    expected = [admitted(1), "OK", admitted(2), b"1", wrong, admitted(3)]
    assert [bench.client.reply() for _ in expected] == expected


@pytest.mark.parametrize(
    "broken",
    [b"*1\r\nfoo\r\n", b"*x\r\n", b"*2\r\n$6\r\nRL.HIT\r\n$-5\r\n", b"\"unbalanced\r\n",
     command("RL.HIT", b"k" * 70_000, 5).replace(b"$1\r\n5", b"$x\r\n5")],
    ids=["no bulk", "no number", "in a hit", "quotes", "behind a hit too long"],
)  # fmt: skip
def test_malformed_bytes_wait_for_the_lane(bench: Bench, broken: bytes) -> None:
    bench.hold_a_hit()
    bench.client.send(hit() + broken)
    bench.client.send(hit() * 3 + command("SET", "s", 1))
    bench.forwarded()
    bench.lane.release()
    assert [bench.client.reply() for _ in range(2)] == [admitted(1), admitted(2)]
    error = bench.client.line()
    if b"longer than" in error:
        error = bench.client.line()
    assert error.startswith(b"-ERR Protocol error")
    assert bench.client.line() == b"" and bench.client.closed
    assert counted(bench.look) == 2 and bench.look.ask("EXISTS", "s") == 0


@pytest.mark.parametrize("word", [command("QUIT"), b"quit\r\n"], ids=["QUIT", "inline"])
def test_quit_waits_for_the_lane_and_ends_everything(bench: Bench, word: bytes) -> None:
    bench.hold_a_hit()
    bench.client.send(hit() + word + hit())
    bench.client.send(hit())
    bench.forwarded()
    bench.lane.release()
    assert [bench.client.reply() for _ in range(3)] == [admitted(1), admitted(2), "OK"]
    assert bench.client.line() == b"" and bench.client.closed
    assert counted(bench.look) == 2


# -- half closes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [0, 1, 200], ids=["alone", "one more", "many more"])
def test_outstanding_lane_replies_arrive_after_a_half_close(bench: Bench, behind: int) -> None:
    bench.hold_a_hit()
    bench.client.send(hit() * behind)
    bench.client.finish()
    bench.forwarded()
    bench.lane.release()
    assert [bench.client.reply() for _ in range(behind + 1)] == [
        admitted(n + 1) for n in range(behind + 1)
    ]
    assert bench.client.line() == b"" and bench.client.closed
