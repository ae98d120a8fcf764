"""RL.STATS counts exactly the replies that clients got, whichever way a hit travelled."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests import harness
from tests.harness import ROOT, Proxy, Raw, RedisServer, ReplyError, command, wait_until
from tests.info import stats
from tests.integration.started import by_lane, children, started
from tests.processes import paused

OUTCOMES = (
    *("admitted", "refused", "refused_locally"),
    *("failed_open", "failed_closed", "failed", "unseen"),
)


@pytest.fixture
def front(one_server: RedisServer) -> Iterator[Proxy]:
    with one_server.raw() as raw:
        raw.ask("FLUSHALL")
    with harness.proxy(one_server) as made:
        yield made


def hits(raw: Raw) -> dict[str, int]:
    """The outcomes of hits that are not 0."""
    found = stats(raw)
    counts = {name: int(found[name]) for name in OUTCOMES}
    assert int(found["hits"]) == sum(counts.values())
    return {name: count for name, count in counts.items() if count}


def by_redis_or_not(raw: Raw) -> tuple[int, int]:
    """Hits admitted and refused, with or without Redis; fails if there is any other outcome."""
    found = hits(raw)
    assert set(found) <= {"admitted", "refused", "refused_locally"}
    return found.get("admitted", 0), found.get("refused", 0) + found.get("refused_locally", 0)


def outcome_of(reply: object) -> str:
    if isinstance(reply, list):
        return "admitted" if reply[0] == 0 else "refused"
    return "failed"


def test_hits_on_every_path_are_counted(one_server: RedisServer, front: Proxy) -> None:
    with front.raw() as admin, front.raw() as raw:
        assert hits(admin) == {}
        replied: Counter[str] = Counter()

        def ask(*words: str | int) -> None:
            replied[outcome_of(raw.ask(*words))] += 1

        ask("RL.HIT", "first", 10, 60)  # on its private connection
        by_lane(one_server, raw)
        replied["admitted"] = hits(admin)["admitted"]  # the hits that by_lane took
        for _ in range(8):
            ask("RL.HIT", "k", 3, 60)
        replied["refused_locally"] = hits(admin)["refused_locally"]
        assert replied["refused_locally"] == 3  # the first marks, the second opens the entry
        replied["refused"] -= replied["refused_locally"]
        ask("RL.HIT", "t", 3, 60, "ALGO", "TOKEN", "COST", 2)
        ask("CL.THROTTLE", "g", 3, 60, 60)
        raw.ask("SET", "string", "x")
        ask("RL.HIT", "string", 1, 60)  # WRONGTYPE
        raw.send(command("MULTI") + command("RL.HIT", "m", 1, 60) + command("EXEC"))
        assert [raw.reply() for _ in range(3)][2] == [[0, 1, 0, -1, 60]]
        replied["unseen"] += 1
        raw.ask("WATCH", "x")  # from here on private
        for _ in range(5):
            ask("RL.HIT", "p", 4, 60)
        raw.ask("CLIENT", "TRACKING", "ON")  # from here on replies cannot be distinguished
        assert outcome_of(raw.ask("RL.HIT", "q", 4, 60)) == "admitted"
        replied["unseen"] += 1
        assert hits(admin) == dict(replied)
        found = stats(admin)
        assert found["hits_token"].startswith("admitted=1,refused=0,")
        assert found["hits_gcra"].startswith("admitted=1,refused=0,")
        assert found["errors_redis"] == "1"
        # Commands that are no hits.
        for words in (
            ("RL.PEEK", "k", 3, 60),
            ("RL.HIT", "k", 3, 60, "COST", 0),
            ("RL.REFUND", "k", 3, 60, 1),
            ("RL.RESET", "k"),
            ("RL.BLOCK", "b", 60),
            ("RL.BLOCK", "b", 0),
            ("RL.HELP",),
            ("RL.HIT", "k", 0, 60),
            ("RL.HIT", "k"),
        ):
            raw.ask(*words)
        assert hits(admin) == dict(replied)
        found = stats(admin)
        calls = ("peek", "refund", "reset", "block", "help", "top", "errors_syntax")
        assert [int(found[name]) for name in calls] == [2, 1, 1, 2, 1, 0, 2]


def test_waiting_hits_are_counted(front: Proxy) -> None:
    with front.raw() as admin, front.raw() as raw, front.raw() as other:
        assert raw.ask("RL.HIT", "k", 1, "0.3") == [0, 1, 0, -1, 1]
        assert outcome_of(raw.ask("RL.HIT", "k", 1, "0.3", "WAIT", 5)) == "admitted"
        assert outcome_of(raw.ask("RL.HIT", "n", 1, 60)) == "admitted"
        assert outcome_of(raw.ask("RL.HIT", "n", 1, 60, "WAIT", 1)) == "refused"
        other.send(command("RL.HIT", "n", 1, 50, "WAIT", 60))
        wait_until(lambda: stats(admin)["waiting"] == "1", "it waits")
        other.close()
        wait_until(lambda: stats(admin)["waiting"] == "0", "it has gone")
        assert hits(admin) == {"admitted": 3, "refused": 1}


def test_hits_without_redis_are_counted(own_server: RedisServer) -> None:
    arguments = ("--on-upstream-failure", "allow", "--hit-timeout", "300")
    with harness.proxy(own_server, *arguments) as front, front.raw() as raw, front.raw() as private:
        assert outcome_of(raw.ask("RL.HIT", "k", 1000, 60)) == "admitted"
        by_lane(own_server, raw)
        private.ask("WATCH", "x")
        with front.raw() as admin:
            before = hits(admin)
        with paused(own_server.pid):
            sent = 0
            for client in (raw, private):
                client.send(command("RL.HIT", "k", 1000, 60) * 3)
                sent += 3
                for _ in range(3):
                    client.reply()
            for _ in range(4):
                raw.ask("RL.HIT", "k", 1000, 60)
                sent += 1
            with front.raw() as new:
                new.ask("RL.HIT", "k", 1000, 60)
                sent += 1
        with front.raw() as admin:
            wait_until(lambda: isinstance(admin.ask("RL.STATS"), bytes), "Redis answers")
            after = hits(admin)
            assert after.get("failed_open") == sent
            assert after["admitted"] == before["admitted"]
            found = stats(admin)
            assert int(found["errors_late"]) + int(found["errors_unreachable"]) == sent


def test_counters_sum_all_workers_including_dead_ones(one_server: RedisServer) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--workers", "2")
    with started(*arguments, "--upstream", one_server.url) as front:
        port = front.port()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Raw(port)) for _ in range(6)]
            for number, client in enumerate(clients):
                for _ in range(number + 1):
                    client.ask("RL.HIT", f"workers:{number}", 2, 60)
            wait_until(  # by both workers, so what each has counted is published
                lambda: all(by_redis_or_not(each) == (11, 10) for each in clients),
                "both are counted",
            )
        victim = children(front.pid)[0]
        os.kill(victim, signal.SIGKILL)
        front.logged(r"worker \d \(process \d+\) serves")
        with Raw(port) as again:
            assert outcome_of(again.ask("RL.HIT", "again", 2, 60)) == "admitted"
            wait_until(lambda: by_redis_or_not(again) == (12, 10), "nothing is lost")
            assert stats(again)["workers"] == "2"


# -- as a command ----------------------------------------------------------------------------------


def test_stats_follows_rights_and_transactions(own_server: RedisServer) -> None:
    words = ("RL.TOP", 3)
    with harness.proxy(own_server) as front, own_server.raw() as admin, front.raw() as raw:
        assert not isinstance(raw.ask(*words), ReplyError)
        assert raw.ask("MULTI") == "OK"
        assert raw.ask(*words) == ReplyError("ERR RL.TOP is not allowed in transactions")
        assert str(raw.ask("EXEC")).startswith("EXECABORT")
        assert admin.ask("ACL", "SETUSER", "poor", "on", ">pw", "+ping", "~*") == "OK"
        assert raw.ask("AUTH", "poor", "pw") == "OK"
        assert str(raw.ask(*words)).startswith("NOPERM")
        assert admin.ask("ACL", "SETUSER", "default", "resetpass", ">x") == "OK"
        with front.raw() as stranger:
            assert str(stranger.ask(*words)).startswith("NOAUTH")


WRONG: list[tuple[tuple[str | int, ...], str]] = [
    (("RL.STATS", "all"), "ERR wrong number of arguments for 'rl.stats' command"),
    (("RL.TOP", 1001), "ERR value is not an integer or out of range: n is 1 to 1000"),
    (("RL.TOP", 1, "ADMITTED"), "ERR syntax error near 'ADMITTED'"),
]


def test_wrong_arguments_are_errors(front: Proxy) -> None:
    with front.raw() as raw:
        for words, error in WRONG:
            assert raw.ask(*words) == ReplyError(error)


def test_text_has_the_format_of_info(front: Proxy) -> None:
    """redis-py's own parser of INFO reads it."""
    with redis.Redis(port=front.port) as client:
        text = client.execute_command("RL.STATS").decode()
    sections = re.findall(r"^# (\w+)\r$", text, re.MULTILINE)
    assert sections == ["Server", "Hits", "Calls", "Traffic", "Upstream", "Errors"]
    parse: Any = redis._parsers.helpers.parse_info
    parsed = parse(text)
    assert parsed["hits"] == 0
    assert parsed["hits_log"]["admitted"] == 0


def test_every_field_is_documented(front: Proxy) -> None:
    page = (ROOT / "docs" / "commands.md").read_text().partition("## RL.STATS")[2]
    named = set(re.findall(r"`(\w+)`", re.sub(r"`hits_log` ... `hits_gcra`", "", page)))
    with front.raw() as raw:
        fields = {name for name in stats(raw) if not name.startswith("hits_")}
    assert fields <= named
    assert named - fields <= {"share", "private", "INFO", "upstream_nodes"}


def test_traffic_is_counted_on_both_sides(front: Proxy) -> None:
    """Bytes and commands, counted on both sides."""

    def count(found: dict[str, str], name: str) -> int:
        return int(found[name])

    with front.raw() as raw:
        before = stats(raw)
        value = "x" * 5000
        for number in range(10):
            raw.ask("SET", f"t:{number}", value)
            raw.ask("GET", f"t:{number}")
        after = stats(raw)
        assert count(after, "commands") - count(before, "commands") == 20
        sent = sum(
            len(command("SET", f"t:{number}", value)) + len(command("GET", f"t:{number}"))
            for number in range(10)
        )
        assert count(after, "bytes_in") - count(before, "bytes_in") == sent + len(
            command("RL.STATS")
        )
        assert after["clients"] == "1"
