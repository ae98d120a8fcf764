"""An upstream that answers hits with replies that no script returns: the client gets the reply
unchanged, and all other clients are served.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from rlproxy.ratelimit.wait_queue import WAKE_S
from rlproxy.resp.replies import ReplyFramer
from rlproxy.upstream.control import MAX_LOST

from tests import harness
from tests.harness import Proxy, Raw, RedisServer, command, wait_until
from tests.info import stats
from tests.integration.started import by_lane

WINDOW_MS = 1000  # of hits that wait: long enough to see them wait, on a machine that stalls
STRANGE = {
    "status": b"+OK\r\n",
    "integer": b":1\r\n",
    "null": b"_\r\n",
    "null bulk": b"$-1\r\n",
    "null array": b"*-1\r\n",
    "bulk": b"$14\r\n*5\r\n:1\r\n:1\r\n:1\r\n",
    "verbatim": b"=9\r\ntxt:*5\r\n:\r\n",
    "double": b",1.5\r\n",
    "bulk error": b"!9\r\nERR wrong\r\n",
    "error": b"-ERR who is this\r\n",
    "no integers": b"*0\r\n",
    "three": b"*3\r\n:1\r\n:2\r\n:3\r\n",
    "seven": b"*7\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n",
    "many": b"*50\r\n" + b":1\r\n" * 50,
    "bulks": b"*5\r\n" + b"$1\r\n1\r\n" * 5,
    "a bulk among them": b"*5\r\n:0\r\n:5\r\n$1\r\n1\r\n:-1\r\n:1\r\n",
    "nulls": b"*5\r\n" + b"_\r\n" * 5,
    "nested": b"*5\r\n:0\r\n*1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    "nested first": b"*5\r\n*5\r\n" + b":1\r\n" * 9,
    "neither admitted nor refused": b"*5\r\n:2\r\n:5\r\n:4\r\n:-1\r\n:60\r\n",
    "huge": b"*5\r\n:1\r\n:1%b\r\n:0\r\n:1%b\r\n:1\r\n" % (b"0" * 400, b"0" * 5000),
    "no digits": b"*5\r\n:0\r\n:\r\n:\r\n:\r\n:\r\n",
    "doubles": b"*5\r\n" + b",0.5\r\n" * 5,
    "map": b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:1\r\n",
    "set": b"~5\r\n" + b":1\r\n" * 5,
    "attribute": b"|1\r\n+ttl\r\n:1\r\n*5\r\n:1\r\n:1\r\n:0\r\n:1\r\n:1\r\n",
}

# One of each kind, for tests that take a second each.
FEW = {name: STRANGE[name] for name in ("status", "null", "three", "nested", "huge")}


class StrangeReplies:
    """A relay to a server, command by command, that itself answers scripts called for certain
    keys.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.by_key: dict[bytes, bytes] = {}  # by key
        self.by_command: dict[bytes, bytes] = {}  # by command, of any kind
        self.answered = 0
        self.pauses_s: list[float] = []  # before each answer: from the previous answer to the call
        self._answered_at = 0.0
        self.empty = 0  # requests without a command
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.create_connection(("127.0.0.1", self._server.port))
            self._sockets += [near, far]
            thread = threading.Thread(target=self._relay, args=(near, far))
            self._threads.append(thread)
            thread.start()

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        framer = ReplyFramer()
        requests = near.makefile("rb")
        with contextlib.suppress(OSError, ValueError, IndexError), near, far, requests:
            while line := requests.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(requests.read(int(requests.readline()[1:]) + 2)[:-2])
                if not words:
                    self.empty += 1
                    return  # closes
                scripted = words[0].upper().startswith(b"EVAL") and len(words) > 3
                known = (
                    self.by_key.get(words[3]) if scripted else self.by_command.get(words[0].upper())
                )
                if known is not None:
                    self.pauses_s.append(time.monotonic() - self._answered_at)
                    self.answered += 1
                    self._answered_at = time.monotonic()  # before the proxy can have the answer
                    near.sendall(known)
                    continue
                far.sendall(command(*words))
                while True:
                    data = far.recv(65536)
                    if not data:
                        return
                    framer.feed(data)
                    ended = framer.skip(1)
                    near.sendall(data)
                    if ended:
                        break

    def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()


def test_server_that_rejects_empty_requests_gets_few(own_server: RedisServer) -> None:
    strange = StrangeReplies(own_server)
    try:
        with harness.proxy(f"redis://127.0.0.1:{strange.port}") as proxy, proxy.raw() as raw:
            wait_until(lambda: stats(raw)["scripts_loaded"] == "1", "all is prepared")
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                still_works(raw)
                time.sleep(0.05)
            assert strange.empty == MAX_LOST
    finally:
        strange.close()


@pytest.fixture(scope="module")
def parts(one_engine: str) -> Iterator[tuple[RedisServer, StrangeReplies, Proxy]]:
    """A server, the relay, and a proxy in front of it."""
    with harness.server(one_engine) as server:
        strange = StrangeReplies(server)
        try:
            url = f"redis://127.0.0.1:{strange.port}"
            with harness.proxy(url, "--hit-timeout", "3000") as proxy:
                yield server, strange, proxy
        finally:
            strange.close()


@pytest.fixture
def server(parts: tuple[RedisServer, StrangeReplies, Proxy]) -> RedisServer:
    return parts[0]


@pytest.fixture
def strange(parts: tuple[RedisServer, StrangeReplies, Proxy]) -> Iterator[StrangeReplies]:
    parts[1].by_key.clear()
    yield parts[1]
    parts[1].by_key.clear()


@pytest.fixture
def proxy(parts: tuple[RedisServer, StrangeReplies, Proxy]) -> Proxy:
    return parts[2]


def still_works(raw: Raw) -> None:
    """Fail unless the connection still works."""
    reply = raw.ask("RL.HIT", "warm", 1_000_000, 3600)
    assert isinstance(reply, list) and reply[:2] == [0, 1_000_000], reply
    assert raw.ask("PING") == "PONG"


def outcome(reply: object) -> list[int]:
    """Whether a hit was refused, and its limit."""
    assert isinstance(reply, list), reply
    return reply[:2]


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
def test_strange_reply_on_a_lane(
    server: RedisServer, strange: StrangeReplies, proxy: Proxy, reply: bytes
) -> None:
    with proxy.raw() as raw, proxy.raw() as other:
        by_lane(server, raw)
        by_lane(server, other)
        strange.by_key[b"bad"] = reply
        answered = strange.answered
        for _ in range(2):
            raw.send(command("RL.HIT", "bad", 5, 60))
            other.send(command("RL.HIT", "well", 100, 3600, "ALGO", "GCRA"))  # in no group
            assert raw.exactly(len(reply)) == reply
            assert isinstance(other.reply(), list)
        assert strange.answered == answered + 2
        for each in (raw, other):
            still_works(each)


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
def test_strange_reply_on_a_private_connection(
    strange: StrangeReplies, proxy: Proxy, reply: bytes
) -> None:
    strange.by_key[b"bad"] = reply
    with proxy.raw() as raw:
        hit, ping = command("RL.HIT", "bad", 5, 60), command("PING")
        raw.send(ping + hit + ping + hit)
        expected = (b"+PONG\r\n" + reply) * 2
        assert raw.exactly(len(expected)) == expected
        still_works(raw)


@pytest.mark.parametrize("on_lane", [True, False], ids=["lane", "in place"])
@pytest.mark.parametrize("reply", FEW.values(), ids=FEW)
def test_strange_reply_to_a_hit_with_wait(
    server: RedisServer,
    strange: StrangeReplies,
    proxy: Proxy,
    reply: bytes,
    on_lane: bool,
) -> None:
    strange.by_key[b"bad"] = reply
    with proxy.raw() as raw:
        if on_lane:
            by_lane(server, raw)
        raw.send(command("RL.HIT", "bad", 5, 60, "ALGO", "LEAKY", "WAIT", 60))
        assert raw.exactly(len(reply)) == reply
        still_works(raw)


@pytest.mark.parametrize("reply", FEW.values(), ids=FEW)
def test_strange_reply_while_a_hit_waits(
    strange: StrangeReplies, proxy: Proxy, reply: bytes
) -> None:
    """A client that has waited a while, one behind it, and one that would overtake."""
    key = f"late {time.monotonic_ns()}"
    with proxy.raw() as raw, proxy.raw() as second, proxy.raw() as other:
        assert outcome(raw.ask("RL.HIT", key, 1, WINDOW_MS, "MS")) == [0, 1]
        for each in (raw, second):
            each.send(command("RL.HIT", key, 1, WINDOW_MS, "WAIT", 30_000, "MS"))
        wait_until(lambda: stats(other)["waiting"] == "2", "they wait")
        strange.by_key[key.encode()] = reply
        other.send(command("RL.HIT", key, 1, WINDOW_MS, "MS"))
        assert other.exactly(len(reply)) == reply
        for each in (raw, second):
            assert each.exactly(len(reply), 5.0) == reply
        for each in (raw, second, other):
            assert each.ask("PING") == "PONG"
        assert stats(other)["waiting"] == "0"


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
def test_strange_reply_does_not_confuse_the_denial_cache(
    server: RedisServer, strange: StrangeReplies, proxy: Proxy, reply: bytes
) -> None:
    key = f"denied {time.monotonic_ns()}"
    hit = command("RL.HIT", key, 1, 3600)
    with proxy.raw() as raw, proxy.raw() as other:
        by_lane(server, raw)
        by_lane(server, other)
        raw.send(hit + hit)
        assert outcome(raw.reply()) == [0, 1]
        assert outcome(raw.reply()) == [1, 1]
        strange.by_key[key.encode()] = reply
        answered = strange.answered
        for _ in range(3):  # the first opens the entry
            raw.send(hit)
            assert raw.exactly(len(reply)) == reply
        assert strange.answered == answered + 3
        still_works(other)
        del strange.by_key[key.encode()]
        for _ in range(3):
            assert outcome(raw.ask("RL.HIT", key, 1, 3600)) == [1, 1]


def test_endless_refusal_is_retried_with_a_pause(strange: StrangeReplies, proxy: Proxy) -> None:
    key = f"never {time.monotonic_ns()}"
    with proxy.raw() as raw, proxy.raw() as other:
        assert outcome(raw.ask("RL.HIT", key, 1, 300)) == [0, 1]
        raw.send(command("RL.HIT", key, 1, 300, "WAIT", 3600))
        wait_until(lambda: stats(other)["waiting"] == "1", "it waits")
        strange.by_key[key.encode()] = b"*5\r\n:1\r\n:1\r\n:0\r\n:-1\r\n:1\r\n"
        answered = strange.answered
        assert other.ask("RL.RESET", key) == 1  # the waiting hit is sent again at once
        wait_until(lambda: strange.answered >= answered + 5, "it is retried")
        # A stall of any program can only lengthen a pause.
        assert min(strange.pauses_s[answered + 1 :]) >= WAKE_S
        del strange.by_key[key.encode()]
        assert outcome(raw.reply()) == [0, 1]
        assert raw.ask("PING") == "PONG"


ODD = [b"*2\r\n:1\r\n_\r\n", b"%2\r\n$6\r\nserver\r\n:1\r\n$7\r\nversion\r\n*0\r\n"]
OURS = (b"HELLO", b"CONFIG", b"COMMAND", b"SCRIPT", b"CLIENT")


@pytest.mark.parametrize("reply", ODD)
def test_strange_replies_to_the_proxys_handshake(one_engine: str, reply: bytes) -> None:
    with harness.server(one_engine) as server:
        strange = StrangeReplies(server)
        strange.by_command = dict.fromkeys(OURS, reply)
        try:
            url = f"redis://127.0.0.1:{strange.port}"
            with harness.proxy(url) as proxy, proxy.raw() as raw:
                for number in range(5):
                    assert outcome(raw.ask("RL.HIT", "k", 3, 3600)) == [int(number >= 3), 3]
                    assert raw.ask("PING") == "PONG"
                assert stats(raw)["upstream_up"] == "1"
        finally:
            strange.close()
