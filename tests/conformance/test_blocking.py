"""Blocking commands, clients that disconnect, and CLIENT commands on other connections."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import pytest

from tests.conformance.compare import HIT, Bench
from tests.harness import Raw, ReplyError, command, wait_until
from tests.info import blocked_clients

PING = command("PING")
BLPOP = command("BLPOP", "l", 0)
WRONG_AUTH = command("AUTH", "nobody", "no")
MORE_HITS = 101  # than a client may have unanswered (--max-client-hits)


def client_id(raw: Raw) -> int:
    answer = raw.ask("CLIENT", "ID")
    assert isinstance(answer, int)
    return answer


def both(bench: Bench, talk: Callable[[Raw, bytes], object]) -> None:
    """Run `talk` with a connection and its hit: directly and through the proxy, cold and warm."""
    answers = []
    for made, hit, warm in (
        (bench.server, HIT.direct, 0),
        (bench.proxy, HIT.proxied, 0),
        (bench.proxy, HIT.proxied, 2),
    ):
        bench.reset()
        with made.raw() as raw:
            bench.warm(raw, [hit] * warm)
            bench.look.ask("DEL", "k")
            answers.append(talk(raw, hit))
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


def test_commands_behind_a_blocking_command_wait(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(command("BLPOP", "no", "0.2") + PING + hit + PING)
        started = time.monotonic()
        got = [raw.reply()]
        assert time.monotonic() - started > 0.15
        return got + [raw.reply() for _ in range(3)]

    both(bench, talk)


def test_wrong_auth_behind_a_blocking_command_gets_its_reply(bench: Bench) -> None:
    bench.reset()
    with bench.proxy.raw() as raw:
        raw.send(BLPOP + WRONG_AUTH + HIT.proxied + PING)
        wait_until(lambda: blocked_clients(bench.look), "blocked")
        bench.look.ask("RPUSH", "l", "x")
        assert raw.reply() == [b"l", b"x"]
        assert str(raw.reply()).startswith("WRONGPASS ")
        assert [raw.reply(), raw.reply()] == [[0, 10, 9, -1, 60], "PONG"]


def test_hit_behind_a_blocking_command_is_counted_after_it(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit + BLPOP)
        got = [raw.reply()]
        wait_until(lambda: blocked_clients(bench.look), "blocked")
        raw.send(hit)
        got += [bench.look.ask("LLEN", "k"), bench.look.ask("RPUSH", "l", "x")]
        return got + [raw.reply(), raw.reply(), bench.look.ask("LLEN", "k")]

    both(bench, talk)


def leave_by_close(raw: Raw) -> None:
    raw.close()


def leave_by_half_close(raw: Raw) -> None:
    raw.finish()


def leave_by_reset(raw: Raw) -> None:
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@pytest.mark.parametrize(
    "behind",
    [b"", PING, PING * 5000, WRONG_AUTH, WRONG_AUTH + PING * 5000, MORE_HITS],
    ids=["bare", "ping", "70-KB", "auth", "auth and 70-KB", "hits"],
)
@pytest.mark.parametrize("leave", [leave_by_close, leave_by_half_close, leave_by_reset])
def test_disconnected_client_consumes_no_element(
    bench: Bench, leave: Callable[[Raw], None], behind: bytes | int
) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit + BLPOP + (behind if isinstance(behind, bytes) else hit * behind))
        raw.reply()
        wait_until(lambda: blocked_clients(bench.look), "blocked")
        leave(raw)
        wait_until(
            lambda: not blocked_clients(bench.look), "Redis has noticed that the client left"
        )
        return bench.look.ask("RPUSH", "l", "x"), bench.look.ask("LLEN", "l")

    both(bench, talk)


def test_client_unblock(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        number = client_id(raw)
        got: list[object] = []
        for how in ("TIMEOUT", "ERROR"):
            raw.send(BLPOP + hit)
            wait_until(lambda: blocked_clients(bench.look), "blocked")
            got.append(bench.look.ask("CLIENT", "UNBLOCK", number, how))
            got += [raw.reply(), raw.reply()]
        return got

    both(bench, talk)


@pytest.mark.parametrize("state", [b"", BLPOP, command("SUBSCRIBE", "a"), command("MULTI")])
def test_client_kill_by_id(bench: Bench, state: bytes) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit)
        raw.reply()
        number = client_id(raw)
        raw.send(state)
        if state == BLPOP:
            wait_until(lambda: blocked_clients(bench.look), "blocked")
        elif state:
            raw.reply()
        return bench.look.ask("CLIENT", "KILL", "ID", number), raw.closes(), raw.quiet(0.001)

    both(bench, talk)


def test_client_kill_of_the_own_connection(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit)
        got = [raw.reply()]
        number = client_id(raw)
        raw.send(command("CLIENT", "KILL", "ID", number, "SKIPME", "no") + PING)
        return got + [raw.line(), raw.closes(), raw.quiet(0.001)]

    both(bench, talk)


def test_client_pause(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit)
        got = [raw.reply(), bench.look.ask("CLIENT", "PAUSE", 150)]
        started = time.monotonic()
        raw.send(hit + command("GET", "x"))
        got += [raw.reply(), raw.reply()]
        assert time.monotonic() - started > 0.1
        return got

    both(bench, talk)


@pytest.mark.parametrize(
    "sent",
    [
        PING,
        PING * 100,
        b"PING\r\n",
        command("ECHO", "x" * 100_000),
        b"PI",
        b"*1\r\n$4\r\nPIN",
        PING + b"*1\r\n$4\r\nPI",
        b"",
        b"\r\n",
        command("MULTI") + PING,
        command("SUBSCRIBE", "a"),
        command("FOO"),
        command("QUIT"),
        BLPOP,
        b"*x\r\n",
    ],
)
@pytest.mark.parametrize("hits", [0, 1, 3])
def test_half_closed_client_gets_its_replies(bench: Bench, sent: bytes, hits: int) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit * hits + sent)
        raw.finish()
        return raw.quiet(5), raw.closed, bench.keys()

    both(bench, talk)


def test_half_close_within_a_hit(bench: Bench) -> None:
    def talk(raw: Raw, hit: bytes) -> object:
        raw.send(hit + hit[:-1])
        raw.finish()
        return raw.quiet(5), raw.closed, bench.keys()

    both(bench, talk)


def test_client_that_writes_after_a_protocol_error_is_closed(bench: Bench) -> None:
    for start in (b"*x\r\n", b"\0", b"*\0", b"$\0", b"*1\r\n$\0", command("QUIT")):

        def talk(raw: Raw, hit: bytes, start: bytes = start) -> object:
            raw.send(hit + start)
            raw.sock.settimeout(5)
            data = b""
            end = time.monotonic() + 10
            while not raw.closed and time.monotonic() < end:
                raw.send(b"A" * 1024 + b"\n")
                data += raw.quiet(0.0005)
            assert raw.closed
            # The number of times Redis sends "unknown command 'AAA'" before it closes depends on
            # timing.
            return data.split(b"-ERR unknown")[0]

        both(bench, talk)


def test_errors_of_unblock_come_from_redis(bench: Bench) -> None:
    with bench.proxy.raw() as raw:
        assert isinstance(raw.ask("CLIENT", "UNBLOCK", "x"), ReplyError)


@pytest.mark.parametrize("last", [b"*x\r\n", b"PING x\r\nquit\r\n"], ids=["broken", "quit"])
def test_last_reply_before_a_reset_is_not_lost(bench: Bench, last: bytes) -> None:
    """Redis closes with unread bytes, so the connection is reset while its answer is in transit,
    often before the proxy has read it.
    """
    for made, rounds in ((bench.server, 20), (bench.proxy, 150)):
        for _ in range(rounds):
            with made.raw() as raw:
                raw.send(b"PING\r\n")
                assert raw.line() == b"+PONG\r\n"
                for piece in (last, *[b"P"] * 30):
                    raw.send(piece)
                said = raw.line() if last[:1] == b"*" else raw.exactly(12)
                assert said.startswith((b"-ERR Protocol error", b"$1\r\nx\r\n+OK\r\n"))
                assert raw.closes()
