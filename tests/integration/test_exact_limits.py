"""Limits are exact under concurrency: no window of a key ever holds more hits than its max, and no
hit that would have fitted is refused. The server's own record of a real load proves it.

The method. 48 connections hit twenty keys (singly, pipelined, inside MULTI), while a connection to
the server reads MONITOR. MONITOR shows every script
call in the order in which the server ran it, with a time in microseconds, followed by the calls of
the script. A hit was admitted if and only if there is an `[0 lua] "RPUSH" key stamp`, and then the
stamp is the clock that judged it. Hence:

1. Brute force, without a model: for each key and each admitted stamp, at most max hits are admitted
   from then until a window later.
2. A model of the sliding log in ten lines, fed in the server's order, computes for each hit whether
   there was room. A refused hit's clock is not shown, but it has two bounds: it is not before the
   last MONITOR line of an earlier command, and not after the line of the script's own TIME. For a
   hit inside EXEC the lower bound is the last line of another connection. If there was room at the
   earlier bound, the refusal was wrong. If there was room at the later one only, no verdict is
   possible, so the test requires that this is rare. The clocks of scripts and of MONITOR differ a
   little; the admitted hits' stamps show by how much, and widen the bounds.
3. The replies, counted by key, verdict and `remaining`, are exactly those the model computes: none
   is lost, repeated or delivered to another client.
"""

from __future__ import annotations

import asyncio
import bisect
import random
import re
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import hiredis

from tests import harness
from tests.harness import RedisServer, command

SECONDS = 2
MANY = 3000  # refusals suffice
CONNECTIONS = 48
KINDS = [(f"exact:{number}", 2 + 3 * number, 40 + 25 * number) for number in range(20)]
Seen = Counter[tuple[str, int, int, int]]  # key, limited, limit and remaining of replies
LINE = re.compile(rb"\+(\d+)\.(\d{6}) \[\d+ ([^\]]+)\] (.*)")
CALL = re.compile(rb'"1" "(exact:\d+)" "(\d+)" "(\d+)" "1000"$')
END = b"the-load-is-over"


class Monitor:
    """MONITOR of a server, collected until END is seen."""

    def __init__(self, server: RedisServer) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.port), 30)
        self._sock.sendall(b"MONITOR\r\n")
        assert self._sock.recv(5) == b"+OK\r\n"
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        tail = b""
        while data := self._sock.recv(1 << 20):
            self._parts.append(data)
            tail = tail[-100:] + data
            if END in tail:
                return

    def lines(self, server: RedisServer) -> list[bytes]:
        """All lines so far."""
        with server.raw() as raw:
            raw.ask("ECHO", END)
        self._thread.join(60)
        assert not self._thread.is_alive(), "MONITOR fell silent"
        self._sock.close()
        return b"".join(self._parts).split(b"\r\n")


@dataclass
class Hit:
    """One script call as the server ran it. Times in microseconds."""

    key: str
    max_hits: int
    window: int
    earliest: int
    latest: int
    stamp: int | None = None  # of an admitted hit


def hits_of(lines: list[bytes]) -> list[Hit]:
    """All hits in the server's order."""
    hits: list[Hit] = []
    before = 0  # time of the last line
    turn: bytes = b""  # the address of the current run of commands
    turn_before = 0  # time of the last line before that run
    turn_hits: list[Hit] = []
    current: Hit | None = None
    judged = 0
    for line in lines:
        found = LINE.match(line)
        if found is None:
            continue
        now = int(found[1]) * 1_000_000 + int(found[2])
        address, text = found[3], found[4]
        if address == b"lua":
            assert current is not None, line
            if text.startswith(b'"RPUSH" '):
                _, key, stamp = text.replace(b'"', b"").split()
                assert key.decode() == current.key
                assert current.stamp is None, "a hit of cost 1 pushed twice"
                current.stamp = int(stamp)
            if text.upper() == b'"TIME"':
                current.latest = now
                judged += 1
        else:
            current = None
            if address != turn:
                turn, turn_before, turn_hits = address, before, []
            call = CALL.search(text) if text[:5].upper() == b'"EVAL' else None
            if call:
                current = Hit(call[1].decode(), int(call[2]), int(call[3]), before, now)
                hits.append(current)
                turn_hits.append(current)
            elif text.upper() == b'"EXEC"':
                for hit in turn_hits:
                    hit.earliest = min(hit.earliest, turn_before)
        before = now
    assert judged == len(hits), "each call ran once, and none was an EVALSHA of nothing"
    return hits


def skew_of(hits: list[Hit]) -> int:
    """The largest difference between the clock of scripts and that of MONITOR, in microseconds."""
    found = [
        max(hit.earliest - hit.stamp, hit.stamp - hit.latest, 0)
        for hit in hits
        if hit.stamp is not None
    ]
    assert sum(each > 0 for each in found) < 0.02 * len(found), "the stamps are not the clock's"
    assert max(found) < 20_000, "the stamps are not the clock's"
    return max(found)


class Client:
    """One connection: hits on random keys, singly, among PINGs, or inside MULTI."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._parser = hiredis.Reader()

    async def run(self, port: int, end: float) -> None:
        """Send until `end`, and count the replies."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            kinds = random.choices(KINDS, k=random.choice((1, 4, 12)))
            hits = [command("RL.HIT", key, most, window, "MS") for key, most, window in kinds]
            way = random.randrange(3)
            if way == 0:
                replies = await self._ask(hits)
            elif way == 1:
                replies = await self._ask([each for hit in hits for each in (hit, command("PING"))])
                assert replies[1::2] == [b"PONG"] * len(hits)
                replies = replies[::2]
            else:
                replies = await self._ask([command("MULTI"), *hits, command("EXEC")])
                assert replies[:-1] == [b"OK"] + [b"QUEUED"] * len(hits)
                replies = replies[-1]
            for (key, _, _), reply in zip(kinds, replies, strict=True):
                limited, limit, remaining, retry_after, _ = reply
                assert retry_after > 0 if limited else retry_after == -1, reply
                self._seen[key, limited, limit, remaining] += 1
        self._writer.close()

    async def _ask(self, requests: list[bytes]) -> list[Any]:
        self._writer.write(b"".join(requests))
        replies: list[Any] = []
        while len(replies) < len(requests):
            data = await asyncio.wait_for(self._reader.read(65536), harness.DEADLINE_S)
            assert data, "the connection was closed"
            self._parser.feed(data)
            while (reply := self._parser.gets()) is not False:
                replies.append(reply)
        return replies


def load(server: RedisServer, seconds: int) -> tuple[Seen, list[bytes]]:
    """Run all clients for a number of seconds on an empty server; return the replies and MONITOR's
    lines.
    """
    server.ask("FLUSHALL")
    seen: Seen = Counter()

    async def clients(port: int) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(Client(seen).run(port, end) for _ in range(CONNECTIONS)))

    with harness.proxy(server, "--denial-cache", "0") as proxy:  # Redis sees every hit
        monitor = Monitor(server)
        asyncio.run(clients(proxy.port))
        return seen, monitor.lines(server)


def test_no_window_holds_more_than_max_and_nothing_admissible_is_refused(
    own_server: RedisServer,
) -> None:
    for seconds in (SECONDS, 5 * SECONDS, 20 * SECONDS):
        seen, lines = load(own_server, seconds)
        lacking = lack_of(seen, lines)
        if not lacking:
            break  # otherwise the machine is slow
    assert lacking == "", "the load proves too little"
    by_key: dict[str, list[Hit]] = {key: [] for key, _, _ in KINDS}
    all_hits = hits_of(lines)
    skew = skew_of(all_hits)
    for hit in all_hits:
        by_key[hit.key].append(hit)
    expected: Seen = Counter()
    refused = undecided = 0
    for key, max_hits, window_ms in KINDS:
        hits = by_key[key]
        window = 1000 * window_ms
        assert all((hit.max_hits, hit.window) == (max_hits, window) for hit in hits)
        stamps = [hit.stamp for hit in hits if hit.stamp is not None]
        assert stamps == sorted(stamps)
        for index, stamp in enumerate(stamps):
            inside = bisect.bisect_left(stamps, stamp + window) - index
            assert inside <= max_hits, f"{key}: {inside} hits in a window of {max_hits}"
        log: list[int] = []
        for hit in hits:
            if hit.stamp is not None:
                held = len(log) - bisect.bisect_right(log, hit.stamp - window)
                assert held < max_hits, f"{key}: admitted without room"
                log.append(hit.stamp)
                expected[key, 0, max_hits, max_hits - held - 1] += 1
                continue
            refused += 1
            expected[key, 1, max_hits, 0] += 1
            room_at = log[-max_hits] + window if len(log) >= max_hits else 0
            assert room_at > hit.earliest - skew, (
                f"{key}: refused, though there was room since {hit.earliest - room_at} us"
            )
            undecided += room_at <= hit.latest
    assert undecided < 0.05 * refused, f"{undecided} of {refused} refusals prove nothing"
    assert seen == expected


def lack_of(seen: Seen, lines: list[bytes]) -> str:
    """What the test requires that this load was too short for: the lane, MULTI, and many hits of
    each key, admitted and refused.
    """
    by_lane = sum(b'"EVALSHA"' in line[:90] for line in lines)
    in_place = sum(b'"EVAL"' in line[:90] for line in lines)
    transactions = sum(line.upper().endswith(b'"EXEC"') for line in lines)
    if min(by_lane, in_place, transactions) <= 200:
        return f"{by_lane} by lane, {in_place} in place, {transactions} transactions"
    replies: Counter[tuple[str, int]] = Counter()  # by key and verdict
    for (key, limited, _, _), count in seen.items():
        replies[key, limited] += count
    for key, max_hits, _ in KINDS:
        if replies[key, 0] <= 2 * max_hits:
            return f"{key}: {replies[key, 0]} admitted"
    refused = sum(count for (_, limited), count in replies.items() if limited)
    return "" if refused > MANY else f"{refused} refused"
