"""WAIT with real servers and clients: order, rate, and the fate of waiting hits when connections,
scripts or rights are lost.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests import harness, info
from tests.gate import gated
from tests.harness import (
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    command,
    is_error,
    numbers,
    wait_until,
)
from tests.info import blocked_clients
from tests.integration.started import by_lane, by_lane_of, lanes, private, started

SECOND_US = 1_000_000


@pytest.fixture
def server(one_engine: str, one_server: RedisServer) -> RedisServer:
    """The one engine's server, empty."""
    with one_server.raw() as raw:
        raw.ask("FLUSHALL")
        raw.ask("CONFIG", "RESETSTAT")
    return one_server


@pytest.fixture
def front(server: RedisServer, one_proxy: Proxy) -> Proxy:
    """A proxy in front of it."""
    return one_proxy


# -- replies, their order, and the script calls ----------------------------------------------------


def queue_up(server: RedisServer, clients: list[Raw], requests: list[bytes]) -> None:
    """Each client sends its request once the previous client's has reached Redis. The first hit of
    a connection uses its private connection.
    """
    with server.raw() as admin:
        for client, request in zip(clients, requests, strict=True):
            own = str(client.ask("CLIENT", "ID"))
            client.send(request)

            def has_called(own: str = own) -> bool:
                rows = private(server, admin)
                return any(row["id"] == own and row["cmd"].startswith("eval") for row in rows)

            wait_until(has_called, "it has called a script")


def reading_order(clients: list[Raw]) -> list[int]:
    """The numbers of the clients in the order in which they became readable, once each."""
    poll = select.epoll()
    numbers = {client.sock.fileno(): index for index, client in enumerate(clients)}
    for descriptor in numbers:
        poll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
    order: list[int] = []
    end = time.monotonic() + harness.DEADLINE_S
    while len(order) < len(clients) and time.monotonic() < end:
        order += [numbers[descriptor] for descriptor, _ in poll.poll(0.5)]
    poll.close()
    return order


class Monitor:
    """The commands a server runs, from MONITOR."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._raw = server.raw()
        assert self._raw.ask("MONITOR") == "OK"

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def lines(self) -> list[tuple[int, str, list[bytes]]]:
        """All lines so far: time (µs), source (lua or an address), and words."""
        with self._server.raw() as raw:
            raw.ask("ECHO", "the end")
        found: list[tuple[int, str, list[bytes]]] = []
        while True:
            line = self._raw.line()
            assert line, "the monitor was closed"
            match = re.match(rb"\+(\d+)\.(\d+) \[\d+ (\S+)\] (.*)\r\n", line)
            assert match is not None, line
            words = re.findall(rb'"((?:[^"\\]|\\.)*)"', match[4])
            if words == [b"ECHO", b"the end"]:
                return found
            found.append((int(match[1] + match[2]), match[3].decode(), words))


def clocks(
    seen: list[tuple[int, str, list[bytes]]], key: str, most: int, window_us: int
) -> list[int]:
    """The clocks of the hits that scripts admitted to `key`, µs: a millisecond early at most.

    ZLOG writes the clock itself. The others write a TTL, which ends a millisecond after the limiter
    is as good as new; their values tell when that is. MONITOR's own times are no clocks of hits: a
    script that the kernel suspends between its TIME and its write shows a later one.
    """
    found: list[int] = []
    for _, source, words in seen:
        if source != "lua" or words[1:2] != [key.encode()]:
            continue
        if words[0].upper() == b"ZADD":
            found.append(int(words[2]))
        elif words[0].upper() == b"SET":
            value, ttl_ms = words[2].decode(), int(words[4])
            letter, fields = value[0], [int(digits) for digits in value.lstrip("FCT").split(":")]
            match letter:
                case "F":
                    new_us = fields[1] + window_us
                case "C":
                    new_us = fields[0] + 2 * window_us
                case "T":
                    new_us = fields[1] // 1000 + (most - fields[0]) * window_us // most
                case _:  # GCRA
                    new_us = fields[0] // 1000
            found.append(new_us - (ttl_ms - 1) * 1000)
    return found


def stamps(seen: list[tuple[int, str, list[bytes]]], key: str) -> list[int]:
    """The stamps that were added to the list `key`, µs."""
    return [
        int(word)
        for _, source, words in seen
        if source == "lua" and words[0].upper() == b"RPUSH" and words[1] == key.encode()
        for word in words[2:]
    ]


def script_calls(seen: list[tuple[int, str, list[bytes]]]) -> int:
    """The number of script calls."""
    return sum(words[0].upper().startswith(b"EVAL") for _, _, words in seen)


def in_no_window_more(times: list[int], most: int, window_us: int) -> bool:
    return all(late - early >= window_us for early, late in zip(times, times[most:], strict=False))


@contextlib.contextmanager
def connected(proxy: Proxy, count: int) -> Iterator[list[Raw]]:
    """Clients whose private connections are open."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.raw()) for _ in range(count)]
        for client in clients:
            assert client.ask("PING") == "PONG"
        yield clients


# -- order and rate --------------------------------------------------------------------------------


def check_served_in_order(
    server: RedisServer, proxy: Proxy, count: int, most: int, window_s: float
) -> None:
    with connected(proxy, count) as clients, Monitor(server) as monitor:
        hit = command("RL.HIT", "k", most, str(window_s), "WAIT", 10)
        queue_up(server, clients, [hit] * count)
        order = reading_order(clients)
        replies = [numbers(client.reply()) for client in clients]
        seen = monitor.lines()
    assert order == list(range(count))
    assert all(reply[:2] == [0, most] and reply[3] == -1 for reply in replies)
    times = stamps(seen, "k")
    assert len(times) == count
    assert times == sorted(times)
    assert in_no_window_more(times, most, round(window_s * SECOND_US))
    # A check, an attempt as the head, and one more where that was too early.
    assert script_calls(seen) <= 3 * count + 5


def test_clients_are_served_in_order_on_every_engine(
    redis_server: RedisServer, proxy: Proxy
) -> None:
    check_served_in_order(redis_server, proxy, 30, 10, 0.3)


ALGORITHMS = ["ZLOG", "FIXED", "COUNTER", "TOKEN", "GCRA"]


def test_other_algorithms_serve_in_order(redis_server: RedisServer, proxy: Proxy) -> None:
    """All at once, each on its own key; ten clients, four hits in 0.2 seconds."""
    most, window_us, count = 4, 200_000, 10
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(connected(proxy, count)) for _ in ALGORITHMS]
        monitor = stack.enter_context(Monitor(redis_server))
        for name, clients in zip(ALGORITHMS, groups, strict=True):
            hit = command("RL.HIT", f"of{name}", most, 200, "MS", "ALGO", name, "WAIT", 10_000)
            queue_up(redis_server, clients, [hit] * count)
        orders = [reading_order(clients) for clients in groups]
        for clients in groups:
            for client in clients:
                reply = numbers(client.reply())
                assert reply[0] == 0, reply
                assert reply[3] == -1
        seen = monitor.lines()
    for name, order in zip(ALGORITHMS, orders, strict=True):
        times = clocks(seen, f"of{name}", most, window_us)
        assert order == list(range(count)), name
        assert len(times) == count, name
        if name == "ZLOG":
            assert in_no_window_more(times, most, window_us)
        elif name in ("FIXED", "COUNTER"):
            assert in_no_window_more(times, 2 * most, window_us - 1000)
        else:
            emission_us = window_us // most
            for index, at in enumerate(times):
                for later, after in enumerate(times[index:], 1):
                    assert later <= most + (after - at + 1000) / emission_us, name
    assert script_calls(seen) <= 3 * count * len(ALGORITHMS) + 20


def expect_even_replies(clients: list[Raw], begin: float) -> None:
    """Fail unless replies come in order, the n-th not before `begin` + n / 20 s."""
    poll = select.poll()
    for client in clients:
        poll.register(client.sock, select.POLLIN)
    for number, client in enumerate(clients):
        reply = numbers(client.reply())
        now = time.monotonic()
        assert reply[:2] == [0, 20]
        assert now >= begin + number * 0.05 - 0.001
        # Later hits cannot be there: their slots are a twentieth of a second apart.
        ready = {descriptor for descriptor, _ in poll.poll(0)}
        for later in range(number + 1, len(clients)):
            if clients[later].sock.fileno() in ready:
                assert time.monotonic() >= begin + later * 0.05 - 0.001


def test_shaped_hits_of_two_proxies_leave_evenly(server: RedisServer, front: Proxy) -> None:
    """LEAKY: twenty a second, ten by each of two proxies."""
    with (
        harness.proxy(server) as second,
        connected(front, 10) as ours,
        connected(second, 10) as theirs,
    ):
        clients = [client for pair in zip(ours, theirs, strict=True) for client in pair]
        hit = command("RL.HIT", "k", 20, 1, "ALGO", "LEAKY", "WAIT", 5)
        came = time.monotonic()
        queue_up(server, clients, [hit] * 20)
        last = time.monotonic()
        expect_even_replies(clients, came)
        assert time.monotonic() < last + 1 + harness.DEADLINE_S


def test_abandoned_shaped_hit_keeps_its_slot(server: RedisServer, front: Proxy) -> None:
    with connected(front, 4) as clients:
        hit = command("RL.HIT", "k", 10, 1, "ALGO", "LEAKY", "WAIT", 5)
        came = time.monotonic()
        queue_up(server, clients, [hit] * 4)
        assert numbers(clients[0].reply())[0] == 0
        clients[1].close()
        clients[2].close()
        wait_until(lambda: waiting_hits(clients[0]) <= 1, "the proxy has seen that they left")
        refused = numbers(front_ask(front, "RL.HIT", "k", 10, 1, "ALGO", "LEAKY", "WAIT", "0.001"))
        assert refused[0] == 1 or time.monotonic() >= came + 0.4
        assert numbers(clients[3].reply())[0] == 0
        assert time.monotonic() >= came + 0.3 - 0.001


def front_ask(proxy: Proxy, *words: str | int) -> object:
    with proxy.raw() as raw:
        return raw.ask(*words)


def test_two_proxies_share_the_limit(server: RedisServer, front: Proxy) -> None:
    with (
        harness.proxy(server) as second,
        connected(front, 10) as ours,
        connected(second, 10) as theirs,
        Monitor(server) as monitor,
    ):
        hit = command("RL.HIT", "k", 5, "0.3", "WAIT", 15)
        queue_up(server, ours, [hit] * 10)
        queue_up(server, theirs, [hit] * 10)
        assert reading_order(ours + theirs)
        for client in ours + theirs:
            assert numbers(client.reply())[0] == 0
        times = stamps(monitor.lines(), "k")
    assert len(times) == 20
    assert in_no_window_more(times, 5, 300_000)


# -- clients that leave, and clients that do not wait ----------------------------------------------


def half_full(proxy: Proxy, key: str = "k") -> None:
    """Five hits of ten in a minute: cost 10 waits for that minute, cost 1 would be admitted."""
    assert front_ask(proxy, "RL.HIT", key, 10, 60, "COST", 5) == [0, 10, 5, -1, 60]


BIG = command("RL.HIT", "k", 10, 60, "COST", 10, "WAIT", 600)
SMALL = command("RL.HIT", "k", 10, 60, "WAIT", 600)


@pytest.mark.parametrize("how", ["close", "finish", "reset"])
def test_disconnected_client_gives_its_place_to_the_next(
    server: RedisServer, front: Proxy, how: str
) -> None:
    half_full(front)
    with connected(front, 3) as clients:
        queue_up(server, clients, [BIG, BIG, SMALL])
        assert clients[2].quiet(0.05) == b""
        clients[1].close()  # from the middle
        assert clients[2].quiet(0.05) == b""
        if how == "close":
            clients[0].close()
        elif how == "finish":
            clients[0].finish()
            assert clients[0].closes()
        else:
            linger = b"\1\0\0\0\0\0\0\0"
            clients[0].sock.setsockopt(1, 13, linger)  # SOL_SOCKET, SO_LINGER
            clients[0].close()
        assert numbers(clients[2].reply())[:3] == [0, 10, 4]
    wait_until(lambda: private(server) == [], "their connections are gone")


def test_hit_without_wait_does_not_overtake(server: RedisServer, front: Proxy) -> None:
    half_full(front)
    with connected(front, 2) as (waits, other), front.raw() as warm:
        queue_up(server, [waits], [BIG])
        by_lane(server, warm)
        for client in (other, warm):  # on its private connection, and by lane
            refused = numbers(client.ask("RL.HIT", "k", 10, 60))
            assert refused[:3] == [1, 10, 0]
            assert 50 < refused[3] <= 60
            refused = numbers(client.ask("RL.HIT", "k", 10, 60_000, "MS"))
            assert 50_000 < refused[3] <= 60_000
            assert refused[3] % 1000 != 0
            refused = numbers(client.ask("RL.HIT", "k", 10, 60, "COST", 11))
            assert refused[:4] == [1, 10, 0, -1]
            assert numbers(client.ask("RL.PEEK", "k", 10, 60))[:4] == [0, 10, 5, -1]
            assert numbers(client.ask("RL.HIT", "k", 10, 60, "COST", 0))[:4] == [0, 10, 5, -1]
            assert numbers(client.ask("RL.HIT", "k", 10, 60, "PENALTY", 9, "STRICT"))[0] == 1
            client.send(command("PING") + command("RL.HIT", "k", 10, 60) + command("PING"))
            assert client.reply() == "PONG"
            assert numbers(client.reply())[:3] == [1, 10, 0]
            assert client.reply() == "PONG"
            assert client.ask("LLEN", "k") == 5  # nothing was recorded, nothing started
            assert numbers(client.ask("RL.HIT", "other", 10, 60))[0] == 0
            assert client.ask("SELECT", 1) == "OK"
            assert numbers(client.ask("RL.HIT", f"db1-{client is warm}", 10, 60))[0] == 0
            client.send(command("SELECT", 0) + command("RL.HIT", "k", 10, 60))
            assert client.reply() == "OK"
            assert numbers(client.reply())[:3] == [1, 10, 0]
            assert client.ask("RL.RESET", "nothing") == 0
        waits.close()
        wait_until(lambda: numbers(other.ask("RL.HIT", "k", 10, 60))[0] == 0, "its place is free")


def test_stream_of_hits_does_not_starve_waiting_clients(server: RedisServer, front: Proxy) -> None:
    end = time.monotonic() + harness.DEADLINE_S
    refused = 0
    for turn in itertools.count():  # one is enough, unless the machine stalls
        refused += refused_beside_a_waiting_hit(server, front, f"k{turn}")
        if refused > 50:
            break
        assert time.monotonic() < end


def refused_beside_a_waiting_hit(server: RedisServer, front: Proxy, key: str) -> int:
    """Send a stream of hits until the waiting hit is admitted; return how many were refused."""
    with connected(front, 3) as (waits, one, two):
        hit = command("RL.HIT", key, 2, "0.3")
        assert [numbers(one.ask("RL.HIT", key, 2, "0.3"))[0] for _ in range(2)] == [0, 0]
        queue_up(server, [waits], [command("RL.HIT", key, 2, "0.3", "COST", 2, "WAIT", 9)])
        poll = select.poll()
        poll.register(waits.sock, select.POLLIN)
        refused = 0
        end = time.monotonic() + harness.DEADLINE_S
        while not poll.poll(0):
            assert time.monotonic() < end
            one.send(hit * 10)
            two.send(hit)
            replies = [numbers(one.reply()) for _ in range(10)] + [numbers(two.reply())]
            refused += sum(reply[0] for reply in replies)
            for reply in replies:
                assert reply[0] == 0 or reply[2:4] == [0, 1]
        assert numbers(waits.reply())[:3] == [0, 2, 0]
        return refused


# -- on its connection -----------------------------------------------------------------------------


def test_earlier_commands_are_answered_and_later_ones_wait(
    server: RedisServer, front: Proxy
) -> None:
    with connected(front, 1) as (client,), Monitor(server) as monitor:
        hit = command("RL.HIT", "k", 1, "0.4", "WAIT", 9)
        append = command("APPEND", "a", "x")
        client.send(append + hit * 2 + append + command("RL.HIT", "k", 1, 60) + append)
        assert client.reply() == 1
        assert numbers(client.reply())[0] == 0
        assert numbers(client.reply())[0] == 0
        assert client.reply() == 2
        assert numbers(client.reply())[0] == 1
        assert client.reply() == 3
        seen = monitor.lines()
        first, second = stamps(seen, "k")
        appended = [at for at, _, words in seen if words[0] == b"APPEND"]
        assert appended[0] <= first <= second - 400_000
        assert second <= appended[1] <= appended[2]


def test_wait_is_ignored_in_a_transaction(server: RedisServer, front: Proxy) -> None:
    with connected(front, 1) as (client,):
        hit = command("RL.HIT", "k", 1, "0.3", "WAIT", 5)
        client.send(command("MULTI") + hit * 2 + command("EXEC") + hit + command("PING"))
        assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
        assert client.reply() == [[0, 1, 0, -1, 1], [1, 1, 0, 1, 1]]
        assert client.reply() == [0, 1, 0, -1, 1]  # behind it, the hit waits
        assert client.reply() == "PONG"


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_gets_the_reply_of_a_waiting_hit(
    server: RedisServer, front: Proxy, protocol: int
) -> None:
    made: Any = redis.Redis(port=front.port, protocol=protocol, socket_timeout=10)
    with made as client:
        words = ("RL.HIT", "k", 2, 0.2, "WAIT", 5)
        for _ in range(5):
            assert client.execute_command(*words)[:2] == [0, 2]
        pipe = client.pipeline(transaction=False)
        for _ in range(3):
            pipe.execute_command(*words)
            pipe.set("x", "y")
        found = pipe.execute()
        assert [reply[0] for reply in found[::2]] == [0, 0, 0]
        assert found[1::2] == [True] * 3


# -- lost connections, scripts and rights ----------------------------------------------------------


def test_waiting_hit_survives_lost_lanes_and_scripts(server: RedisServer) -> None:
    with harness.proxy(server) as proxy, server.raw() as admin, proxy.raw() as client:
        before = 0

        def has_called() -> bool:
            return info.script_calls(admin) > before

        for _ in range(3):
            by_lane(server, client, admin)
            assert numbers(client.ask("RL.HIT", "k", 1, "0.2", "WAIT", 5))[0] == 0
            before = info.script_calls(admin)
            client.send(command("RL.HIT", "k", 1, "0.2", "WAIT", 5))
            wait_until(has_called, "it has called a script")
            for lane in lanes(server, admin):
                assert admin.ask("CLIENT", "KILL", "ID", lane["id"]) == 1
            assert admin.ask("SCRIPT", "FLUSH") == "OK"
            reply = client.reply()
            # During a script call: then its outcome is unknown.
            assert is_error(reply, "UPSTREAMDOWN ") or numbers(reply)[0] == 0
            assert client.ask("PING") == "PONG"


def test_killed_private_connection_closes_its_waiting_client(
    server: RedisServer, front: Proxy
) -> None:
    half_full(front)
    with connected(front, 2) as (big, small), server.raw() as admin:
        number = big.ask("CLIENT", "ID")
        queue_up(server, [big, small], [BIG, SMALL])
        assert admin.ask("CLIENT", "KILL", "ID", str(number)) == 1
        assert big.closes()
        assert numbers(small.reply())[0] == 0


def test_revoked_rights_end_the_wait_with_an_error(server: RedisServer, front: Proxy) -> None:
    with connected(front, 2) as (bob, other), server.raw() as admin:
        assert admin.ask("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all") == "OK"
        assert bob.ask("AUTH", "bob", "pw") == "OK"
        for window in ("0.3", "1", "5"):
            assert admin.ask("ACL", "SETUSER", "bob", "~*") == "OK"
            other.ask("DEL", "k")
            assert numbers(other.ask("RL.HIT", "k", 1, window))[0] == 0
            queue_up(server, [bob], [command("RL.HIT", "k", 1, window, "WAIT", 9)])
            assert admin.ask("ACL", "SETUSER", "bob", "resetkeys", "~x") == "OK"
            reply = bob.reply()
            if not isinstance(reply, list):  # the window was over before: again, with a longer one
                break
        assert is_error(reply, "NOPERM ")
        assert is_error(bob.ask("RL.HIT", "k", 1, "0.3", "WAIT", 5), "NOPERM ")
        assert admin.ask("ACL", "DELUSER", "bob") == 1


def test_waiting_client_outlives_the_servers_timeout(one_engine: str) -> None:
    """The first in its queue, one behind it, and one whose reply is held."""
    with (
        harness.server(one_engine, "--timeout", "1") as server,
        harness.proxy(server) as proxy,
        connected(proxy, 4) as (head, behind, held, idle),
    ):
        assert numbers(idle.ask("RL.HIT", "k", 1, 3, "COST", 1))[0] == 0
        assert numbers(idle.ask("RL.HIT", "l", 1, 3, "ALGO", "LEAKY", "WAIT", 9))[0] == 0
        head.send(command("RL.HIT", "k", 1, 3, "WAIT", 9))
        held.send(command("RL.HIT", "l", 1, 3, "ALGO", "LEAKY", "WAIT", 9))
        behind.send(command("RL.HIT", "k", 1, 3, "WAIT", "3.2"))
        assert numbers(head.reply())[0] == 0
        assert numbers(held.reply())[0] == 0
        assert numbers(behind.reply())[:3] == [1, 1, 0]
        for client in (head, behind, held):
            assert client.ask("PING") == "PONG"
        assert idle.closes()  # as with Redis itself
        # The control connection must not reconnect each second, nor fill the log.
        assert proxy.read_log().count("WARNING") <= 1, proxy.read_log()


def test_stop_refuses_waiting_hits(server: RedisServer) -> None:
    url = server.url
    with started("--listen", "127.0.0.1:0", "--upstream", url) as made, contextlib.ExitStack() as s:
        first, held, *clients = (s.enter_context(made.raw()) for _ in range(21))
        for client in (first, held, *clients):
            assert client.ask("PING") == "PONG"
        assert numbers(first.ask("RL.HIT", "k", 1, 60))[0] == 0
        shaped = command("RL.HIT", "l", 2, 2, "ALGO", "LEAKY", "WAIT", 9)
        hit = command("RL.HIT", "k", 1, 60, "WAIT", 600)
        queue_up(server, clients, [hit] * 19)
        began = time.monotonic()
        held.send(shaped * 2)
        assert numbers(held.reply())[0] == 0
        assert held.quiet(0.05) == b""
        made.signal(15)
        for client in clients:
            reply = numbers(client.reply())
            assert reply[:3] == [1, 1, 0]
            assert 50 < reply[3] <= 60
            assert client.closes()
        assert first.closes()
        assert numbers(held.reply())[0] == 0  # it was admitted, and keeps its time
        assert time.monotonic() - began >= 1
        assert held.closes()
        assert made.wait() == 0
    with server.raw() as admin:
        assert admin.ask("LLEN", "k") == 1


def test_server_crash_ends_waiting_hits_and_service_resumes(own_server: RedisServer) -> None:
    with harness.proxy(own_server) as proxy:
        with connected(proxy, 12) as clients:
            assert numbers(clients[0].ask("RL.HIT", "k", 1, 60))[0] == 0
            hit = command("RL.HIT", "k", 1, 60, "WAIT", 600)
            queue_up(own_server, clients[1:], [hit] * 11)
            own_server.stop()
            for client in clients[1:]:
                assert client.closes()
        with proxy.raw() as late:
            assert is_error(late.ask("RL.HIT", "k", 1, 60, "WAIT", 5), "UPSTREAMDOWN ")
        own_server.start()
        with proxy.raw() as client:

            def served() -> bool:
                reply = client.ask("RL.HIT", "k", 1, "0.2", "WAIT", 5)
                return isinstance(reply, list) and reply[0] == 0

            wait_until(served, "the proxy serves again")
            assert numbers(client.ask("RL.HIT", "k", 1, "0.2", "WAIT", 5))[0] == 0


def test_client_that_does_not_read_delays_no_other(server: RedisServer, front: Proxy) -> None:
    with connected(front, 2) as (slow, other), server.raw() as admin:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert admin.ask("SET", "some", "x" * 60_000) == "OK"
        assert slow.ask("WATCH", "some") == "OK"  # so that it uses its private connection
        before = 0

        def has_called() -> bool:
            return info.script_calls(admin) > before

        for number in range(1000):
            hit = ("RL.HIT", f"k{number}", 10, 60, "WAIT")
            before = info.script_calls(admin)
            slow.send(command("GET", "some") + command(*hit, 1))
            with contextlib.suppress(AssertionError):
                wait_until(has_called, "it has called a script", 0.3)
            if not has_called():
                break  # Redis' replies to it are no longer read
            assert numbers(other.ask(*hit, 5))[0] == 0
        else:
            raise AssertionError("it is still read to")


# -- cost ------------------------------------------------------------------------------------------


def test_waiting_hits_make_one_script_call_each(server: RedisServer, front: Proxy) -> None:
    with connected(front, 201) as clients, server.raw() as admin:
        assert numbers(clients[0].ask("RL.HIT", "k", 1, 60))[0] == 0
        start = info.script_calls(admin)
        for client in clients[1:]:
            client.send(command("RL.HIT", "k", 1, 60, "WAIT", 600))
        wait_until(lambda: info.script_calls(admin) >= start + 200, "all hits have called a script")
        joined = info.script_calls(admin)
        # One call each; a hit that was the first when it came may have called again.
        assert joined <= start + 202
        time.sleep(1)  # nothing is to happen, so there is no condition to wait for
        assert info.script_calls(admin) == joined
        for client in clients[1:]:
            client.close()
        wait_until(lambda: len(private(server, admin)) == 1, "they have left")
        # Each that became the first called once more, at most.
        assert info.script_calls(admin) <= joined + 200
        assert clients[0].ask("RL.RESET", "k") == 1
        assert numbers(clients[0].ask("RL.HIT", "k", 1, 60))[0] == 0


# -- clients that cannot be observed ---------------------------------------------------------------


def test_disconnect_of_an_unread_client_is_noticed(server: RedisServer, front: Proxy) -> None:
    """A connection without a reader produces no event when its client closes."""
    with front.raw() as other, front.raw() as waiting:
        assert other.ask("RL.HIT", "k", 1, 600) == [0, 1, 0, -1, 600]
        # Bytes beyond MAX_UNREAD fit any receive buffer. Behind a full one, the end of file would
        # stay in the client's kernel.
        behind = command("PING", "x" * 999) * 300
        waiting.send(command("RL.HIT", "k", 1, 600, "WAIT", 3600) + behind)
        hit = ("RL.HIT", "k", 1000, 600)
        wait_until(lambda: numbers(other.ask(*hit))[0] == 1, "it waits")
        waiting.close()
        wait_until(lambda: numbers(other.ask(*hit))[0] == 0, "it has left its place")


def test_end_of_file_behind_a_blocking_command_reaches_redis(
    server: RedisServer, front: Proxy
) -> None:
    """BLPOP and a hit with WAIT in one write: a client that closes then must not consume the
    element.
    """
    with server.raw() as admin:
        client = front.raw()
        client.send(command("BLPOP", "q", 0) + command("RL.HIT", "k", 1, 60, "WAIT", 5))
        wait_until(lambda: blocked_clients(admin) == 1, "it blocks")
        client.close()
        wait_until(lambda: blocked_clients(admin) == 0, "Redis has noticed the disconnect")
        admin.ask("RPUSH", "q", "element")
        assert admin.ask("LLEN", "q") == 1


# -- RL.RESET and RL.REFUND ------------------------------------------------------------------------


def test_reset_behind_a_select_in_one_write_wakes_hits_of_that_database(front: Proxy) -> None:
    with connected(front, 3) as (other, waiting, third):
        for client in (waiting, third):
            assert client.ask("SELECT", 3) == "OK"
        assert numbers(waiting.ask("RL.HIT", "k", 1, 600))[0] == 0
        waiting.send(command("RL.HIT", "k", 1, 600, "WAIT", 600))
        wait_until(lambda: numbers(third.ask("RL.HIT", "k", 9, 600))[0] == 1, "it waits")
        other.send(command("SELECT", 3) + command("RL.RESET", "k"))
        assert [other.reply(), other.reply()] == ["OK", 1]
        assert numbers(waiting.reply())[0] == 0


@pytest.mark.parametrize(
    "words",
    [("RL.RESET", "k"), ("RL.RESET", "other", "k"), ("RL.REFUND", "k", 1, 600, 99)],
    ids=["reset", "reset of several", "refund"],
)
@pytest.mark.parametrize("by", ["lane", "pipeline"])
def test_reset_or_refund_wakes_waiting_hits(
    server: RedisServer, front: Proxy, words: tuple[str | int, ...], by: str
) -> None:
    with front.raw() as other, front.raw() as waiting:
        assert other.ask("RL.HIT", "k", 1, 600) == [0, 1, 0, -1, 600]
        waiting.send(command("RL.HIT", "k", 1, 600, "WAIT", 3600))
        wait_until(lambda: numbers(other.ask("RL.HIT", "k", 9, 600))[0] == 1, "it waits")
        if by == "lane":
            assert not isinstance(other.ask(*words), ReplyError)
        else:
            other.send(command("PING") + command(*words) + command("PING"))
            assert other.reply() == "PONG"
            assert not isinstance(other.reply(), ReplyError)
            assert other.reply() == "PONG"
        assert waiting.reply() == [0, 1, 0, -1, 600]


@pytest.mark.parametrize(
    "words",
    [("RL.RESET", "k"), ("RL.REFUND", "k", 1, 600, 1), ("RL.BLOCK", "k", 0)],
    ids=["reset", "refund", "lifted block"],
)
def test_hit_wakes_whose_refusal_arrives_after_the_reset(
    server: RedisServer, words: tuple[str | int, ...]
) -> None:
    """Redis runs the hit first. Its reply to the reset, on another connection, arrives before."""
    with (
        gated(server) as (gate, front),
        server.raw() as admin,
        front.raw() as other,
        front.raw() as waiting,
    ):
        by_lane_of(server, waiting, "warm", admin)
        first = ("RL.BLOCK", "k", 600) if words[0] == "RL.BLOCK" else ("RL.HIT", "k", 1, 600)
        assert numbers(other.ask(*first))
        for pipe in gate.lanes():
            pipe.hold()
        before = info.script_calls(admin)
        waiting.send(command("RL.HIT", "k", 1, 600, "WAIT", 3600))
        wait_until(lambda: info.script_calls(admin) > before, "Redis has refused it")
        other.send(command("PING") + command(*words) + command("PING"))
        assert other.reply() == "PONG"
        assert not isinstance(other.reply(), ReplyError)
        for pipe in gate.lanes():
            pipe.release()
        assert waiting.reply() == [0, 1, 0, -1, 600]


@pytest.mark.parametrize(
    "words", [("RL.RESET", "k"), ("RL.REFUND", "k", 1, "0.6", 9, "ALGO", "LEAKY")]
)
def test_reset_or_refund_shortens_no_reply_that_leaky_holds(
    front: Proxy, words: tuple[str | int, ...]
) -> None:
    with connected(front, 2) as (other, waiting):
        assert other.ask("RL.HIT", "k", 1, "0.6", "ALGO", "LEAKY") == [0, 1, 0, -1, 1]
        began = time.monotonic()
        waiting.send(command("RL.HIT", "k", 1, "0.6", "ALGO", "LEAKY", "WAIT", 9))
        wait_until(lambda: waiting_hits(other) == 1, "it waits")
        assert not isinstance(other.ask(*words), ReplyError)
        assert numbers(waiting.reply())[0] == 0
        assert time.monotonic() - began >= 0.3


def waiting_hits(raw: Raw) -> int:
    return int(info.stats(raw)["waiting"])


@pytest.mark.parametrize("algorithm", ["LOG", "LEAKY"])
def test_hits_wait_until_a_block_is_lifted(
    server: RedisServer, front: Proxy, algorithm: str
) -> None:
    rule, algo = (2, 600, "ALGO", algorithm), ("ALGO", algorithm)
    with front.raw() as other, front.raw() as waiting, front.raw() as impatient:
        assert other.ask("RL.BLOCK", "k", 1800, *algo) == [1, 0, 0, 1800, 1800]
        found = numbers(impatient.ask("RL.HIT", "k", *rule, "WAIT", 60))
        assert found == [1, 2, 0, 1800, 1800]
        waiting.send(command("RL.HIT", "k", *rule, "WAIT", 3600))
        wait_until(lambda: waiting_hits(other) == 1, "it waits")
        # It tries again, in vain.
        assert other.ask("RL.BLOCK", "k", 1700, *algo) == [1, 0, 0, 1700, 1700]
        assert numbers(other.ask("RL.HIT", "k", *rule))[0] == 1
        assert waiting_hits(other) == 1
        assert other.ask("RL.BLOCK", "k", 0, *algo) == [0, 0, 0, -1, 0]
        assert waiting.reply() == [0, 2, 1, -1, 600 if algorithm == "LOG" else 300]


def test_shaped_hits_leave_evenly_after_a_block(server: RedisServer, front: Proxy) -> None:
    """In order of arrival, although each was refused by the block."""
    with connected(front, 6) as clients:
        hit = command("RL.HIT", "k", 20, 1, "ALGO", "LEAKY", "WAIT", 9)
        began = time.monotonic()
        assert front_ask(front, "RL.BLOCK", "k", "0.5", "ALGO", "LEAKY") == [1, 0, 0, 1, 1]
        queue_up(server, clients, [hit] * 6)
        assert numbers(front_ask(front, "RL.HIT", "k", 20, 1, "ALGO", "LEAKY"))[0] == 1
        expect_even_replies(clients, began + 0.5)


def test_unread_client_without_rights_blocks_no_other_client(
    server: RedisServer, front: Proxy
) -> None:
    """A call without rights on the key is answered although its client reads nothing."""
    with server.raw() as admin:
        admin.ask("SET", "other:x", "x" * 100_000)
        rights = ["~other:*", "+get", "+eval", "+evalsha"]
        assert admin.ask("ACL", "SETUSER", "stranger", "reset", "on", ">pw", *rights) == "OK"
        strangers = [front.raw() for _ in range(2)]
        for stranger in strangers:
            assert stranger.ask("AUTH", "stranger", "pw") == "OK"
            stranger.send(command("GET", "other:x") * 100)
            stranger.send(command("RL.HIT", "k", 1000, 600, "WAIT", 1))
        with front.raw() as good:
            for turn in range(20):
                found = good.ask("RL.HIT", "k", 1000, 600, "WAIT", 3)
                assert found == [0, 1000, 999 - turn, -1, 600]
        for stranger in strangers:
            stranger.close()
        admin.ask("ACL", "DELUSER", "stranger")


def test_held_hits_behind_long_pipelines_block_no_other_pipeline(
    server: RedisServer, front: Proxy
) -> None:
    hit = command("RL.HIT", "pipelined", 1_000_000, 3600)
    stop = threading.Event()

    def keep_hitting(small: Raw) -> None:
        while not stop.is_set():
            small.ask("RL.HIT", "small", 1_000_000, 3600)

    with contextlib.ExitStack() as stack:
        held, other, small = (
            [stack.enter_context(front.raw()) for _ in range(2)],
            stack.enter_context(front.raw()),
            stack.enter_context(front.raw()),
        )
        for raw in (*held, other, small):
            by_lane(server, raw)
        assert small.ask("RL.HIT", "full", 1, 600) == [0, 1, 0, -1, 600]
        thread = threading.Thread(target=keep_hitting, args=(small,))
        thread.start()
        try:
            for raw in held:
                raw.send(hit * 66 + command("RL.HIT", "full", 1, 600, "WAIT", 900) + hit)
                for _ in range(66):
                    raw.reply()
            other.send(hit * 3000)
            for number in range(3000):
                assert other.line() == b"*5\r\n", f"{number} replies"
                for _ in range(5):
                    other.line()
        finally:
            stop.set()
            thread.join()
