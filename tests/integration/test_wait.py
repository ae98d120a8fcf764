"""WAIT with real servers and clients: order, rate, and the fate of waiting hits when connections,
scripts or rights are lost.
"""

from __future__ import annotations

import contextlib
import re
import select
import time
from collections.abc import Iterator

import pytest

from tests import harness, info
from tests.harness import Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.info import blocked_clients
from tests.integration.started import by_lane, lanes, private, started


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


@contextlib.contextmanager
def connected(proxy: Proxy, count: int) -> Iterator[list[Raw]]:
    """Clients whose private connections are open."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.raw()) for _ in range(count)]
        for client in clients:
            assert client.ask("PING") == "PONG"
        yield clients


def numbers(reply: object) -> list[int]:
    assert isinstance(reply, list), reply
    return reply


def is_error(reply: object, start: str) -> bool:
    return isinstance(reply, ReplyError) and str(reply).startswith(start)


# -- order and rate --------------------------------------------------------------------------------


def test_clients_are_served_in_order_on_every_engine(
    redis_server: RedisServer, proxy: Proxy
) -> None:
    count, most = 30, 10
    with connected(proxy, count) as clients, Monitor(redis_server) as monitor:
        hit = command("RL.HIT", "k", most, "0.3", "WAIT", 10)
        queue_up(redis_server, clients, [hit] * count)
        order = reading_order(clients)
        replies = [numbers(client.reply()) for client in clients]
        seen = monitor.lines()
    assert order == list(range(count))
    assert all(reply[:2] == [0, most] and reply[3] == -1 for reply in replies)
    times = stamps(seen, "k")
    assert len(times) == count
    assert times == sorted(times)
    assert all(late - early >= 300_000 for early, late in zip(times, times[most:], strict=False))
    # A check, an attempt as the head, and one more where that was too early.
    assert script_calls(seen) <= 3 * count + 5


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


def refusal_behind_the_head(client: Raw, *rule: int | str) -> list[int]:
    """The refusal of a hit. While the head tries again, its time is 1."""
    found: list[int] = []

    def settled() -> bool:
        found[:] = numbers(client.ask("RL.HIT", "k", 10, *rule))
        return found[3] != 1

    wait_until(settled, "the head is refused")
    return found


def test_hit_without_wait_does_not_overtake(server: RedisServer, front: Proxy) -> None:
    half_full(front)
    with connected(front, 2) as (waits, other), front.raw() as warm:
        queue_up(server, [waits], [BIG])
        by_lane(server, warm)
        for client in (other, warm):  # on its private connection, and by lane
            refused = refusal_behind_the_head(client, 60)
            assert refused[:3] == [1, 10, 0]
            assert 50 < refused[3] <= 60
            refused = refusal_behind_the_head(client, 60_000, "MS")
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


# -- on its connection -----------------------------------------------------------------------------


def test_earlier_commands_are_answered_and_later_ones_wait(
    server: RedisServer, front: Proxy
) -> None:
    with connected(front, 1) as (client,), Monitor(server) as monitor:
        hit = command("RL.HIT", "k", 1, 1, "WAIT", 9)
        append = command("APPEND", "a", "x")
        client.send(append + hit * 2 + append + command("RL.HIT", "k", 1, 1) + append)
        assert client.reply() == 1
        assert numbers(client.reply())[0] == 0
        assert numbers(client.reply())[0] == 0
        assert client.reply() == 2
        assert numbers(client.reply())[0] == 1
        assert client.reply() == 3
        seen = monitor.lines()
        first, second = stamps(seen, "k")
        appended = [at for at, _, words in seen if words[0] == b"APPEND"]
        assert appended[0] <= first <= second - 1_000_000
        assert second <= appended[1] <= appended[2]


def test_wait_is_ignored_in_a_transaction(server: RedisServer, front: Proxy) -> None:
    with connected(front, 1) as (client,):
        hit = command("RL.HIT", "k", 1, "0.3", "WAIT", 5)
        client.send(command("MULTI") + hit * 2 + command("EXEC") + hit + command("PING"))
        assert [client.reply() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
        assert client.reply() == [[0, 1, 0, -1, 1], [1, 1, 0, 1, 1]]
        assert client.reply() == [0, 1, 0, -1, 1]  # behind it, the hit waits
        assert client.reply() == "PONG"


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


def test_stop_refuses_waiting_hits(server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    with started("--listen", "127.0.0.1:0", "--upstream", url) as made, contextlib.ExitStack() as s:
        first, held, *clients = (s.enter_context(made.raw()) for _ in range(21))
        for client in (first, held, *clients):
            assert client.ask("PING") == "PONG"
        assert numbers(first.ask("RL.HIT", "k", 1, 60))[0] == 0
        shaped = command("RL.HIT", "l", 2, 3, "ALGO", "LEAKY", "WAIT", 9)
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
        assert numbers(held.reply())[0] == 0  # it was admitted, and keeps its time
        assert time.monotonic() - began >= 1.5
        assert made.wait() == 0
    with server.raw() as admin:
        assert admin.ask("LLEN", "k") == 1


# -- cost ------------------------------------------------------------------------------------------


def test_waiting_hits_make_one_script_call_each(server: RedisServer, front: Proxy) -> None:
    with connected(front, 61) as clients, server.raw() as admin:
        assert numbers(clients[0].ask("RL.HIT", "k", 1, 60))[0] == 0
        start = info.script_calls(admin)
        for client in clients[1:]:
            client.send(command("RL.HIT", "k", 1, 60, "WAIT", 600))
        wait_until(lambda: info.script_calls(admin) >= start + 60, "all hits have called a script")
        joined = info.script_calls(admin)
        # One call each; a hit that was the first when it came may have called again.
        assert joined <= start + 62
        time.sleep(1)  # nothing is to happen, so there is no condition to wait for
        assert info.script_calls(admin) == joined
        for client in clients[1:]:
            client.close()
        wait_until(lambda: len(private(server, admin)) == 1, "they have left")
        # Each that became the first called once more, at most.
        assert info.script_calls(admin) <= joined + 60


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


@pytest.mark.parametrize(
    "words",
    [("RL.RESET", "other", "k"), ("RL.REFUND", "k", 1, 600, 99)],
    ids=["reset", "refund"],
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


def waiting_hits(raw: Raw) -> int:
    text = raw.ask("RL.STATS")
    assert isinstance(text, bytes)
    return int(text.partition(b"\nwaiting:")[2].split()[0])


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
