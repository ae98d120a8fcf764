"""The denial cache against real servers: an answer from the cache is the answer Redis would give.

A cached refusal is valid until something may have changed it. The tests try to make one wrong:

- Own writes: after a client changes a key, its own next hit is judged on the changed key. The lane
  passes through a gate here, which holds back what Redis sends on it: the reply to the write is
  readable long before the invalidation push, and only the session itself can act on it.
- Foreign writes: they are seen once the lane has received anything sent after them.
- Changes that Redis does not announce (SWAPDB, rights, clocks, cut connections, a demoted server)
  take effect within a second.
- A random walk over few keys, by three clients of two proxies and one without a proxy, one command
  at a time; each hit is enclosed by two peeks at the server.
- Many concurrent clients, checked against the server's own record.

TESTS_DENIALS_SECONDS makes the walk longer, TESTS_DENIALS_SEED repeats one.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import random
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from rlproxy.ratelimit import scripts
from rlproxy.ratelimit.algorithms import ALGORITHMS
from rlproxy.ratelimit.grammar import Grammar, Rule

from tests import harness
from tests.gate import Gate, gated
from tests.harness import (
    DEADLINE_S,
    ON_ONE_ENGINE,
    Proxy,
    Raw,
    RedisServer,
    ReplyError,
    command,
    is_error,
    wait_until,
)
from tests.info import lane_calls, script_calls
from tests.integration.started import by_lane_of, client_list, lanes
from tests.integration.test_exact_limits import Monitor

Word = bytes | str | int
Words = tuple[Word, ...]

MAX_S: Final = 1.0  # the maximum age of an entry
SLOW_S: Final = 1.5  # the delay allowed on a busy machine
OLD: Final = 1_000_000_000_000_000  # a stamp of 2001
KEY: Final = "k"
RULE: Final = (1, 3600)  # its next hit is admitted only after a change of the key
ADMITTED: Final = [0, 1, 0, -1, 3600]
DENIALS: Final = str(1 << 16)


@dataclass
class Parts:
    """A server, the gate in front of it, a proxy in front of the gate, and a direct connection."""

    server: RedisServer
    gate: Gate
    proxy: Proxy
    admin: Raw

    def script_calls(self) -> int:
        """How many script calls the server has run."""
        return script_calls(self.admin)

    def hold_lanes(self) -> None:
        """Hold back what the server sends to lanes."""
        for pipe in self.gate.lanes():
            pipe.hold()

    def release_lanes(self) -> None:
        """Pass on what was held back, and all that follows."""
        for pipe in self.gate.lanes():
            pipe.release()

    def lane_caught_up(self, raw: Raw) -> None:
        """Return when `raw`'s lane has received everything Redis has sent to it before now."""
        reply = raw.ask("RL.HIT", "sync", 1_000_000, 3600)
        assert isinstance(reply, list) and reply[0] == 0, reply


@contextlib.contextmanager
def parts_of(server: RedisServer, *args: str) -> Iterator[Parts]:
    """A gate and a proxy in front of `server`."""
    with gated(server, *args) as (gate, proxy), server.raw() as admin:
        yield Parts(server, gate, proxy, admin)


@pytest.fixture(scope="module")
def module_parts(module_server: RedisServer) -> Iterator[Parts]:
    with parts_of(module_server) as made:
        yield made


@pytest.fixture
def parts(module_parts: Parts) -> Iterator[Parts]:
    """The module's parts, with the server empty."""
    module_parts.admin.ask("FLUSHALL")
    yield module_parts
    module_parts.release_lanes()


def cache_refusal(parts: Parts, raw: Raw, *hit: Word) -> list[int]:
    """Send `hit` until its refusal comes from the cache; return that refusal."""
    found: list[list[int]] = []

    def cached() -> bool:
        before = parts.script_calls()
        reply = raw.ask(*hit)
        assert isinstance(reply, list), reply
        if reply[0] == 0 or parts.script_calls() > before:
            return False
        found.append(reply)
        return True

    wait_until(cached, f"{hit} is cached")
    return found[0]


# -- own writes -----------------------------------------------------------------------------------

# Commands that make room on KEY; `spare` holds a limiter with room, and so does the dump DUMP.
DUMP: Final = "<a dump>"
ROOM: Final[dict[str, list[Words]]] = {
    "DEL": [("DEL", KEY)],
    "UNLINK": [("UNLINK", "nothing", KEY)],
    "RL.RESET": [("RL.RESET", KEY)],
    "PEXPIRE": [("PEXPIRE", KEY, 0)],
    "EXPIREAT": [("EXPIREAT", KEY, 1)],
    "RENAME": [("RENAME", KEY, "elsewhere")],
    "RENAME over it": [("RENAME", "spare", KEY)],
    "COPY": [("COPY", "spare", KEY, "REPLACE")],
    "RESTORE": [("RESTORE", KEY, 0, DUMP, "REPLACE")],
    "LPOP": [("LPOP", KEY)],
    "LSET": [("LSET", KEY, 0, OLD)],
    "BLPOP": [("BLPOP", KEY, 1)],
    "RPOPLPUSH": [("RPOPLPUSH", KEY, "elsewhere")],
    "SORT": [("SORT", "nothing", "STORE", KEY)],
    "MOVE": [("MOVE", KEY, 5)],
    "FLUSHDB": [("FLUSHDB",)],
    "FLUSHALL": [("FLUSHALL", "ASYNC")],
    "SET and DEL": [("SET", KEY, "x"), ("DEL", KEY)],
    "EVAL": [("EVAL", "return redis.call('del', KEYS[1])", 1, KEY)],
    "EVAL of no keys": [("EVAL", f"return redis.call('lset', '{KEY}', 0, '{OLD}')", 0)],
    "MULTI": [("MULTI",), ("DEL", KEY), ("EXEC",)],
    "MULTI, RL.REFUND": [("MULTI",), ("RL.REFUND", KEY, *RULE, 1), ("EXEC",)],
    "from another database": [
        *(("SELECT", 5), ("RPUSH", "spare", OLD), ("COPY", "spare", KEY, "DB", 0, "REPLACE")),
        ("SELECT", 0),
    ],
    "lower case": [("del", KEY)],
    "unknown to the proxy": [("DEBUG", "JMAP"), ("DEL", KEY)],
}


# Of them, one of each kind that a session tells apart: what it may write sets its fence, whichever
# command it is (tests/unit/session/test_session_lane.py).
OWN: Final = (
    *("DEL", "RL.RESET", "EVAL of no keys", "MULTI", "MULTI, RL.REFUND", "from another database"),
    *("lower case", "unknown to the proxy"),
)


def prepare(parts: Parts, raw: Raw) -> dict[str, bytes]:
    """Cache a refusal of KEY, and prepare what ROOM needs."""
    admin = parts.admin
    admin.ask("DEL", KEY, "spare", "elsewhere")
    admin.ask("RPUSH", "spare", OLD)
    dump = admin.ask("DUMP", "spare")
    assert isinstance(dump, bytes)
    cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
    return {DUMP: dump}


def room_on(name: str, values: dict[str, bytes]) -> list[Words]:
    """The commands of ROOM called `name`."""
    return [tuple(values.get(str(word), word) for word in words) for words in ROOM[name]]


def write_and_hit(parts: Parts, raw: Raw, name: str) -> None:
    """Of the write only its own reply arrives; the next hit is still judged by Redis."""
    writes = room_on(name, prepare(parts, raw))
    parts.hold_lanes()
    for words in writes:
        assert not isinstance(raw.ask(*words), ReplyError)
    before = parts.script_calls()
    raw.send(command("RL.HIT", KEY, *RULE))
    wait_until(lambda: parts.script_calls() > before, "the server runs the script")
    parts.release_lanes()
    assert raw.reply() == ADMITTED


@ON_ONE_ENGINE
@pytest.mark.parametrize("name", [name for name in OWN if name != "unknown to the proxy"])
def test_clients_own_write_applies_to_its_next_hit(parts: Parts, name: str) -> None:
    with parts.proxy.raw() as raw:
        write_and_hit(parts, raw, name)


def test_own_write_on_a_shared_connection_applies_to_the_next_hit(own_server: RedisServer) -> None:
    with parts_of(own_server, "--share", "yes") as parts, parts.proxy.raw() as raw:

        def shared() -> bool:
            raw.ask("SET", "x", 1)
            rows = [row for row in client_list(own_server) if row["name"] == "rlproxy-share"]
            return "set" in [row["cmd"] for row in rows]

        wait_until(shared, "commands travel on a shared connection")
        for name in ("DEL", "RENAME over it"):
            write_and_hit(parts, raw, name)
            rows = [row for row in client_list(own_server) if row["name"] == "rlproxy-share"]
            assert str(ROOM[name][0][0]).lower() in [row["cmd"] for row in rows]


@ON_ONE_ENGINE
@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "piece by piece"])
@pytest.mark.parametrize("name", OWN)
def test_write_and_hit_in_one_pipeline(parts: Parts, name: str, apart: bool) -> None:
    with parts.proxy.raw() as raw:
        writes = room_on(name, prepare(parts, raw))
        pieces = [command(*words) for words in [*writes, ("RL.HIT", KEY, *RULE)]]
        for piece in pieces if apart else [b"".join(pieces)]:
            raw.send(piece)
        assert [raw.reply() for _ in pieces][-1] == ADMITTED


@pytest.mark.parametrize("far", [False, True], ids=["one proxy", "two proxies"])
def test_blocks_apply_to_remembered_refusals(parts: Parts, far: bool) -> None:
    """Of the clients: one has the refusal, one of its lane shows that pushes came, one blocks."""
    with contextlib.ExitStack() as stack:
        raw, probe = (stack.enter_context(parts.proxy.raw()) for _ in range(2))
        second = stack.enter_context(harness.proxy(parts.server)) if far else parts.proxy
        other = stack.enter_context(second.raw())

        def next_hit() -> object:
            assert str(probe.ask("RL.HIT", "probe", 1_000_000, 3600)).startswith("[0, ")
            return raw.ask("RL.HIT", KEY, *RULE)

        by_lane_of(parts.server, probe, "warm", parts.admin)
        for words in (("RL.HIT", KEY, 1, 7200), ("RL.BLOCK", KEY, 7200)):
            parts.admin.ask("DEL", KEY)
            other.ask(*words)
            assert cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)[3] > 3599
            assert other.ask("RL.BLOCK", KEY, 100_000) == [1, 0, 0, 100_000, 100_000]
            assert next_hit() == [1, 1, 0, 100_000, 100_000]
            assert cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)[3] > 99_000
            assert other.ask("RL.BLOCK", KEY, 0) == [0, 0, 0, -1, 0]
            found = next_hit()
            assert found == (ADMITTED if words[0] == "RL.BLOCK" else [1, 1, 0, 3600, 3600])


@pytest.mark.parametrize("hit", [("RL.REFUND", KEY, *RULE, 1), ("RL.HIT", KEY, 1, 3600, "COST", 1)])
def test_other_calls_by_lane_drop_the_entry(parts: Parts, hit: Words) -> None:
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        for who in (raw, other):
            cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
            by_lane_of(parts.server, other, "warm", parts.admin)
            before = parts.script_calls()
            who.ask(*hit)  # the second one is refused, from the cache or by Redis
            reply = raw.ask("RL.HIT", KEY, *RULE)
            assert isinstance(reply, list) and reply[0] == (hit[0] == "RL.HIT")
            assert parts.script_calls() == before + 2


def test_resent_refund_drops_an_entry_opened_before_it(parts: Parts) -> None:
    """Its script is missing for a moment; the script of the surrounding hits is not."""
    admin = parts.admin
    hit = command("RL.HIT", KEY, *RULE)
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        for who in (raw, other):
            by_lane_of(parts.server, who, "warm", admin)
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED
        parts.hold_lanes()
        raw.send(hit)  # marks the key
        wait_until(lambda: any(pipe.held for pipe in parts.gate.lanes()), "it is answered")
        (lane,) = [pipe for pipe in parts.gate.lanes() if pipe.held]
        first = len(lane.held)
        admin.ask("SCRIPT", "FLUSH")
        other.send(command("RL.REFUND", KEY, *RULE, 1))
        lane.until(lambda held: b"-NOSCRIPT" in held)
        admin.ask("SCRIPT", "LOAD", SCRIPTS["sliding_window_log"].source)
        lane.release(first)
        raw.reply()
        before = parts.script_calls()
        raw.send(hit)  # opens an entry
        wait_until(lambda: parts.script_calls() > before, "it is opened")
        parts.release_lanes()
        assert other.reply() == [0, 1, 1, -1, 0]
        assert other.ask("RL.HIT", KEY, *RULE) == ADMITTED


def test_resent_hit_opens_no_entry(parts: Parts) -> None:
    """The server would not announce a change of its key."""
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        by_lane_of(parts.server, raw, "warm", parts.admin)
        by_lane_of(parts.server, other, "warm", parts.admin)
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED
        cached = raw.ask("RL.HIT", KEY, *RULE)  # marks the key
        parts.admin.ask("SCRIPT", "FLUSH")
        assert raw.ask("RL.HIT", KEY, *RULE) == cached == [1, 1, 0, 3600, 3600]
        parts.admin.ask("DEL", KEY)
        parts.lane_caught_up(other)
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED


@ON_ONE_ENGINE
def test_own_write_suspends_the_cache_until_the_next_answer_by_lane(parts: Parts) -> None:
    """After the first answer by lane a client is served from the cache again."""
    with parts.proxy.raw() as raw:
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        cache_refusal(parts, raw, "RL.HIT", "other", *RULE)
        assert raw.ask("DEL", KEY) == 1
        before = parts.script_calls()
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED
        for _ in range(20):
            cached = raw.ask("RL.HIT", "other", *RULE)
            assert isinstance(cached, list) and cached[0] == 1
        assert raw.ask("GET", "nothing") is None  # changes nothing
        raw.ask("RL.HIT", "other", *RULE)
        assert isinstance(raw.ask("RL.STATS"), bytes)  # nor does this, by a script
        raw.ask("RL.HIT", "other", *RULE)
        assert parts.script_calls() == before + 2


# -- foreign writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROOM)
def test_foreign_write_applies_once_the_lane_has_received_data(parts: Parts, name: str) -> None:
    ours = any(str(word).startswith("RL.") for words in ROOM[name] for word in words)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(parts.proxy.raw())
        other = stack.enter_context(parts.proxy.raw())
        by_lane_of(parts.server, other, "warm", parts.admin)
        stranger = stack.enter_context(parts.proxy.raw() if ours else parts.server.raw())
        writes = room_on(name, prepare(parts, raw))
        parts.hold_lanes()
        for words in writes:
            stranger.ask(*words)
        cached = raw.ask("RL.HIT", KEY, *RULE)
        assert isinstance(cached, list) and cached[0] == 1  # the invalidation has not arrived yet
        parts.release_lanes()
        parts.lane_caught_up(other)
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED


def test_expired_key_drops_its_entry(parts: Parts) -> None:
    """A shortened TTL counts, and so does a server that loses its tracking table."""
    admin = parts.admin
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        by_lane_of(parts.server, other, "warm", admin)
        for milliseconds in (1, 20, 80):
            cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
            admin.ask("PEXPIRE", KEY, milliseconds)
            parts.lane_caught_up(other)
            gone = False
            while raw.ask("RL.HIT", KEY, *RULE) != ADMITTED:
                assert not gone
                gone = not admin.ask("EXISTS", KEY)
                parts.lane_caught_up(other)


def test_key_dropped_from_the_tracking_table_drops_its_entry(parts: Parts) -> None:
    """The server's tracking table is full, mostly while it runs a command of the lane."""
    admin = parts.admin
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        by_lane_of(parts.server, other, "warm", admin)
        by_lane_of(parts.server, raw, "warm", admin)
        try:
            admin.ask("CONFIG", "SET", "tracking-table-max-keys", 1)
            for turn in range(10):
                keys = [f"{turn}:{n}" for n in range(4)]
                for key in keys:
                    for _ in range(4):
                        raw.ask("RL.HIT", key, *RULE)
                parts.lane_caught_up(other)
                admin.ask("DEL", *keys)
                parts.lane_caught_up(other)
                for key in keys:
                    assert raw.ask("RL.HIT", key, *RULE) == ADMITTED
        finally:
            admin.ask("CONFIG", "SET", "tracking-table-max-keys", 1_000_000)


def test_evicted_key_drops_its_entry(parts: Parts) -> None:
    """Evictions caused by the lane's own hits on other keys."""
    admin = parts.admin
    memory = admin.ask("INFO", "memory")
    assert isinstance(memory, bytes)
    used = re.search(rb"used_memory:(\d+)", memory)
    assert used
    keys = [f"evicted:{n}" for n in range(100)]
    try:
        admin.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        admin.ask("CONFIG", "SET", "maxmemory", int(used[1]) + 300_000)
        with parts.proxy.raw() as raw, parts.proxy.raw() as other:
            by_lane_of(parts.server, raw, "warm", admin)
            by_lane_of(parts.server, other, "warm", admin)
            gone = 0
            for turn in itertools.count():
                raw.send(b"".join(command("RL.HIT", key, *RULE) * 4 for key in keys))
                for _ in range(4 * len(keys)):
                    raw.reply()
                for n in range(300):
                    other.ask("RL.HIT", f"{turn}:{n}:" + 400 * "x", *RULE)
                held = [admin.ask("EXISTS", key) for key in keys]
                parts.lane_caught_up(other)
                for key in (key for key, exists in zip(keys, held, strict=True) if not exists):
                    gone += 1
                    assert raw.ask("RL.HIT", key, *RULE) == ADMITTED
                if gone > 50:
                    break
                assert turn < 100
    finally:
        admin.ask("CONFIG", "SET", "maxmemory", 0)
        admin.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@ON_ONE_ENGINE
def test_late_answer_opens_no_entry(parts: Parts) -> None:
    """A refusal's age counts from the sending: it may be over when the reply arrives."""
    admin, hit = parts.admin, ("RL.HIT", KEY, 1, 300, "MS")
    with parts.proxy.raw() as raw:
        by_lane_of(parts.server, raw, "warm", admin)
        parts.lane_caught_up(raw)
        reply = raw.ask(*hit)
        assert isinstance(reply, list) and reply[0] == 0
        admin.ask("PERSIST", KEY)  # or an invalidation would announce its expiry
        raw.ask(*hit)  # marks it
        parts.hold_lanes()
        before = parts.script_calls()
        raw.send(command(*hit))
        wait_until(lambda: parts.script_calls() > before, "the script has run")
        wait_until(lambda: look(admin, hit)[0] == 0, "there is room")
        parts.release_lanes()
        late = raw.reply()
        assert isinstance(late, list) and late[0] == 1
        reply = raw.ask(*hit)
        assert isinstance(reply, list) and reply[0] == 0


@ON_ONE_ENGINE
def test_lost_lane_drops_its_entries(parts: Parts) -> None:
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        for _ in range(20):
            by_lane_of(parts.server, other, "warm", parts.admin)
            cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
            began = time.monotonic()
            parts.hold_lanes()
            parts.admin.ask("DEL", KEY)
            for pipe in parts.gate.lanes():
                pipe.cut()
            # answered once the proxy has seen the loss
            other.ask("RL.HIT", "warm", 1_000_000, 3600)
            parts.release_lanes()
            by_lane_of(parts.server, other, "warm", parts.admin)
            took_s = time.monotonic() - began
            assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED
            if took_s < MAX_S:
                break  # after that the entry would have expired anyway, which proves nothing


# -- changes that Redis does not announce: at most a second ----------------------------------------


def within_a_second(
    raw: Raw, right: Callable[[object], bool], hit: Words = ("RL.HIT", KEY, *RULE)
) -> None:
    """Send `hit` until the reply is right."""
    wait_until(lambda: right(raw.ask(*hit)), f"{hit} is answered right", MAX_S + SLOW_S)


@ON_ONE_ENGINE
def test_swapped_databases_apply_within_a_second(parts: Parts) -> None:
    with parts.proxy.raw() as raw:
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        parts.admin.ask("SWAPDB", 0, 7)
        within_a_second(raw, lambda reply: reply == ADMITTED)


@ON_ONE_ENGINE
def test_clients_own_swap_applies_at_its_next_hit(parts: Parts) -> None:
    """The client that swaps them sees the change at its next hit, and then all clients do."""
    hit = ("RL.HIT", KEY, 2, 3600)
    with parts.proxy.raw() as raw, parts.proxy.raw() as other:
        cache_refusal(parts, raw, *hit)
        assert raw.ask("SWAPDB", 0, 7) == "OK"
        assert raw.ask(*hit) == [0, 2, 1, -1, 3600]
        by_lane_of(parts.server, other, "warm", parts.admin)
        assert other.ask(*hit) == [0, 2, 0, -1, 3600]


def test_demoted_servers_entries_expire_within_a_second(parts: Parts) -> None:
    """The demoted server takes the data of its new primary, which has no such key."""
    admin = parts.admin
    engine, at_once = parts.server.engine, ("--repl-diskless-sync-delay", "0")
    with harness.server(engine, *at_once) as primary, parts.proxy.raw() as raw:
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        try:
            assert admin.ask("REPLICAOF", "127.0.0.1", primary.port) == "OK"

            def emptied() -> bool:
                reply = raw.ask("RL.HIT", KEY, *RULE)  # so that there is always an entry
                assert (
                    isinstance(reply, list) or "READONLY" in str(reply) or "LOADING" in str(reply)
                )
                return admin.ask("DBSIZE") == 0

            wait_until(emptied, "it has its primary's data")
            within_a_second(raw, lambda reply: is_error(reply, "READONLY"))
        finally:
            admin.ask("REPLICAOF", "NO", "ONE")
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED


def hit_until_uncached(raw: Raw, server_called: Callable[[float], bool]) -> float:
    """Hit KEY until the cache no longer answers and `server_called`, a function of the silence in
    seconds, is true; return the seconds that took.
    """
    began = time.monotonic()
    while True:
        sent = time.monotonic()
        raw.send(command("RL.HIT", KEY, *RULE))
        while not select.select([raw.sock], [], [], 0.01)[0]:
            if server_called(time.monotonic() - sent):
                return sent - began
            assert time.monotonic() - began < DEADLINE_S
        reply = raw.reply()
        assert isinstance(reply, list) and reply[0] == 1


@ON_ONE_ENGINE
def test_silently_cut_connection_ends_cached_answers_within_a_second(parts: Parts) -> None:
    with parts.proxy.raw() as raw:
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        parts.hold_lanes()
        parts.admin.ask("DEL", KEY)
        before = parts.script_calls()
        assert hit_until_uncached(raw, lambda _: parts.script_calls() > before) < MAX_S + SLOW_S
        parts.release_lanes()
        assert raw.reply() == ADMITTED


CLOCK: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *step;
__attribute__((constructor)) static void look(void) {
    step = mmap(0, sizeof *step, PROT_READ, MAP_SHARED, open(getenv("CLOCK_STEP"), O_RDONLY), 0);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.fixture
def clocked(engine: str, tmp_path: Path) -> Iterator[tuple[Parts, Callable[[int], None]]]:
    """Parts whose server has its own clock, and a function that steps it by seconds."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a clock that can be stepped")
    source, library, by = (tmp_path / name for name in ("clock.c", "clock.so", "step"))
    source.write_text(CLOCK)
    built = subprocess.run([compiler, "-shared", "-fPIC", "-O", "-o", library, source])
    if built.returncode:
        pytest.skip("no library can be made here")

    def step(seconds: int) -> None:
        with by.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    by.write_bytes(bytes(8))
    started = tmp_path / "server"
    executable = harness.engines()[engine]
    started.write_text(f'#!/bin/sh\nLD_PRELOAD={library} CLOCK_STEP={by} exec {executable} "$@"\n')
    started.chmod(0o755)
    server = RedisServer(engine, str(started)).start()
    try:
        with parts_of(server) as parts:
            step(1000)
            if not any(server_time(parts.admin) > time.time() + 500 for _ in range(100)):
                pytest.skip("the server does not ask the library for the time")
            step(0)
            yield parts, step
    finally:
        server.close()


def server_time(raw: Raw) -> int:
    found = raw.ask("TIME")
    assert isinstance(found, list)
    return int(found[0])


def test_stepped_clock_applies_within_a_second(
    clocked: tuple[Parts, Callable[[int], None]],
) -> None:
    parts, step = clocked
    hits: list[Words] = [("RL.HIT", name, *RULE, "ALGO", name) for name in NAMES]
    with parts.proxy.raw() as raw:

        def steps(seconds: int, right: Callable[[Words], bool]) -> None:
            step(0)
            for hit in hits:
                cache_refusal(parts, raw, *hit)
            step(seconds)
            end = time.monotonic() + MAX_S + SLOW_S
            for hit in hits:
                left_s = end - time.monotonic()
                wait_until(partial(right, hit), f"{hit} is answered right", left_s)

        def cached_answers(hit: Words) -> bool:
            cached, true = raw.ask(*hit), raw.ask("RL.PEEK", *hit[1:])
            assert isinstance(cached, list) and isinstance(true, list)
            return bool(cached[3] >= true[3])

        def admitted(hit: Words) -> bool:
            cached = raw.ask(*hit)
            assert isinstance(cached, list)
            return bool(cached[0] == 0)

        # the stored stamps lie ahead: the refusal lasts longer than its `retry_after`
        steps(-600, cached_answers)
        steps(2 * 3600, admitted)


# -- an entry answers only its own client, database, key and rule ----------------------------------


@ON_ONE_ENGINE
def test_entry_belongs_to_one_user_database_key_and_rule(parts: Parts) -> None:
    admin, warm = parts.admin, ("RL.HIT", "warm", 1_000_000, 3600)
    admin.ask("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~warm", "+@all")
    admin.ask("ACL", "SETUSER", "rich", "reset", "on", ">pw", "~*", "+@all")
    with contextlib.ExitStack() as stack:
        raw, other, poor, rich, far = (stack.enter_context(parts.proxy.raw()) for _ in range(5))
        assert poor.ask("AUTH", "poor", "pw") == rich.ask("AUTH", "rich", "pw") == "OK"
        assert far.ask("SELECT", 5) == "OK"
        for each in (raw, other, poor, rich, far):
            by_lane_of(parts.server, each, "warm", admin)
        cached = cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        before = parts.script_calls()
        assert other.ask("RL.HIT", KEY, *RULE) == cached  # the same in everything
        assert parts.script_calls() == before
        assert str(poor.ask("RL.HIT", KEY, *RULE)).startswith("NOPERM")
        assert rich.ask("RL.HIT", KEY, *RULE) == cached
        assert parts.script_calls() >= before + 1
        assert far.ask("RL.HIT", KEY, *RULE) == ADMITTED
        for key in (KEY.upper(), KEY + " ", "", KEY + KEY, f" {KEY}", f"${len(KEY)}\r\n{KEY}"):
            assert raw.ask("RL.HIT", key, *RULE) == ADMITTED
        for rule in ((2, 3600), (1, 3600, "COST", 0), (1, 3600, "ALGO", "LOG", "MS")):
            cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
            before = parts.script_calls()
            raw.ask("RL.HIT", KEY, *rule)
            raw.ask("RL.PEEK", KEY, *RULE)
            assert parts.script_calls() == before + 2
            admin.ask("DEL", KEY)
            parts.lane_caught_up(other)
        # And on one connection.
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        assert raw.ask("SELECT", 5) == "OK"
        far.ask("DEL", KEY)
        assert raw.ask("RL.HIT", KEY, *RULE) == ADMITTED
        assert raw.ask("SELECT", 0) == raw.ask("AUTH", "poor", "pw") == "OK"
        assert str(raw.ask("RL.HIT", KEY, *RULE)).startswith("NOPERM")
        by_lane_of(parts.server, raw, "warm", admin)
        assert str(raw.ask("RL.HIT", KEY, *RULE)).startswith("NOPERM")
        assert raw.ask(*warm) is not None
        admin.ask("ACL", "DELUSER", "poor", "rich")


# -- what the cache answers ------------------------------------------------------------------------

SCRIPTS: Final = scripts.load()
GRAMMAR: Final = Grammar(SCRIPTS)
NAMES: Final = [name.decode() for name in ALGORITHMS]


def rule_of(words: Words) -> Rule:
    """The rule of a hit."""
    name, *args = (word if isinstance(word, bytes) else str(word).encode() for word in words)
    found = GRAMMAR.rule(name + b" " + b" ".join(args[1:]), name, args)
    assert not found.error, words
    return found


def look(direct: Raw, words: Words) -> list[int]:
    """The answer the server itself would give to the hit `words`; times in microseconds."""
    peek_rule = rule_of(words).peek()
    assert peek_rule.script is not None and peek_rule.limiter is not None
    source = (
        peek_rule.script.source + b" "
    )  # a script of the test, because the proxies' may be missing
    found = direct.ask("EVAL", source, 1, words[1], *peek_rule.limiter.argv())
    assert isinstance(found, list), (words, found)
    return found[:5]


class ReplyChecker:
    """Checks that the reply to a hit is one that Redis gave or would have given."""

    def __init__(self, direct: Raw) -> None:
        self._direct = direct
        self._slowest_us: float = 0.0  # the longest round trip of a hit
        self.hits = 0
        self.refused = 0

    def hit(self, raw: Raw, words: Words, sure: bool = True) -> tuple[list[int], str]:
        """Return the reply to the hit `words`, and an error text. If `sure`, all earlier changes of
        the key have reached `raw`'s proxy.
        """
        before = look(self._direct, words)
        began = time.monotonic()
        reply = raw.ask(*words)
        took_us = (time.monotonic() - began) * 1e6
        self._slowest_us = max(self._slowest_us, took_us)
        after = look(self._direct, words)
        if not isinstance(reply, list):
            return [], str(reply)
        self.hits += 1
        self.refused += reply[0]
        wrong = ""
        if sure and reply[0] == 1:
            wrong = self._wrong(reply, before, after, rule_of(words))
        return reply, wrong and f"{words} got {reply}, {wrong}: {before} before, {after} after"

    def _wrong(self, reply: list[int], before: list[int], after: list[int], rule: Rule) -> str:
        limiter, unit = rule.limiter, rule.unit_us
        assert limiter is not None
        # With AND or GAP limit, remaining and reset_after may be up to a second old.
        old = limiter.limits or limiter.gap_us
        if before[0] == 0:
            return "though there was room"
        if after[0] == 0:
            return ""  # the change has arrived since
        if not old and reply[1:3] not in (before[1:3], after[1:3]):
            return "which is another limit or remaining"
        if reply[3] < 1:
            return "which is no time to wait"
        late_us = 1000 + self._slowest_us
        times = slice(3, 4 if old else 5)
        for cached, first, last in zip(reply[times], before[times], after[times], strict=True):
            if cached * unit < last:
                return "too early"
            if (cached - 1) * unit >= max(first, last + late_us) + late_us:
                return "too late"
        return ""


def cases(algorithm: str) -> list[Words]:
    """Hits of one algorithm with every result that may be cached."""
    limiter = ALGORITHMS[algorithm.encode()]
    words: list[Words] = [(1, "0.7"), (2, 1200, "MS"), (1, "0.4", "PENALTY", "0.9"), (1, "2.2")]
    if b"BURST" in limiter.options:
        words += [(2, 1100, "MS", "BURST", 3), (3, "1.5", "BURST", 1, "PENALTY", "0.6")]
    if b"GAP" in limiter.options:
        words += [(5, 2000, "GAP", 700, "MS"), (3, "1.5", "GAP", "0.6", "PENALTY", "0.8")]
        words += [(9, 3, "GAP", "1.5", "AND", 2, "0.05")]  # its reset_after soon is 0
        words += [(3, "1.6", "AND", 1, "0.6"), (1, 600, "AND", 2, 1500, "MS", "AND", 9, 9000)]
    made: list[Words] = [
        ("RL.HIT", f"{algorithm}:{index}", *rule, "ALGO", algorithm)
        for index, rule in enumerate(words)
    ]
    if algorithm == "GCRA":
        made += [("RL.THROTTLE", "throttle", 1, 2, 1), ("CL.THROTTLE", "throttle:cl", 0, 1, 1)]
    return made


@ON_ONE_ENGINE
def test_cached_answers_age_like_those_of_redis(parts: Parts) -> None:
    """Send every kind of hit in turn and repeatedly; each gets the answer Redis would give at that
    moment. A client that waits `retry_after` is admitted.
    """
    hits = [hit for name in NAMES for hit in cases(name)]
    waits: dict[Words, float] = {}  # the end of each hit's `retry_after`
    admitted: dict[Words, int] = dict.fromkeys(hits, 0)
    checker = ReplyChecker(parts.admin)
    with parts.proxy.raw() as raw, parts.server.raw() as stats:
        by_lane_of(parts.server, raw, "warm", parts.admin)
        before = lane_calls(stats)
        began = time.monotonic()
        late = began + DEADLINE_S  # where the machine is slow
        while time.monotonic() < began + 2.5 or (
            sum(admitted.values()) <= 2 * len(hits) and time.monotonic() < late
        ):
            for hit in hits:
                sent = time.monotonic()
                reply, wrong = checker.hit(raw, hit)
                assert not wrong
                if reply[0] == 0:
                    admitted[hit] += 1
                    waits[hit] = 0
                    continue
                assert sent <= (waits.get(hit) or sent), f"{hit} got {reply}, and had waited"
                at = time.monotonic() + reply[3] * rule_of(hit).unit_us / 1e6
                waits[hit] = min(waits.get(hit) or at, at)
        runs = lane_calls(stats) - before
    assert min(admitted.values()) >= 1 and sum(admitted.values()) > 2 * len(hits)
    print(f"{checker.hits} hits, {checker.refused} refused, {runs} script calls")
    # An entry lives for a second: with few hits in a second, few of them find it.
    assert runs < checker.hits / 2 or checker.hits < 2000


@ON_ONE_ENGINE
def test_refusal_that_counts_is_never_cached(parts: Parts) -> None:
    with parts.proxy.raw() as raw:
        by_lane_of(parts.server, raw, "warm", parts.admin)
        hits: list[Words] = [
            *(("RL.HIT", name, *RULE, "STRICT", "ALGO", name) for name in ("LOG", "ZLOG", "FIXED")),
            *(("RL.HIT", name * 2, 3, 3600, "COST", 2, "ALGO", name) for name in NAMES),
        ]
        for hit in [*hits, ("RL.HIT", "far", 1, 3600, "WAIT", "0.001")]:
            before = parts.script_calls()
            for _ in range(8):
                raw.ask(*hit)
            assert parts.script_calls() >= before + 8


# -- how many -------------------------------------------------------------------------------------


@ON_ONE_ENGINE
def test_cache_saves_script_calls(parts: Parts) -> None:
    with parts.proxy.raw() as raw:
        cache_refusal(parts, raw, "RL.HIT", KEY, *RULE)
        before = parts.script_calls()
        began = time.monotonic()
        raw.send(command("RL.HIT", KEY, *RULE) * 1000)
        for _ in range(1000):
            reply = raw.reply()
            assert isinstance(reply, list) and reply[0] == 1
        took = time.monotonic() - began
        # up to 64 may be in flight at once
        assert parts.script_calls() <= before + 64 * (1 + took / MAX_S)


def test_capacity_zero_caches_nothing(own_server: RedisServer) -> None:
    with parts_of(own_server, "--denial-cache", "0") as parts, parts.proxy.raw() as raw:
        by_lane_of(own_server, raw, "warm", parts.admin)
        before = parts.script_calls()
        for _ in range(50):
            raw.ask("RL.HIT", KEY, *RULE)
        assert parts.script_calls() == before + 50
        assert all("t" not in row["flags"] for row in lanes(own_server, parts.admin))


MB: Final = 1 << 20


def read_verdicts(raw: Raw, count: int) -> None:
    """Read the replies to `count` hits, five integers each, of which none is an error."""
    lines = 0
    while lines < 6 * count:
        data = raw.sock.recv(MB)
        assert data and b"-E" not in data
        lines += data.count(b"\n")


def grown_by(
    server: RedisServer, proxy: Proxy, hits: Callable[[int], Words], count: int, times: int
) -> int:
    """By how many bytes the proxy grows when `count` hits are sent `times` times each."""
    with proxy.raw() as raw, server.raw() as admin:
        by_lane_of(server, raw, "warm", admin)
        # 6,200 keys that are refused: as many as are counted as hot keys in ten seconds
        admin.ask("EVAL", FILL, 0, 6200, "warm:")
        for first in range(0, 6200, 100):
            names = [f"warm:{n}" for n in range(first, first + 100)]
            raw.send(b"".join(command("RL.HIT", name, 1, 3600) for name in names))
            read_verdicts(raw, len(names))
        before = proxy.memory()
        for first in range(0, count, 100):
            many = [command(*hits(n)) * times for n in range(first, min(first + 100, count))]
            raw.send(b"".join(many))
            read_verdicts(raw, times * len(many))
        return proxy.memory() - before


FILL: Final = """
local now = redis.call('TIME')
if redis.replicate_commands then redis.replicate_commands() end
for n = 0, tonumber(ARGV[1]) - 1 do
  redis.call('RPUSH', ARGV[2] .. n, ('%d%06d'):format(now[1], now[2]))
end
"""


@pytest.mark.heavy
def test_tens_of_thousands_of_refused_keys_use_bounded_memory(own_server: RedisServer) -> None:
    """Where the cache has two entries, other refusals cost nothing.

    30,000 entries would take 6 MB; hits in flight and the allocator take 2 to 3 MB.
    """
    count = 30_000
    with own_server.raw() as admin:
        admin.ask("EVAL", FILL, 0, count, "m:")
    with harness.proxy(own_server, "--denial-cache", "2") as proxy:
        grown = grown_by(own_server, proxy, lambda n: ("RL.HIT", f"m:{n}", *RULE), count, 1)
    print(f"grown by {grown / MB:.1f} MB")
    assert grown < 5 * MB


@pytest.mark.parametrize("sort", ["long keys", "other rules"])
def test_largest_entries_use_bounded_memory(own_server: RedisServer, sort: str) -> None:
    """The limit holds for hits chosen to cost the most memory."""

    def hit(n: int) -> Words:
        if sort == "long keys":
            return ("RL.HIT", f"{n}:" + 60_000 * "x", *RULE)
        return ("RL.HIT", n, 1, 3600 + n, "ALGO", "ZLOG")

    count = 300 if sort == "long keys" else 6_000
    grown = []
    for cache in ("0", DENIALS):
        with harness.proxy(own_server, "--denial-cache", cache) as proxy:
            grown.append(grown_by(own_server, proxy, hit, count, 3))
        with own_server.raw() as admin:
            admin.ask("FLUSHALL")
    print(f"{sort}: {grown[0] / MB:.1f} MB without the cache, {grown[1] / MB:.1f} MB with it")
    assert grown[1] < grown[0] + 12 * MB + 1000 * count  # hits in flight take megabytes


# -- a random walk ---------------------------------------------------------------------------------

SECONDS: Final = float(os.environ.get("TESTS_DENIALS_SECONDS", "2"))
SEED: Final = os.environ.get("TESTS_DENIALS_SEED")
KEYS: Final = ("w0", "w1", "w2", "w3")
GONE: Final = [("DEL", 0), ("UNLINK", 0), ("RL.RESET", 0), ("FLUSHDB",), ("EXPIRE", 0, -1)]


def walk_rules(algorithm: str) -> list[Words]:
    """The rules of each of KEYS: the key's own, and those of other keys."""
    options = ALGORITHMS[algorithm.encode()].options
    more: Words = ("BURST", 2) if b"BURST" in options else ()
    if b"AND" in options:
        more = ("AND", 2, "1.1", "GAP", "0.01")
    named = ("ALGO", algorithm)
    return [
        (1, 3600, *named),
        (2, 250, "MS", *named),
        (1, "0.05", "PENALTY", "0.15", *named),
        (3, 2, *more, *named),
    ]


class Walk:
    """Three clients of two proxies and one without a proxy, over KEYS; one command at a time.

    `unsure` are the clients that may not have received a change yet; a hit of another client on
    their lane shows that it has arrived. `mortal` are the keys to which the walk gave a time to
    live: when it is over, Redis reports that only once somebody looks.
    """

    def __init__(
        self, server: RedisServer, proxies: list[Proxy], direct: Raw, stack: contextlib.ExitStack
    ) -> None:
        self._server = server
        self._direct = direct
        self._clients = [stack.enter_context(proxies[n].raw()) for n in (0, 0, 1)]
        self._probes = [stack.enter_context(proxies[n].raw()) for n in (0, 0, 1)]
        self._probes[1] = self._probes[0]
        self.checker = ReplyChecker(direct)
        self._unsure: set[int] = set()
        self._mortal: set[str] = set()
        self._loose_until = 0.0
        self._dumps: list[bytes] = []
        self.story: list[str] = []
        self.strict = 0  # hits for which no excuse applies
        self.lost = 0
        self.cuts = 0

    def run(self, seed: int, seconds: float) -> None:
        """Walk; fails with the list of steps."""
        self._chance = chance = random.Random(seed)
        self._algorithm = NAMES[seed % len(NAMES)]
        self._rules = walk_rules(self._algorithm)
        self.story = [f"TESTS_DENIALS_SEED={seed} ({self._server.engine}, {self._algorithm})"]
        self._direct.ask("FLUSHALL")
        self._dumps.clear()
        self._unsure = {0, 1, 2}
        self._mortal = set()
        steps = [self._hammer] * 55 + [self._change] * 25 + [self._at_once] * 8 + [self._keep] * 4
        steps += [self._stray] * 5 + [self._cut] + [self._forget] * 2
        if SECONDS > 10 and chance.random() < 0.1:
            steps.append(self._swap)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chance.choice(steps)()

    # -- steps ------------------------------------------------------------------------------------

    def _hammer(self) -> None:
        who, key = self._chance.randrange(3), self._chance.randrange(4)
        for _ in range(self._chance.choice((1, 2, 4, 6))):
            self._hit(who, key, key)

    def _stray(self) -> None:
        """Hit by a rule of another key."""
        who, key = self._chance.randrange(3), self._chance.randrange(4)
        self._hit(who, key, self._chance.randrange(4))
        self._hit(who, key, key)

    def _change(self) -> None:
        """One client writes, and it or another one hits."""
        chance = self._chance
        key, who = chance.randrange(4), chance.randrange(5)
        writer = self._clients[who] if who < 3 else self._direct
        for words in self._write(key, who < 3):
            self._say(who, writer, words)
            if words[0] in ("PEXPIRE", "GETEX", "SET") or self._mortal & {*words}:
                self._mortal |= {*KEYS} & {*words}
        self._news(who)
        for _ in range(chance.choice((1, 1, 3))):
            self._hit(who if who < 3 and chance.random() < 0.7 else chance.randrange(3), key, key)

    def _at_once(self) -> None:
        """A key is removed and hit in one write, or without a peek after the removal."""
        chance = self._chance
        who, key = chance.randrange(3), chance.randrange(4)
        hit = ("RL.HIT", KEYS[key], *self._rules[key])
        name, *args = chance.choice(GONE)
        write: Words = (name, *(KEYS[key] if arg == 0 else arg for arg in args))
        many: list[Words] = [write, hit]
        if chance.random() < 0.3:
            many = [("MULTI",), write, hit, ("EXEC",)]
        elif chance.random() < 0.3:
            # A hit whose script is missing is sent again, and then runs behind the write.
            script = SCRIPTS[ALGORITHMS[self._algorithm.encode()].script]
            self._direct.ask("SCRIPT", "LOAD", script.source)
            many = [hit, hit, write, hit, hit]
        raw = self._clients[who]
        self.story.append(f"{who} at once: {many}")
        pieces = [command(*words) for words in many]
        for piece in pieces if chance.random() < 0.5 else [b"".join(pieces)]:
            raw.send(piece)
        found = [raw.reply() for _ in many]
        reply = found[-1]
        if many[0] == ("MULTI",):
            assert isinstance(reply, list), self._tell(f"{found}")
            reply = reply[-1]
        elif len(many) == 5:
            reply = found[3]
        if not self._excused(reply):
            assert isinstance(reply, list) and reply[0] == 0, self._tell(f"{found}")
            self.strict += 1
        self._news(who)

    def _keep(self) -> None:
        """Save the current state, to restore it later."""
        dump = self._direct.ask("DUMP", self._chance.choice(KEYS))
        if isinstance(dump, bytes):
            self._dumps = [*self._dumps[-5:], dump]

    def _cut(self) -> None:
        self.story.append("the lanes are cut")
        self.cuts += 1
        for row in lanes(self._server, self._direct):
            self._direct.ask("CLIENT", "KILL", "ID", row["id"])

    def _forget(self) -> None:
        """The server loses its scripts or its tracking table."""
        if self._chance.random() < 0.5:
            self._direct.ask("SCRIPT", "FLUSH")
        else:
            most = self._chance.choice((1, 2, 1_000_000))
            self._direct.ask("CONFIG", "SET", "tracking-table-max-keys", most)

    def _swap(self) -> None:
        who = self._chance.randrange(5)
        self._say(who, self._clients[who] if who < 3 else self._direct, ("SWAPDB", 0, 1))
        self._loose_until = time.monotonic() + MAX_S + 0.05
        self._news(who)

    # -- writes -----------------------------------------------------------------------------------

    def _write(self, number: int, by_proxy: bool) -> list[Words]:
        """Commands that may change a key, or all keys."""
        chance = self._chance
        key, other = KEYS[number], chance.choice(KEYS)
        soon = chance.choice((0, 1, 5, 30, 200))
        plain: list[list[Words]] = [
            [("DEL", key)],
            [("UNLINK", other, key)],
            [("PEXPIRE", key, soon)],
            [("PERSIST", key)],
            [("RENAME", other, key)],
            [("RENAME", key, other)],
            [("RENAMENX", other, key)],
            [("COPY", other, key, "REPLACE")],
            [("FLUSHDB",)],
            [("FLUSHALL", chance.choice(("SYNC", "ASYNC")))],
            [("SET", key, "x", "PX", 20), ("DEL", key)],
            [("EVAL", "return redis.call('DEL', KEYS[1])", 1, key)],
            [("EVAL", f"return redis.call('RENAME', '{other}', '{key}')", 0)],
            [("SELECT", 1), ("COPY", other, key, "DB", 0, "REPLACE"), ("SELECT", 0)],
            [("MOVE", key, 1)],
            [("SELECT", 1), ("MOVE", key, 0), ("SELECT", 0)],
            [("GETEX", key, "PX", soon or 1)],
            [("GETDEL", key)],
            [("LPOP", key)],
            [("LTRIM", key, 1, -1)],
            [("ZPOPMIN", key)],
        ]
        if self._dumps:
            dump = chance.choice(self._dumps)
            plain += [[("RESTORE", key, ttl, dump, "REPLACE")] for ttl in (0, 0, 40, 5000)]
        if by_proxy:
            refund, rule = ("RL.REFUND", key), self._rules[number]
            named: Words = tuple(w for w in rule if w not in ("PENALTY", "0.15", "GAP", "0.01"))
            plain += [[("RL.RESET", key)]]
            algorithm = named[named.index("ALGO") : named.index("ALGO") + 2]
            plain += [[("RL.BLOCK", key, t, *algorithm)] for t in (0, "0.02", 1)]
            plain += [[(*refund, *named[:2], count, *named[2:])] for count in (1, 1, 2)]
        found = chance.choice(plain)
        if chance.random() < 0.15 and found[0][0] != "SELECT":
            return [("MULTI",), *found, ("EXEC",)]
        return found

    def _say(self, who: int, raw: Raw, words: Words) -> None:
        reply = raw.ask(*words)
        self.story.append(f"{who} {words} got {reply!r}")
        self._excused(reply)

    # -- hits -------------------------------------------------------------------------------------

    def _hit(self, who: int, key: int, rule: int) -> None:
        sure = time.monotonic() > self._loose_until
        if who in self._unsure:
            if self._chance.random() < 0.75:
                self._probe(who)
            else:
                sure = False
        words: Words = ("RL.HIT", KEYS[key], *self._rules[rule])
        reply, wrong = self.checker.hit(self._clients[who], words, sure)
        if reply and wrong and KEYS[key] in self._mortal:
            self.story.append(f"{who} {wrong}, again: its time to live may just be over")
            self._probe(who)
            reply, wrong = self.checker.hit(self._clients[who], words, sure)
        self.story.append(f"{who} {words} got {reply}{'' if sure else ' (unsure)'}")
        if not reply and self._excused(wrong):
            return
        assert not wrong, self._tell(wrong)
        self.strict += sure
        if reply[0] == 0 or "PENALTY" in words or key != rule:
            self._unsure |= {0, 1, 2} - {who}

    def _probe(self, who: int) -> None:
        """Have the client's lane receive all that the server has sent to it."""
        reply = self._probes[who].ask("RL.HIT", "probe", 1_000_000, 3600)
        if not self._excused(reply):
            assert isinstance(reply, list) and reply[0] == 0, self._tell(str(reply))
        self._unsure -= {0, 1} if who < 2 else {2}

    def _news(self, who: int) -> None:
        """The client `who` has changed something; the other clients are unsure."""
        self._unsure = {0, 1, 2} - {who}

    def _excused(self, reply: object) -> bool:
        """Whether it is the error of a lane that was cut."""
        if str(reply).startswith("UPSTREAMDOWN"):
            self.lost += 1
            return True
        return False

    def _tell(self, wrong: str) -> str:
        return "\n".join([self.story[0], *self.story[-30:], wrong])


def test_random_walk_gets_no_wrong_reply(module_server: RedisServer) -> None:
    # A short walk on the second server begins with the algorithms that the first one lacks.
    short = 1 if module_server.engine == harness.one_engine() else 1 + len(NAMES) // 2
    first = int(SEED) if SEED else short if SECONDS < 10 else random.randrange(1 << 30)
    each_s = max(0.5, min(3, SECONDS / len(NAMES)))
    seeds = itertools.repeat(first) if SEED else itertools.count(first)
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(harness.proxy(module_server, "--share", share))
            for share in ("no", "yes")
        ]
        direct = stack.enter_context(module_server.raw())
        walk = Walk(module_server, proxies, direct, stack)
        direct.ask("CONFIG", "RESETSTAT")
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                walk.run(next(seeds), each_s)
        finally:
            direct.ask("CONFIG", "SET", "tracking-table-max-keys", 1_000_000)
        runs = lane_calls(direct)
    checker = walk.checker
    print(
        f"{module_server.engine}: {checker.hits} hits, {walk.strict} of them strict,"
        f" {checker.refused} refused, lanes asked {runs} times, {walk.cuts} cuts lost {walk.lost}"
    )
    assert walk.strict > checker.hits / 2
    assert runs < 0.85 * checker.hits or checker.hits < 500, "almost nothing was cached"
    assert walk.lost <= 4 * walk.cuts


# -- many concurrent clients -----------------------------------------------------------------------


class Hammer(threading.Thread):
    """Hits the keys `many:<n>` in turn, one after another; records when each was refused."""

    def __init__(self, proxy: Proxy, number: int, most: int, over: threading.Event) -> None:
        super().__init__()
        self._raw = proxy.raw()
        self._number = number
        self._most = most
        self._over = over
        self.refused: list[tuple[int, float, float]] = []  # key, sent, received
        self.admitted = 0
        self.problems: list[str] = []

    def run(self) -> None:
        chance = random.Random(self._number)
        while not self._over.is_set():
            key = chance.randrange(MANY)
            sent = time.time()
            reply = self._raw.ask("RL.HIT", f"many:{key}", self._most, 3600)
            if not isinstance(reply, list):
                self.problems.append(str(reply))
            elif reply[0]:
                self.refused.append((key, sent, time.time()))
            else:
                self.admitted += 1
            time.sleep(0.001)  # room must last long enough for a missed change to be seen
        self._raw.close()


MANY: Final = 4
LINE: Final = re.compile(rb"\+(\d+\.\d{6}) \[\d+ ([^\]]+)\] \"(\w+)\" \"many:(\d)\"")


def test_concurrent_clients_get_no_wrong_refusal(own_server: RedisServer) -> None:
    """Two proxies, six clients, and one that removes the keys. MONITOR shows the admissions and
    removals, and so when a key was full. Every refusal was received at such a moment, or within the
    allowed delay.
    """
    most, moment_s, seconds = 300, 0.5, 1.5
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(harness.proxy(own_server)) for _ in range(2)]
        direct = stack.enter_context(own_server.raw())
        monitor = Monitor(own_server)
        over, end, removed = threading.Event(), time.monotonic() + seconds, 0
        late = time.monotonic() + 20 * seconds  # where the machine is slow
        hammers = [Hammer(proxies[n % 3 // 2], n, most, over) for n in range(6)]
        for hammer in hammers:
            hammer.start()
        chance = random.Random(1)

        def enough() -> bool:
            return removed > 6 and sum(len(hammer.refused) for hammer in hammers) > 500

        try:
            while time.monotonic() < (end if enough() else late):
                name = f"many:{chance.randrange(MANY)}"

                def full_or_over(name: str = name) -> bool:
                    return direct.ask("LLEN", name) == most or time.monotonic() > late

                wait_until(full_or_over, f"{name} is full", 21 * seconds)
                for _ in range(chance.randrange(100, 300)):  # so that many hits are refused
                    direct.ask("PING")
                direct.ask("DEL", name)
                removed += 1
        finally:
            over.set()
        for hammer in hammers:
            hammer.join(DEADLINE_S)
        lines = monitor.lines(own_server)
    assert [text for hammer in hammers for text in hammer.problems] == []
    # Per key: since when it was full, and until when.
    full: list[list[tuple[float, float]]] = [[] for _ in range(MANY)]
    held, since, admitted = [0] * MANY, [0.0] * MANY, 0
    for line in lines:
        found = LINE.match(line)
        if found is None or found[3] not in (b"RPUSH", b"DEL"):
            continue
        at, key = float(found[1]), int(found[4])
        if found[3] == b"DEL":
            if held[key] == most:
                full[key].append((since[key], at))
            held[key] = 0
            continue
        held[key] += 1
        admitted += 1
        assert held[key] <= most
        since[key] = at
    for key in range(MANY):
        full[key].append((since[key] if held[key] == most else 1e12, 1e12))
    refused = [row for hammer in hammers for row in hammer.refused]
    assert admitted == sum(hammer.admitted for hammer in hammers)
    removed = sum(len(times) - 1 for times in full)
    print(f"{admitted} admitted, {len(refused)} refused, {removed} times removed while full")
    for key, sent, received in refused:
        times = full[key]
        last = bisect.bisect_right(times, (received + 0.005, 0.0)) - 1
        assert last >= 0 and times[last][1] >= sent - moment_s, (
            f"many:{key} was refused at {sent:.3f}, {sent - times[last][1]:.3f} s after its removal"
        )
    assert removed >= 5 and len(refused) > 500
